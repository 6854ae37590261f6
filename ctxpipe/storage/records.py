"""Encoding of records as JSON; each string is redacted before it is encoded."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

from .._threads.pieces import pieces
from ..errors import StorageError
from ..messages import as_dict, as_json, is_encodable, rebuilt, without_surrogates

Record: TypeAlias = Mapping[str, object] | Iterable[object]
"""Value that `Archive.save` writes: a list of messages, or a mapping whose lists may be long."""

Redact: TypeAlias = Callable[[str], str]
"""Function that returns a text without secrets, in the form that may be written to disk."""

_OUR_KEYS = frozenset({"form", "before"})  # of an archive; names and digests
_BOOKKEEPING = frozenset({"role", "type", "id", "tool_use_id"})
# The possessive quantifier and the optional end avoid backtracking: linear time for every text.
_JSON_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*+"?')


def encode_record(record: Record, redact: Redact | None = None, folder: str = "") -> Iterator[str]:
    """Yield *record* as indented JSON in pieces, with at most one item of a list in each piece.

    *redact* is applied to every string before it is encoded, except to the keys of the mapping, to
    role, type, ids and field names of messages, and to the session's *folder* in paths. SDK objects
    are written in the form in which they would be sent. Raises InvalidHistory for values that JSON
    cannot represent, and StorageError if *redact* fails.
    """
    if redact and folder:
        redact = redact_except_folder(folder, redact)
    if not isinstance(record, Mapping):
        yield from _encode_items(record, "", redact)
        yield "\n"
        return
    separator = "{"
    for key, value in record.items():
        yield f"{separator}\n  {json.dumps(key)}: "
        hide = None if key in _OUR_KEYS else redact
        if isinstance(value, list | tuple):
            yield from _encode_items(value, "  ", hide)
        else:
            yield _encode_value(value, "  ", hide)
        separator = ","
    yield "\n}\n"


def _encode_items(items: Iterable[object], margin: str, redact: Redact | None) -> Iterator[str]:
    """Yield *items* as a JSON array in pieces, one item in each, indented below *margin*.

    Each item is redacted first, unless *redact* is None. Raises StorageError if *redact* fails.
    """
    separator = "["
    for item in items:
        yield f"{separator}\n{margin}  {_encode_value(item, margin + '  ', redact)}"
        separator = ","
    if separator == "[":
        yield "[]"
    else:
        yield f"\n{margin}]"


def _encode_value(value: object, margin: str, redact: Redact | None) -> str:
    """Return *value* as indented JSON whose further lines begin with *margin*.

    It is redacted first, unless *redact* is None. Raises StorageError if *redact* fails.
    """
    if redact:
        value = redact_message(value, redact)
    text = as_json(value, indent=2, ensure_ascii=False)
    if not is_encodable(text):  # UTF-8 cannot encode a lone surrogate, but JSON can escape it
        text = as_json(value, indent=2, ensure_ascii=True)
    return text.replace("\n", f"\n{margin}")  # JSON strings contain no line breaks


def record_stamp(seconds: float) -> str:
    """Return *seconds* since 1970 as UTC, for the name of a record."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")


def encode_text(text: str, redact: Redact | None = None) -> list[bytes]:
    """Apply *redact* to *text* and return the result as UTF-8, in pieces.

    Lone surrogates, which UTF-8 cannot encode, are escaped with a backslash.
    """
    if redact:
        text = redact_text(text, redact)
    # The pieces are not joined: for 200 MB this would block the interpreter and copy the text.
    return [piece.encode("utf-8", "backslashreplace") for piece in pieces(text)]


def storable(text: str, redact: Redact | None = None) -> str:
    """Return the text that `encode_text` encodes."""
    return "".join([chunk.decode() for chunk in encode_text(text, redact)])


# Redacting ----------------------------------------------------------------------------------------


def redactor_of(storage: object) -> Redact:
    """Return a function that redacts texts like *storage* does before it writes them.

    Apply it before a text is cut, because a part of a secret is not recognized. The function raises
    StorageError if the `redact` of the storage fails. Without `redact` it returns the text itself.
    """
    redact = getattr(storage, "redact", None)
    return partial(redact_text, redact=redact) if redact else str


