"""HTTP/1.1 of the engine: routes, keep-alive, streams that end with their client."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

import httptools

from vllm.scripted.engine import Engine, Sequence
from vllm.scripted.events import Answer
from vllm.scripted.faults import Faults
from vllm.scripted.plan import Plan, Refusal, plan

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Site:
    """What every connection shares."""

    def __init__(self, engine: Engine, faults: Faults, options: Any) -> None:
        self.engine = engine
        self.faults = faults
        self.keys: list[str] = options.api_key or []
        self.max_len: int = options.max_model_len or 1_000_000
        self.tools = bool(options.enable_auto_tool_choice and options.tool_call_parser)
        self.details = bool(options.enable_prompt_tokens_details)
        self.root: str = options.model or ""
        self.keep_alive = float(faults.wishes.get("keep_alive", 5.0))
        self.connections: set[Connection] = set()
        self.idle = asyncio.Event()
        """Set when no answer is open."""
        self.idle.set()
        self.served = 0
        # One id for all, so that equal answers are built once; a request id of the client wins.
        self.ident = f"chatcmpl-{secrets.token_hex(8)}"
        self.created = int(time.time())

    def models(self) -> dict[str, Any]:
        """Returns the answer of /v1/models."""
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self.created,
                "owned_by": "vllm",
                "root": self.root,
                "parent": None,
                "max_model_len": self.max_len,
                "permission": [],
            }
            for name in self.engine.models
        ]
        return {"object": "list", "data": cards}

    def check_idle(self) -> None:
        """Notes whether any answer is open."""
        if any(connection.busy for connection in self.connections):
            self.idle.clear()
        else:
            self.idle.set()

    def close_idle(self) -> None:
        """Closes the connections that wait for a request."""
        for connection in tuple(self.connections):
            if not connection.busy:
                connection.abort()


class Connection(asyncio.Protocol):
    """One client; also the Writer of its sequence."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.paused = False
        self.busy = False
        self._sequence: Sequence | None = None
        self._keep = True
        self._plain = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._site.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._site.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._sequence is not None:
            self._sequence.cancel()
            self._sequence = None
        self.busy = False
        self._site.check_idle()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._sequence is not None:
            self._sequence.writable()

    def on_message_begin(self) -> None:
        self._path = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.busy = True
        self._site.idle.clear()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._keep = self._parser.should_keep_alive()
        method = self._parser.get_method().decode()
        path = self._path.decode("latin-1").partition("?")[0]
        try:
            self._route(method, path, b"".join(self._body))
        except Refusal as refusal:
            self.finish(refusal.body(), status=refusal.status)

    def _route(self, method: str, path: str, body: bytes) -> None:
        site = self._site
        name = path.rsplit("/", 1)[-1]
        if site.faults.hang_at == {"completions": "chat"}.get(name, name):
            return
        if path.startswith("/v1/") and site.keys and not self._allowed():
            self._json({"error": "Unauthorized"}, 401)
        elif path in ("/health", "/ping"):
            self.finish(b"", status=503 if site.engine.dead else 200)
        elif path == "/version":
            self._json({"version": "0.32.0"})
        elif path == "/load":
            self._json({"server_load": len(site.engine.running)})
        elif path == "/metrics":
            self.finish(site.engine.metrics(), kind=b"text/plain; version=1.0.0; charset=utf-8")
        elif path == "/v1/models":
            self._json(site.models())
        elif path != "/v1/chat/completions":
            self._json({"detail": "Not Found"}, 404)
        elif method != "POST":
            self._json({"detail": "Method Not Allowed"}, 405)
        else:
            self._chat(body)

    def _allowed(self) -> bool:
        given = self._headers.get(b"authorization", b"").decode("latin-1")
        return any(given == f"Bearer {key}" for key in self._site.keys)

    def _chat(self, body: bytes) -> None:
        site = self._site
        site.served += 1
        if site.served > site.faults.wishes.get("refuse_after", site.served):
            raise Refusal(503, "The request queue is full", "ServiceUnavailableError")
        try:
            request = json.loads(body)
        except ValueError as error:
            raise Refusal(
                400,
                "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.0', "
                "'msg': 'JSON decode error', 'ctx': {'error': 'Expecting value'}}",
                "Bad Request",
            ) from error
        made = plan(
            request,
            models=site.engine.models,
            max_len=site.max_len,
            tools=site.tools,
            default=site.faults.request,
            takes=site.faults.wishes.get("media", []),
        )
        if made.fake.garbage in ("http", "head"):
            self._lie(made.fake.garbage)
            return
        given = self._headers.get(b"x-request-id", b"").decode("latin-1")
        ident = f"chatcmpl-{given}" if given else site.ident
        answer = Answer(made, ident, site.created, details=site.details)
        self._sequence = Sequence(site.engine, made, answer, self)
        site.engine.admit(self._sequence)

    def _lie(self, kind: str) -> None:
        if kind == "http":
            self._transport.write(b"SSH-2.0-not-http\r\n" * 4)
            return
        self._transport.write(b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"y" * 300_000)

    def begin(self, made: Plan) -> None:
        """Sends the head of a stream."""
        self._plain = made.fake.plain
        length = b"connection: close\r\n" if self._plain else b"transfer-encoding: chunked\r\n"
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n"
            b"content-type: text/event-stream; charset=utf-8\r\n" + length + b"\r\n"
        )

    def write(self, data: bytes) -> None:
        """Sends bytes of a stream."""
        self._transport.write(data)

    def finish(
        self, body: bytes | None = None, *, status: int = 200, kind: bytes = b"application/json"
    ) -> None:
        """Ends the answer; with `body` it is the whole answer."""
        self._sequence = None
        if body is not None:
            type_line = b"content-type: %b\r\n" % kind if body else b""
            self._transport.write(
                b"HTTP/1.1 %d %b\r\nserver: uvicorn\r\ncontent-length: %d\r\n%b\r\n"
                % (status, _PHRASES.get(status, "Other").encode(), len(body), type_line)
                + body
            )
        self.busy = False
        if self._plain or not self._keep or self._site.engine.draining:
            self._transport.close()
        else:
            self._timer = self._loop.call_later(self._site.keep_alive, self._transport.close)
        self._site.check_idle()

    def abort(self) -> None:
        """Breaks the connection."""
        self._transport.close()

    def _json(self, value: Any, status: int = 200) -> None:
        self.finish(json.dumps(value, separators=(",", ":")).encode(), status=status)
