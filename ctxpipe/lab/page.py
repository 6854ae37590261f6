"""One conversation's way through a pipeline as one HTML file that needs no network.

Anybody may have written what is in a transcript: it reaches the page escaped, as text, and the page
forbids itself every script but its own and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from ..words import count_phrase
from .cache import HEADINGS, rows
from .charts import charts, library
from .report import KINDS, Action, BlockFate, Kind, PageTurn, Report
from .words import cost

__all__ = ["page", "page_paths", "write_page"]

TEXT_BYTES = 1_200_000
"""All texts of actions together: the library takes 0.9 MB, and the page must stay below 3."""

FEW = 12
"""The most actions that are listed at once; a longer list is closed at first."""


def write_page(path: str | os.PathLike[str], report: Report) -> None:
    """Write the page of *report* to *path*. Raises OSError where that cannot be written."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(page(report))


def page_paths(path: Path, files: Iterable[str]) -> dict[str, Path]:
    """Where the page of each of *files* goes.

    *path* for a single one, else a file beside it named after both.
    """
    distinct = list(dict.fromkeys(files))
    if len(distinct) == 1:
        return {distinct[0]: path}
    found: dict[str, Path] = {}
    for file in distinct:
        stem = "stdin" if file == "-" else Path(file).stem
        name = f"{path.stem}-{stem}"
        page_path = path.with_name(f"{name}{path.suffix}")
        number = 1
        while page_path in found.values():
            number += 1
            page_path = path.with_name(f"{name}-{number}{path.suffix}")
        found[file] = page_path
    return found


def page(report: Report) -> str:
    """The page of *report*, as HTML. What cannot be encoded as UTF-8 becomes a question mark."""
    scripts = [library(), _asset("page.js")]
    html = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n"
        f"<style>\n{_asset('page.css')}</style>\n"
        "</head>\n<body>\n"
        f"<main>\n{''.join(_body(report))}</main>\n"
        f"{_DIALOG}"
        f'<script type="application/json" id="report">{_json(_data(report))}</script>\n'
        f'<script type="application/json" id="charts">{_json(charts(report))}</script>\n'
        f"{''.join(map(_script, scripts))}"
        "</body>\n</html>\n"
    )
    return html.encode("utf-8", "replace").decode()


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """A module: its names are its own, and it runs when the page is loaded."""
    return f'<script type="module">{text}</script>\n'


def _policy(scripts: Iterable[str]) -> str:
    """Nothing is loaded, and no script runs but these.

    The library makes functions of the charts' expressions, which hold none of the report's texts;
    interpreted, they would take three times as long.
    """
    sources = []
    for script in scripts:
        digest = hashlib.sha256(script.encode()).digest()
        sources.append(f"'sha256-{base64.b64encode(digest).decode()}'")
    allowed = " ".join(sources)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; "
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


# Data ---------------------------------------------------------------------------------------------


def _data(report: Report) -> dict[str, object]:
    """What the page's script reads."""
    shorten = _shortener(report)
    actions: list[dict[str, object]] = []
    turns: list[dict[str, object]] = []
    for number, turn in enumerate(report.turns, 1):
        first = len(actions)
        actions += [_action_data(number, action, shorten) for action in turn.actions]
        own = range(first, len(actions))
        turns.append(_turn_data(number, turn, own))
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


