"""Conversations on their way through policies, as one HTML file that needs no network.

Anybody may have written what is in a transcript: it reaches the page escaped, as text, and the page
forbids itself every script but its own and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

from ..words import as_number, as_percent, as_ratio, count_phrase
from .advice import Advice, advise, lead
from .cache import HEADINGS, rows
from .cost_shares import total_shares
from .report import (
    FIGURES,
    KINDS,
    Action,
    BlockFate,
    CostShare,
    Figures,
    Kind,
    Report,
    Run,
    cost,
    figure,
)

__all__ = ["page", "write_page"]

TEXT_BYTES = 1_200_000
"""All texts of actions together: the page must stay below 3 MB."""


def write_page(
    path: str | os.PathLike[str],
    reports: Sequence[Report],
    totals: Sequence[Figures] = (),
) -> None:
    """Write the `page` to *path*. Raises OSError where that cannot be written."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(page(reports, totals))


def page(reports: Sequence[Report], totals: Sequence[Figures] = ()) -> str:
    """The page of *reports*, all of the same policies, as HTML.

    *totals* are the figures of each policy over all conversations; one conversation has its own.
    What cannot be encoded as UTF-8 becomes a question mark.
    """
    book = _Book.of(reports, totals)
    script = _asset("page.js")
    html = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(book.title)}</title>\n"
        f"<style>\n{_asset('palette.css')}{_asset('page.css')}</style>\n"
        "</head>\n<body>\n"
        f"<main>\n{''.join(_body(book))}</main>\n"
        f"{_asset('dialog.html')}"
        f'<script type="application/json" id="report">{_json(_data(book))}</script>\n'
        f'<script type="module">{script}</script>\n'
        "</body>\n</html>\n"
    )
    return html.encode("utf-8", "replace").decode()


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Nothing is loaded, and no script runs but *script*."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(value: object) -> str:
    """JSON for a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(
        value,
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
    )
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# What is on the page ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Book:
    """The reports, the figures of all of them by policy, and the policy that is shown first."""

    reports: Sequence[Report]
    totals: Sequence[Figures]
    advice: Advice | None
    ours: int

    @classmethod
    def of(cls, reports: Sequence[Report], totals: Sequence[Figures]) -> _Book:
        if len(reports) == 1:
            found = [run.figures for run in reports[0].runs]
            totals = [row for row in found if row]
        ours = len(reports[0].runs) - 1
        advice = None
        if len(totals) > 1 and totals[0].calls:
            advice = advise(totals, dollars=reports[0].unit == "dollars")
            names = [row.policy for row in totals]
            # What is kept as it is says nothing: the page then begins with the last policy.
            ours = names.index(advice.policy) or ours
        return cls(reports, totals, advice, ours)

    @property
    def is_one(self) -> bool:
        return len(self.reports) == 1

    @property
    def has_choice(self) -> bool:
        """Whether there are more than two policies to set side by side."""
        return len(self.reports[0].runs) > 2

    @property
    def title(self) -> str:
        if self.is_one:
            return self.reports[0].title
        return count_phrase(len(self.reports), "conversation")

    @property
    def turns(self) -> int:
        return sum(len(report.labels) for report in self.reports)

    @property
    def unit(self) -> str:
        return self.reports[0].unit

    def cost(self, amount: float) -> str:
        return cost(amount, dollars=self.unit == "dollars")

    def lead(self, report: Report) -> str:
        """The sentence of one conversation."""
        subject = count_phrase(len(report.labels), "turn")
        return lead(subject, report.runs[self.ours], report.runs[0], report.unit)

    def total_lead(self) -> str:
        """The sentence of all conversations."""
        if self.is_one:
            return self.lead(self.reports[0])
        ours, theirs = (
            Run(row.policy, (), row) for row in (self.totals[self.ours], self.totals[0])
        )
        subject = f"{self.title}, {count_phrase(self.turns, 'turn')}"
        return lead(subject, ours, theirs, self.unit)


def _body(book: _Book) -> Iterator[str]:
    """The overview; what it is made of, and the part that the script fills with what is chosen."""
    yield f"<h1>{escape(book.title)}</h1>\n"
    yield f'<p class="soft">{escape(_subtitle(book))}</p>\n'
    if not book.turns:
        yield "<p>There was no turn.</p>\n"
        return
    yield f'<p class="lead">{escape(book.total_lead())}</p>\n'
    if book.advice:
        what = escape(f"{book.advice.verb} {book.advice.policy}.")
        reason = escape(book.advice.reason)
        yield f'<p class="advice"><strong>{what}</strong> {reason}</p>\n'
    if book.has_choice or not book.is_one:
        yield from _policies(book)
    if not book.is_one:
        yield from _total_shares(book)
        yield from _conversations(book)
    yield from _part(book)


def _subtitle(book: _Book) -> str:
    if book.is_one:
        return book.reports[0].subtitle
    first, *others = [run.policy for run in book.reports[0].runs]
    return f"replayed: {', '.join(others)}, compared with {first}"


def _policies(book: _Book) -> Iterator[str]:
    if not book.totals:
        return
    yield "<section>\n<h2>The policies</h2>\n"
    header = ("policy", "cost", *FIGURES)
    cells = [
        (row.policy, book.cost(row.cost), *(figure(row, name) for name in FIGURES))
        for row in book.totals
    ]
    yield _table(f"Policies, cost in {book.unit}", header, cells, range(1, len(header)))
    meanings = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in FIGURES.items())
    yield f"<details><summary>What the figures mean</summary><dl>{meanings}</dl></details>\n"
    yield "</section>\n"


def _total_shares(book: _Book) -> Iterator[str]:
    """Who causes the cost of all conversations, under the policy shown first and the baseline."""
    ours = total_shares(report.runs[book.ours].shares for report in book.reports)
    theirs = total_shares(report.runs[0].shares for report in book.reports)
    if not ours:
        return
    without = {share.name: share.cost for share in theirs}
    whole = sum(share.cost for share in ours)
    names = [book.reports[0].runs[index].policy for index in (book.ours, 0)]
    body = []
    for share in ours:
        part = share.cost / whole if whole else 0.0
        body.append(
            (
                escape(share.name),
                as_number(share.calls) if share.calls else "",
                as_number(share.sent),
                _bar(part),
                book.cost(share.cost),
                book.cost(without.get(share.name, 0.0)),
            )
        )
    header = ("what", "calls", "tokens sent", "share of cost", *names)
    yield '<section class="long">\n<h2>What causes the cost</h2>\n'
    yield (
        "<p>Each tool by its calls and results, in every prompt that held them; the rest by kind."
        f" Costs in {escape(book.unit)}.</p>\n"
    )
    yield _grid("Cost by tool and kind", header, body, range(1, 6))
    yield "</section>\n"


def _bar(share: float) -> str:
    return f'<span class="share" style="--share:{share:.1%}">{as_percent(share)}</span>'


def _conversations(book: _Book) -> Iterator[str]:
    """Each conversation in a row that leads to its part."""
    names = [book.reports[0].runs[index].policy for index in (book.ours, 0)]
    body = []
    for number, report in enumerate(book.reports):
        ours, theirs = report.runs[book.ours], report.runs[0]
        seen = as_percent(ours.figures.seen) if ours.figures else ""
        ratio = as_ratio(ours.cost / theirs.cost) if theirs.cost else ""
        link = f'<a href="#conversation-{number}">{escape(report.title)}</a>'
        amounts = [book.cost(ours.cost), book.cost(theirs.cost)]
        peak = as_number(ours.peak)
        body.append((link, as_number(len(report.labels)), *amounts, ratio, seen, peak))
    yield '<section class="long">\n<h2>The conversations</h2>\n'
    header = ("conversation", "turns", *names, "ratio", "seen", "peak")
    yield _grid("Conversations; choose one to see its turns", header, body, range(1, 7))
    yield "</section>\n"


def _part(book: _Book) -> Iterator[str]:
    """One conversation under two policies: places that the script fills."""
    yield '<section id="part">\n<h2 id="name">Side by side</h2>\n'
    pickers = []
    if not book.is_one:
        titles = [report.title for report in book.reports]
        pickers.append(_select("conversation", "Conversation", titles, 0))
    if book.has_choice:
        names = [run.policy for run in book.reports[0].runs]
        pickers.append(_select("ours", "Policy", names, book.ours))
        pickers.append(_select("theirs", "beside", names, 0))
    if pickers:
        yield f'<div class="pickers">{"".join(pickers)}</div>\n'
    yield _asset("part.html").replace("<!-- kinds -->", "".join(_kinds(book.reports)))
    yield "</section>\n"


def _select(name: str, label: str, options: Sequence[str], chosen: int) -> str:
    lines = []
    for number, option in enumerate(options):
        mark = " selected" if number == chosen else ""
        lines.append(f'<option value="{number}"{mark}>{escape(option)}</option>')
    return f'<label>{label} <select id="{name}">{"".join(lines)}</select></label>\n'


def _kinds(reports: Iterable[Report]) -> Iterator[str]:
    """What the colours mean, in the order of the stack.

    A kind can be shown alone, so that nobody has to tell colours apart.
    """
    present: set[Kind] = set()
    for report in reports:
        for run in report.runs:
            for turn in run.turns:
                present.update(kind for kind, tokens in turn.tokens.items() if tokens)
    for kind, name in reversed(list(KINDS.items())):
        if kind in present:
            yield (
                f'<li><button type="button" aria-pressed="false" data-kind="{kind}">'
                f'<span class="swatch" style="background: var(--{kind})"></span>'
                f"{name}</button></li>\n"
            )


def _table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
) -> str:
    """A table of texts; right-aligned where *numbers* has the column's index."""
    body = [[escape(cell) for cell in row] for row in rows]
    return _grid(caption, header, body, numbers)


