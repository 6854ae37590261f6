"""The web page of a gateway: its sessions, their turns, and the tokens removed from the contexts.

The page is plain HTML and CSS, written again at each request, and it loads nothing. Its security
policy forbids scripts, so no text of a conversation can run as one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .. import __version__
from .._html import Markup, markup, palette, source_hash
from .._text import as_dollars, as_number, as_percent, count_phrase
from ..tokens.spent import KINDS, Kind
from .record import GatewayRecord, GatewayTurn

REFRESH_SECONDS = 3
"""Interval at which the browser loads the page again."""
MAX_SESSIONS = 12
MAX_BARS = 120
MIN_BARS = 20
"""Minimum number of bars that fill a chart; a session with fewer turns leaves space."""
MAX_ROWS = 12


_OWN_STYLE = """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; overflow-wrap: anywhere; }
p { margin: .25rem 0 .75rem; }
.soft { color: var(--soft); }
.lead { font-size: 1.1rem; }
.all { margin-top: .75rem; }
.bad { color: var(--series-1); }
.kinds { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: .5rem 0; padding: 0;
  list-style: none; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .4em;
  border-radius: .15em; background: var(--of); }
.mark { display: inline-block; height: .8em; margin: 0 .6em 0 .3em;
  border-left: 2px solid var(--ink); }
.left { --of: var(--line); }
.caption { display: flex; flex-wrap: wrap; justify-content: space-between; margin: .5rem 0 .1rem;
  font-size: .85rem; color: var(--soft); }
svg { display: block; width: 100%; border-bottom: 1px solid var(--soft); overflow: visible; }
.stack { height: 9rem; } .whole { height: 3.5rem; }
path { fill: var(--of); }
path.sent { --of: var(--accent); }
line { stroke: var(--ink); stroke-width: 2px; vector-effect: non-scaling-stroke; }
rect { fill: transparent; }
rect:hover { fill: var(--ink); fill-opacity: .15; }
.scroll { overflow: auto; margin: .75rem 0 .25rem; border: 1px solid var(--line);
  border-radius: .4rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: start;
  vertical-align: top; }
