"""What `--check` says of a coordinator's model: its header, the egg's layers, context, template."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hum_workers.errors import one_line
from hum_workers.llama_rpc_worker import route_checks
from hum_workers.llama_rpc_worker.facts import Layers, ModelFacts
from hum_workers.llama_rpc_worker.model_match import rounded
from hum_workers.program.findings import Finding

if TYPE_CHECKING:
    from hum_workers.llama_rpc_worker.egg import LlamaEgg

LARGEST_TEMPLATE = 1 << 20
"""Bytes; llama.cpp's own are below 20 kB."""


def layer_faults(egg: LlamaEgg, model: ModelFacts) -> Iterator[str]:
    """Yields what can't be of the blocks that an egg gives its slices and itself."""
    count = len(model.layers)
    local = egg.split.local or (0, 0)
    yield from route_checks.local_faults(model, local)
    if egg.split.policy != "declared" or not egg.slices:
        return
    beyond = False
    held: list[tuple[str, Layers]] = [("the coordinator", local)]
    for index, entry in enumerate(egg.slices):
        if entry.layers is None:
            continue
        held.append((f"slices[{index}]", entry.layers))
        if entry.layers[1] > count:
            beyond = True
            first, end = entry.layers
            yield (
                f"[[slices]] layers {first}:{end} of slices[{index}] go beyond the model, which "
                f"has 0:{count}"
            )
    # Layers that a slice's own egg gives it are known at its door only.
    if not beyond and local[1] <= count and all(one.layers for one in egg.slices):
        for gap in route_checks.uncovered(held, count):
            yield f"[[slices]] {gap}"


def context_warnings(egg: LlamaEgg, model: ModelFacts) -> Iterator[str]:
    """Yields what of the context is likely to disappoint."""
    ctx = egg.model.ctx
    if ctx > model.context:
        yield f"[model] ctx is {ctx}, and it was trained for {model.context} tokens"
    if rounded(ctx) != ctx:
        yield f"[model] ctx is {ctx}; llama-server rounds that up and uses {rounded(ctx)} a turn"


def check_template(egg: LlamaEgg, subject: str) -> Iterator[Finding]:
    """Yields whether the egg's chat template can be read as one.

    llama.cpp has an engine of its own, so only what no engine can read is an error.
    """
    template = egg.model.chat_template
    if template is None:
        return
    where = "[model] chat_template"
    if "{" not in template:
        where += f": {template}"
        try:
            with Path(template).open("rb") as file:
                template = file.read(LARGEST_TEMPLATE).decode()
        except OSError as error:
            yield Finding("error", subject, f"{where} can't be read: {error.strerror}")
            return
        except UnicodeDecodeError:
            yield Finding("error", subject, f"{where} is no UTF-8 text; name a chat template")
            return
    if find_spec("jinja2") is None:
        yield Finding("ok", subject, f"{where} is not checked: jinja2 is not installed here")
        return
    yield _parsed(template, where, subject)


def _parsed(template: str, where: str, subject: str) -> Finding:
    from jinja2 import Environment, TemplateSyntaxError

    reader = Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"])
    try:
        reader.parse(template)
    except TemplateSyntaxError as error:
        text = one_line(f"{where} can't be read at its line {error.lineno}: {error.message}")
        if "unknown tag" in (error.message or ""):
            return Finding("warning", subject, f"{text} It may be one of llama.cpp's own.")
        return Finding("error", subject, text)
    return Finding("ok", subject, f"{where} can be read as a template")
