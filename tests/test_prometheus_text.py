"""The Prometheus text format, version 0.0.4."""

from __future__ import annotations

from hum_workers.tender.prometheus_text import gauges

TEXT = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b}\\"{"} 2.0
vllm:num_requests_running{engine="1",model_name="c"} 3 1796121043000
vllm:num_requests_waiting_by_reason{reason="capacity"} 7
vllm:num_requests_waiting 1e3
vllm:iteration_tokens_total_count{engine="0"} 19.0 # {trace="x"} 5
vllm:iteration_tokens_total_bucket{le="+Inf"} 20
odd{a="unended} 5
infinite +Inf
words many
"""


def test_a_named_value_is_summed_over_its_labels() -> None:
    names = ["vllm:num_requests_running", "vllm:iteration_tokens_total_count"]
    assert gauges(TEXT, names) == dict(zip(names, [5.0, 19.0], strict=True))


def test_a_longer_name_is_another_metric() -> None:
    assert gauges(TEXT, ["vllm:num_requests_waiting"]) == {"vllm:num_requests_waiting": 1000.0}
    assert gauges(TEXT, ["vllm:num_requests"]) == {}


def test_the_first_line_counts() -> None:
    assert gauges(b"a 1\nb 2", ["a", "b"]) == {"a": 1.0, "b": 2.0}


def test_what_is_missing_or_unreadable_is_left_out() -> None:
    assert gauges(TEXT, ["none", "odd", "words", "infinite"]) == {"infinite": float("inf")}
    assert gauges(b"", ["a"]) == {}
    assert gauges(b"\xff\n\x00{", ["a"]) == {}