def _action_data(
    number: int,
    action: Action,
    shorten: Callable[[str], str],
) -> dict[str, object]:
    replaced = [
        {
            "name": change.name,
            "placeholder": shorten(change.placeholder),
            "original": shorten(change.original),
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


def _turn_data(
    number: int,
    turn: PageTurn,
    actions: range,
) -> dict[str, object]:
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


def _shortener(report: Report) -> Callable[[str], str]:
    """A function that cuts the middle out of long texts, so that all together fit TEXT_BYTES."""
    sizes = []
    for _, action in _actions_by_turn(report):
        for change in action.replaced:
            for text in (change.placeholder, change.original):
                size = len(text.encode("utf-8", "replace"))
                sizes.append(size)
    limit = 20_000
    while limit > 100 and sum(min(size, limit) for size in sizes) > TEXT_BYTES:
        limit = limit * 3 // 4

    def shorten(text: str) -> str:
        if len(text) <= limit:
            return text
        half = limit // 2
        missing = len(text) - 2 * half
        return f"{text[:half]}\n[… {missing:,} characters not shown here …]\n{text[-half:]}"

    return shorten


# Body ---------------------------------------------------------------------------------------------

_DIALOG = """<dialog id="action" aria-labelledby="action-title">
<h2 id="action-title"></h2>
<p id="action-told"></p>
<div class="bar"><button type="button" id="previous">Previous action</button>
<button type="button" id="next">Next action</button> \
<button type="button" id="close" autofocus>Close</button></div>
<div id="action-body"></div>
</dialog>
"""


def _body(report: Report) -> Iterator[str]:
    """The sections. A table has whatever a chart shows."""
    yield f"<h1>{escape(report.title)}</h1>\n"
    yield f'<p class="soft">{escape(report.subtitle)}</p>\n'
    if report.turns:
        yield f'<p class="lead">{escape(_lead(report))}</p>\n'
    if report.facts:
        header = ("", report.policy, report.baseline)
        rows = [(fact.name, fact.with_it, fact.without) for fact in report.facts]
        yield _table("In all", header, rows, range(1, 3), "facts")
    if report.turns:
        yield from _tokens(report)
        yield from _actions(report)
        yield from _costs(report)
    else:
        yield "<p>There was no turn.</p>\n"
    yield from _cache(report)
    yield from _recall(report)
    yield from _blocks(report)


def _lead(report: Report) -> str:
    """The whole page in one sentence."""
    cost = sum(turn.cost for turn in report.turns)
    cost_without = sum(turn.cost_without for turn in report.turns)
    largest = max(turn.total for turn in report.turns)
    without = max(turn.tokens_without for turn in report.turns)
    costs = ""
    if cost_without:
        costs = f"{report.policy} cost {cost / cost_without:.0%} of {report.baseline}; "
    turns = count_phrase(len(report.turns), "turn")
    return (
        f"{turns}: {costs}the largest context was {largest:,.0f} tokens instead of {without:,.0f}."
    )


def _tokens(report: Report) -> Iterator[str]:
    baseline = escape(report.baseline)
    last = len(report.turns)
    yield "<section>\n<h2>Tokens per turn</h2>\n"
    yield (
        f"<p>What each model call was sent, by kind; dashed: {baseline}. "
        "A mark is a stage's action, filled where it came to nothing: "
        "choose it to see what it replaced.</p>\n"
    )
    yield from _kinds(report)
    label = escape(_chart_text(report))
    yield f'<div class="chart" id="tokens" role="img" aria-label="{label}"></div>\n'
    yield (
        '<div class="pick"><label for="turn">Turn</label>'
        f'<input type="range" id="turn" min="1" max="{last}" value="{last}">'
        '<label><input type="checkbox" id="compare" checked>'
        f" dashed line: {baseline}</label></div>\n"
        '<div class="readout" id="readout" role="group" aria-label="The chosen turn"></div>\n'
    )
    header = ("turn", *KINDS.values(), "in all", report.baseline, "what the model did")
    rows = [_token_row(number, turn) for number, turn in enumerate(report.turns, 1)]
    table = _table("Tokens per turn and kind", header, rows, range(12))
    yield _details("Table: tokens per turn", table)
    yield "</section>\n"


def _token_row(number: int, turn: PageTurn) -> list[str]:
    amounts = [turn.tokens.get(kind, 0) for kind in KINDS]
    amounts += [turn.total, turn.tokens_without]
    cells = [f"{amount:,.0f}" for amount in amounts]
    return [str(number), *cells, turn.label]


def _chart_text(report: Report) -> str:
    """The chart of tokens, for readers who cannot see it."""
    last = report.turns[-1].total
    largest = max(turn.total for turn in report.turns)
    without = max(turn.tokens_without for turn in report.turns)
    return (
        f"Tokens of {len(report.turns):,} turns, stacked by kind: "
        f"at most {largest:,.0f}, at the end {last:,.0f}; "
        f"{report.baseline}: at most {without:,.0f}. The table below has them all."
    )


def _kinds(report: Report) -> Iterator[str]:
    """What the colours mean, in the order of the stack.

    A kind can be shown alone, so that nobody has to tell colours apart.
    """
    yield '<ul class="kinds" aria-label="Kinds, from the top down; choose one to see it alone">\n'
    present: set[Kind] = set()
    for turn in report.turns:
        present.update(kind for kind, tokens in turn.tokens.items() if tokens)
    for kind, name in reversed(list(KINDS.items())):
        if kind in present:
            yield (
                f'<li><button type="button" aria-pressed="false" data-kind="{kind}">'
                f'<span class="swatch" style="background: var(--{kind})"></span>'
                f"{name}</button></li>\n"
            )
    yield "</ul>\n"


def _actions_by_turn(report: Report) -> list[tuple[int, Action]]:
    """Every action with its turn, in the order in which the page's script counts them."""
    found = []
    for number, turn in enumerate(report.turns, 1):
        found += [(number, action) for action in turn.actions]
    return found


def _actions(report: Report) -> Iterator[str]:
    actions = _actions_by_turn(report)
    if not actions:
        return
    yield f"<section>\n<h2>Actions</h2>\n<p>{escape(_by_stage(actions))}</p>\n"
    rows = []
    for index, (number, action) in enumerate(actions):
        button = _button(index, f"{action.stage}: {action.outcome}")
        saved = ""
        if action.tokens_saved is not None:
            saved = f"{action.tokens_saved:,.0f}"
        what = escape(action.told)
        rows.append((str(number), button, what, saved))
    header = ("turn", "action", "what", "tokens saved")
    table = _grid("What each stage did", header, rows, (0, 3))
    name = f"Table: {count_phrase(len(actions), 'action')}"
    yield _details(name, table, is_open=len(actions) <= FEW)
    yield "</section>\n"


def _by_stage(actions: Iterable[tuple[int, Action]]) -> str:
    """How often each stage acted, and what that saved."""
    times: Counter[str] = Counter()
    saved: Counter[str] = Counter()
    for _, action in actions:
        times[action.stage] += 1
        saved[action.stage] += round(action.tokens_saved or 0)
    parts = []
    for stage, count in times.items():
        tokens = f"{saved[stage]:,} tokens saved"
        parts.append(f"{stage} {count_phrase(count, 'time')}, {tokens}")
    return f"{'; '.join(parts)}."


def _button(action: int, text: str) -> str:
    """A button that opens the dialog of the action with this number."""
    return f'<button type="button" data-action="{action}">{escape(text)}</button>'


def _costs(report: Report) -> Iterator[str]:
    is_dollars = report.unit == "dollars"
    unit = "dollars"
    if not is_dollars:
        unit = f"the price of so many {report.unit}"
    yield "<section>\n<h2>Cost so far</h2>\n"
    yield (
        f"<p>Added up over the turns, in {escape(unit)}; "
        "prompts are cached as the provider's rules say.</p>\n"
    )
    label = (
        f"Cost so far, {report.policy} and {report.baseline}, turn by turn; "
        "the table below has all."
    )
    yield f'<div class="chart" id="cost" role="img" aria-label="{escape(label)}"></div>\n'
    rows = []
    ours = 0.0
    theirs = 0.0
    for number, turn in enumerate(report.turns, 1):
        ours += turn.cost
        theirs += turn.cost_without
        costs = [cost(amount, dollars=is_dollars) for amount in (ours, theirs)]
        rows.append((str(number), *costs))
    header = ("turn", report.policy, report.baseline)
    table = _table(f"Cost so far, {report.unit}", header, rows, range(3))
    yield _details("Table: cost so far", table)
    yield "</section>\n"


def _cache(report: Report) -> Iterator[str]:
    if report.cache is None:
        return
    yield "<section>\n<h2>Why the prompt cache missed</h2>\n"
    if report.cache:
        yield (
            "<p>Tokens that had been sent before and were not read from the cache, "
            "by what was really billed; the cost is what they cost more than reading them.</p>\n"
        )
        yield _table("Cache misses by cause", HEADINGS, rows(report.cache), range(1, 4))
    else:
        yield "<p>By what was billed, it never did.</p>\n"
    yield "</section>\n"


def _recall(report: Report) -> Iterator[str]:
    if not report.recall:
        return
    yield "<section>\n<h2>Recall against budget</h2>\n"
    yield (
        "<p>The share of what the agent uses later that a context of so many tokens still shows. "
        "Dashed: an oracle that knows the future.</p>\n"
    )
    label = (
        "Recall of each policy against the tokens of its context, and the oracle's above; "
        "the table below has all."
    )
    yield f'<div class="chart" id="recall" role="img" aria-label="{label}"></div>\n'
    rows = []
    for point in report.recall:
        budget = f"{point.budget_tokens:,.0f}"
        rows.append((point.policy, budget, f"{point.recall:.3f}"))
    table = _table("Recall", ("policy", "tokens", "recall"), rows, range(1, 3))
    yield _details("Table: recall", table)
    yield "</section>\n"


def _blocks(report: Report) -> Iterator[str]:
    if not report.blocks:
        return
    yield "<section>\n<h2>The biggest blocks, and where they went</h2>\n"
    starts: list[int] = []  # the actions before each turn
    count = 0
    for turn in report.turns:
        starts.append(count)
        count += len(turn.actions)
    rows = []
    for block in report.blocks:
        place = None
        if block.until is not None and block.action is not None:
            place = starts[block.until - 1] + block.action
        rows.append(_block_row(block, place))
    header = ("block", "kind", "tokens", "since turn", "until turn", "now")
    yield _grid("The biggest blocks", header, rows, range(2, 5))
    yield "</section>\n"


def _block_row(block: BlockFate, action: int | None) -> tuple[str, ...]:
    """A row of the biggest blocks; one that left opens what replaced it."""
    now = escape(block.fate)
    if action is not None:
        now = _button(action, block.fate)
    return (
        escape(block.name),
        KINDS[block.kind],
        f"{block.tokens:,.0f}",
        str(block.turn),
        str(block.until or ""),
        now,
    )


def _details(name: str, content: str, *, is_open: bool = False) -> str:
    attribute = " open" if is_open else ""
    return f"<details{attribute}><summary>{escape(name)}</summary>\n{content}</details>\n"


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
    classes = [""] * len(header)
    for index in numbers:
        classes[index] = ' class="number"'
    head = ""
    for name, attribute in zip(header, classes, strict=True):
        head += f'<th scope="col"{attribute}>{escape(name)}</th>'
    lines = []
    for row in rows:
        pairs = zip(row, classes, strict=True)
        cells = "".join(f"<td{attribute}>{cell}</td>" for cell, attribute in pairs)
        lines.append(f"<tr>{cells}</tr>\n")
    box = f"scroll {style}" if style else "scroll"
    label = escape(caption)
    return (
        f'<div class="{box}" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<caption>{label}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )
