"""The requests of real clients, of which only the form is kept: written, read and made up again.

A file has the requests that one client has sent in one run. Keys, types, names of tools, the shape
of ids and the lengths of texts are those of the client. Every text is replaced by
``{{LENGTH chars, text NUMBER}}``; equal texts have equal numbers, and texts that differ do not.
Reading a file makes texts of these lengths up.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from recorder import Sent

from ctxpipe.wire.formats import format_of

FOLDER = Path(__file__).parents[1] / "gateway" / "requests"
ITEM_LISTS = ("messages", "input", "contents")

_TEXT = re.compile(r"\{\{(\d+) chars, text (\d+)\}\}")
_WORD = re.compile(r"[\w.:/@+=-]{1,64}")
_ID_KEY = re.compile(r"(?:.*[_-])?ids?|.*Id|prompt_cache_key|x-session-affinity", re.DOTALL)
_TIME_KEY = re.compile(r".*(time|_ms|_at)")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SEGMENT = re.compile(r"[0-9A-Za-z]+")
_WORD_KEYS = frozenset(
    {
        *("type", "role", "name", "model", "status", "namespace", "kind", "phase", "format"),
        *("effort", "summary", "context", "display", "keep", "include", "verbosity", "ttl"),
        *("tool_choice", "service_tier", "reasoning_effort", "syntax", "thinkingLevel"),
        *("required", "enum", "mimeType", "content_item_kinds", "thoughtSignature"),
        *("encrypted_content", "mode"),
    }
)
"""Under these a word is part of the form; under all others it is a text."""
FORM_HEADERS = frozenset(
    {
        *("accept", "accept-encoding", "content-type", "content-encoding", "connection"),
        *("upgrade", "sec-websocket-version", "anthropic-version", "anthropic-beta"),
        *("openai-beta",),
    }
)
_KEY_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key"})
_NOT_KEPT = frozenset({"host", "content-length", "sec-websocket-key"})
_JSON, _PARTS, _PART = "{{json}}", "{{parts}}", "{{part}}"
_SHORT = 80  # characters of a value that is written where it is
TIME = 1_700_000_000
KEY = "a-key-that-is-nobody-s"


@dataclass
class Scrubber:
    """Replaces what the requests of one run say, and keeps how they are made."""

    texts: dict[str, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def value(self, value: Any, key: str = "") -> Any:
        """*value*, which stands under *key*, as it may be written."""
        if isinstance(value, dict):
            return {name: self.value(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [self.value(one, key) for one in value]
        if isinstance(value, str):
            return self.string(value, key)
        is_time = not isinstance(value, bool) and isinstance(value, int | float)
        return TIME if is_time and _TIME_KEY.fullmatch(key) else value

    def string(self, value: str, key: str) -> Any:
        """*value* as an id, a word, JSON, or the length of a text."""
        if value[:1] in {"{", "["}:
            try:
                return {_JSON: self.value(json.loads(value), key)}
            except ValueError:
                return self.text(value)
        if _WORD.fullmatch(value):
            if _ID_KEY.fullmatch(key):
                return self.id(value)
            if key in _WORD_KEYS:
                return value
        return self.text(value)

    def text(self, value: str) -> str:
        """The length of *value*, and which of the run's texts it is."""
        if not value:
            return value
        number = self.texts.setdefault(value, len(self.texts) + 1)
        return f"{{{{{len(value)} chars, text {number}}}}}"

    def id(self, value: str) -> str:
        """An id that is made up, and looks like *value*; of one that holds others, those are."""
        is_uuid = _UUID.fullmatch(value) is not None
        if not is_uuid and _UUID.search(value):
            return _UUID.sub(lambda found: self.id(found[0]), value)
        if value not in self.ids:
            chooser = random.Random(len(self.ids))
            while True:
                made = _SEGMENT.sub(lambda part: _similar(part[0], chooser, is_uuid), value)
                if made not in self.ids.values():
                    break
            self.ids[value] = made
        return self.ids[value]

    def headers(self, headers: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """The *headers* of a request: those of the form as they are, of others the length."""
        kept: dict[str, Any] = {}
        for name, value in headers:
            if name in _NOT_KEPT:
                continue
            if name in FORM_HEADERS:
                kept[name] = value
            elif name in _KEY_HEADERS:
                kept[name] = KEY
            else:
                kept[name] = self.string(value, name)
        return kept


def _similar(segment: str, chooser: random.Random, is_uuid: bool) -> str:
    """Characters of the kinds that *segment* has; a word, as before an underscore, stays."""
    if segment.isalpha() and segment.islower() and not is_uuid:
        return segment
    is_hex = is_uuid or (segment.isalnum() and not set(segment) - set("0123456789abcdef"))
    made = ""
    for character in segment:
        if character.isdigit() and not is_hex:
            made += chooser.choice(string.digits)
        elif is_hex and not segment.isdigit():
            made += chooser.choice("0123456789abcdef")
        elif character.isupper():
            made += chooser.choice(string.ascii_uppercase)
        elif character.isdigit():
            made += chooser.choice(string.digits)
        else:
            made += chooser.choice(string.ascii_lowercase)
    return made


def is_form(sent: Sent) -> bool:
    """Return True if *sent* is kept: a request for a message, or a handshake of a WebSocket."""
    path = sent.target.partition("?")[0]
    if dict(sent.headers).get("upgrade") == "websocket":
        return True
    return sent.body is not None and format_of(sent.method, path) is not None


# Files --------------------------------------------------------------------------------------------


def write(path: Path, about: Mapping[str, str], requests: Sequence[Sent]) -> None:
    """Write the form of *requests* to the file at *path*, with what it is *about*."""
    scrubber = Scrubber()
    parts: dict[str, int] = {}

    def part(value: Any) -> int:
        return parts.setdefault(_dump(value), len(parts))

    written = []
    for sent in requests:
        if not is_form(sent):
            continue
        body: Any = None
        if sent.body is not None:
            body = {}
            for name, value in scrubber.value(sent.body).items():
                if isinstance(value, list) and len(_dump(value)) > _SHORT:
                    body[name] = {_PARTS: [part(one) for one in value]}
                elif len(_dump(value)) > _SHORT:
                    body[name] = {_PART: part(value)}
                else:
                    body[name] = value
        headers = scrubber.headers(sent.headers)
        one = {"method": sent.method, "target": sent.target, "headers": headers, "body": body}
        written.append(_dump(one))
    lines = [f"{_dump(name)}: {_dump(value)}," for name, value in about.items()]
    text = "{\n" + "\n".join(lines) + '\n"parts": [\n' + ",\n".join(parts)
    text += '\n],\n"requests": [\n' + ",\n".join(written) + "\n]\n}\n"
    path.write_text(text, encoding="utf-8")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class Recording:
    """The requests of one run of a *client*, with texts that are made up."""

    client: str
    version: str
    requests: Sequence[Sent]

    @property
    def messages(self) -> list[Sent]:
        """The requests for a message that have tools: those of the task itself."""
        return [sent for sent in self.requests if sent.body is not None and _has_tools(sent.body)]


def _has_tools(body: Mapping[str, Any]) -> bool:
    items = body.get("input") or [{}]
    return bool(body.get("tools") or (isinstance(items[0], dict) and items[0].get("tools")))


@cache
def read(name: str) -> Recording:
    """The recording in the file *name*."""
    whole = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    parts = whole["parts"]
    requests = []
    for one in whole["requests"]:
        body = _whole(one["body"], parts)
        if body is not None:
            body = _made_up(body)
        headers = [(key, _line(value)) for key, value in one["headers"].items()]
        requests.append(Sent(one["method"], one["target"], headers, body))
    return Recording(whole["client"], whole["version"], requests)


def _whole(body: Any, parts: Sequence[Any]) -> Any:
    if body is None:
        return None
    found: dict[str, Any] = {}
    for name, value in body.items():
        if isinstance(value, dict) and _PARTS in value:
            found[name] = [parts[number] for number in value[_PARTS]]
        elif isinstance(value, dict) and _PART in value:
            found[name] = parts[value[_PART]]
        else:
            found[name] = value
    return found


def _line(value: Any) -> str:
    """The value of a header, which has no line breaks."""
    return str(_made_up(value)).replace("\n", " ")


def _made_up(value: Any) -> Any:
    """*value* with texts in place of their lengths."""
    if isinstance(value, dict):
        if _JSON in value:
            return json.dumps(_made_up(value[_JSON]), separators=(",", ":"))
        return {name: _made_up(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_made_up(one) for one in value]
    if isinstance(value, str):
        return _TEXT.sub(lambda found: filler(int(found[1]), int(found[2])), value)
    return value


@cache
def filler(length: int, number: int) -> str:
    """A text of *length* characters, another one for each *number*."""
    chooser = random.Random(number)
    text = f"{number}:"
    while len(text) < length:
        word = "".join(chooser.choice("bdfklmnprst") + chooser.choice("aeiou") for _ in range(3))
        text += word + chooser.choice("      \n")
    text = text[:length]
    return text[:-1] + "." if text[-1:].isspace() else text