def _grid(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int],
) -> str:
    """A table of cells that are HTML; on a phone each row is a card, and cells bear their names."""
    classes = [""] * len(header)
    for index in numbers:
        classes[index] = ' class="number"'
    head = ""
    for name, attribute in zip(header, classes, strict=True):
        head += f'<th scope="col"{attribute}>{escape(name)}</th>'
    lines = []
    for row in rows:
        cells = ""
        for name, cell, attribute in zip(header, row, classes, strict=True):
            cells += f'<td{attribute} data-label="{escape(name)}">{cell}</td>'
        lines.append(f"<tr>{cells}</tr>\n")
    label = escape(caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<caption>{label}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )


# What the script reads ----------------------------------------------------------------------------


def _data(book: _Book) -> dict[str, object]:
    texts = _Texts()
    for report in book.reports:
        for run in report.runs:
            texts.measure(run)
    return {
        "unit": book.unit,
        "kinds": list(KINDS.items()),
        "policies": [run.policy for run in book.reports[0].runs],
        "chosen": [book.ours, 0],
        "conversations": [_conversation(book, report, texts) for report in book.reports],
        "texts": texts.shown,
    }


def _conversation(book: _Book, report: Report, texts: _Texts) -> dict[str, object]:
    cache = None
    if report.cache is not None:
        cache = [HEADINGS, *rows(report.cache)]
    return {
        "title": report.title,
        "lead": book.lead(report),
        "facts": [(fact.name, fact.values) for fact in report.facts],
        "labels": report.labels,
        "runs": [_run(run, texts) for run in report.runs],
        "cache": cache,
    }