def message_redactor_of(storage: object) -> Callable[[Any], Any]:
    """Return a function that redacts messages like *storage* does before it writes them."""
    redact = getattr(storage, "redact", None)
    return partial(redact_message, redact=redact) if redact else lambda message: message


def redact_message(message: object, redact: Redact, levels: int = 2) -> object:
    """Return *message*, a block, or another item of a record with *redact* applied to its texts.

    Role, type, ids and field names are not redacted. *levels* is the depth of nested blocks: a
    message contains blocks, and a tool result contains blocks too. Deeper values are not treated as
    blocks of the API. Raises StorageError.
    """
    if not isinstance(message, Mapping) and not hasattr(message, "model_dump"):
        return _redact_strings(message, redact)
    values: dict[str, object] = {}
    for key, value in as_dict(message).items():
        if key in _BOOKKEEPING and isinstance(value, str):
            values[key] = value
        elif key == "content" and isinstance(value, list | tuple) and levels:
            values[key] = [redact_message(item, redact, levels - 1) for item in value]
        else:
            values[key] = _redact_strings(value, redact)
    return values


def redact_text(text: str, redact: Redact) -> str:
    """Apply *redact* to the decoded JSON strings in *text*, and then to the whole text.

    Results with several blocks and the output of many tools contain secrets with JSON escapes,
    which *redact* would not recognize. Raises StorageError if *redact* fails.
    """
    if "\\" in text:
        text = _JSON_STRING.sub(lambda match: _redact_json(match[0], redact), text)
    return _call(redact, text)


def _redact_json(json_text: str, redact: Redact) -> str:
    """Redact *json_text* if it is a JSON string with escapes; else return it unchanged."""
    if "\\" not in json_text:
        return json_text
    try:
        text = json.loads(json_text, strict=False)
    except ValueError:
        return json_text
    redacted_text = redact_text(text, redact)
    if redacted_text == text:
        return json_text
    return json.dumps(redacted_text, ensure_ascii=not is_encodable(redacted_text))


def _redact_strings(value: object, redact: Redact) -> object:
    """Return *value* with every string in it redacted, including keys."""

    def redact_leaf(leaf: object) -> object:
        return redact_text(leaf, redact) if isinstance(leaf, str) else leaf

    return rebuilt(value, redact_leaf, keys=True)


def redact_except_folder(folder: str, redact: Redact) -> Redact:
    """Return a function like *redact* that does not change *folder* in paths.

    The name of a session's folder may contain a hash, which a rule for long hexadecimal numbers
    would hide. Then no placeholder of the session could be read back.
    """
    part = f"/{folder}/"

    def redact_around(text: str) -> str:
        """Return *text* redacted, except the folder in it."""
        if part not in text or redact(part) == part:
            return redact(text)
        # Redacted as one text, because a match may include text on both sides of the folder.
        return redact(text.replace(part, _FOLDER)).replace(_FOLDER, part)

    return redact_around


_FOLDER = "/\uf8ff/"  # a private-use character, which occurs in no text and no pattern


def _call(redact: Redact, text: str) -> str:
    """Return `redact(text)`, without lone surrogates unless *text* has some too.

    Raises StorageError, without the text, if *redact* raises an error or returns no text.
    """
    try:
        result: object = redact(text)
    except Exception as error:  # noqa: BLE001  whatever a user's function raises
        # The cause is left out, because its message may quote the text.
        kind = type(error).__name__
        reason = f"redact raised {kind}; nothing is written that it has not seen"
        raise StorageError(errno.EINVAL, reason) from None
    if not isinstance(result, str):
        kind = type(result).__name__
        reason = f"redact returned {kind}; it must return the text to write"
        raise StorageError(errno.EINVAL, reason)
    if result is text or is_encodable(result) or not is_encodable(text):
        return result
    return without_surrogates(result)
