"""What a comparison of policies comes to: in a sentence, and as advice with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from ..words import as_number, as_percent, count_phrase
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


def advise(rows: Sequence[Figures], *, dollars: bool, window: float = WINDOW) -> Advice:
    """Choose among the policies of *rows*, of which the first is the baseline.

    The cheapest that keeps enough in sight; where none does, the cheapest that keeps enough within
    reach; where none saves anything, the baseline. A prompt larger than *window* tokens rules a
    policy out.
    """
    baseline = rows[0]
    by_cost = attrgetter("cost")
    fitting = [row for row in rows if row.peak <= window]
    if not fitting:
        smallest = min(rows, key=attrgetter("peak"))
        reason = f"No policy keeps every prompt below {as_number(window)} tokens."
        return Advice("Shorten further than", smallest.policy, f"{reason} This comes closest.")
    is_too_large = baseline not in fitting
    saving = [row for row in fitting if is_too_large or row.ratio <= 1 - LEAST_SAVED]
    if not saving:
        least = as_percent(LEAST_SAVED)
        return Advice("Keep", baseline.policy, f"Nothing else saves {least} of what it costs.")
    cheapest = min(saving, key=by_cost)
    in_sight = [row for row in saving if row.seen >= LEAST_SEEN]
    in_reach = [row for row in saving if row.found >= LEAST_FOUND]
    best = min(in_sight or in_reach, key=by_cost, default=None)
    if best is None:
        reason = f"{cheapest.policy} would cost {_difference(cheapest.ratio)}, but of what the "
        reason += f"replies used only {as_percent(cheapest.found)} could be found again."
        return Advice("Keep", baseline.policy, reason)
    why = _praise(best, cheapest, dollars=dollars) if in_sight else _reservation(best)
    return Advice(
        "Use" if in_sight else "Try",
        best.policy,
        " ".join([why, *_notes(best, baseline, window)]),
    )


def _praise(best: Figures, cheapest: Figures, *, dollars: bool) -> str:
    text = (
        f"It is the cheapest that left {as_percent(LEAST_SEEN)} or more of what the replies used "
        f"in sight: {as_percent(best.seen)}."
    )
    if cheapest.cost == best.cost:
        return text
    less = cost(best.cost - cheapest.cost, dollars=dollars)
    seen = as_percent(cheapest.seen)
    return f"{text} {cheapest.policy} would cost {less} less, but left only {seen}."


def _reservation(best: Figures) -> str:
    return (
        f"It is the cheapest that kept {as_percent(LEAST_FOUND)} or more within reach: "
        f"{as_percent(best.found)}. But none that saves left {as_percent(LEAST_SEEN)} in sight, "
        f"this {as_percent(best.seen)}: look at your agent's answers, or keep more in sight."
    )


def _notes(best: Figures, baseline: Figures, window: float) -> Iterator[str]:
    """What else one should know of the chosen policy."""
    if best.fetched:
        times = count_phrase(best.fetched, "time")
        yield f"Reading back what was out of sight, {times}, is in the cost."
    if best.seen - best.strict > 1 - LEAST_SEEN:
        yield (
            f"Without the lines that it chose to keep itself it is {as_percent(best.strict)}; "
            "--strict prices that."
        )
    if baseline.peak > window:
        yield (
            f"The largest prompt of {baseline.policy}, {as_number(baseline.peak)} tokens, does not "
            f"fit {as_number(window)}."
        )


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
