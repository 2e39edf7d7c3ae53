"""What is said at a slice's door, beside the bytes to rpc-server (pure).

One JSON object a line each way, at most `MOST_BYTES` long; an answer bears its question's id.
Whoever asks is proven by key before the first byte, so that no question says who asks.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from hum_workers.errors import FrameError
from hum_workers.llama_rpc_worker.facts import Layers, SliceFacts
from hum_workers.llama_rpc_worker.lease import LeaseRefused

VERSION = "hum_slice_1"
"""What both sides name themselves in their greeting; another one is refused by that name."""
SUBSYSTEM = "hum-slice"
STOPPED = "the slice was stopped"
"""A door's last word to who holds the slice, as a message beside the questions: whoever hears it
before the streams break knows that nothing has failed."""
MOST_BYTES = 64 * 1024
"""Of one line."""


class Describe(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="describe"):
    """What are you? Answered with facts."""

    id: int


class Take(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="lease"):
    """May I have you? Answered with a token and facts."""

    id: int
    layers: Layers
    fingerprint: str
    life: str = ""
    """Which run of the asker's bee it is."""


class Renew(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="renew"):
    """I still want you. Answered with facts."""

    id: int
    token: str


class Release(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="release"):
    """I am done. Answered with facts."""

    id: int
    token: str


Question = Describe | Take | Renew | Release


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Either `refused` is a sentence, or `facts` are there."""

    id: int
    """0: the question could not be read."""
    facts: SliceFacts | None = None
    token: str | None = None
    refused: str | None = None


class SliceDesk(Protocol):
    """Who answers for the slice. `holder` is the proven hid of the asker; no method waits.

    Where a lease ends without a question (time, a dead process), the desk's owner also calls
    `Door.end_streams`.
    """

    def facts(self) -> SliceFacts:
        """Says what the slice is now."""
        ...

    def lease(self, holder: str, layers: Layers, fingerprint: str, life: str) -> str:
        """Leases the slice and returns the token.

        Raises:
            LeaseRefused: it can't be had.
        """
        ...

    def renew(self, holder: str, token: str) -> None:
        """Keeps the lease.

        Raises:
            LeaseRefused: it is not, or no longer, this holder's.
        """
        ...

    def release(self, holder: str, token: str) -> None:
        """Ends the lease.

        Raises:
            LeaseRefused: it is not, or no longer, this holder's.
        """
        ...

    def address(self, holder: str, token: str) -> tuple[str, int]:
        """Returns where rpc-server listens, for one connection.

        Raises:
            LeaseRefused: the lease is not, or no longer, this holder's.
        """
        ...


_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)
_encoder = msgspec.json.Encoder()
_UNREADABLE = msgspec.MsgspecError, ValueError, RecursionError
"""What the decoder raises: for what is deeply nested, no error of its own."""


def line_of(message: Question | Answer) -> bytes:
    """Returns the message as one line."""
    return _encoder.encode(message) + b"\n"


def answer_in(line: bytes) -> Answer:
    """Reads an answer.

    Raises:
        FrameError: it is none.
    """
    try:
        return _answers.decode(line)
    except _UNREADABLE as error:
        raise FrameError(f"a line at the door is no answer: {error}") from None


def answer_to(line: bytes, holder: str, desk: SliceDesk) -> tuple[Question | None, Answer]:
    """Has the desk answer one line; None for the question: it could not be read."""
    try:
        question = _questions.decode(line)
    except _UNREADABLE as error:
        return None, Answer(id=0, refused=f"the question can't be read: {error}")
    token = None
    try:
        match question:
            case Take():
                token = desk.lease(holder, question.layers, question.fingerprint, question.life)
            case Renew():
                desk.renew(holder, question.token)
            case Release():
                desk.release(holder, question.token)
    except LeaseRefused as refusal:
        return question, Answer(id=question.id, refused=str(refusal))
    return question, Answer(id=question.id, facts=desk.facts(), token=token)


class Lines:
    """Cuts what comes in into lines; holds at most one line that is not complete."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that are complete now, without their ends.

        Raises:
            FrameError: a line is longer than `MOST_BYTES`; nothing after it can be read.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        longest = max(map(len, [*lines, self._rest]))
        if longest > MOST_BYTES:
            raise FrameError(f"a line of {longest} bytes or more, expected at most {MOST_BYTES}")
        return lines
