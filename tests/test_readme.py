"""README.md against the code it describes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from hum_workers.program.cli import Exit, run
from hum_workers.vllm_worker.__main__ import WORKER
from tests.rig import ROOT

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_flag_stands_in_the_readme_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(WORKER, ["--help"])
    flags = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    section = README.split("## Command line")[1].split("\n| exit code")[0]
    told = set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE))
    assert told == flags


def test_every_exit_code_stands_in_the_readme() -> None:
    section = README.split("| exit code")[1].split("\n\n")[0]
    told = {
        int(code)
        for row in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE)
        for code in row.split(",")
    }
    assert told == {*Exit, 130, 143}


def test_the_egg_in_the_readme_is_the_example() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    assert tomllib.loads(block) == tomllib.loads((ROOT / "examples" / "smollm2.toml").read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


def test_every_make_target_that_is_named_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
