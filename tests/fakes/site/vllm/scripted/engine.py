"""Sequences: who runs, who waits, when their events are written; the counters behind /metrics."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Protocol

from vllm.scripted.events import LAST_CHUNK, Answer, chunked
from vllm.scripted.plan import Plan, Refusal

_BATCH = 256
_MOMENT = 0.001


class Writer(Protocol):
    """The client's side of a sequence."""

    paused: bool

    def begin(self, plan: Plan) -> None: ...
    def write(self, data: bytes) -> None: ...
    def finish(self, body: bytes | None = None, *, status: int = 200) -> None: ...
    def abort(self) -> None: ...


class Engine:
    """At most `max_num_seqs` sequences run; the others wait."""

    def __init__(
        self, *, models: list[str], max_num_seqs: int, max_queued: int | None, priority: bool
    ) -> None:
        self.models = models
        self.draining = False
        """After SIGTERM: new requests are refused."""
        self.halted = False
        """No sequence goes on, none is told."""
        self.dead = False
        """EngineCore has died."""
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.iterations = 0
        self.ended: dict[str, int] = dict.fromkeys(
            ("stop", "length", "abort", "error", "repetition"), 0
        )
        self._most = max_num_seqs
        self._max_queued = max_queued
        self._priority = priority

    def admit(self, sequence: Sequence) -> None:
        """Starts a sequence, now or when there is room.

        Raises:
            Refusal: draining, dead or full.
        """
        if self.draining or self.dead:
            raise Refusal(500, "cannot schedule new futures after shutdown", "InternalServerError")
        if (
            self._max_queued is not None
            and len(self.running) + len(self.waiting) >= self._max_queued
        ):
            raise Refusal(503, "The request queue is full", "ServiceUnavailableError")
        self.waiting.append(sequence)
        self._fill()

    def remove(self, sequence: Sequence, reason: str = "") -> None:
        """Takes out a sequence that ended or whose client left."""
        for group in (self.running, self.waiting):
            if sequence in group:
                group.remove(sequence)
        if reason:
            self.ended[reason if reason in self.ended else "stop"] += 1
        self._fill()

    def step(self, tokens: int) -> None:
        """Counts one engine step."""
        self.generation_tokens += tokens
        self.iterations += 1

    def die(self) -> None:
        """EngineCore is gone: every stream gets an error event."""
        self.dead = True
        self.halted = True
        for sequence in [*self.running, *self.waiting]:
            sequence.break_off()
        self.running.clear()
        self.waiting.clear()

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self._most and not self.halted:
            if self._priority:
                self.waiting.sort(key=lambda sequence: sequence.plan.priority)
            sequence = self.waiting.pop(0)
            self.running.append(sequence)
            self.prompt_tokens += sequence.plan.prompt_tokens
            sequence.start()

    def metrics(self) -> bytes:
        """Returns the text of /metrics."""
        label = f'engine="0",model_name="{self.models[0]}"'
        lines: list[str] = []
        gauges: list[tuple[str, str, dict[str, float]]] = [
            ("vllm:num_requests_running", "gauge", {label: len(self.running)}),
            ("vllm:num_requests_waiting", "gauge", {label: len(self.waiting)}),
            (
                "vllm:num_requests_waiting_by_reason",
                "gauge",
                {f'{label},reason="capacity"': len(self.waiting), f'{label},reason="deferred"': 0},
            ),
            ("vllm:kv_cache_usage_perc", "gauge", {label: 0.01 * len(self.running)}),
            ("vllm:prompt_tokens_total", "counter", {label: self.prompt_tokens}),
            ("vllm:generation_tokens_total", "counter", {label: self.generation_tokens}),
            (
                "vllm:request_success_total",
                "counter",
                {
                    f'engine="0",finished_reason="{reason}",model_name="{self.models[0]}"': count
                    for reason, count in self.ended.items()
                },
            ),
            ("vllm:iteration_tokens_total_count", "histogram", {label: self.iterations}),
            (
                "vllm:cache_config_info",
                "gauge",
                {'block_size="128",engine="0",kv_cache_size_tokens="46592"': 1},
            ),
        ]
        for name, kind, values in gauges:
            family = name.removesuffix("_count")
            lines += [f"# HELP {family} As the real one counts it.", f"# TYPE {family} {kind}"]
            lines += [f"{name}{{{labels}}} {float(value)}" for labels, value in values.items()]
        return ("\n".join(lines) + "\n").encode()


