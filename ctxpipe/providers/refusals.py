"""One table: how each provider says that a prompt is too long, and what only looks like it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product

MAX_TEXT = 4096  # characters of an answer that are searched; a refusal says so at its beginning
MAX_CAUSES = 5  # frameworks raise their own error from the SDK's
LEAST_WINDOW = 500  # tokens; a smaller number was misread
FAR_BELOW = 0.5  # of the trigger: a context this short is not what an API finds too long
LEAST_SHARE = 0.5  # of the window; a shorter prompt is refused because of the answer's length

REFUSING = frozenset({400, 413, 422, 500})
"""HTTP statuses of a refused prompt; any other means something else, whatever the text says."""
TOO_LARGE = 413
_STATUSES = ("status_code", "http_status", "code", "status")  # where an SDK keeps it
_NUMBERS = ("tokens", "window", "answer", "total")  # that a pattern may name


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an answer says that calls a prompt too long.

    *tokens* is the prompt's length as *provider* counts it, *window* the model's, *answer_tokens*
    what the request reserved for the answer; None and 0 where the answer does not name them. It
    *has_code* where a code says that the prompt is too long, and not a sentence alone. With
    *is_media* the request may have too many bytes, images or pages instead of tokens.
    """

    provider: str
    tokens: int | None = None
    window: int | None = None
    answer_tokens: int = 0
    has_code: bool = False
    is_media: bool = False

    @property
    def limit(self) -> int | None:
        """How many tokens a prompt may have; None where the answer does not name it."""
        if self.window is None:
            return None
        return self.window - self.answer_tokens

    @property
    def has_numbers(self) -> bool:
        """Whether the answer says how long the prompt is and how long it may be."""
        return self.tokens is not None and self.window is not None


@dataclass(frozen=True, slots=True)
class Row:
    """What *provider* answers: *pattern* finds it in the text or among the names of an error.

    Where *is_refusal* is False, the text only looks as if a prompt was too long. Where *is_code*,
    the pattern is a word that means nothing else; *is_media* is that of a `Refusal`.
    """

    provider: str
    pattern: re.Pattern[str]
    example: str
    is_refusal: bool = True
    is_code: bool = False
    is_media: bool = False


def _rows() -> Iterator[Row]:
    table = tomllib.loads((files(__package__) / "refusals.toml").read_text("utf-8"))
    numbers = {name: rf"(?P<{name}>\d[\d,]{{0,14}})" for name in _NUMBERS}
    for row in table["rows"]:
        pattern = "".join(row.pop("pattern"))
        for name, group in {"field": "".join(table["field"]), **numbers}.items():
            pattern = pattern.replace("{" + name + "}", group)
        yield Row(
            pattern=re.compile(pattern, re.IGNORECASE), example="".join(row.pop("example")), **row
        )


ROWS: tuple[Row, ...] = tuple(_rows())
"""The rows of refusals.toml; the first that matches decides."""


def as_refusal(error: BaseException | None) -> Refusal | None:
    """What *error* of any SDK says of a prompt that is too long; None if it means something else.

    Its text, its type's name, its codes, and those of its causes are searched.
    """
    for part in _causes(error):
        text = "\n".join(_texts(part))
        refusal = read_refusal(status_of(part), text)
        if refusal is not None:
            return refusal
    return None


def read_refusal(status: int | None, text: str) -> Refusal | None:
    """The same for an answer with this *text* and this HTTP *status*, None where it has none."""
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


def _refusal(provider: str, named: Mapping[str, str | None]) -> Refusal | None:
    """The refusal with the *named* numbers; None when they show that the prompt is not too long."""
    numbers: dict[str, int] = {}
    for name, text in named.items():
        if text:
            numbers[name] = int(text.replace(",", ""))
    tokens = numbers.get("tokens")
    window = numbers.get("window")
    answer = numbers.get("answer", 0)
    if answer and "total" in numbers:
        tokens = numbers["total"] - answer  # includes tools and pictures
    if window is None or window < LEAST_WINDOW:
        return Refusal(provider, tokens)
    if tokens is not None:
        is_short = tokens < LEAST_SHARE * window
        if is_short or tokens + answer <= window:
            return None
    if window - answer < LEAST_WINDOW:
        return Refusal(provider, tokens)
    return Refusal(provider, tokens, window, answer)


# What an error shows ------------------------------------------------------------------------------


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(MAX_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__


def status_of(error: object) -> int | None:
    """The HTTP status of *error*, wherever its provider's SDK keeps it."""
    response = getattr(error, "response", None)
    for holder, name in product((error, response), _STATUSES):
        value = getattr(holder, name, None)
        if isinstance(value, int) and 100 <= value < 600:  # else a number of the provider's own
            return value
    match response:
        case {"ResponseMetadata": {"HTTPStatusCode": int(status)}}:  # boto3
            return status
    return None


def _texts(error: BaseException) -> Iterator[str]:
    """The names and texts of *error*, each no longer than what is searched."""
    for kind in type(error).__mro__:
        if kind not in (Exception, BaseException, object):
            yield kind.__name__
    with suppress(Exception):  # somebody else's error may fail even here
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
    """The first few texts in the answer's *body*, where the SDK has kept it."""
    if isinstance(body, str):
        yield body[:MAX_TEXT]
    elif isinstance(body, Mapping) and depth < 4:
        for name in ("message", "code", "type", "detail", "error"):
            yield from _body_texts(body.get(name), depth + 1)
