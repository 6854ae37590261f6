"""The report of replays as one HTML file that needs no network.

A script in the page shows the report. The texts of a transcript are untrusted: the page contains
them only as JSON, its script shows them only as text, and its content security policy forbids all
other scripts and all requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from string import Template

from .._html import json_data, palette, source_hash
from .._text import as_number, as_percent, count_phrase
from .._values import JsonDict
from ..errors import SettingsError
from ..placeholders.placeholders import shorten
from ..tokens.spent import KINDS
from .advice import advise, code_to_paste
from .cache import HEADINGS as CAUSES
from .cache import rows
from .orders import RulesShare
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
    code = ""
    if policy_index and totals[0].calls:
        advice = advise(totals, rules)
        formats = [report.format for report in reports]
        code = code_to_paste(advice.policy, formats)
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
        "code": code,
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
