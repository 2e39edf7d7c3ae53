"""What is said at a slice's door."""

from __future__ import annotations

import msgspec
import pytest

from hum_workers.errors import FrameError
from hum_workers.llama_rpc_worker.facts import SliceState
from hum_workers.llama_rpc_worker.questions import (
    MOST_BYTES,
    Answer,
    Describe,
    Lines,
    Release,
    Renew,
    Take,
    answer_in,
    answer_to,
    line_of,
)
from tests.llama_rpc_worker.doors import Desk


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_a_slice_is_described_leased_renewed_and_released(desk: Desk) -> None:
    _, told = answer_to(line_of(Describe(id=1)), "ann", desk)
    assert told.facts == desk.facts()
    assert told.id == 1
    _, leased = answer_to(line_of(Take(id=2, layers=(0, 4), fingerprint="f00d")), "ann", desk)
    assert leased.token
    assert leased.facts is not None
    assert (leased.facts.state, leased.facts.holder) == (SliceState.LEASED, "ann")
    _, renewed = answer_to(line_of(Renew(id=3, token=leased.token)), "ann", desk)
    assert renewed.refused is None
    question, released = answer_to(line_of(Release(id=4, token=leased.token)), "ann", desk)
    assert question == Release(id=4, token=leased.token)
    assert released.facts is not None
    assert released.facts.state is SliceState.RECYCLING


async def test_a_refusal_bears_the_questions_id_and_a_sentence(desk: Desk) -> None:
    _, answer = answer_to(line_of(Renew(id=7, token="guess")), "ann", desk)
    assert answer == Answer(id=7, refused="the lease is over: nobody holds it")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1",
        b"[]",
        b'{"ask":"dance","id":1}',
        b'{"ask":"renew","id":1}',
        b'{"ask":"lease","id":1,"layers":[1],"fingerprint":"x"}',
        b"\xff\xfe",
        b"[" * 2000,
        b'{"id":1,"ask":"describe","x":' + b"[" * 60_000,
        b'{"ask":"describe","id":1' + b"0" * 5000 + b"}",
    ],
)
async def test_what_is_no_question_is_refused(line: bytes, desk: Desk) -> None:
    question, answer = answer_to(line, "ann", desk)
    assert question is None
    assert answer.id == 0
    assert str(answer.refused).startswith("the question can't be read: ")


async def test_a_later_version_may_say_more(desk: Desk) -> None:
    _, answer = answer_to(b'{"ask":"describe","id":1,"colour":"blue"}', "ann", desk)
    assert answer.facts
    told = msgspec.json.decode(line_of(answer))
    told["facts"]["colour"] = "blue"
    assert answer_in(msgspec.json.encode(told)) == answer


def test_an_answer_that_is_none_is_an_error() -> None:
    with pytest.raises(FrameError, match="is no answer"):
        answer_in(b"hello")


@pytest.mark.parametrize(
    "lie",
    [
        b'"memory":1' + b"0" * 4000,
        b'"memory":-1',
        b'"name":"' + b"x" * 50_000 + b'"',
        b'"layers":[0,99999999999999999999]',
        b'"x":' + b"[" * 30_000 + b"]" * 30_000,
    ],
)
async def test_figures_that_no_machine_has_are_no_answer(lie: bytes, desk: Desk) -> None:
    _, answer = answer_to(b'{"ask":"describe","id":1}', "ann", desk)
    key = lie.partition(b":")[0]
    told = msgspec.json.decode(line_of(answer))
    told["facts"].pop(key.decode().strip('"'), None)
    rest = msgspec.json.encode(told["facts"])
    line = b'{"id":1,"facts":{' + lie + b"," + rest[1:] + b"}"
    with pytest.raises(FrameError, match="is no answer"):
        answer_in(line)


def test_lines_come_whole_however_they_are_cut() -> None:
    text = b"one\ntwo\n\nfour\n"
    for size in range(1, len(text)):
        lines, found = Lines(), []
        for start in range(0, len(text), size):
            found += lines.feed(text[start : start + size])
        assert found == [b"one", b"two", b"", b"four"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_end_is_not_kept(end: bytes) -> None:
    lines = Lines()
    assert lines.feed(b"x" * MOST_BYTES) == []
    with pytest.raises(FrameError, match="65537 bytes or more, expected at most 65536"):
        lines.feed(b"x" + end)
