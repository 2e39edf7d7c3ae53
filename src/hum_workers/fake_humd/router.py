"""Who hears a tone: echoes, claims, manifests and routes of one humd, as its transcripts show them.

Pure: a tone goes in with the seat that sent it, lines come out through the ports of the seats that
hear it. Holds nothing that outlives the humd it plays: a restart is a new router.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from hum_workers.fake_humd.manifest import Manifest, manifest
from hum_workers.fake_humd.wire import Tone, encode, sigil

THRUM_VERSION = "0.7.0"
DEFAULT_MODEL = "sonnet"

_FANNED_OUT = frozenset(
    {"chunk", "finish", "error", "tool-call", "tool-info", "session-ready", "pulse"}
)
_REPLACED_BY = {"fs": ("Bash", "Edit", "Glob", "Grep", "MultiEdit", "Read", "Write")}
"""Tools of the agent's own that humd forbids once a forager provides the capability."""


class Port(Protocol):
    """Where lines for one client go; never blocks, may drop."""

    def offer(self, line: bytes) -> None: ...


class Seat:
    """One client as humd sees it."""

    def __init__(self, client: str, port: Port) -> None:
        self.client = client
        self.port = port
        self.manifest: Manifest | None = None
        self.sids: set[str] = set()
        """Conversations this client has claimed, by a prompt, a tool-call or an attach."""
        self.is_worker = False
        self.is_forager = False

    @property
    def name(self) -> str:
        """The hive of the client, empty before its hello."""
        return str(self.manifest["name"]) if self.manifest else ""


