"""The page of a gateway: its sessions, their turns, and what left the contexts.

It is HTML and CSS alone, drawn anew at each request, and it loads nothing: its security policy lets
no script run, whatever a conversation holds.
"""

from __future__ import annotations

import hashlib
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

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


def _style() -> str:
    """The colours of the replay page, and what is drawn in them here."""
    palette = (files("ctxpipe") / "palette.css").read_text(encoding="utf-8")
    kinds = "".join(f".{kind} {{ --of: var(--{kind}); }}\n" for kind in KINDS)
    return f"{palette}{kinds}{_OWN_STYLE}"


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

_STYLE = _style()
_HASH = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def headers() -> Mapping[str, str]:
    """The headers of the page: nothing may run in it, frame it or be loaded by it."""
    policy = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'; "
    return {
        "content-security-policy": policy + "base-uri 'none'; form-action 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
        "cross-origin-resource-policy": "same-origin",
    }


def write_page(record: Record) -> str:
    """The page of *record*, as HTML."""
    return "".join(_page(record))


def _page(record: Record) -> Iterator[str]:
    yield "<!doctype html><html lang=en><head><meta charset=utf-8><title>ctxpipe gateway</title>"
    yield "<meta name=viewport content='width=device-width, initial-scale=1'>"
    yield f"<meta http-equiv=refresh content={SECONDS}><style>{_STYLE}</style></head><body>"
    yield "<h1>ctxpipe gateway</h1>"
    yield f"<p class=lead>{escape(_sentence(record))}</p>"
    yield f"<p class=soft>{escape(_rest(record))}</p>"
    sessions = _by_session(record.turns)
    yield from _legend(record.turns)
    for session, turns in list(sessions.items())[:MAX_SESSIONS]:
        yield from _session(session, turns)
    if len(sessions) > MAX_SESSIONS:
        more = len(sessions) - MAX_SESSIONS
        yield f"<p class=soft>and {count_phrase(more, 'older session')}</p>"
    yield "</body></html>"


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
    parts = []
    if record.passed:
        parts.append(f"{count_phrase(record.passed, 'other request')} passed through")
    if record.recovered:
        parts.append(f"{count_phrase(record.recovered, 'refusal')} survived")
    if record.failed:
        parts.append(f"{count_phrase(record.failed, 'request')} not shaped")
    if record.refused:
        parts.append(f"{count_phrase(record.refused, 'request')} refused")
    return ", ".join(parts)


def _by_session(turns: Sequence[Turn]) -> dict[str, list[Turn]]:
    """The turns of each session, the session that began last first.

    So none changes its place while several are at work.
    """
    found: dict[str, list[Turn]] = {}
    for turn in turns:
        found.setdefault(turn.session, []).append(turn)
    return dict(reversed(found.items()))


def _legend(turns: Iterable[Turn]) -> Iterator[str]:
    """What the colours mean, in the order of the stack."""
    present: set[Kind] = set()
    for turn in turns:
        present.update(turn.kinds)
    if not present:
        return
    yield "<ul class=kinds>"
    for kind, name in reversed(list(KINDS.items())):
        if kind in present:
            yield f"<li><span class='swatch {kind}'></span>{name}"
    yield "<li><span class='swatch left'></span>left out"
    yield "<li><span class=mark></span>a stage took something out</ul>"


# One session --------------------------------------------------------------------------------------


def _session(session: str, turns: Sequence[Turn]) -> Iterator[str]:
    last = turns[-1]
    title = session or "Requests that were not shaped"
    yield f"<section><h2>{escape(title)}</h2>"
    if last.text:
        yield f"<p class=soft>{escape(last.text)}</p>"
    if any(turn.whole for turn in turns):
        yield from _charts(turns[-MAX_BARS:])
    if what := _all_left(turns):
        yield f"<p class=all>Left the context: {escape(what)}.</p>"
    yield "<div class=scroll><table><thead><tr><th class=number>turn<th class=number>sent"
    yield "<th class=number>without<th class='number rare'>seconds<th class='number rare'>$"
    yield "<th>what happened</thead>"
    for turn in reversed(turns[-MAX_ROWS:]):
        yield _row(turn)
    yield "</table></div>"
    if len(turns) > MAX_ROWS:
        more = len(turns) - MAX_ROWS
        yield f"<p class=soft>and {count_phrase(more, 'earlier turn')}</p>"
    yield "</section>"


