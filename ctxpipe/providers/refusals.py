"""Table of the errors with which providers refuse a prompt that is too long.

It also has errors that look similar and mean something else.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product

MAX_TEXT = 4096  # searched characters of an answer; a refusal has its reason at the beginning
MAX_CAUSES = 5  # frameworks raise their own errors from the SDK's
MIN_WINDOW_TOKENS = 500  # a smaller number is not a window
FAR_BELOW = 0.5  # of the trigger: no API refuses so short a context as too long
LEAST_SHARE = 0.5  # of the window; a shorter prompt is refused because of the answer's length

REFUSING = frozenset({400, 413, 422, 500})
"""HTTP statuses of a refused prompt; an error with another status is never one."""
TOO_LARGE = 413
_STATUSES = ("status_code", "http_status", "code", "status")  # attributes of SDK errors
_NUMBERS = ("tokens", "window", "answer", "total")  # groups of a pattern


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a prompt that is too long, with the numbers in the provider's error.

    *tokens* is the length of the prompt as counted by *provider*, *window* the context window of
    the model, *answer_tokens* the number of tokens that the request reserves for the answer. A
    number that is not in the error is None, or 0 for *answer_tokens*.

    *has_code* is True if the error has a code for this reason, not only a sentence. With *is_media*
    the request may have too many bytes, images or pages instead of tokens.
    """

    provider: str
    tokens: int | None = None
    window: int | None = None
    answer_tokens: int = 0
    has_code: bool = False
    is_media: bool = False

    @property
    def limit(self) -> int | None:
        """Maximum number of tokens of a prompt; None if the error does not have it."""
        if self.window is None:
            return None
        return self.window - self.answer_tokens

    @property
    def has_numbers(self) -> bool:
        """True if the error has the length of the prompt and of the window."""
        return self.tokens is not None and self.window is not None


@dataclass(frozen=True, slots=True)
class RefusalPattern:
    """Row of the table: a *pattern* for the text and the names of an error of *provider*.

    *is_refusal* is False for errors that only look like a refusal of a long prompt. *is_code* is
    True if the pattern is an error code that means nothing else. *is_media* is the same as in
    `Refusal`. *example* is an error that matches.
    """

    provider: str
    pattern: re.Pattern[str]
    example: str
    is_refusal: bool = True
    is_code: bool = False
    is_media: bool = False


def _rows() -> Iterator[RefusalPattern]:
    """Yield the patterns of refusals in ``refusals.toml``, in their order."""
    table = tomllib.loads((files(__package__) / "refusals.toml").read_text("utf-8"))
    numbers = {name: rf"(?P<{name}>\d[\d,]{{0,14}})" for name in _NUMBERS}
    for row in table["rows"]:
        pattern = "".join(row.pop("pattern"))
        for name, group in {"field": "".join(table["field"]), **numbers}.items():
            pattern = pattern.replace("{" + name + "}", group)
        yield RefusalPattern(
            pattern=re.compile(pattern, re.IGNORECASE), example="".join(row.pop("example")), **row
        )


ROWS: tuple[RefusalPattern, ...] = tuple(_rows())
"""Rows of refusals.toml; the first one that matches decides."""


def as_refusal(error: BaseException | None) -> Refusal | None:
    """Return the refusal that *error* of any SDK reports, or None if it means something else.

    Searches the text of the error, the name of its type, its codes, and the same of its causes.
    """
    for part in _causes(error):
        text = "\n".join(_texts(part))
        refusal = read_refusal(status_of(part), text)
        if refusal is not None:
            return refusal
    return None


def read_refusal(status: int | None, text: str) -> Refusal | None:
    """Return the refusal in an answer with this *text*, or None if it means something else.

    *status* is the HTTP status, None if unknown.
    """
    if status is not None and status >= 400 and status not in REFUSING:
        return None
    text = text[:MAX_TEXT]
    for row in ROWS:
        match = row.pattern.search(text)
        if match is None:
            continue
        if not row.is_refusal:
            return None
        refusal = _refusal(row.provider, match.groupdict())
        if refusal is None:
            return None
        codes = () if row.is_media else (code.pattern for code in ROWS if code.is_code)
        has_code = any(pattern.search(text) for pattern in codes)
        return replace(refusal, has_code=has_code, is_media=row.is_media)
    return Refusal("a gateway", is_media=True) if status == TOO_LARGE else None


def _refusal(provider: str, number_texts: Mapping[str, str | None]) -> Refusal | None:
    """Return the refusal with the numbers of a match, or None if the prompt is not too long.

    *number_texts* are the groups of the pattern, such as ``{"tokens": "200,251"}``.
    """
    numbers: dict[str, int] = {}
    for name, text in number_texts.items():
        if text:
            numbers[name] = int(text.replace(",", ""))
    tokens = numbers.get("tokens")
    window = numbers.get("window")
    answer = numbers.get("answer", 0)
    if answer and "total" in numbers:
        tokens = numbers["total"] - answer  # the total includes tools and pictures
    if window is None or window < MIN_WINDOW_TOKENS:
        return Refusal(provider, tokens)
    if tokens is not None:
        is_short = tokens < LEAST_SHARE * window
        if is_short or tokens + answer <= window:
            return None
    if window - answer < MIN_WINDOW_TOKENS:
        return Refusal(provider, tokens)
    return Refusal(provider, tokens, window, answer)


# Contents of an error -----------------------------------------------------------------------------


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield *error* and its causes, at most MAX_CAUSES errors."""
    for _ in range(MAX_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__


def status_of(error: object) -> int | None:
    """Return the HTTP status of *error* of any SDK, or None if it has none."""
    response = getattr(error, "response", None)
    for holder, name in product((error, response), _STATUSES):
        value = getattr(holder, name, None)
        if isinstance(value, int) and 100 <= value < 600:  # else a provider's own error number
            return value
    match response:
        case {"ResponseMetadata": {"HTTPStatusCode": int(status)}}:  # boto3
            return status
    return None


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the names and texts of *error*, each with at most MAX_TEXT characters."""
    for kind in type(error).__mro__:
        if kind not in (Exception, BaseException, object):
            yield kind.__name__
    with suppress(Exception):  # str() of a foreign error may raise
        yield str(error)[:MAX_TEXT]
    for name in ("code", "type", "message"):
        value = getattr(error, name, None)
        if isinstance(value, str):
            yield value[:MAX_TEXT]
    yield from _body_texts(getattr(error, "body", None))
    with suppress(Exception):  # the answer's content may not have been read yet
        content = getattr(getattr(error, "response", None), "content", None)
        if isinstance(content, bytes):
            yield content[:MAX_TEXT].decode("utf-8", "replace")


def _body_texts(body: object, depth: int = 0) -> Iterator[str]:
    """Yield the texts in the answer's *body*, to a depth of a few levels."""
    if isinstance(body, str):
        yield body[:MAX_TEXT]
    elif isinstance(body, Mapping) and depth < 4:
        for name in ("message", "code", "type", "detail", "error"):
            yield from _body_texts(body.get(name), depth + 1)
