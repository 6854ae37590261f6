"""What a comparison of policies comes to: in a sentence, and as advice with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..words import as_number, as_percent, count_phrase
from .policies import WINDOW
from .report import Figures, Run, cost

__all__ = ["Advice", "advise", "lead"]

LEAST_SEEN = 0.9
"""Below, an agent misses what it has read."""

LEAST_FOUND = 0.95
"""What is out of sight must at least be found again."""

LEAST_SAVED = 0.02
"""Of the baseline's cost; less is not worth a change."""


@dataclass(frozen=True, slots=True)
class Advice:
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
    fitting = [row for row in rows if row.peak <= window]
    if not fitting:
        smallest = min(rows, key=lambda row: row.peak)
        reason = (
            f"No policy keeps every prompt below {as_number(window)} tokens; this comes closest."
        )
        return Advice("Shorten further than", smallest.policy, reason)
    is_too_large = baseline not in fitting
    saving = [row for row in fitting if is_too_large or row.ratio <= 1 - LEAST_SAVED]
    in_sight = [row for row in saving if row.seen >= LEAST_SEEN]
    in_reach = [row for row in saving if row.found >= LEAST_FOUND]
    if in_sight:
        best = min(in_sight, key=_cost)
        reason = _praise(best, min(saving, key=_cost), dollars=dollars)
        return Advice("Use", best.policy, " ".join([reason, *_notes(best, baseline, window)]))
    if in_reach:
        best = min(in_reach, key=_cost)
        reason = _reservation(best)
        return Advice("Try", best.policy, " ".join([reason, *_notes(best, baseline, window)]))
    if saving:
        return Advice("Keep", baseline.policy, _refusal(saving))
    least = as_percent(LEAST_SAVED)
    return Advice("Keep", baseline.policy, f"Nothing else saves {least} of what it costs.")


def _praise(best: Figures, cheapest: Figures, *, dollars: bool) -> str:
    text = (
        f"It is the cheapest that left {as_percent(LEAST_SEEN)} or more of what the replies used "
        f"in sight: {as_percent(best.seen)}."
    )
    if cheapest.cost == best.cost:
        return text
    less = cost(best.cost - cheapest.cost, dollars=dollars)
    unit = "" if dollars else " input tokens"
    seen = as_percent(cheapest.seen)
    return f"{text} {cheapest.policy} would cost {less}{unit} less, but left only {seen}."


def _reservation(best: Figures) -> str:
    return (
        f"It is the cheapest that kept {as_percent(LEAST_FOUND)} or more within reach: "
        f"{as_percent(best.found)}. But none that saves left {as_percent(LEAST_SEEN)} in sight, "
        f"this {as_percent(best.seen)}: look at your agent's answers, or keep more in sight."
    )


def _refusal(saving: Sequence[Figures]) -> str:
    cheapest = min(saving, key=_cost)
    return (
        f"{cheapest.policy} would cost {_difference(cheapest.ratio)}, but of what the replies used "
        f"only {as_percent(cheapest.found)} could be found again."
    )


def _cost(row: Figures) -> float:
    return row.cost


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
    share = as_percent(abs(1 - ratio))
    if share == as_percent(0):
        return "as much"
    return f"{share} {'more' if ratio > 1 else 'less'}"


def lead(subject: str, ours: Run, baseline: Run, unit: str) -> str:
    """What it comes to, in two sentences: cost and what stayed in sight, then the largest prompt.

    *subject* is what was replayed, such as "125 turns".
    """
    parts = []
    if baseline.cost:
        is_dollars = unit == "dollars"
        amounts = [cost(run.cost, dollars=is_dollars) for run in (ours, baseline)]
        of_what = "" if is_dollars else f" {unit}"
        ratio = _difference(ours.cost / baseline.cost)
        parts.append(
            f"{ours.policy} cost {amounts[0]}{of_what} instead of {amounts[1]} "
            f"({baseline.policy}), {ratio}"
        )
    if ours.figures:
        parts.append(
            f"{as_percent(ours.figures.seen)} of what the replies used stayed in sight "
            f"({as_percent(ours.figures.found)} with what could be read back)"
        )
    peaks = [as_number(run.peak) for run in (ours, baseline)]
    largest = f"The largest context was {peaks[0]} tokens instead of {peaks[1]}."
    if peaks[0] == peaks[1]:
        largest = f"The largest context was {peaks[0]} tokens in both."
    if not parts:
        return f"{subject}. {largest}"
    return f"{subject}: {', and '.join(parts)}. {largest}"