th { font-weight: 600; background: var(--raised); }
td:last-child { overflow-wrap: anywhere; min-width: 12rem; }
.number { text-align: end; white-space: nowrap; }
@media (max-width: 40rem) {
  body { padding: .75rem; }
  .rare { display: none; }
  th, td { padding: .3rem .35rem; }
  td:last-child { min-width: 8rem; }
}
"""

_KINDS_STYLE = "".join(f".{kind} {{ --of: var(--{kind}); }}\n" for kind in KINDS)
_STYLE = f"{palette()}{_KINDS_STYLE}{_OWN_STYLE}"

_PAGE = """<!doctype html><html lang=en><head><meta charset=utf-8><title>ctxpipe gateway</title>
<meta name=viewport content='width=device-width, initial-scale=1'>
<meta http-equiv=refresh content={}><style>{}</style></head>
<body><h1>ctxpipe gateway</h1>{}<p class='soft all'>{}</p></body></html>
"""

_SESSION = """<section><h2>{}</h2>{}
<div class=scroll><table><thead><tr><th class=number>turn<th class=number>sent
<th class=number>without<th class='number rare'>seconds<th class='number rare'>$
<th>what happened</thead>{}</table></div>{}</section>
"""

_CHART = """<p class=caption><span>{}</span><span>{}</span></p>
<svg class={} viewBox='0 0 100 100' preserveAspectRatio=none role=img aria-label='{}, {}'>{}</svg>
"""

_TURN = "<rect x={} y=0 width={} height=100><title>{}</title></rect>"

_ROW = """<tr><td class=number title='{}'>{}<td class=number>{}<td class=number>{}
<td class='number rare'>{}<td class='number rare'>{}<td class={}>{}</tr>
"""


def headers() -> Mapping[str, str]:
    """Return the headers of the page: they forbid scripts, frames and loading other resources."""
    policy = f"default-src 'none'; style-src '{source_hash(_STYLE)}'; frame-ancestors 'none'; "
    return {
        "content-security-policy": policy + "base-uri 'none'; form-action 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
        "cross-origin-resource-policy": "same-origin",
    }


def write_page(record: GatewayRecord) -> str:
    """Return the page of *record*, as HTML."""
    footer = f"ctxpipe {__version__}, {time.strftime('%Y-%m-%d %H:%M')}"
    if record.priced_turns:
        footer += "; dollars at the prices of each turn's model, as genai-prices lists them"
    return markup(_PAGE, REFRESH_SECONDS, Markup(_STYLE), list(_body(record)), footer)


def _body(record: GatewayRecord) -> Iterator[Markup]:
    """Yield the parts of the page: totals, legend, and a section for each session.

    At most MAX_SESSIONS sessions are shown; a line says how many more there are.
    """
    yield markup("<p class=lead>{}</p>", _sentence(record))
    yield markup("<p class=soft>{}</p>", _rest(record))
    yield from _legend(record.turns)
    sessions = _by_session(record.turns)
    for session, turns in list(sessions.items())[:MAX_SESSIONS]:
        yield _session(session, turns)
    yield from _more(len(sessions) - MAX_SESSIONS, "older session")


def _more(count: int, name: str) -> Iterator[Markup]:
    """Yield a line that says how many more there are, unless *count* is 0 or less."""
    if count > 0:
        yield markup("<p class=soft>and {}</p>", count_phrase(count, name))


def _sentence(record: GatewayRecord) -> str:
    """Return the first sentence of the page: turns, tokens sent and saved, dollars billed."""
    if not record.history_tokens:
        return "No turn has been shaped yet. Point an agent's base URL here."
    share = 1 - record.sent_tokens / record.history_tokens
    text = f"{count_phrase(record.number, 'turn')}: {record.sent_tokens:,} tokens sent instead of "
    text += f"{record.history_tokens:,}, {as_percent(share)} less"
    if record.priced_turns:
        text += f"; {as_dollars(record.dollars)} billed"
    return text + "."


def _rest(record: GatewayRecord) -> str:
    """Return the counts of other requests and of failures, except those that are 0."""
    counts = (
        (record.outcomes["passed"], "other request", "passed through"),
        (record.outcomes["recovered"], "refusal", "survived"),
        (record.outcomes["not shaped"], "request", "not shaped"),
        (record.outcomes["refused"], "request", "refused"),
        (record.outcomes["over budget"], "request", "over the budget of its session"),
        (record.outcomes["failed"], "request", "without an answer of the upstream"),
    )
    return ", ".join(
        f"{count_phrase(count, noun)} {outcome}" for count, noun, outcome in counts if count
    )


def _by_session(turns: Sequence[GatewayTurn]) -> dict[str, list[GatewayTurn]]:
    """Return the turns of each session, the session that began last first.

    In this order no session changes its place while several are at work.
    """
    sessions: dict[str, list[GatewayTurn]] = {}
    for turn in turns:
        sessions.setdefault(turn.session, []).append(turn)
    return dict(reversed(sessions.items()))


def _legend(turns: Iterable[GatewayTurn]) -> Iterator[Markup]:
    """Yield the legend of the colors, in the order in which the chart stacks them."""
    present: set[Kind] = set()
    for turn in turns:
        present.update(turn.kinds)
    if not present:
        return
    yield Markup("<ul class=kinds>")
    for kind, name in reversed(list(KINDS.items())):
        if kind in present:
            yield markup("<li><span class='swatch {}'></span>{}", kind, name)
    yield Markup("<li><span class='swatch left'></span>left out")
    yield Markup("<li><span class=mark></span>a stage took something out</ul>")


# One session --------------------------------------------------------------------------------------


def _session(session: str, turns: Sequence[GatewayTurn]) -> Markup:
    """Return the section of one session: its last text, its charts, and a table of its turns.

    The charts show the last MAX_BARS turns, the table the last MAX_ROWS, the newest first.
    *session* is its name, "" for requests that were not shaped.
    """
    above: list[Markup] = []
    if turns[-1].text:
        above.append(markup("<p class=soft>{}</p>", turns[-1].text))
    if any(turn.history_tokens for turn in turns):
        above += _charts(turns[-MAX_BARS:])
    removals = _all_removals(turns)
    if removals:
        above.append(markup("<p class=all>Left the context: {}.</p>", removals))
    title = session or "Requests that were not shaped"
    rows = [_row(turn) for turn in reversed(turns[-MAX_ROWS:])]
    below = list(_more(len(turns) - MAX_ROWS, "earlier turn"))
    return markup(_SESSION, title, above, rows, below)


def _all_removals(turns: Iterable[GatewayTurn]) -> str:
    """Return the tokens that each stage removed in all *turns*, as a phrase."""
    times: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for turn in turns:
        for removal in turn.removals:
            times[removal.stage] += 1
            tokens[removal.stage] += removal.tokens
    return "; ".join(
        f"{as_number(tokens[stage])} tokens by {stage} in {count_phrase(count, 'turn')}"
        for stage, count in times.items()
    )


def _row(turn: GatewayTurn) -> Markup:
    """Return the row of *turn* in the table: time, tokens, seconds, dollars and events.

    The time of day is that of this machine.
    """
    events = []
    if turn.reason or turn.outcome != "shaped":
        events.append(turn.reason or turn.outcome)
    for removal in turn.removals:
        detail = f": {removal.detail}" if removal.detail else ""
        events.append(f"{removal.stage} −{removal.tokens:,}{detail}")
    if not events:
        events.append("nothing was taken out")
    is_error = turn.status >= 400
    if is_error:
        events.append(f"status {turn.status}")
    return markup(
        _ROW,
        time.strftime("%H:%M:%S", time.localtime(turn.at)),
        turn.number,
        f"{turn.sent_tokens:,}",
        f"{turn.history_tokens:,}",
        f"{turn.seconds:.1f}",
        "" if turn.bill.dollars is None else as_dollars(turn.bill.dollars),
        "bad" if is_error or turn.outcome == "not shaped" else "soft",
        "; ".join(events),
    )


# Charts -------------------------------------------------------------------------------------------


def _charts(turns: Sequence[GatewayTurn]) -> Iterator[Markup]:
    """Yield the charts of *turns*: tokens sent by kind, then tokens sent and tokens left out."""
    max_tokens = max([1, *(turn.sent_tokens for turn in turns)])
    top = max_tokens * 1.1  # leaves space for a line above the highest turn
    yield _chart("stack", "tokens sent, by kind", max_tokens, _stack(turns, top))
    if any(turn.sent_tokens != turn.history_tokens for turn in turns):
        max_tokens = max([1, *(turn.history_tokens for turn in turns)])
        # The tokens sent are drawn over those of the whole history.
        history_area = _area("left", [(0, turn.history_tokens / max_tokens) for turn in turns])
        sent_area = _area("sent", [(0, turn.sent_tokens / max_tokens) for turn in turns])
        yield _chart("whole", "sent, and left out", max_tokens, [history_area, sent_area])


def _chart(css_class: str, title: str, max_tokens: int, parts: Iterable[Markup]) -> Markup:
    """Return a bar chart with its *title* and the tokens of the highest bar."""
    limit = f"at most {max_tokens:,}"
    return markup(_CHART, title, limit, css_class, title, limit, list(parts))


def _stack(turns: Sequence[GatewayTurn], top: float) -> Iterator[Markup]:
    """Yield an area for each kind, a line for each turn with removals, and the tooltips.

    *top* is the number of tokens at the upper edge of the chart.
    """
    below = [0.0] * len(turns)
    for kind in KINDS:
        above = [
            low + turn.kinds.get(kind, 0) / top for low, turn in zip(below, turns, strict=True)
        ]
        if above != below:
            yield _area(kind, list(zip(below, above, strict=True)))
        below = above
    width = _width(len(turns))
    for place, turn in enumerate(turns):
        x = place * width
        if turn.removals:
            middle = f"{x + width / 2:.2f}"
            bar_top = 100 - 100 * turn.sent_tokens / top
            upper = f"{bar_top - 7:.2f}"
            lower = f"{bar_top - 1:.2f}"
            yield markup("<line x1={} x2={} y1={} y2={} />", middle, middle, upper, lower)
        yield markup(_TURN, f"{x:.2f}", f"{width:.2f}", _description(turn))


def _description(turn: GatewayTurn) -> str:
    """Return the text of the tooltip of *turn*."""
    lines = [f"turn {turn.number}: {turn.sent_tokens:,} of {turn.history_tokens:,} tokens"]
    lines += [f"{KINDS[kind]}: {tokens:,}" for kind, tokens in turn.kinds.items()]
    lines += [f"{removal.stage} took out {removal.tokens:,}" for removal in turn.removals]
    return "\n".join(lines)


def _area(css_class: str, spans: Sequence[tuple[float, float]]) -> Markup:
    """Return an area in steps. *spans* are the lower and upper edges, as shares of the height."""
    width = _width(len(spans))
    upper = [f"V{100 - 100 * high:.2f}h{width:.4f}" for _, high in spans]
    lower = [f"V{100 - 100 * low:.2f}h-{width:.4f}" for low, _ in reversed(spans)]
    return markup("<path class={} d='M0 100{}Z' />", css_class, "".join([*upper, *lower]))


def _width(turns: int) -> float:
    """Return the width of a bar if there are *turns* bars and the chart is 100 wide."""
    return 100 / max(turns, MIN_BARS)
