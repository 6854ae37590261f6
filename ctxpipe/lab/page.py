"""The report of replays as one HTML file that needs no network.

A script in the page shows the report. The texts of a transcript are untrusted: the page contains
them only as JSON, its script shows them only as text, and its content security policy forbids all
other scripts and all requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from string import Template
from typing import NamedTuple

from .._html import json_data, palette, source_hash
from .._text import as_number, as_percent, as_ratio, count_phrase
from .._values import JsonDict
from ..errors import SettingsError
from ..placeholders.placeholders import shorten
from ..tokens.spent import KINDS
from .cache import HEADINGS as CAUSES
from .cache import rows
from .orders import RulesShare
from .policies import WINDOW
from .report import DOLLARS, FIGURES, HEADINGS, Figures, Report, cells, cost

MAX_TEXT_BYTES = 1_200_000
"""Limit for all texts of actions together; it keeps the page below 3 MB."""


def page(
    reports: Sequence[Report],
    totals: Sequence[Figures],
    unit: str = "input tokens",
    origin: str = "",
    rules: Mapping[str, RulesShare | None] | None = None,
) -> str:
    """Return the page of *reports*, all of the same policies, as HTML.

    *totals* are the figures of each policy over all conversations, with costs in *unit*: "dollars"
    or the name of another unit. *origin* is a line about the program, date and command that made
    the page. *rules* is the share of the texts that govern the agent, by policy. Characters that
    cannot be encoded as UTF-8 become question marks.

    Raises SettingsError without a report, or if *totals* has other policies than the reports.
    """
    if not reports:
        raise SettingsError("there is no report to show; give that of at least one conversation")
    if len(totals) != len(reports[0].runs):
        raise SettingsError(
            f"totals has {len(totals)} policies and the reports have {len(reports[0].runs)}; "
            "give the figures of each policy, in the order of the reports"
        )
    script = _asset("page.js")
    html = Template(_asset("page.html")).substitute(
        hash=source_hash(script),
        style=palette() + _asset("page.css"),
        data=json_data({**_data(reports, totals, unit, rules or {}), "made": origin}),
        script=script,
    )
    return html.encode("utf-8", "replace").decode()


def _asset(name: str) -> str:
    """Return the text of a file in the folder ``assets``."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _data(
    reports: Sequence[Report],
    totals: Sequence[Figures],
    unit: str,
    rules: Mapping[str, RulesShare | None],
) -> JsonDict:
    """Return the input of the page's script: the reports, their totals and the advice."""
    policy_index = len(totals) - 1
    advice = None
    if policy_index and totals[0].calls:
        advice = advise(totals, rules)
        # A comparison of the baseline with itself shows nothing. If the advice is to keep the
        # baseline, the page opens with the last policy.
        policy_index = [row.policy for row in totals].index(advice.policy) or policy_index
    turns = count_phrase(sum(len(report.labels) for report in reports), "turn")
    if len(reports) > 1:
        turns = f"{count_phrase(len(reports), 'conversation')}, {turns}"
    conversations = []
    for report in reports:
        cache_table = None
        if report.cache is not None:
            cache_table = [CAUSES, *rows(report.cache)]
        conversations.append(
            {
                **asdict(report),
                "figures": [cells(run.figures, unit) for run in report.runs],
                "cache": cache_table,
            }
        )
    return {
        "unit": unit,
        "lead": lead(turns, totals[policy_index], totals[0], unit) if totals else "",
        "advice": advice,
        "kinds": KINDS,
        "meanings": FIGURES,
        "headings": HEADINGS,
        "totals": [cells(row, unit) for row in totals],
        "policies": [row.policy for row in totals],
        "chosen": [policy_index, 0],
        "conversations": conversations,
        "texts": _texts(conversations),
    }


def _texts(conversations: Sequence[JsonDict]) -> list[str]:
    """Return the list of the originals and placeholders of all actions, equal texts once.

    In *conversations*, which are modified in place, each text is replaced with its index in the
    list.

    Texts above a limit of 20,000 characters lose their middle. If all texts together have more
    than MAX_TEXT_BYTES, the limit is lowered until they are estimated to fit, but not below 75
    characters: very many texts can exceed MAX_TEXT_BYTES.
    """
    indices: dict[str, int] = {}
    runs = [run for conversation in conversations for run in conversation["runs"]]
    turns = [turn for run in runs for turn in run["turns"]]
    actions = [action for turn in turns for action in turn["actions"]]
    for action in actions:
        for change in action["replaced"]:
            for side in ("original", "placeholder"):
                change[side] = indices.setdefault(change[side], len(indices))
    limit = 20_000
    sizes = [len(text.encode("utf-8", "replace")) for text in indices]
    while limit > 100 and sum(min(size, limit) for size in sizes) > MAX_TEXT_BYTES:
        limit = limit * 3 // 4
    return [shorten(text, limit) for text in indices]


