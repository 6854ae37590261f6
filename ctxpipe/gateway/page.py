"""The page of a gateway: its sessions, their turns, and what left the contexts.

It is HTML and CSS alone, drawn anew at each request, and it loads nothing: its security policy lets
no script run, whatever a conversation holds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .. import __version__
from .._html import Markup, markup, palette, source_hash
from .._text import as_dollars, as_number, as_percent, count_phrase
from ..tokens.spent import KINDS, Kind
from .record import Record, Turn

SECONDS = 3
"""After so many the browser asks again."""
MAX_SESSIONS = 12
MAX_BARS = 120
FEWEST_BARS = 20
"""A session of fewer turns does not fill its charts."""
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
    """The headers of the page: nothing may run in it, frame it or be loaded by it."""
    policy = f"default-src 'none'; style-src '{source_hash(_STYLE)}'; frame-ancestors 'none'; "
    return {
        "content-security-policy": policy + "base-uri 'none'; form-action 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
        "cross-origin-resource-policy": "same-origin",
    }


def write_page(record: Record) -> str:
    """The page of *record*, as HTML."""
    made = f"ctxpipe {__version__}, {time.strftime('%Y-%m-%d %H:%M')}"
    if record.priced:
        made += "; dollars at the prices of each turn's model, as genai-prices lists them"
    return markup(_PAGE, SECONDS, Markup(_STYLE), list(_body(record)), made)


def _body(record: Record) -> Iterator[Markup]:
    yield markup("<p class=lead>{}</p>", _sentence(record))
    yield markup("<p class=soft>{}</p>", _rest(record))
    yield from _legend(record.turns)
    sessions = _by_session(record.turns)
    for session, turns in list(sessions.items())[:MAX_SESSIONS]:
        yield _session(session, turns)
    yield from _more(len(sessions) - MAX_SESSIONS, "older session")


def _more(count: int, name: str) -> Iterator[Markup]:
    if count > 0:
        yield markup("<p class=soft>and {}</p>", count_phrase(count, name))


def _sentence(record: Record) -> str:
    if not record.whole:
        return "No turn has been shaped yet. Point an agent's base URL here."
    share = 1 - record.sent / record.whole
    text = f"{count_phrase(record.number, 'turn')}: {record.sent:,} tokens sent instead of "
    text += f"{record.whole:,}, {as_percent(share)} less"
    if record.priced:
        text += f"; {as_dollars(record.dollars)} billed"
    return text + "."


def _rest(record: Record) -> str:
    counts = (
        (record.passed, "other request", "passed through"),
        (record.recovered, "refusal", "survived"),
        (record.failed, "request", "not shaped"),
        (record.refused, "request", "refused"),
    )
    return ", ".join(f"{count_phrase(n, name)} {what}" for n, name, what in counts if n)


def _by_session(turns: Sequence[Turn]) -> dict[str, list[Turn]]:
    """The turns of each session, the session that began last first.

    So none changes its place while several are at work.
    """
    found: dict[str, list[Turn]] = {}
    for turn in turns:
        found.setdefault(turn.session, []).append(turn)
    return dict(reversed(found.items()))


def _legend(turns: Iterable[Turn]) -> Iterator[Markup]:
    """What the colours mean, in the order of the stack."""
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


def _session(session: str, turns: Sequence[Turn]) -> Markup:
    above: list[Markup] = []
    if turns[-1].text:
        above.append(markup("<p class=soft>{}</p>", turns[-1].text))
    if any(turn.whole for turn in turns):
        above += _charts(turns[-MAX_BARS:])
    if what := _all_left(turns):
        above.append(markup("<p class=all>Left the context: {}.</p>", what))
    title = session or "Requests that were not shaped"
    rows = list(map(_row, reversed(turns[-MAX_ROWS:])))
    below = list(_more(len(turns) - MAX_ROWS, "earlier turn"))
    return markup(_SESSION, title, above, rows, below)


def _all_left(turns: Iterable[Turn]) -> str:
    """What each stage has taken out, over all *turns*."""
    times: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for turn in turns:
        for leaving in turn.left:
            times[leaving.stage] += 1
            tokens[leaving.stage] += leaving.tokens
    return "; ".join(
        f"{as_number(tokens[stage])} tokens by {stage} in {count_phrase(count, 'turn')}"
        for stage, count in times.items()
    )


def _row(turn: Turn) -> Markup:
    what = [f"{it.stage} −{it.tokens:,}{f': {it.told}' if it.told else ''}" for it in turn.left]
    if turn.reason or turn.what != "shaped":
        what.insert(0, turn.reason or turn.what)
    if not what:
        what.append("nothing was taken out")
    is_error = turn.status >= 400
    if is_error:
        what.append(f"status {turn.status}")
    css_class = "bad" if is_error or turn.what == "not shaped" else "soft"
    dollars = "" if turn.dollars is None else as_dollars(turn.dollars)
    at = time.strftime("%H:%M:%S", time.localtime(turn.at))
    sent, whole, seconds = f"{turn.sent:,}", f"{turn.whole:,}", f"{turn.seconds:.1f}"
    return markup(_ROW, at, turn.number, sent, whole, seconds, dollars, css_class, "; ".join(what))


# Charts -------------------------------------------------------------------------------------------


def _charts(turns: Sequence[Turn]) -> Iterator[Markup]:
    """What was sent by kind, turn by turn, and under it beside what was left out."""
    most = max([1, *(turn.sent for turn in turns)])
    top = most * 1.1  # so that a line above the highest turn is in the chart
    yield _chart("stack", "tokens sent, by kind", most, _stack(turns, top))
    if any(turn.sent != turn.whole for turn in turns):
        most = max([1, *(turn.whole for turn in turns)])
        # What was sent, before what would have been.
        whole = _area("left", [(0, turn.whole / most) for turn in turns])
        sent = _area("sent", [(0, turn.sent / most) for turn in turns])
        yield _chart("whole", "sent, and left out", most, [whole, sent])


def _chart(css_class: str, title: str, most: int, parts: Iterable[Markup]) -> Markup:
    limit = f"at most {most:,}"
    return markup(_CHART, title, limit, css_class, title, limit, list(parts))


def _stack(turns: Sequence[Turn], most: float) -> Iterator[Markup]:
    """An area for each kind, a line for each turn in which something left, and what tells of it."""
    below = [0.0] * len(turns)
    for kind in KINDS:
        above = [
            low + turn.kinds.get(kind, 0) / most for low, turn in zip(below, turns, strict=True)
        ]
        if above != below:
            yield _area(kind, list(zip(below, above, strict=True)))
        below = above
    width = _width(len(turns))
    for place, turn in enumerate(turns):
        x = place * width
        if turn.left:
            middle = f"{x + width / 2:.2f}"
            end = 100 - 100 * turn.sent / most
            ends = f"{end - 7:.2f}", f"{end - 1:.2f}"
            yield markup("<line x1={} x2={} y1={} y2={} />", middle, middle, *ends)
        yield markup(_TURN, f"{x:.2f}", f"{width:.2f}", _description(turn))


def _description(turn: Turn) -> str:
    """A turn, for who points at it."""
    lines = [f"turn {turn.number}: {turn.sent:,} of {turn.whole:,} tokens"]
    lines += [f"{KINDS[kind]}: {tokens:,}" for kind, tokens in turn.kinds.items()]
    lines += [f"{leaving.stage} took out {leaving.tokens:,}" for leaving in turn.left]
    return "\n".join(lines)


def _area(css_class: str, spans: Sequence[tuple[float, float]]) -> Markup:
    """An area in steps, from the lower to the upper end of each turn's span, shares of the most."""
    width = _width(len(spans))
    upper = [f"V{100 - 100 * high:.2f}h{width:.4f}" for _, high in spans]
    lower = [f"V{100 - 100 * low:.2f}h-{width:.4f}" for low, _ in reversed(spans)]
    return markup("<path class={} d='M0 100{}Z' />", css_class, "".join([*upper, *lower]))


def _width(turns: int) -> float:
    """Of each of so many turns, where the whole chart is 100."""
    return 100 / max(turns, FEWEST_BARS)
