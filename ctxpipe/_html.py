"""HTML and SVG of pages, in which all texts are escaped."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from html import escape
from importlib.resources import files


class Markup(str):
    """HTML or SVG. Every other value that is inserted by `markup` is text and is escaped."""

    __slots__ = ()


def markup(template: str, *values: object) -> Markup:
    """Return the HTML *template* with *values* in place of its ``{}``.

    Values are escaped, except `Markup` and lists of it.
    """
    return Markup(template.format(*[_escape(value) for value in values]))


def _escape(value: object) -> str:
    """Return *value* as HTML: markup unchanged, other values escaped, a list joined."""
    if isinstance(value, list):
        return "".join(_escape(item) for item in value)
    return value if isinstance(value, Markup) else escape(str(value))


def json_data(value: object) -> Markup:
    """Return *value* as JSON for a script element that no text in it can end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def source_hash(source: str) -> str:
    """Return the hash by which a content security policy allows *source*, a script or style."""
    return f"sha256-{b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def palette() -> str:
    """Return the colours of all pages, as CSS."""
    return (files(__package__) / "_palette.css").read_text(encoding="utf-8")