MIN_SEEN_SHARE = 0.9
"""Share that must stay in the context; below it an agent misses what it has read."""

MIN_FOUND_SHARE = 0.95
"""Share that must stay in the context or be readable again, if less stays in the context."""

MIN_RULES_SHARE = 0.9
"""Share of the texts that govern the agent that must stay in the context."""

MIN_SAVED_SHARE = 0.02
"""Share of the baseline's cost that a policy must save to be worth a change."""


class Advice(NamedTuple):
    """The *policy* to use, the *verb* for it ("Use", "Try", "Keep" …), and the *reason*."""

    verb: str
    policy: str
    reason: str


def advise(rows: Sequence[Figures], rules: Mapping[str, RulesShare | None] | None = None) -> Advice:
    """Choose one of the policies of *rows*; the first is the baseline.

    *rules* is the share in the context of the texts that govern the agent, by policy. A policy is a
    candidate if its prompts fit in the window and it saves enough. The choice is the cheapest
    candidate that keeps enough in the context, of what the replies used and of these texts, else
    the cheapest that keeps enough readable, else the baseline. If no policy fits in the window, it
    is the one with the smallest prompts.
    """
    rules = rules or {}
    baseline = rows[0]
    fitting = [row for row in rows if row.peak <= WINDOW]
    if not fitting:
        smallest = min(rows, key=lambda row: row.peak)
        reason = f"No policy keeps every prompt below {as_number(WINDOW)} tokens."
        return Advice("Shorten further than", smallest.policy, f"{reason} This comes closest.")
    max_ratio = 1 - MIN_SAVED_SHARE if baseline in fitting else math.inf
    candidates = [row for row in fitting if row.ratio <= max_ratio]
    in_sight = [
        row
        for row in candidates
        if row.seen >= MIN_SEEN_SHARE and _keeps_rules(rules.get(row.policy))
    ]
    in_reach = [row for row in candidates if row.found >= MIN_FOUND_SHARE]
    best = min(in_sight or in_reach, key=lambda row: row.cost, default=None)
    if best is None:
        saving = as_percent(MIN_SAVED_SHARE)
        reason = f"No policy that saves {saving} keeps enough in sight or within reach."
        return Advice("Keep", baseline.policy, reason)
    on_rules = _rules_sentence(rules.get(best.policy))
    costs = f"It costs {as_ratio(best.ratio)} times as much as {baseline.policy}"
    if in_sight:
        reason = (
            f"{costs}, the least of those that left {as_percent(MIN_SEEN_SHARE)} or more of what "
            f"the replies used in sight: {as_percent(best.seen)}.{on_rules}"
        )
        return Advice("Use", best.policy, reason)
    reason = (
        f"{costs}, the least of those that kept {as_percent(MIN_FOUND_SHARE)} or more within "
        f"reach: {as_percent(best.found)}. But it left {as_percent(best.seen)} in sight: look at "
        f"your agent's answers, or keep more in sight.{on_rules}"
    )
    return Advice("Try", best.policy, reason)


def _keeps_rules(rules: RulesShare | None) -> bool:
    """Return True if enough of the texts that govern the agent stays, or none was looked for."""
    return rules is None or rules.share >= MIN_RULES_SHARE


def _rules_sentence(rules: RulesShare | None) -> str:
    """Return a sentence on the texts that govern the agent, "" if none was looked for."""
    if rules is None:
        return ""
    sentence = (
        f" Of skills, plans, rules, open errors and jobs {as_percent(rules.share)} stayed in the "
        "context"
    )
    if rules.weakest_share < rules.share:
        sentence += f"; least of all {rules.weakest}: {as_percent(rules.weakest_share)}"
    return f"{sentence}. See ctxpipe survive."


def lead(subject: str, candidate: Figures, baseline: Figures, unit: str) -> str:
    """Return the result in two sentences: cost and recall, then the largest prompt.

    *subject* says how much was replayed, such as "125 turns". The figures of the policy *candidate*
    are compared with those of *baseline*; costs are in *unit*.
    """
    candidate_cost = cost(candidate.cost, unit)
    baseline_cost = cost(baseline.cost, unit)
    unit_name = "" if unit == DOLLARS else f" {unit}"
    ratio = candidate.cost / baseline.cost if baseline.cost else 1.0
    difference = f"{as_percent(abs(1 - ratio))} {'more' if ratio > 1 else 'less'}"
    return (
        f"{subject}: {candidate.policy} cost {candidate_cost}{unit_name} instead of "
        f"{baseline_cost} ({baseline.policy}), {difference}, and {as_percent(candidate.seen)} of "
        "what the replies used stayed in sight "
        f"({as_percent(candidate.found)} with what could be read back). The largest context was "
        f"{as_number(candidate.peak)} tokens instead of {as_number(baseline.peak)}."
    )
