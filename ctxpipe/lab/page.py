"""One conversation's way through a pipeline on one page: a single HTML file that needs no network.

What stands in a transcript is anybody's text: it reaches the page escaped, as text, and the page
forbids itself every script but its own and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path

from ..words import counted
from .charts import charts, library
from .report import KINDS, Action, BlockFate, PageTurn, Report
from .words import cost

__all__ = ["page", "page_paths", "write_page"]

TEXT_BYTES = 1_200_000
"""Of the texts of all actions together: the library takes 0.9 MB, and the page is to stay below 3."""

FEW = 12
"""Actions that are listed at once; more only when asked for."""


def write_page(path: str | os.PathLike[str], report: Report) -> None:
    """Write the page of *report* to *path*. Raises OSError where that cannot be written."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(page(report))


def page_paths(path: Path, files: Iterable[str]) -> dict[str, Path]:
    """Where the page of each of *files* goes: *path* for a single one, else a file beside it named
    after both.
    """
    distinct = list(dict.fromkeys(files))
    if len(distinct) == 1:
        return {distinct[0]: path}
    found: dict[str, Path] = {}
    for file in distinct:
        stem = "stdin" if file == "-" else Path(file).stem
        names = (
            f"{path.stem}-{stem}{'' if n == 1 else f'-{n}'}{path.suffix}"
            for n in range(1, len(distinct) + 1)
        )
        found[file] = next(p for p in map(path.with_name, names) if p not in found.values())
    return found


def page(report: Report) -> str:
    """The page of *report*, as HTML. What cannot be encoded as UTF-8 becomes a question mark."""
    scripts = [library(), _asset("page.js")]
    data = f'<script type="application/json" id="report">{_json(_data(report))}</script>\n'
    data += f'<script type="application/json" id="charts">{_json(charts(report))}</script>\n'
    html = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        f"<main>\n{''.join(_body(report))}</main>\n{_DIALOG}{data}"
        f"{''.join(map(_script, scripts))}</body>\n</html>\n"
    )
    return html.encode("utf-8", "replace").decode()


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """A module: its names are its own, and it runs when the page is there."""
    return f'<script type="module">{text}</script>\n'


def _policy(scripts: Iterable[str]) -> str:
    """Nothing is loaded, and no script runs but these.

    The library makes functions of the charts' expressions, which hold none of the report's texts;
    interpreted, they would take three times as long.
    """
    digests = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    )
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    sources = f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'"
    return f"{sources}; base-uri 'none'; form-action 'none'"


def _json(value: object) -> str:
    """JSON that may stand in a script element: no text in it can end the element or begin a
    comment.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# Data ---------------------------------------------------------------------------------------------


def _data(report: Report) -> dict[str, object]:
    """What the page's script reads."""
    cut = _cut(report)
    actions: list[dict[str, object]] = []
    turns: list[dict[str, object]] = []
    for number, turn in enumerate(report.turns, 1):
        first = len(actions)
        actions += [
            {
                "turn": number,
                "stage": action.stage,
                "outcome": action.outcome,
                "told": action.told,
                "saved": None if action.tokens_saved is None else round(action.tokens_saved),
                "replaced": [
                    {
                        "name": change.name,
                        "placeholder": cut(change.placeholder),
                        "original": cut(change.original),
                        "where": change.where,
                        "before": round(change.tokens_before),
                        "after": round(change.tokens_after),
                    }
                    for change in action.replaced
                ],
            }
            for action in turn.actions
        ]
        turns.append(_turn(number, turn, range(first, len(actions))))
    return {
        "unit": report.unit,
        "policy": report.policy,
        "baseline": report.baseline,
        "kinds": list(KINDS.items()),
        "turns": turns,
        "actions": actions,
        "recall": [
            {"policy": point.policy, "budget": point.budget_tokens, "recall": point.recall}
            for point in report.recall
        ],
    }


def _turn(number: int, turn: PageTurn, actions: range) -> dict[str, object]:
    return {
        "turn": number,
        "label": turn.label,
        "kinds": [round(turn.tokens.get(kind, 0)) for kind in KINDS],
        "total": round(turn.total),
        "without": round(turn.tokens_without),
        "cost": turn.cost,
        "costWithout": turn.cost_without,
        "actions": list(actions),
    }


def _cut(report: Report) -> Callable[[str], str]:
    """Shortens long texts in their middle, as much as it takes to keep them all within bounds."""
    changes = [
        change for turn in report.turns for action in turn.actions for change in action.replaced
    ]
    sizes = [
        len(text.encode("utf-8", "replace"))
        for change in changes
        for text in (change.placeholder, change.original)
    ]
    limit = 20_000
    while limit > 100 and sum(min(size, limit) for size in sizes) > TEXT_BYTES:
        limit = limit * 3 // 4

    def cut(text: str) -> str:
        if len(text) <= limit:
            return text
        half = limit // 2
        return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters not shown here …]\n{text[-half:]}"

    return cut


