"""What pages are made of: HTML and SVG in which texts are escaped, and what may be in it raw."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from html import escape
from importlib.resources import files


class Markup(str):
    """HTML or SVG; whatever else is put into `markup` is text, and is escaped."""

    __slots__ = ()


def markup(template: str, *values: object) -> Markup:
    """*template*, which is HTML, with each of the *values* for a ``{}`` of it, escaped.

    A value that is `Markup` is put in as it is, and so are several of them in a list.
    """
    return Markup(template.format(*map(_escape, values)))


def _escape(value: object) -> str:
    if isinstance(value, list):
        return "".join(map(_escape, value))
    return value if isinstance(value, Markup) else escape(str(value))


def json_data(value: object) -> Markup:
    """*value* as JSON in a script element, which no text in it can end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def source_hash(source: str) -> str:
    """The name by which a security policy lets *source*, a script or a style, be used."""
    return f"sha256-{b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def palette() -> str:
    """The colours of all pages, as CSS."""
    return (files(__package__) / "_palette.css").read_text(encoding="utf-8")
