"""The report of ``ctxpipe survive`` as one HTML file without scripts, which loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple, Protocol

from .._html import Markup, markup, palette, source_hash
from .._text import as_number, count_phrase, one_line
from .orders import Order

MAX_MISSING = 2_000
"""Most texts that the page lists; it counts the others."""

MAX_CALLS = 6
MAX_LINE_CHARS = 200


class Table(Protocol):
    """A table with a title."""

    @property
    def title(self) -> str: ...
    @property
    def headings(self) -> Sequence[str]: ...
    @property
    def rows(self) -> Sequence[Sequence[str]]: ...


class Missing(NamedTuple):
    """A text that was not wholly in the context under *policy*, at *calls*.

    *lost_count* is the number of looks at which a line of it was in no file either.
    """

    policy: str
    order: Order
    calls: Sequence[int]
    lost_count: int


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src '{}'; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ctxpipe survive</title>
<style>{}</style>
</head>
<body>
<main>
<h1>What stays in the context</h1>
<p class="soft">{}</p>
<p>A text is looked for at each tenth call, or at the call that needs it, and after each compaction:
in the context, in a file that the context leads to, or lost.</p>
{}
<h2>Texts that were not in the context</h2>
{}
</main>
</body>
</html>
"""

_TABLE = """<h3>{}</h3>
<div class="scroll"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>
"""

_MISSING_HEADINGS = ("text", "kind", "recording", "policy", "calls", "lost")


def survival_page(tables: Sequence[Table], missing: Sequence[Missing], origin: str) -> str:
    """Return the page with *tables* and the *missing* texts as HTML.

    *origin* is a line about the program, date and command that made the page. Characters that
    cannot be encoded as UTF-8 become question marks.
    """
    css = (files(__package__) / "assets" / "page.css").read_text(encoding="utf-8")
    style = Markup(palette() + css)
    parts = [_table(table.title, table.headings, table.rows) for table in tables]
    page = markup(_PAGE, source_hash(style), style, origin, parts, _missing_part(missing))
    return page.encode("utf-8", "replace").decode()


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table; a column whose cells begin with digits is aligned to the right."""
    number_columns = [
        all(row[column][:1] in "$0123456789–" for row in rows) for column in range(len(headings))
    ]
    head = []
    for heading, is_number in zip(headings, number_columns, strict=True):
        head.append(_cell("th", heading, "", is_number=is_number))
    body = []
    for row in rows:
        cells = []
        for text, heading, is_number in zip(row, headings, number_columns, strict=True):
            cells.append(_cell("td", text, heading, is_number=is_number))
        body.append(markup("<tr>{}</tr>", cells))
    return markup(_TABLE, title, head, body)


def _cell(tag: str, text: str, label: str, *, is_number: bool) -> Markup:
    """Return a cell of a table; *label* is its heading on a narrow screen."""
    css_class = "number" if is_number else ""
    return markup('<{} class="{}" data-label="{}">{}</{}>', tag, css_class, label, text, tag)


def _missing_part(missing: Sequence[Missing]) -> Markup:
    """Return a table for each policy of the *missing* texts, folded up."""
    if not missing:
        return Markup("<p>Each text was in the context whenever it was looked for.</p>")
    parts = []
    for policy in dict.fromkeys(one.policy for one in missing):
        missing_texts = [one for one in missing if one.policy == policy]
        rows = [_missing_row(one) for one in missing_texts[:MAX_MISSING]]
        title = f"{policy}: {count_phrase(len(missing_texts), 'text')}"
        if len(missing_texts) > MAX_MISSING:
            title += f", the first {as_number(MAX_MISSING)}"
        table = _table("", _MISSING_HEADINGS, rows)
        parts.append(markup("<details><summary>{}</summary>{}</details>", title, table))
    return markup("{}", parts)


def _missing_row(missing: Missing) -> tuple[str, ...]:
    """Return the cells of one of the missing texts."""
    order = missing.order
    calls = ", ".join(str(call) for call in missing.calls[:MAX_CALLS])
    if len(missing.calls) > MAX_CALLS:
        calls += f" and {len(missing.calls) - MAX_CALLS:,} more"
    line = one_line(order.lines[0], MAX_LINE_CHARS)
    place = "in a file"
    if missing.lost_count:
        place = count_phrase(missing.lost_count, "time")
    return line, order.kind, order.transcript, missing.policy, f"calls {calls}", place