def _run(run: Run, texts: _Texts) -> dict[str, object]:
    turns = []
    actions: list[dict[str, object]] = []
    starts = []
    for number, turn in enumerate(run.turns, 1):
        starts.append(len(actions))
        kinds = [round(turn.tokens.get(kind, 0)) for kind in KINDS]
        turns.append([kinds, round(turn.total), _round(turn.cost)])
        actions += [_action(number, action, texts) for action in turn.actions]
    return {
        "turns": turns,
        "actions": actions,
        "shares": [_share(share) for share in run.shares],
        "blocks": [_block(block, starts) for block in run.blocks],
    }


def _action(number: int, action: Action, texts: _Texts) -> dict[str, object]:
    replaced = [
        {
            "name": change.name,
            "placeholder": texts.index(change.placeholder),
            "original": texts.index(change.original),
            "where": change.where,
            "before": round(change.tokens_before),
            "after": round(change.tokens_after),
        }
        for change in action.replaced
    ]
    saved = action.tokens_saved
    return {
        "turn": number,
        "stage": action.stage,
        "outcome": action.outcome,
        "told": action.told,
        "saved": None if saved is None else round(saved),
        "replaced": replaced,
    }


def _share(share: CostShare) -> list[object]:
    amounts = [round(share.tokens), round(share.sent), _round(share.cost)]
    return [share.name, share.calls, *amounts]


def _block(block: BlockFate, starts: Sequence[int]) -> dict[str, object]:
    """One of the biggest blocks; *action* is the index, in the run, of what removed it."""
    action = None
    if block.until is not None and block.action is not None:
        action = starts[block.until - 1] + block.action
    return {
        "name": block.name,
        "kind": KINDS[block.kind],
        "tokens": round(block.tokens),
        "since": block.turn,
        "until": block.until,
        "now": block.fate,
        "action": action,
    }


def _round(amount: float) -> float:
    """Six digits: more than a reader is shown, and half the bytes."""
    return float(f"{amount:.6g}")


@dataclass(slots=True)
class _Texts:
    """Each text of an action once, the middle cut out of long ones to fit all in TEXT_BYTES."""

    shown: list[str] = field(default_factory=list)
    _sizes: dict[str, int] = field(default_factory=dict)
    _indices: dict[str, int] = field(default_factory=dict)
    _limit: int | None = None

    def measure(self, run: Run) -> None:
        """Take in how long the texts of *run* are, before any is asked for."""
        for turn in run.turns:
            for action in turn.actions:
                for change in action.replaced:
                    for text in (change.placeholder, change.original):
                        self._sizes[text] = len(text.encode("utf-8", "replace"))

    def index(self, text: str) -> int:
        """The place of *text* among those shown."""
        if text not in self._indices:
            self._indices[text] = len(self.shown)
            self.shown.append(self._shorten(text))
        return self._indices[text]

    def _shorten(self, text: str) -> str:
        if self._limit is None:
            self._limit = self._find_limit()
        if len(text) <= self._limit:
            return text
        half = self._limit // 2
        missing = len(text) - 2 * half
        return f"{text[:half]}\n[… {missing:,} characters not shown here …]\n{text[-half:]}"

    def _find_limit(self) -> int:
        limit = 20_000
        sizes = self._sizes.values()
        while limit > 100 and sum(min(size, limit) for size in sizes) > TEXT_BYTES:
            limit = limit * 3 // 4
        return limit
