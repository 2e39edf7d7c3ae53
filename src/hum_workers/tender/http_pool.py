"""Connections to one engine's Unix socket, and calls that find one.

A pool owns its connections and the tasks that open them. A call is sent a second time only when a
kept connection had closed before one byte of answer came.
"""

from __future__ import annotations

import asyncio

from hum_workers.tender.http1 import Connection

IDLE_KEPT = 4.0
"""Seconds a free connection is used again; uvicorn closes it after 5 by default."""

RACE = 1.0
"""Seconds within which a kept connection's end means it was closed before our request."""

_MAX_FREE = 64
_CONNECT_PAUSE = 0.01
_CLOSED = "the connection to the engine was closed"


class Pool:
    """Connections to one Unix socket."""

    def __init__(self, uds: str, connect_timeout: float) -> None:
        self.uds = uds
        self._connect_timeout = connect_timeout
        self._free: list[Connection] = []
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Closes every connection; calls that are open fail."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in tuple(self._connections):
            connection.end(ConnectionAbortedError(_CLOSED))
        for _ in range(8):  # a transport reports its end a turn of the loop later
            await asyncio.sleep(0)

    def take_free(self) -> Connection | None:
        """Returns a kept connection, if one is young enough."""
        oldest = asyncio.get_running_loop().time() - IDLE_KEPT
        while self._free:
            connection = self._free.pop()
            if connection.alive and connection.free_since > oldest:
                return connection
            connection.abort()
        return None

    def open_for(self, call: Call) -> asyncio.Task[None]:
        """Opens a new connection for `call` in a task that this object owns."""
        task = asyncio.get_running_loop().create_task(self._open(call))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # Here and not in the task: one that is cancelled before it starts never runs.
            if task.cancelled():
                call.failed(ConnectionAbortedError(_CLOSED), answered=False)

        task.add_done_callback(ended)
        return task

    def free(self, connection: Connection) -> None:
        """Keeps `connection` for the next call."""
        connection.free_since = asyncio.get_running_loop().time()
        self._free.append(connection)
        if len(self._free) > _MAX_FREE:
            self._free.pop(0).abort()

    async def _open(self, call: Call) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._connect()
        except OSError as error:
            call.failed(error, answered=False)
        else:
            call.begin(connection)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, connection = await loop.create_unix_connection(
                    lambda: Connection(self.free, self._lost), self.uds
                )
            except BlockingIOError:
                # The engine's accept queue is full: a Unix socket says EAGAIN instead of waiting.
                await asyncio.sleep(_CONNECT_PAUSE)
                continue
            if not connection.alive:
                raise ConnectionResetError("the engine closed the new connection")
            self._connections.add(connection)
            return connection

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._free:
            self._free.remove(connection)


class Call:
    """One request on its way: finds a connection, and a second one if the first had just closed."""

    def __init__(self, pool: Pool, head: bytes, body: bytes) -> None:
        self.pool = pool
        self._request: tuple[bytes, bytes] | None = (head, body)
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._sent_at = 0.0
        self._paused = False
        self._over = False
        kept = pool.take_free()
        if kept is not None:
            self.begin(kept)
        else:
            self._opening = pool.open_for(self)

    def begin(self, connection: Connection) -> None:
        """Sends the request on `connection`."""
        self._opening = None
        if self._over or self._request is None:
            self.pool.free(connection)
            return
        self._connection = connection
        self._sent_at = asyncio.get_running_loop().time()
        connection.begin(self, *self._request)
        if self._paused:
            connection.pause()

    def close(self) -> None:
        """Ends the call now; an answer that is not whole costs its connection."""
        self._over = True
        if self._opening is not None:
            self._opening.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def head(self, status: int, content_type: bytes) -> None:
        self._request = None

    def body(self, data: bytes) -> None:
        raise NotImplementedError

    def complete(self) -> None:
        self._connection = None
        self._over = True

    def failed(self, error: OSError, answered: bool) -> None:
        connection, self._connection, self._opening = self._connection, None, None
        if self._over:
            return
        raced = (
            connection is not None
            and connection.reused
            and not answered
            and not isinstance(error, ConnectionAbortedError)
            and asyncio.get_running_loop().time() - self._sent_at < RACE
        )
        if raced:
            self._opening = self.pool.open_for(self)
            return
        self._over = True
        self.broke(error, answered)

    def broke(self, error: OSError, answered: bool) -> None:
        raise NotImplementedError