class Sequence:
    """One request's answer on its way."""

    def __init__(self, engine: Engine, plan: Plan, answer: Answer, writer: Writer) -> None:
        self.plan = plan
        self._engine = engine
        self._answer = answer
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._done = 0
        self._began = 0.0
        self._over = False
        self._timer: asyncio.Handle | None = None
        self._act_at = self._when()

    def start(self) -> None:
        """Begins to answer."""
        fake = self.plan.fake
        if fake.die == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if fake.hang == "before":
            return
        if fake.prefill:
            self._timer = self._loop.call_later(fake.prefill, self._first)
        else:
            self._first()

    def cancel(self) -> None:
        """The client has left."""
        if self.plan.fake.keep:
            self._over = True
            if self._timer is not None:
                self._timer.cancel()
        elif not self._over:
            self._end("")

    def writable(self) -> None:
        """The client reads again."""
        if not self._over and self._timer is None and not self.plan.fake.rate:
            self._timer = self._loop.call_soon(self._run)

    def break_off(self) -> None:
        """The engine has died."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self.plan.stream and self._began:
            self._writer.write(self._answer.error())
            self._writer.finish()
        else:
            refusal = Refusal(500, "EngineCore encountered an issue", "InternalServerError")
            self._writer.finish(refusal.body(), status=500)

    def _first(self) -> None:
        self._timer = None
        if self._engine.halted or self._over:
            return
        self._began = self._loop.time()
        if self.plan.stream:
            self._writer.begin(self.plan)
            if self.plan.fake.hang == "head":
                return
            self._writer.write(self._answer.head())
        self._run()

    def _run(self) -> None:
        """Writes what is due and comes back for more."""
        self._timer = None
        fake = self.plan.fake
        if self._engine.halted or self._over:
            return
        batch = fake.burst or (1 if fake.rate or self._answer.separate else _BATCH)
        now = self._loop.time()
        while True:
            if self._done == self._act_at and not self._act():
                return
            if self._done >= self.plan.tokens:
                self._last()
                return
            end = min(self._done + batch, self.plan.tokens)
            if self._done < self._act_at:
                end = min(end, self._act_at)
            if self.plan.stream and self._answer.separate:
                self._halves(end)
                return
            self._emit(end)
            if not fake.rate:
                if not self._writer.paused:
                    self._timer = self._loop.call_soon(self._run)
                return
            due = self._began + self._done / fake.rate
            if due > now:
                self._timer = self._loop.call_at(due, self._run)
                return

    def _emit(self, end: int) -> None:
        if self.plan.stream:
            self._writer.write(self._answer.take(self._done, end))
        self._engine.step(end - self._done)
        self._done = end

    def _halves(self, end: int) -> None:
        """Writes one event in two parts that part within a character."""
        data = self._answer.take(self._done, end)
        cut = next((n for n, byte in enumerate(data) if byte > 0x7F), len(data) // 2) + 1
        self._engine.step(end - self._done)
        self._done = end
        self._writer.write(data[:cut])
        self._timer = self._loop.call_later(_MOMENT, self._other_half, data[cut:])

    def _other_half(self, data: bytes) -> None:
        self._writer.write(data)
        self._timer = self._loop.call_later(_MOMENT, self._run)

    def _last(self) -> None:
        if self.plan.stream:
            self._writer.write(self._answer.tail())
            self._end(self.plan.finish)
            self._writer.finish()
        else:
            self._end(self.plan.finish)
            self._writer.finish(self._answer.whole(int(self._began)))

    def _end(self, reason: str) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._engine.remove(self, reason)

    def _when(self) -> int:
        fake = self.plan.fake
        acts = (
            fake.die in ("mid_stream", "engine"),
            fake.hang == "mid_stream",
            fake.error == "in_stream",
            fake.end in ("eof", "cut", "abort"),
            bool(fake.garbage),
        )
        if not any(acts):
            return -1
        return fake.at if fake.at is not None else self.plan.tokens // 2

    def _act(self) -> bool:
        """Does what is wished for at this token; returns whether the answer goes on."""
        fake, writer = self.plan.fake, self._writer
        self._act_at = -1
        if fake.die == "mid_stream":
            os.kill(os.getpid(), signal.SIGKILL)
        if fake.die == "engine":
            self._engine.die()
        elif fake.error == "in_stream":
            writer.write(self._answer.error())
            self._end("error")
            writer.finish()
        elif fake.end == "abort":
            writer.write(self._answer.abort(self._done))
            self._end("abort")
            writer.finish()
        elif fake.end in ("eof", "cut"):
            if fake.end == "cut":
                writer.write(self._answer.take(self._done, self._done + 1)[:-20])
            self._end("")
            writer.abort()
        elif fake.garbage:
            self._litter(fake.garbage)
            return True
        return False

    def _litter(self, kind: Any) -> None:
        litter = {
            "type": b'data: {"choices":[{"index":0,"delta":{"content":5}}]}\n\n',
            "binary": b"data: \x00\xff\xfe{]\n\n",
        }.get(kind, b"data: {oops\n\n")
        self._writer.write(b"zz\r\n" if kind == "chunk" else chunked(litter))


__all__ = ["LAST_CHUNK", "Engine", "Sequence", "Writer"]
