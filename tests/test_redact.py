from __future__ import annotations

import pytest

from hum_workers.egg.redact import is_secret, redact_args, redact_env


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "apikey", "db_password", "A_SECRET"]
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


def test_a_secret_variable_keeps_its_name_and_loses_its_value() -> None:
    env = {"HF_TOKEN": "hush", "HF_HOME": "/models"}
    assert redact_env(env) == {"HF_TOKEN": "***", "HF_HOME": "/models"}


def test_a_secret_flag_loses_its_value_in_both_forms() -> None:
    args = ["--hf-token", "hush", "--api_key=hush", "--seed", "7"]
    assert redact_args(args) == ["--hf-token", "***", "--api_key=***", "--seed", "7"]


def test_a_flag_that_counts_tokens_stays_readable() -> None:
    args = ["--max-num-batched-tokens", "2048", "--long-prefill-token-threshold=4"]
    assert redact_args(args)[:2] == args[:2]
