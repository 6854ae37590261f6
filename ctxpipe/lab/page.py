"""Conversations on their way through policies, as one HTML file that needs no network.

The page's script prints the report. Anybody may have written what is in a transcript: it is in the
file as JSON only, the script shows it as text, and the page forbids itself every other script and
every request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from operator import attrgetter
from string import Template
from typing import NamedTuple

from .._html import json_data, palette, source_hash
from .._text import as_number, as_percent, count_phrase
from .._values import JsonDict
from ..placeholders.placeholders import shorten
from ..tokens.spent import KINDS
from .cache import HEADINGS as CAUSES
from .cache import rows
from .policies import WINDOW
from .report import DOLLARS, FIGURES, HEADINGS, Figures, Report, cells, cost

TEXT_BYTES = 1_200_000
"""All texts of actions together: the page must stay below 3 MB."""


def page(
    reports: Sequence[Report],
    totals: Sequence[Figures],
    unit: str = "input tokens",
    made: str = "",
) -> str:
    """The page of *reports*, all of the same policies, as HTML; *made* says what made it, and when.

    *totals* are the figures of each policy over all conversations, with costs in *unit*: "dollars",
    or any other word for it. What cannot be encoded as UTF-8 becomes a question mark.
    """
    script = _asset("page.js")
    html = Template(_asset("page.html")).substitute(
        hash=source_hash(script),
        style=palette() + _asset("page.css"),
        data=json_data({**_data(reports, totals, unit), "made": made}),
        script=script,
    )
    return html.encode("utf-8", "replace").decode()


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _data(reports: Sequence[Report], totals: Sequence[Figures], unit: str) -> JsonDict:
    """The data of the page's script: the reports as they are, and their sum."""
    ours, advice = len(totals) - 1, None
    if ours and totals[0].calls:
        advice = advise(totals)
        # What is kept as it is says nothing: the page then begins with the last policy.
        ours = [row.policy for row in totals].index(advice.policy) or ours
    turns = count_phrase(sum(len(report.labels) for report in reports), "turn")
    if len(reports) > 1:
        turns = f"{count_phrase(len(reports), 'conversation')}, {turns}"
    conversations = []
    for report in reports:
        found = [run.figures for run in report.runs]
        conversations.append(
            {
                **asdict(report),
                "figures": [cells(row, unit) for row in found],
                "cache": None if report.cache is None else [CAUSES, *rows(report.cache)],
            }
        )
    return {
        "unit": unit,
        "lead": lead(turns, totals[ours], totals[0], unit) if totals else "",
        "advice": advice,
        "kinds": KINDS,
        "meanings": FIGURES,
        "headings": HEADINGS,
        "totals": [cells(row, unit) for row in totals],
        "policies": [row.policy for row in totals],
        "chosen": [ours, 0],
        "conversations": conversations,
        "texts": _texts(conversations),
    }


def _texts(conversations: Sequence[JsonDict]) -> list[str]:
    """Each text of an action once; in its place is the index.

    The middle is cut out of long ones, to fit all in TEXT_BYTES.
    """
    indices: dict[str, int] = {}
    runs = (run for conversation in conversations for run in conversation["runs"])
    actions = (action for run in runs for turn in run["turns"] for action in turn["actions"])
    for change in (change for action in actions for change in action["replaced"]):
        for side in ("original", "placeholder"):
            change[side] = indices.setdefault(change[side], len(indices))
    limit = 20_000
    sizes = [len(text.encode("utf-8", "replace")) for text in indices]
    while limit > 100 and sum(min(size, limit) for size in sizes) > TEXT_BYTES:
        limit = limit * 3 // 4
    return [shorten(text, limit) for text in indices]


LEAST_SEEN = 0.9
"""Below, an agent misses what it has read."""

LEAST_FOUND = 0.95
"""The least share that must be found again where it is out of sight."""

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
    least = 1 - LEAST_SAVED if baseline in fitting else math.inf
    saving = [row for row in fitting if row.ratio <= least]
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


def lead(subject: str, ours: Figures, baseline: Figures, unit: str) -> str:
    """The result in two sentences: cost and what stayed in sight, then the largest prompt.

    *subject* is what was replayed, such as "125 turns".
    """
    mine, theirs = (cost(row.cost, unit) for row in (ours, baseline))
    of_what = "" if unit == DOLLARS else f" {unit}"
    ratio = ours.cost / baseline.cost if baseline.cost else 1.0
    difference = f"{as_percent(abs(1 - ratio))} {'more' if ratio > 1 else 'less'}"
    return (
        f"{subject}: {ours.policy} cost {mine}{of_what} instead of {theirs} ({baseline.policy}), "
        f"{difference}, and {as_percent(ours.seen)} of what the replies used stayed in "
        f"sight ({as_percent(ours.found)} with what could be read back). The largest context was "
        f"{as_number(ours.peak)} tokens instead of {as_number(baseline.peak)}."
    )
