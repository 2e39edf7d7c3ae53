"""What the command line of llama-rpc-worker says before anything starts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from hum_workers.llama_rpc_worker.__main__ import WORKER
from tests.leftovers import assert_nothing_left
from tests.llama_rpc_worker.doors import unused_port
from tests.llama_rpc_worker.gguf_files import gguf, written
from tests.llama_rpc_worker.nursery import coordinator, lent
from tests.llama_rpc_worker.test_binaries import install
from tests.rig import LLAMA, WAIT, environment, worker


async def test_the_help_names_the_route_with_its_exit_code(short_dir: Path) -> None:
    code, out, _ = await worker(short_dir, "--help", program=LLAMA)
    assert code == 0
    assert "--egg-schema | --route | --version" in out
    assert "3 the route of --route or --prompt is not complete" in " ".join(out.split())


async def test_a_route_of_a_slices_egg_names_the_file(short_dir: Path) -> None:
    egg = lent(short_dir)
    code, _, err = await worker(short_dir, "--egg", egg.source, "--route", program=LLAMA)
    assert code == 2
    assert str(egg.source) in err


def test_the_shown_command_says_that_the_routes_flags_come_later(short_dir: Path) -> None:
    written(short_dir / "m.gguf", gguf())
    engine = f'[engine]\nbin = "{install(short_dir / "bin")}"\n'
    over = coordinator(short_dir, engine + "[[slices]]\ndiscover = true")
    assert "# the flags of the route" in WORKER.show(over, short_dir, {})
    alone = coordinator(short_dir, engine)
    assert "# the flags of the route" not in WORKER.show(alone, short_dir, {})


IMPATIENT = """
import sys
from hum_workers.llama_rpc_worker import patience
patience.WAIT = 0.3
from hum_workers.llama_rpc_worker.__main__ import main
main(sys.argv[1:])
"""


async def test_a_prompt_over_no_route_ends_soon_with_every_reason(short_dir: Path) -> None:
    written(short_dir / "m.gguf", gguf())
    hid, port = f"wbee_{'1' * 64}", unused_port()
    egg = coordinator(
        short_dir,
        f'[engine]\nbin = "{install(short_dir / "bin")}"\n'
        f'[[slices]]\nhid = "{hid}"\n[[slices]]\nendpoint = "127.0.0.1:{port}"\n',
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", IMPATIENT, "--egg", str(egg.source), "--prompt", "hi", "--quiet"),
        env=environment(short_dir),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT):
        out, err = await process.communicate()
    looked = await worker(short_dir, "--egg", egg.source, "--route", program=LLAMA)
    assert (process.returncode, out) == (3, b""), err
    lines = err.decode().splitlines()
    assert lines == [line for line in looked[1].splitlines() if line.startswith("incomplete: ")]
    for line, part in zip(lines, (f":{port}:", "humd is not there", hid), strict=True):
        assert part in line
    assert_nothing_left(short_dir)