# Body ---------------------------------------------------------------------------------------------

_DIALOG = """<dialog id="action" aria-labelledby="action-title">
<h2 id="action-title"></h2>
<p id="action-told"></p>
<div class="bar"><button type="button" id="previous">Previous action</button>
<button type="button" id="next">Next action</button> <button type="button" id="close" autofocus>Close</button></div>
<div id="action-body"></div>
</dialog>
"""


def _body(report: Report) -> Iterator[str]:
    """The sections. Whatever a chart shows stands in a table too."""
    yield f'<h1>{escape(report.title)}</h1>\n<p class="soft">{escape(report.subtitle)}</p>\n'
    if report.turns:
        yield f'<p class="lead">{escape(_lead(report))}</p>\n'
    if report.facts:
        rows = [(fact.name, fact.with_it, fact.without) for fact in report.facts]
        yield _table("In all", ("", report.policy, report.baseline), rows, range(1, 3), "facts")
    if report.turns:
        yield from _tokens(report)
        yield from _actions(report)
        yield from _costs(report)
    else:
        yield "<p>There was no turn.</p>\n"
    yield from _recall(report)
    yield from _blocks(report)


def _lead(report: Report) -> str:
    """All of the page in a sentence."""
    cost, cost_without = (
        sum(turn.cost for turn in report.turns),
        sum(turn.cost_without for turn in report.turns),
    )
    largest, without = (
        max(turn.total for turn in report.turns),
        max(turn.tokens_without for turn in report.turns),
    )
    costs = (
        f"{report.policy} cost {cost / cost_without:.0%} of {report.baseline}; "
        if cost_without
        else ""
    )
    told = f"{costs}the largest context was {largest:,.0f} tokens instead of {without:,.0f}."
    return f"{counted(len(report.turns), 'turn')}: {told}"


def _tokens(report: Report) -> Iterator[str]:
    baseline = escape(report.baseline)
    yield "<section>\n<h2>Tokens per turn</h2>\n"
    yield (
        f"<p>What each model call was sent, by kind; dashed: {baseline}. A mark is a stage's action, filled where it "
        "came to nothing: choose it to see what it replaced.</p>\n"
    )
    yield from _kinds(report)
    yield f'<div class="chart" id="tokens" role="img" aria-label="{escape(_told(report))}"></div>\n'
    yield (
        f'<div class="pick"><label for="turn">Turn</label><input type="range" id="turn" min="1" '
        f'max="{len(report.turns)}" value="{len(report.turns)}">'
        f'<label><input type="checkbox" id="compare" checked> dashed line: {baseline}</label></div>\n'
        '<div class="readout" id="readout" role="group" aria-label="The chosen turn"></div>\n'
    )
    header = ("turn", *KINDS.values(), "in all", report.baseline, "what the model did")
    rows = [
        (
            str(number),
            *(f"{turn.tokens.get(kind, 0):,.0f}" for kind in KINDS),
            *_sums(turn),
            turn.label,
        )
        for number, turn in enumerate(report.turns, 1)
    ]
    yield _details(
        "Table: tokens per turn", _table("Tokens per turn and kind", header, rows, range(12))
    )
    yield "</section>\n"


def _told(report: Report) -> str:
    """The chart of tokens for who cannot see it."""
    last, largest = report.turns[-1].total, max(turn.total for turn in report.turns)
    without = max(turn.tokens_without for turn in report.turns)
    return (
        f"Tokens of {len(report.turns):,} turns, stacked by kind: at most {largest:,.0f}, at the end {last:,.0f}; "
        f"{report.baseline}: at most {without:,.0f}. The table below has them all."
    )


def _kinds(report: Report) -> Iterator[str]:
    """What the colours mean, in the order of the stack.

    A kind can be shown alone, so that nothing hangs on colour.
    """
    yield '<ul class="kinds" aria-label="Kinds, from the top down; choose one to see it alone">\n'
    present = {kind for turn in report.turns for kind, tokens in turn.tokens.items() if tokens}
    for kind, name in reversed(list(KINDS.items())):
        if kind in present:
            yield (
                f'<li><button type="button" aria-pressed="false" data-kind="{kind}">'
                f'<span class="swatch" style="background: var(--{kind})"></span>{name}</button></li>\n'
            )
    yield "</ul>\n"


def _sums(turn: PageTurn) -> tuple[str, str]:
    return f"{turn.total:,.0f}", f"{turn.tokens_without:,.0f}"


def _acted(report: Report) -> list[tuple[int, Action]]:
    """Every action with its turn, in the order in which the page's script counts them."""
    return [
        (number, action) for number, turn in enumerate(report.turns, 1) for action in turn.actions
    ]


