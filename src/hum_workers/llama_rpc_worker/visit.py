"""One connection to a slice's door: greeted, proven both ways, asked.

Owns the connection and its one session of questions. Every wait has a deadline, and a failure is
one sentence that says what to do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Self

import asyncssh

from hum_workers.errors import FrameError, SliceError, SliceProblem
from hum_workers.llama_rpc_worker import ssh
from hum_workers.llama_rpc_worker.questions import (
    STOPPED,
    SUBSYSTEM,
    VERSION,
    Answer,
    Question,
    line_of,
)
from hum_workers.llama_rpc_worker.session import Session
from hum_workers.llama_rpc_worker.stream import End
from hum_workers.llama_rpc_worker.trust import Trust
from hum_workers.thrum.identity import hid_of

GREETING_TIME = 2.0
"""Seconds until the door has proven its key."""
PROOF_TIME = 5.0
"""Seconds until this bee is let in, all together."""
ANSWER_TIME = 2.0
"""Seconds for an answer, where the asker does not say."""
STREAM_TIME = 5.0
"""Seconds for a stream; longer than the door gives its own connection to rpc-server."""


class Visit:
    """A proven connection. Made by `arrive`."""

    def __init__(self, endpoint: str, guest: _Guest, connection: asyncssh.SSHClientConnection):
        self.endpoint = endpoint
        self._guest = guest
        self._connection = connection
        self._session: Session | None = None
        self._last = 0

    @classmethod
    async def arrive(
        cls,
        seed: bytes,
        address: tuple[str, int],
        hid: str | None,
        trust: Trust,
        gone: Callable[[], None],
        stopped: Callable[[], None] = lambda: None,
    ) -> Self:
        """Connects, proves both sides and opens the session.

        `gone` is called when it is lost, `stopped` before that when the slice is being stopped.

        Raises:
            SliceError: one of them failed.
        """
        host, port = address
        endpoint = f"{host}:{port}"
        guest = _Guest(endpoint, hid, trust)
        ssh.name_the_user()
        try:
            async with asyncio.timeout(GREETING_TIME) as limit:
                guest.more_time = lambda: limit.reschedule(
                    asyncio.get_running_loop().time() + PROOF_TIME - GREETING_TIME
                )
                connection = await asyncssh.connect(
                    host,
                    port,
                    client_factory=lambda: guest,
                    client_version=VERSION,
                    client_keys=[ssh.key_of(seed)],
                    username=SUBSYSTEM,
                    # An empty file of known hosts would mean the user's own.
                    known_hosts=([], [], []),
                    server_host_key_algs=[ssh.ALGORITHM],
                    preferred_auth=["publickey"],
                    disable_trivial_auth=True,
                    agent_path=None,
                    **ssh.narrowed(),
                )
                visit = cls(endpoint, guest, connection)
                try:
                    await visit._open()
                except BaseException:  # a cancel must not leave the connection open
                    connection.abort()
                    raise
        except Exception as error:  # of any class: of what the library, or a lookup, can't read
            raise guest.explained(error, hid_of(seed)) from error
        if guest.lost or guest.version != VERSION:
            connection.abort()
            raise guest.explained(ConnectionError("connection lost"), hid_of(seed))
        guest.gone, guest.stopped = gone, stopped
        return visit

    @property
    def hid(self) -> str:
        """Whose door it is, proven."""
        assert self._guest.hid is not None
        return self._guest.hid

    async def ask(
        self, question: Callable[[int], Question], patience: float | None = None
    ) -> Answer:
        """Asks, with an id of its own, and returns the answer within `patience` seconds.

        A silent connection is left as it is: its keepalives tell a dead one from a slow one, and
        streams may hang on it.

        Raises:
            SliceError: the slice refuses, or the connection is lost or silent.
        """
        assert self._session is not None
        patience = ANSWER_TIME if patience is None else patience
        self._last += 1
        try:
            async with asyncio.timeout(patience):
                answer = await self._session.ask(self._last, line_of(question(self._last)))
        except TimeoutError:
            raise SliceError(
                SliceProblem.UNREACHABLE,
                f"the slice at {self.endpoint} has not answered for {patience:g} s: "
                "look at its bee's log and at the link",
            ) from None
        except FrameError as error:
            raise SliceError(
                SliceProblem.LOST,
                f"the slice at {self.endpoint} can't be understood: {error}; install the same "
                "hum-workers on both sides",
            ) from None
        except ConnectionError:
            raise SliceError(
                SliceProblem.LOST, f"the connection to the slice at {self.endpoint} was lost"
            ) from None
        if answer.refused is not None:
            raise SliceError(
                SliceProblem.REFUSED, f"the slice at {self.endpoint} refuses: {answer.refused}"
            )
        return answer

    async def stream(self, token: str, near: End) -> None:
        """Joins a socket's end with rpc-server.

        Raises:
            SliceError: the door refuses, or the connection is lost.
        """
        opening = asyncio.ensure_future(
            self._connection.create_connection(
                _Far, token, 0, window=ssh.WINDOW_BYTES, max_pktsize=ssh.PACKET_BYTES
            )
        )
        try:
            async with asyncio.timeout(STREAM_TIME):
                _, far = await asyncio.shield(opening)
        except (asyncssh.Error, TimeoutError) as error:
            raise SliceError(
                SliceProblem.REFUSED,
                f"the slice at {self.endpoint} opens no stream: {error or 'no answer'}",
            ) from None
        finally:
            if not opening.done():
                opening.add_done_callback(_drop)
        assert isinstance(far, _Far)
        near.join(far)

    async def leave(self) -> None:
        """Closes the connection."""
        self._guest.gone = self._guest.stopped = lambda: None
        self._connection.abort()
        await self._connection.wait_closed()

    async def _open(self) -> None:
        _, session = await self._connection.create_session(
            Session, subsystem=SUBSYSTEM, encoding=None, request_pty=False
        )
        assert isinstance(session, Session)
        self._session = session


class _Guest(asyncssh.SSHClient):
    """What the library asks while this bee knocks, and what became of it."""

    def __init__(self, endpoint: str, wanted: str | None, trust: Trust) -> None:
        self.hid: str | None = None
        self.gone: Callable[[], None] = lambda: None
        self.stopped: Callable[[], None] = lambda: None
        self.lost = False
        self.more_time: Callable[[], None] = lambda: None
        self._endpoint = endpoint
        self._wanted = wanted
        self._trust = trust
        self._connection: asyncssh.SSHClientConnection | None = None
        self._stranger: str | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.gone()

    def debug_msg_received(self, msg: str, lang: str, always_display: bool) -> None:
        if msg == STOPPED:
            self.stopped()

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        hid = ssh.hid_of_key(key)
        if self.hid is not None:  # new keys for an old connection, after REKEY_BYTES or an hour
            return hid == self.hid
        known = hid == self._wanted if self._wanted else hid is not None and self._trust.knows(hid)
        if not known:
            self._stranger = hid or "no bee"
            return False
        self.hid = hid
        self.more_time()
        return True

    def explained(self, error: BaseException, own: str) -> SliceError:
        """Makes what went wrong one sentence, with what to do."""
        at = self._endpoint
        if self._connection is None:
            why = _plain(error) or f"no connection within {GREETING_TIME:g} s"
            return SliceError(
                SliceProblem.UNREACHABLE,
                f"nobody is at the door {at}: {why}; start the slice's bee or mend the endpoint",
            )
        if self.version != VERSION:
            return SliceError(SliceProblem.NOT_A_DOOR, self._no_door())
        if self._stranger is not None:
            return SliceError(SliceProblem.UNKNOWN_KEY, self._unknown())
        if isinstance(error, asyncssh.PermissionDenied):
            return SliceError(
                SliceProblem.NOT_LET_IN,
                f"the slice at {at} does not let this bee in: add {own} to [rpc] coordinators "
                "in the slice's egg",
            )
        why = str(error) or "no answer in time"
        return SliceError(SliceProblem.LOST, f"the door {at} broke off the greeting: {why}")

    @property
    def version(self) -> str:
        """What the door named itself; empty: it has not yet."""
        if self._connection is None:
            return ""
        greeting: str = self._connection.get_extra_info("server_version") or ""
        return greeting.removeprefix("SSH-2.0-")

    def _no_door(self) -> str:
        at, version = self._endpoint, self.version
        if not version:
            return (
                f"what listens at {at} does not name itself: a slice's door that is busy with "
                "strangers, and is asked again, or it is no slice's door; then mend the endpoint"
            )
        if version.startswith(VERSION.rstrip("0123456789")):
            return (
                f"the door {at} is of another version, {version}, and this bee speaks {VERSION}: "
                "install the same hum-workers on both sides"
            )
        return f"what listens at {at} is no slice's door but {version}: mend the endpoint"

    def _unknown(self) -> str:
        at, found = self._endpoint, self._stranger
        if self._wanted:
            return (
                f"the door {at} is that of {found}, and the egg says {self._wanted}: "
                f"mend hid or endpoint in [[slices]]"
            )
        return (
            f"the door {at} is that of {found}, and not one of {self._trust}: "
            f'if it is the right one, say hid = "{found}" in its [[slices]]'
        )


class _Far(End, asyncssh.SSHTCPSession[bytes]):
    """The channel's end of a stream."""

    takes_turns = False


def _plain(error: BaseException) -> str:
    """Returns in a few words why there is no connection; empty: it took too long."""
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:  # below are those of names that can't be resolved
        return os.strerror(number)  # asyncio puts the address in its own, a second time
    return getattr(error, "strerror", None) or str(error)


def _drop(opening: asyncio.Task[Any]) -> None:
    """Closes a stream that came when nobody waited for it any more."""
    if not opening.cancelled() and opening.exception() is None:
        channel, _ = opening.result()
        channel.abort()
