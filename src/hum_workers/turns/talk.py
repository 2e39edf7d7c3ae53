"""A conversation between two requests to the engine (pure): what was asked, and the open step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hum_workers.media.pollen import Pollen
from hum_workers.tools.step import Step
from hum_workers.turns.prompt import Prompt
from hum_workers.turns.sampling import Choice

AUTO = Choice("auto")


@dataclass(frozen=True, kw_only=True)
class Talk:
    """What the engine is asked next, or what an asker's result goes on with."""

    prompt: Prompt
    step: Step | None = None
    """The step whose tools run; None when the engine is to be asked."""
    words: tuple[dict[str, Any], ...] = ()
    """What the asker said beside a result; it comes after all results of the step."""
    cell_id: str = ""
    """The cell that answered last."""
    size: int = 0
    """Bytes of the last request and of all that has come since."""

    def stepped(self, step: Step, *, cell_id: str, request: int) -> Talk:
        """Returns the conversation within a step; `request` is the bytes of what was asked."""
        said = (step.text, step.reasoning, *(f"{call.name}{call.args}" for call in step.calls))
        size = request + sum(map(_bytes, said))
        return replace(self, step=step, cell_id=cell_id, size=size)

    def answered(self, results: Mapping[str, str]) -> Talk:
        """Returns the conversation with results of its step."""
        if self.step is None:
            return self
        more = sum(map(_bytes, results.values()))
        return replace(self, step=self.step.answered(results), size=self.size + more)

    def told(self, messages: Sequence[Mapping[str, Any]], media: Sequence[Pollen] = ()) -> Talk:
        """Returns the conversation with what the asker said beside a result."""
        words = tuple(dict(m) for m in messages if m.get("role") not in ("system", "developer"))
        prompt = replace(self.prompt, media=(*self.prompt.media, *media))
        size = self.size + sum(_bytes(str(word)) for word in words)
        return replace(self, prompt=prompt, words=(*self.words, *words), size=size)

    def closed(self) -> Talk:
        """Returns the conversation with its step in it, for the next request.

        A call that had to come has come: from here on the model chooses.
        """
        if self.step is None:
            return self
        sampling = self.prompt.sampling
        if self.step.sound and sampling.choice is not None:
            sampling = replace(sampling, choice=AUTO)
        messages = [*self.prompt.messages, *self.step.messages(), *self.words]
        prompt = replace(self.prompt, messages=messages, sampling=sampling)
        return replace(self, prompt=prompt, step=None, words=())


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