def _actions(report: Report) -> Iterator[str]:
    acted = _acted(report)
    if not acted:
        return
    yield f"<section>\n<h2>Actions</h2>\n<p>{escape(_by_stage(acted))}</p>\n"
    rows = [
        (
            str(number),
            _button(index, f"{action.stage}: {action.outcome}"),
            escape(action.told),
            "" if action.tokens_saved is None else f"{action.tokens_saved:,.0f}",
        )
        for index, (number, action) in enumerate(acted)
    ]
    table = _grid("What each stage did", ("turn", "action", "what", "tokens saved"), rows, (0, 3))
    yield _details(f"Table: {counted(len(acted), 'action')}", table, opened=len(acted) <= FEW)
    yield "</section>\n"


def _by_stage(acted: Iterable[tuple[int, Action]]) -> str:
    """How often each stage acted, and what that saved."""
    times: Counter[str] = Counter()
    saved: Counter[str] = Counter()
    for _, action in acted:
        times[action.stage] += 1
        saved[action.stage] += round(action.tokens_saved or 0)
    told = (
        f"{stage} {counted(times[stage], 'time')}, {saved[stage]:,} tokens saved" for stage in times
    )
    return f"{'; '.join(told)}."


def _button(action: int, text: str) -> str:
    """Opens the dialog of the action with this number."""
    return f'<button type="button" data-action="{action}">{escape(text)}</button>'


def _costs(report: Report) -> Iterator[str]:
    yield "<section>\n<h2>Cost so far</h2>\n"
    yield (
        f"<p>Added up over the turns, in {escape(_unit(report))}; prompts are cached as the provider's rules say.</p>\n"
    )
    told = f"Cost so far, {report.policy} and {report.baseline}, turn by turn; the table below has all."
    yield f'<div class="chart" id="cost" role="img" aria-label="{escape(told)}"></div>\n'
    shown = partial(cost, dollars=report.unit == "dollars", places=4)
    rows, ours, theirs = [], 0.0, 0.0
    for number, turn in enumerate(report.turns, 1):
        ours, theirs = ours + turn.cost, theirs + turn.cost_without
        rows.append((str(number), shown(ours), shown(theirs)))
    header = ("turn", report.policy, report.baseline)
    yield _details(
        "Table: cost so far", _table(f"Cost so far, {report.unit}", header, rows, range(3))
    )
    yield "</section>\n"


def _unit(report: Report) -> str:
    return "dollars" if report.unit == "dollars" else f"the price of so many {report.unit}"


def _recall(report: Report) -> Iterator[str]:
    if not report.recall:
        return
    yield "<section>\n<h2>Recall against budget</h2>\n"
    yield (
        "<p>The share of what the agent uses later that a context of so many tokens still shows. Dashed: an oracle "
        "that knows the future.</p>\n"
    )
    told = "Recall of each policy against the tokens of its context, and the oracle's above; the table below has all."
    yield f'<div class="chart" id="recall" role="img" aria-label="{told}"></div>\n'
    rows = [
        (point.policy, f"{point.budget_tokens:,.0f}", f"{point.recall:.3f}")
        for point in report.recall
    ]
    yield _details(
        "Table: recall", _table("Recall", ("policy", "tokens", "recall"), rows, range(1, 3))
    )
    yield "</section>\n"


def _blocks(report: Report) -> Iterator[str]:
    if not report.blocks:
        return
    yield "<section>\n<h2>The biggest blocks, and where they went</h2>\n"
    places = {
        (turn, action.stage): index
        for index, (turn, action) in reversed(list(enumerate(_acted(report))))
    }
    rows = [_fate(block, places.get((block.until or 0, block.stage))) for block in report.blocks]
    header = ("block", "kind", "tokens", "since turn", "until turn", "now")
    yield _grid("The biggest blocks", header, rows, range(2, 5))
    yield "</section>\n"


def _fate(block: BlockFate, action: int | None) -> tuple[str, ...]:
    """A row of the biggest blocks; one that left opens what replaced it."""
    now = escape(block.fate) if action is None else _button(action, block.fate)
    numbers = (f"{block.tokens:,.0f}", str(block.turn), str(block.until or ""))
    return escape(block.name), KINDS[block.kind], *numbers, now


def _details(name: str, content: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{escape(name)}</summary>\n{content}</details>\n"


def _table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
    style: str = "",
) -> str:
    """A table of texts; right-aligned where *numbers* has the column's index."""
    body = [[escape(cell) for cell in row] for row in rows]
    return _grid(caption, header, body, numbers, style)


def _grid(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int],
    style: str = "",
) -> str:
    """A table of cells that are HTML, in a box of its own, which the keyboard can scroll."""
    classes = [' class="number"' if index in numbers else "" for index in range(len(header))]
    head = "".join(
        f'<th scope="col"{at}>{escape(name)}</th>' for name, at in zip(header, classes, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{at}>{cell}</td>' for cell, at in zip(row, classes, strict=True))}</tr>\n"
        for row in rows
    )
    label = escape(caption)
    return (
        f'<div class="scroll{style and f" {style}"}" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<caption>{label}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n"
    )