class Router:
    """The state of one humd between its start and its end."""

    def __init__(
        self,
        *,
        home: str,
        manifests_changed: Callable[[], None] = lambda: None,
        now_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self.seats: dict[str, Seat] = {}
        self._home = home
        self._manifests_changed = manifests_changed
        self._now_ms = now_ms
        self._claims: dict[str, dict[str, Seat]] = {}
        self._routes: dict[str, Seat] = {}
        self._handlers: dict[str, Callable[[Seat, Tone], None]] = {
            "hello": self._hello,
            "prompt": self._prompt,
            "cancel": self._to_workers,
            "cleanup": self._to_workers,
            "attach": self._attach,
            "tool-call": self._tool_call,
            "tool-result": self._tool_result,
            "error": self._error,
        }

    def open(self, client: str, port: Port) -> Seat:
        """A client has connected: it is breathed at and may speak."""
        seat = self.seats[client] = Seat(client, port)
        port.offer(_breath([]))
        return seat

    def close(self, seat: Seat) -> None:
        """A client has gone: its manifest, claims and routes go with it."""
        if self.seats.pop(seat.client, None) is None:
            return
        for sid in seat.sids:
            claimants = self._claims[sid]
            del claimants[seat.client]
            if not claimants:
                del self._claims[sid]
        self._routes = {call: to for call, to in self._routes.items() if to is not seat}
        if seat.manifest is not None:
            self._keep(seat, None)

    def hear(self, seat: Seat, tone: Tone) -> None:
        """Routes one tone of this seat."""
        chi = tone["chi"]
        rid = tone.get("rid")
        if type(rid) is not str or chi in ("echo", "log"):
            rid = None
        dusk = tone.get("dusk")
        if type(dusk) is int and dusk >= 0 and self._now_ms() > dusk:
            if rid is not None:
                late = {"chi": "echo", "error": "past dusk", "ok": False, "rid": rid}
                seat.port.offer(encode(late))
            return
        if rid is not None:
            seat.port.offer(_echo(rid))
        if seat.is_worker and chi in _FANNED_OUT:
            self._reply(seat, tone, chi)
        elif handler := self._handlers.get(chi):
            handler(seat, tone)

    def _reply(self, seat: Seat, tone: Tone, chi: str) -> None:
        if chi == "tool-call" and self._called_forager(seat, tone):
            return
        sid = tone.get("sid")
        if type(sid) is str:
            self._fan_out(sid, tone)
        elif chi == "error":
            self._error(seat, tone)

    def _fan_out(self, sid: str, tone: Tone) -> None:
        tone["from"] = "daemon"
        tone.setdefault("sid", sid)
        tone.setdefault("sigil", sigil(sid))
        line = encode(tone)
        claimants = self._claims.get(sid)
        if claimants:
            for seat in claimants.values():
                seat.port.offer(line)
            return
        for seat in self.seats.values():
            if not seat.sids:
                seat.port.offer(line)

    def _hello(self, seat: Seat, hello: Tone) -> None:
        seat.port.offer(_breath({}))
        kept = manifest(hello, seat.client)
        if kept is None:
            return
        hid = kept.get("hid")
        for other in self.seats.values():
            if hid and other is not seat and other.manifest and other.manifest.get("hid") == hid:
                self._keep(other, None)
        self._keep(seat, kept)

    def _keep(self, seat: Seat, kept: Manifest | None) -> None:
        seat.manifest = kept
        roles = kept.get("bee", ()) if kept else ()
        seat.is_worker, seat.is_forager = "worker" in roles, "forager" in roles
        self._manifests_changed()

    def _prompt(self, seat: Seat, tone: Tone) -> None:
        sid = tone.get("sid")
        if type(sid) is not str or not sid:
            return
        if type(rid := tone.get("rid")) is str:
            seat.port.offer(_echo(rid))
        self._claim(seat, sid)
        model = tone.get("modelId")
        model = model if type(model) is str else DEFAULT_MODEL
        for worker in self._sorted():
            if worker.is_worker and worker.manifest and model in worker.manifest.get("models", ()):
                self._complete(tone)
                worker.port.offer(encode(tone))
                return
        message = f"no worker bee advertises model '{model}'"
        self._fan_out(sid, {"chi": "error", "sid": sid, "message": message})

    def _complete(self, prompt: Tone) -> None:
        """Adds to a prompt what humd adds."""
        texts = (prompt.get(key) for key in ("text", "content"))
        text = next((value for value in texts if type(value) is str), "")
        if "cwd" not in prompt:
            prompt["cwd"] = self._home
        if "content" not in prompt and text:
            prompt["content"] = text
        foragers = [s.manifest for s in self._sorted() if s.is_forager and s.manifest]
        if tools := [tool for kept in foragers for tool in kept.get("tools", ())]:
            prompt["foragerTools"] = tools
        if provided := sorted({tag for kept in foragers for tag in kept.get("provides", ())}):
            prompt["provided"] = provided
        given = prompt.get("disallowedTools")
        disallowed = {t for t in given if type(t) is str} if type(given) is list else set()
        disallowed.update(*(_REPLACED_BY.get(tag, ()) for tag in provided))
        if disallowed:
            prompt["disallowedTools"] = sorted(disallowed)

    def _called_forager(self, seat: Seat, call: Tone) -> bool:
        """Claims the sid for the caller; True when a forager has the tool and got the call."""
        sid, call_id = call.get("sid"), call.get("callId")
        if type(sid) is str and sid:
            self._claim(seat, sid)
        names = (call.get(key) for key in ("toolName", "name"))
        wanted = next((name for name in names if type(name) is str), None)
        for forager in self._sorted():
            if wanted is not None and wanted in _tool_names(forager):
                if type(call_id) is str and call_id:
                    self._routes[call_id] = seat
                forager.port.offer(encode(call))
                return True
        return False

    def _tool_call(self, seat: Seat, call: Tone) -> None:
        self._called_forager(seat, call)

    def _tool_result(self, seat: Seat, result: Tone) -> None:
        call_id = result.get("callId")
        if type(call_id) is str and (to := self._routes.pop(call_id, None)):
            to.port.offer(encode(result))

    def _error(self, seat: Seat, error: Tone) -> None:
        """An error of somebody who is no worker: back to the caller, or to the conversation."""
        call_id, sid = error.get("callId"), error.get("sid")
        if type(call_id) is str and (to := self._routes.get(call_id)):
            to.port.offer(encode(error))
        elif type(sid) is str and seat.manifest is not None:
            self._fan_out(sid, error)

    def _to_workers(self, seat: Seat, tone: Tone) -> None:
        if type(tone.get("sid")) is str:
            line = encode(tone)
            for worker in self.seats.values():
                if worker.is_worker:
                    worker.port.offer(line)

    def _attach(self, seat: Seat, tone: Tone) -> None:
        sid = tone.get("sid")
        if type(sid) is str and sid:
            self._claim(seat, sid)

    def _claim(self, seat: Seat, sid: str) -> None:
        seat.sids.add(sid)
        self._claims.setdefault(sid, {})[seat.client] = seat

    def _sorted(self) -> list[Seat]:
        """Seats by connection id: humd's choice among equals, random but steady."""
        return [self.seats[client] for client in sorted(self.seats)]


def _tool_names(seat: Seat) -> list[str]:
    if not seat.is_forager or seat.manifest is None:
        return []
    return [tool["name"] for tool in seat.manifest.get("tools", ())]


def _echo(rid: str) -> bytes:
    return encode({"chi": "echo", "ok": True, "rid": rid})


def _breath(sessions: Any) -> bytes:
    return encode(
        {"chi": "breath", "from": "daemon", "protoVersion": THRUM_VERSION, "sessions": sessions}
    )
