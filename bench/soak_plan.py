"""What a soak does: the prompts and the acts of violence between them, all from one seed (pure)."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from math import sqrt

MODELS = ("left", "right")


@dataclass(frozen=True)
class Ask:
    """One prompt. `text` scripts the engine, `whole` is the answer where it is known."""

    sid: str
    model: str
    text: str
    whole: str | None
    tokens: int
    cancel_after: float | None
    """Seconds after which it is cancelled."""
    client: int


@dataclass(frozen=True)
class Act:
    """What happens when so many prompts have been sent: engine, tender, bee, humd or slow."""

    at: int
    kind: str
    model: str


def asks(seed: int, count: int, clients: int, *, real: bool) -> list[Ask]:
    """Returns the prompts."""
    dice = random.Random(seed)
    return [_ask(dice, number, clients, real=real) for number in range(count)]


def _ask(dice: random.Random, number: int, clients: int, *, real: bool) -> Ask:
    tokens = dice.choice((0, 1, 3, 10, 30, 80))
    wishes: dict[str, float] = {"tokens": tokens, "rate": dice.choice((0, 100, 400))}
    if dice.random() < 0.2:
        wishes["prefill"] = dice.choice((0.05, 0.3))
    cancel = dice.choice((0.0, 0.02, 0.2)) if dice.random() < 0.1 else None
    client = dice.randrange(clients)
    text = f"Say something about the number {number}."
    return Ask(
        sid=f"soak-{number}",
        model=MODELS[0] if real else dice.choice(MODELS),
        text=text if real else json.dumps({"fake": wishes}),
        whole=None if real else " ".join(f"w{n}" for n in range(tokens)),
        tokens=max(4, tokens // 4) if real else tokens,
        cancel_after=cancel,
        client=client,
    )


def acts(seed: int, count: int, *, real: bool) -> list[Act]:
    """Returns the acts in their order.

    A bee is killed in the first third only: from there on it must not grow. Kills of engines are
    few: the pause after each is twice as long as the one before.
    """
    dice = random.Random(seed + 1)
    some = max(1, min(6, round(sqrt(count / 60))))
    models = MODELS[:1] if real else MODELS
    plan = {"engine": some, "tender": some // 2 + 1, "humd": some, "slow": 2 * some}
    found = [
        Act(dice.randrange(count // 20, count - count // 20), kind, dice.choice(models))
        for kind, times in plan.items()
        for _ in range(times if not real else min(times, 2))
    ]
    for _ in range(1 if real else 2):
        at = dice.randrange(count // 20, count // 3)
        found.append(Act(at, "bee", models[0]))
    return sorted(found, key=lambda act: act.at)
