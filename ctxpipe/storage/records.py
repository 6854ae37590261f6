"""Records as they go to disk: JSON values, each string of them redacted before it is encoded."""

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
"""What `Archive.save` writes: a list of messages, or a mapping whose lists may be long."""

Redact: TypeAlias = Callable[[str], str]
"""A text as it may go to disk."""

_OUR_KEYS = frozenset({"form", "before"})  # of an archive: its form, names and digests
_BOOKKEEPING = frozenset({"role", "type", "id", "tool_use_id"})
# Possessive, and with the end left open: no text makes it read a character twice.
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*+"?')


def encode_record(record: Record, redact: Redact | None = None, folder: str = "") -> Iterator[str]:
    """*record* as indented JSON, piece by piece.

    No more than one item of a list is in memory as text. *redact* is applied to every string before
    it is encoded, but not to the mapping's own keys, and of messages neither to role, type and ids
    nor to the names of their fields, nor to the session's *folder* in paths. SDK objects are
    written as they would be sent. Raises InvalidHistory for what has no form in JSON, StorageError
    when *redact* fails.
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
    separator = "["
    for item in items:
        yield f"{separator}\n{margin}  {_encode_value(item, margin + '  ', redact)}"
        separator = ","
    if separator == "[":
        yield "[]"
    else:
        yield f"\n{margin}]"


def _encode_value(value: object, margin: str, redact: Redact | None) -> str:
    if redact:
        value = redact_message(value, redact)
    text = as_json(value, indent=2, ensure_ascii=False)
    if not is_encodable(text):  # a lone surrogate has no UTF-8 form, but JSON can escape it
        text = as_json(value, indent=2, ensure_ascii=True)
    return text.replace("\n", f"\n{margin}")  # JSON strings contain no line breaks


def record_stamp(seconds: float) -> str:
    """The time in the name of a record: *seconds* since 1970, as UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")


def encode_text(text: str, redact: Redact | None = None) -> list[bytes]:
    """*text* in pieces as it may be stored: *redact* is applied to it.

    A lone surrogate has no UTF-8 form; escaped, it stays readable and nothing dies of it.
    """
    if redact:
        text = redact_text(text, redact)
    # The pieces stay apart: to join 200 MB blocks the interpreter, and takes as much memory again.
    return [piece.encode("utf-8", "backslashreplace") for piece in pieces(text)]


def storable(text: str, redact: Redact | None = None) -> str:
    """What `encode_text` stores, as a text."""
    return "".join(map(bytes.decode, encode_text(text, redact)))


# Redacting ----------------------------------------------------------------------------------------


def redactor_of(storage: object) -> Redact:
    """The function that *storage* applies to texts before it writes them: its `redact`, if any.

    Where texts are cut, it is applied before: half of a secret is not recognized. Raises
    StorageError when it fails.
    """
    redact = getattr(storage, "redact", None)
    return partial(redact_text, redact=redact) if redact else str


def message_redactor_of(storage: object) -> Callable[[Any], Any]:
    """The function that *storage* applies to messages before it writes them."""
    redact = getattr(storage, "redact", None)
    return partial(redact_message, redact=redact) if redact else lambda message: message


def redact_message(message: object, redact: Redact, levels: int = 2) -> object:
    """*message*, a block, or any other item of a record, with *redact* applied to its texts.

    Role, type and ids stay, as do the names of the fields. A message contains blocks, and a result
    blocks of its own: *levels* of them. What is deeper is no block of the API. Raises StorageError.
    """
    if not isinstance(message, Mapping) and not hasattr(message, "model_dump"):
        return _redact_strings(message, redact)
    plain: dict[str, object] = {}
    for key, value in as_dict(message).items():
        if key in _BOOKKEEPING and isinstance(value, str):
            plain[key] = value
        elif key == "content" and isinstance(value, list | tuple) and levels:
            plain[key] = [redact_message(item, redact, levels - 1) for item in value]
        else:
            plain[key] = _redact_strings(value, redact)
    return plain


def redact_text(text: str, redact: Redact) -> str:
    """*text* with *redact* applied: to the JSON strings in it without escapes, then to the whole.

    Results of several blocks, quoted names and output of many tools contain a secret as JSON
    escapes it. Raises StorageError when *redact* fails.
    """
    if "\\" in text:
        text = _QUOTED.sub(lambda match: _redact_quoted(match[0], redact), text)
    return _call(redact, text)


def _redact_quoted(quoted: str, redact: Redact) -> str:
    """*quoted* redacted if it is a JSON string with escapes; unchanged if nothing was hidden."""
    if "\\" not in quoted:
        return quoted
    try:
        text = json.loads(quoted, strict=False)
    except ValueError:
        return quoted
    redacted = redact_text(text, redact)
    if redacted == text:
        return quoted
    return json.dumps(redacted, ensure_ascii=not is_encodable(redacted))


def _redact_strings(value: object, redact: Redact) -> object:
    """*value* with every string in it redacted, keys included."""

    def redact_leaf(leaf: object) -> object:
        return redact_text(leaf, redact) if isinstance(leaf, str) else leaf

    return rebuilt(value, redact_leaf, keys=True)


def redact_except_folder(folder: str, redact: Redact) -> Redact:
    """*redact*, except that *folder*, a name that ctxpipe gave, stays as it is in paths.

    It may contain the hash of a session's id, which a rule for long hex would hide: then no
    placeholder of the session could be read, and no context be recognized.
    """
    part = f"/{folder}/"

    def redact_around(text: str) -> str:
        if part not in text or redact(part) == part:
            return redact(text)
        # In one piece: a rule may match what is on both sides.
        return redact(text.replace(part, _FOLDER)).replace(_FOLDER, part)

    return redact_around


_FOLDER = "/\uf8ff/"  # from a private use area: in no text, and in no pattern


def _call(redact: Redact, text: str) -> str:
    try:
        redacted: object = redact(text)
    except Exception as error:  # noqa: BLE001  whatever a user's function raises
        # Without the cause: its message may quote the text.
        kind = type(error).__name__
        reason = f"redact raised {kind}; nothing is written that it has not seen"
        raise StorageError(errno.EINVAL, reason) from None
    if not isinstance(redacted, str):
        kind = type(redacted).__name__
        reason = f"redact returned {kind}; it must return the text to write"
        raise StorageError(errno.EINVAL, reason)
    if redacted is text or is_encodable(redacted) or not is_encodable(text):
        return redacted
    return without_surrogates(redacted)