def _all_left(turns: Iterable[Turn]) -> str:
    """What each stage has taken out, over all *turns*."""
    times: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for turn in turns:
        for leaving in turn.left:
            times[leaving.stage] += 1
            tokens[leaving.stage] += leaving.tokens
    parts = []
    for stage, count in times.items():
        parts.append(
            f"{as_number(tokens[stage])} tokens by {stage} in {count_phrase(count, 'turn')}"
        )
    return "; ".join(parts)


def _row(turn: Turn) -> str:
    what = [f"{it.stage} −{it.tokens:,}{f': {it.told}' if it.told else ''}" for it in turn.left]
    if turn.reason or turn.what != "shaped":
        what.insert(0, turn.reason or turn.what)
    if not what:
        what.append("nothing was taken out")
    is_error = turn.status >= 400
    if is_error:
        what.append(f"status {turn.status}")
    css_class = "bad" if is_error or turn.what == "not shaped" else "soft"
    dollars = ""
    if turn.dollars is not None:
        dollars = as_dollars(turn.dollars)
    at = time.strftime("%H:%M:%S", time.localtime(turn.at))
    cells = [
        f"<td class=number title='{at}'>{turn.number}",
        f"<td class=number>{turn.sent:,}",
        f"<td class=number>{turn.whole:,}",
        f"<td class='number rare'>{turn.seconds:.1f}",
        f"<td class='number rare'>{dollars}",
        f"<td class={css_class}>{escape('; '.join(what))}",
    ]
    return f"<tr>{''.join(cells)}</tr>"


# Charts -------------------------------------------------------------------------------------------


def _charts(turns: Sequence[Turn]) -> Iterator[str]:
    """What was sent by kind, turn by turn, and under it beside what was left out."""
    most = max([1, *(turn.sent for turn in turns)])
    top = most * 1.1  # so that a line above the highest turn is in the chart
    most_whole = max([1, *(turn.whole for turn in turns)])
    yield "<p class=caption><span>tokens sent, by kind</span>"
    yield f"<span>at most {most:,}</span></p>"
    yield _svg("stack", f"tokens sent by kind, {most:,} at most", _stack(turns, top))
    if all(turn.sent == turn.whole for turn in turns):
        return
    yield "<p class=caption><span>sent, and left out</span>"
    yield f"<span>at most {most_whole:,}</span></p>"
    yield _svg(
        "whole", f"tokens with and without, {most_whole:,} at most", _both(turns, most_whole)
    )


def _svg(css_class: str, label: str, parts: Iterable[str]) -> str:
    start = f"<svg class={css_class} viewBox='0 0 100 100' preserveAspectRatio=none role=img "
    return f"{start}aria-label='{label}'>{''.join(parts)}</svg>"


def _both(turns: Sequence[Turn], most: float) -> Iterator[str]:
    """What was sent, before what would have been."""
    yield _area("left", [(0, turn.whole / most) for turn in turns])
    yield _area("sent", [(0, turn.sent / most) for turn in turns])


def _stack(turns: Sequence[Turn], most: float) -> Iterator[str]:
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
            middle = x + width / 2
            end = 100 - 100 * turn.sent / most
            yield f"<line x1={middle:.2f} x2={middle:.2f} y1={end - 7:.2f} y2={end - 1:.2f} />"
        title = f"<title>{_description(turn)}</title>"
        yield f"<rect x={x:.2f} y=0 width={width:.2f} height=100>{title}</rect>"


def _description(turn: Turn) -> str:
    """A turn, for who points at it."""
    lines = [f"turn {turn.number}: {turn.sent:,} of {turn.whole:,} tokens"]
    lines += [f"{KINDS[kind]}: {tokens:,}" for kind, tokens in turn.kinds.items()]
    lines += [f"{leaving.stage} took out {leaving.tokens:,}" for leaving in turn.left]
    return escape("\n".join(lines))


def _area(css_class: str, spans: Sequence[tuple[float, float]]) -> str:
    """An area in steps, from the lower to the upper end of each turn's span, shares of the most."""
    width = _width(len(spans))
    upper = [f"V{100 - 100 * high:.2f}h{width:.4f}" for _, high in spans]
    lower = [f"V{100 - 100 * low:.2f}h-{width:.4f}" for low, _ in reversed(spans)]
    return f"<path class={css_class} d='M0 100{''.join([*upper, *lower])}Z' />"


def _width(turns: int) -> float:
    """Of each of so many turns, where the whole chart is 100."""
    return 100 / max(turns, FEWEST_BARS)
