"""The page of a gateway: its sessions, their turns, and what left the contexts.

It is HTML and CSS alone, drawn anew at each request, and it loads nothing: its security policy lets
no script run, whatever a conversation holds.
"""

from __future__ import annotations

import hashlib
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from ..words import as_dollars, as_percent, count_phrase
from .record import Record, Turn

__all__ = ["headers", "write_page"]

SECONDS = 3
"""After so many the browser asks again."""
MAX_SESSIONS = 20
MAX_BARS = 200
MAX_ROWS = 12

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5b6976; --line: #d8dee4; --back: #fff;
  --sent: #2f6fb3; --left: #bcd3ea; --bad: #b3402f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --soft: #9aa7b3; --line: #36404a;
  --back: #14191f; --sent: #5ea3e6; --left: #2c4a68; --bad: #e5806f; } }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0 0 .2rem; }
h2 { font-size: 1rem; margin: 2rem 0 .2rem; overflow-wrap: anywhere; }
p { margin: .2rem 0; }
.soft { color: var(--soft); }
.bad { color: var(--bad); }
.key::before { content: ""; display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 .8em;
  background: var(--color); }
.sent { --color: var(--sent); } .left { --color: var(--left); }
svg { display: block; width: 100%; height: 7rem; margin: .5rem 0;
  border-bottom: 1px solid var(--line); }
rect.sent { fill: var(--sent); } rect.left { fill: var(--left); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; white-space: nowrap; }
th { font-weight: 600; color: var(--soft); }
th.text, td.text { text-align: left; white-space: normal; }
@media (max-width: 34rem) { .rare { display: none; } th, td { padding-right: .4rem; } }
"""

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
    yield f"<p>{escape(_sentence(record))}</p>"
    yield f"<p class=soft>{escape(_rest(record))}</p>"
    sessions = _by_session(record.turns)
    if sessions:
        yield "<p><span class='key sent'>sent</span><span class='key left'>left out</span></p>"
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
    """The turns of each session, the session with the newest turn first."""
    found: dict[str, list[Turn]] = {}
    for turn in reversed(turns):
        own = found.setdefault(turn.session, [])
        own.append(turn)
    for own in found.values():
        own.reverse()
    return found


def _session(session: str, turns: Sequence[Turn]) -> Iterator[str]:
    last = turns[-1]
    title = session or "Requests that were not shaped"
    yield f"<h2>{escape(title)}</h2>"
    if last.text:
        yield f"<p class=soft>{escape(last.text)}</p>"
    if any(turn.whole for turn in turns):
        yield _bars(turns[-MAX_BARS:])
    yield "<div class=wide><table><tr><th>turn<th class=text>what happened<th>sent"
    yield "<th>without<th class=rare>seconds<th class=rare>$</tr>"
    for turn in reversed(turns[-MAX_ROWS:]):
        yield _row(turn)
    yield "</table></div>"
    if len(turns) > MAX_ROWS:
        more = len(turns) - MAX_ROWS
        yield f"<p class=soft>and {count_phrase(more, 'earlier turn')}</p>"


def _bars(turns: Sequence[Turn]) -> str:
    """A bar for each turn: what was sent, and above it what was left out."""
    most = max([1, *(turn.whole for turn in turns)])
    width = 100 / max(len(turns), 20)
    label = f"tokens by turn, {most:,} at most"
    parts = [f"<svg viewBox='0 0 100 100' preserveAspectRatio=none role=img aria-label='{label}'>"]
    for place, turn in enumerate(turns):
        sent = 100 * turn.sent / most
        whole = 100 * turn.whole / most
        x = place * width
        w = width * 0.8
        title = f"<title>turn {turn.number}: {turn.sent:,} of {turn.whole:,} tokens</title>"
        parts.append(_rect("left", x, w, 100 - whole, whole - sent, title))
        parts.append(_rect("sent", x, w, 100 - sent, sent, title))
    return "".join([*parts, "</svg>"])


def _rect(
    kind: str,
    x: float,
    width: float,
    y: float,
    height: float,
    title: str,
) -> str:
    height = max(0.0, height)
    place = f"x={x:.2f} y={y:.2f} width={width:.2f} height={height:.2f}"
    return f"<rect class={kind} {place}>{title}</rect>"


def _row(turn: Turn) -> str:
    what = [turn.reason or turn.what]
    what += [f"{stage} −{tokens:,}" for stage, tokens in turn.left]
    is_error = turn.status >= 400
    if is_error:
        what.append(f"status {turn.status}")
    css_class = "text"
    if is_error or turn.what == "not shaped":
        css_class = "text bad"
    dollars = ""
    if turn.dollars is not None:
        dollars = as_dollars(turn.dollars)
    at = time.strftime("%H:%M:%S", time.localtime(turn.at))
    cells = [
        f"<td title='{at}'>{turn.number}",
        f"<td class='{css_class}'>{escape(', '.join(what))}",
        f"<td>{turn.sent:,}",
        f"<td>{turn.whole:,}",
        f"<td class=rare>{turn.seconds:.1f}",
        f"<td class=rare>{dollars}",
    ]
    return f"<tr>{''.join(cells)}</tr>"
