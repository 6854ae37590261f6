"""Records as they go to disk: JSON values, each string of them redacted before it is encoded."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from ..errors import StorageError
from ..messages import as_dict, as_json, is_encodable

__all__ = [
    "Record",
    "Redact",
    "encode_line",
    "encode_record",
    "leave_alone",
    "message_redactor_of",
    "parse_line",
    "redact_message",
    "redact_text",
    "redactor_of",
]

Record: TypeAlias = Mapping[str, object] | Iterable[object]
"""What `Archive.save` writes: a list of messages, or a mapping whose lists may be long."""

Redact: TypeAlias = Callable[[str], str]
"""A text as it may go to disk."""

_OUR_KEYS = frozenset({"form", "before"})  # of an archive: its form, names and digests
_BOOKKEEPING = frozenset({"role", "type", "id", "tool_use_id"})
# Possessive, and with the end left open: no text makes it read a character twice.
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*+"?')
_ATOMS = int | float | None  # bool is an int


def encode_record(record: Record, redact: Redact | None = None) -> Iterator[str]:
    """*record* as indented JSON, piece by piece: no more than one item of a list is ever held as
    text.

    *redact* is applied to every string before it is encoded, but not to the mapping's own keys, and of messages
    neither to role, type and ids nor to the names of their fields. SDK objects are written as they
    would be sent. Raises InvalidHistory for what has no form in JSON, StorageError when *redact*
    fails.
    """
    if not isinstance(record, Mapping):
        yield from _encode_items(record, "", redact)
    else:
        separator = "{"
        for key, value in record.items():
            yield f"{separator}\n  {json.dumps(key)}: "
            hide = None if key in _OUR_KEYS else redact
            if isinstance(value, list | tuple):
                yield from _encode_items(value, "  ", hide)
            else:
                yield _indented(value, "  ", hide)
            separator = ","
        yield "\n}"
    yield "\n"


def _encode_items(items: Iterable[object], margin: str, redact: Redact | None) -> Iterator[str]:
    separator = "["
    for item in items:
        yield f"{separator}\n{margin}  {_indented(item, margin + '  ', redact)}"
        separator = ","
    yield "[]" if separator == "[" else f"\n{margin}]"


def _indented(value: object, margin: str, redact: Redact | None) -> str:
    redacted = _redact_item(value, redact) if redact else value
    text = as_json(redacted, indent=2, ensure_ascii=False)
    if not is_encodable(text):  # a lone surrogate has no UTF-8 form, but JSON can say it
        text = as_json(redacted, indent=2, ensure_ascii=True)
    return text.replace("\n", f"\n{margin}")  # JSON strings hold no line breaks


# Lines of a record that grows ---------------------------------------------------------------------


def encode_line(entry: Mapping[str, object], redact: Redact | None = None) -> str:
    """*entry*, of plain JSON values, as a line with its check sum, the line break first.

    *redact* is applied to the messages in it, wherever they stand; everything else is bookkeeping. The line break
    comes first because a line that a crash has torn must not swallow the next one. Raises
    StorageError when *redact* fails.
    """
    plain = _redact_messages(entry, redact) if redact else entry
    body = as_json(plain)  # ASCII: a lone surrogate can be said
    return f"\n{_check_sum(body)} {body}"


def parse_line(line: str) -> dict[str, Any] | None:
    """The entry in *line*; None when the line is torn, damaged or no entry."""
    check_sum, _, body = line.partition(" ")
    try:
        # A lone surrogate is a ValueError.
        entry = json.loads(body) if check_sum == _check_sum(body) else None
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _check_sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _redact_messages(value: object, redact: Redact) -> object:
    if isinstance(value, Mapping):
        if "role" in value and "content" in value:
            return _redact_block(value, redact)
        return {key: _redact_messages(held, redact) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_messages(held, redact) for held in value]
    return value


# Redacting ----------------------------------------------------------------------------------------


def redactor_of(storage: object) -> Redact:
    """What texts go through before *storage* writes them: its own `redact`, if it has one.

    Where texts are cut, it is asked before: half of a secret is not known again. Raises
    StorageError when it fails.
    """
    redact = getattr(storage, "redact", None)
    return str if redact is None else partial(redact_text, redact=redact)


def message_redactor_of(storage: object) -> Callable[[Any], Any]:
    """What messages go through before *storage* writes them."""
    redact = getattr(storage, "redact", None)
    return _as_it_is if redact is None else partial(_redact_item, redact=redact)


def _as_it_is(message: object) -> object:
    return message


def redact_message(message: object, redact: Redact) -> object:
    """*message*, or a block, with *redact* applied to its texts; role, type and ids stay.

    Raises StorageError.
    """
    return _redact_item(message, redact)


def redact_text(text: str, redact: Redact) -> str:
    """*text* with *redact* applied: to the JSON strings quoted in it as they were said, then to the
    whole.

    Results of several blocks, quoted names and output of many tools hold a secret as JSON escapes
    it. Raises StorageError when *redact* fails.
    """
    if "\\" in text:
        text = _QUOTED.sub(lambda match: _redact_quoted(match[0], redact), text)
    return _apply(redact, text)


def _redact_quoted(quoted: str, redact: Redact) -> str:
    """*quoted* redacted where it is a JSON string with escapes, and as it is where nothing had to
    be hidden.
    """
    if "\\" not in quoted:
        return quoted
    try:
        said = json.loads(quoted, strict=False)
    except ValueError:
        return quoted
    redacted = redact_text(said, redact)
    if redacted == said:
        return quoted
    return json.dumps(redacted, ensure_ascii=not is_encodable(redacted))


def _redact_item(item: object, redact: Redact, levels: int = 2) -> object:
    """An item of a record: a message, a block, or any other value."""
    if isinstance(item, Mapping) or hasattr(item, "model_dump"):
        return _redact_block(as_dict(item), redact, levels)
    return _redact_strings(item, redact)


def _redact_block(block: Mapping[str, Any], redact: Redact, levels: int = 2) -> dict[str, object]:
    """A message or a content block with its texts redacted; role, type and ids stay, as do the
    fields' names.

    A message holds blocks, and a result blocks of its own: *levels* of them. What lies deeper is no
    block of the API's.
    """
    plain: dict[str, object] = {}
    for key, value in block.items():
        if key in _BOOKKEEPING and isinstance(value, str):
            plain[key] = value
        elif key == "content" and isinstance(value, list | tuple) and levels:
            plain[key] = [_redact_item(held, redact, levels - 1) for held in value]
        else:
            plain[key] = _redact_strings(value, redact)
    return plain


def _redact_strings(value: object, redact: Redact) -> object:
    """*value* with every string in it redacted, keys included.

    Iterative: the input of a call may be deep.
    """
    outcome: list[object] = [None]
    pending: list[tuple[object, Any, Any]] = [(value, outcome, 0)]
    while pending:
        held, parent, place = pending.pop()
        if isinstance(held, str):
            parent[place] = redact_text(held, redact)
        elif isinstance(held, _ATOMS):
            parent[place] = held
        elif isinstance(held, list | tuple):
            parent[place] = items = [None] * len(held)
            pending += [(item, items, index) for index, item in enumerate(held)]
        elif isinstance(held, Mapping) or hasattr(held, "model_dump"):
            parent[place] = fields = dict[object, object]()
            for key, item in as_dict(held).items():
                name = _free(redact_text(key, redact) if isinstance(key, str) else key, fields)
                fields[name] = None  # in their order
                pending.append((item, fields, name))
        else:  # such as a date: what JSON makes of it may be a text, too
            pending.append((json.loads(as_json(held)), parent, place))
    return outcome[0]


def _free(name: object, taken: Mapping[object, object]) -> object:
    """*name*, numbered when two keys have become the same."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name} {number}", number + 1
    return free


def leave_alone(folder: str, redact: Redact) -> Redact:
    """*redact*, except that *folder*, a name that we gave, stays as it is in paths.

    It may hold the hash of a session's id, which whoever hides long hex would hide: then no
    placeholder of the session could be read back, and no context be known again.
    """
    part = f"/{folder}/"

    def redact_around(text: str) -> str:
        if part not in text or redact(part) == part:
            return redact(text)
        return redact(text.replace(part, _FOLDER)).replace(
            _FOLDER, part
        )  # whole: it may hide what stands on both sides

    return redact_around


_FOLDER = "/\uf8ff/"  # of a private area: in no text, and in no pattern


def _apply(redact: Redact, text: str) -> str:
    try:
        redacted: object = redact(text)
    except Exception as error:  # noqa: BLE001  whatever a user's function raises
        # Without the cause: what it says may quote the text.
        told = f"redact raised {type(error).__name__}; nothing is written that it has not seen"
        raise StorageError(errno.EINVAL, told) from None
    if not isinstance(redacted, str):
        told = f"redact returned {type(redacted).__name__}; it must return the text to write"
        raise StorageError(errno.EINVAL, told)
    return redacted
