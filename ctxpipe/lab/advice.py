"""What a comparison of policies comes to: in a sentence, and as advice with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from .._text import as_number, as_percent
from .policies import WINDOW
from .report import Figures, cost

LEAST_SEEN = 0.9
"""Below, an agent misses what it has read."""

LEAST_FOUND = 0.95
"""What is out of sight must at least be found again."""

LEAST_SAVED = 0.02
"""Of the baseline's cost; less is not worth a change."""


class Advice(NamedTuple):
    """The *policy* to take, what to do with it in one word, and the *reason* in sentences."""

    verb: str
    policy: str
    reason: str


def advise(rows: Sequence[Figures]) -> Advice:
    """Choose among the policies of *rows*, of which the first is the baseline.

    The cheapest that keeps enough in sight; where none does, the cheapest that keeps enough within
    reach; where none saves anything, the baseline. A prompt larger than the window rules a policy
    out.
    """
    baseline = rows[0]
    fitting = [row for row in rows if row.peak <= WINDOW]
    if not fitting:
        smallest = min(rows, key=attrgetter("peak"))
        reason = f"No policy keeps every prompt below {as_number(WINDOW)} tokens."
        return Advice("Shorten further than", smallest.policy, f"{reason} This comes closest.")
    is_too_large = baseline not in fitting
    saving = [row for row in fitting if is_too_large or row.ratio <= 1 - LEAST_SAVED]
    in_sight = [row for row in saving if row.seen >= LEAST_SEEN]
    in_reach = [row for row in saving if row.found >= LEAST_FOUND]
    best = min(in_sight or in_reach, key=attrgetter("cost"), default=None)
    if best is None:
        reason = f"Nothing that saves {as_percent(LEAST_SAVED)} keeps enough in sight or reach."
        return Advice("Keep", baseline.policy, reason)
    reason = (
        f"It is the cheapest that left {as_percent(LEAST_SEEN)} or more of what the replies used "
        f"in sight: {as_percent(best.seen)}."
    )
    if in_sight:
        return Advice("Use", best.policy, reason)
    reason = (
        f"It is the cheapest that kept {as_percent(LEAST_FOUND)} or more within reach: "
        f"{as_percent(best.found)}. But it left {as_percent(best.seen)} in sight: look at your "
        "agent's answers, or keep more in sight."
    )
    return Advice("Try", best.policy, reason)


def _difference(ratio: float) -> str:
    """A cost in that of another, as what is more or less: 22.8% less."""
    return f"{as_percent(abs(1 - ratio))} {'more' if ratio > 1 else 'less'}"


def lead(subject: str, ours: Figures, baseline: Figures, unit: str) -> str:
    """What it comes to, in two sentences: cost and what stayed in sight, then the largest prompt.

    *subject* is what was replayed, such as "125 turns".
    """
    mine, theirs = (cost(row.cost, dollars=unit == "dollars") for row in (ours, baseline))
    of_what = "" if unit == "dollars" else f" {unit}"
    ratio = ours.cost / baseline.cost if baseline.cost else 1.0
    return (
        f"{subject}: {ours.policy} cost {mine}{of_what} instead of {theirs} ({baseline.policy}), "
        f"{_difference(ratio)}, and {as_percent(ours.seen)} of what the replies used stayed in "
        f"sight ({as_percent(ours.found)} with what could be read back). The largest context was "
        f"{as_number(ours.peak)} tokens instead of {as_number(baseline.peak)}."
    )
