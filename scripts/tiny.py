"""A weightless model for tests: a 4-layer, 8-head Llama for `--load-format dummy`.

Owns `.cache/tiny`: a `config.json` and the tokenizer of `.cache/smollm2`. The engine fills it with
random weights, so that a real cell stands in half a minute and answers hundreds of tokens a second,
all of them nonsense.

    python -m scripts.tiny [--to FOLDER]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from scripts import smollm2

TARGET = smollm2.TARGET.with_name("tiny")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 49152,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


def make(target: Path, tokenizer: Path = smollm2.TARGET) -> None:
    """Writes the model to `target`, with the tokenizer files of the folder `tokenizer`.

    Raises:
        FileNotFoundError: the tokenizer is not there.
    """
    work = target.with_name(f".{target.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        for name in TOKENIZER:
            shutil.copyfile(tokenizer / name, work / name)
        (work / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    """Returns 0 with the model in place, 1 with one line on stderr."""
    parser = argparse.ArgumentParser(prog="tiny", description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, default=TARGET, metavar="FOLDER", help="where to")
    target: Path = parser.parse_args().to.resolve()
    try:
        make(target)
    except OSError as error:
        print(f"tiny: {error}; is `.cache/smollm2` there (`make model`)?", file=sys.stderr)
        return 1
    print(f"the model is in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
