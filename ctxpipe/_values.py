"""Encode, check, compare and copy the values inside messages, as the client library sends them.

Tool inputs and unknown blocks may be nested to any depth. So these functions use a list of pending
values instead of recursion: no depth makes a turn fail, however deep the caller's own stack is. If
a function does recurse, because that is faster, it falls back to such a list on a RecursionError.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
from collections import UserString
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from collections.abc import Set as AbstractSet
from datetime import date
from functools import cache
from itertools import repeat
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, TypeAlias, cast

from ._threads.bulk import MAPPINGS, weight
from ._threads.pieces import join, pieces
from .errors import InvalidHistory

JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object that is only read."""

JsonDict: TypeAlias = dict[str, Any]
"""A JSON object that may be changed."""


SURROGATE = "a lone surrogate"
MAX_DEPTH = 500
"""Levels of nesting above which a block is refused, before it is written or sent.

Python's JSON parser gives up at about 1,000 levels. The levels around the block and the calls that
led there count too, so a deeper block could be written, but not be read again.
"""
_LEVELS_AROUND = 10
"""Levels that an archive has around a block: the record, its messages, a message, its content."""

# Characters. A longer value is encoded in steps: a single step would block other threads too long.
_MAX_STEP_CHARS = 1_000_000
_SHORT_CHARS = 30_000  # a part of such a value that is encoded in one step
# Level of nesting up to which parts are. A short part has at most 300 levels, since each value in
# it weighs 100 characters; so the deepest value in it is within MAX_DEPTH.
_SHORT_DEPTH = 200
_LONG_CHARS = 2_000
_CANNOT_BE_SENT = "a value in a message cannot be sent: {}"
_MAX_BITS = 14_000  # Python writes no whole number of more than 4,300 digits
_JSON_TYPES = (str, dict, list, tuple, int, float, type(None))
_KEY_TYPES = (str, int, float, type(None))
_KEY_LIKE_A_VALUE = re.compile(r'"(?:-?\d[^"\\]*|true|false|null)":')
_LIST_TYPES = (list, tuple, Sequence, AbstractSet, MappingView)
_CHARACTER_TYPES = (str, bytes, bytearray, memoryview, UserString)


# Encoding -----------------------------------------------------------------------------------------


def as_dict(block: object) -> dict[str, Any]:
    """Return *block* as a plain dict: a shallow copy of a mapping, or the dump of an SDK object.

    Raises InvalidHistory if *block* is neither, or cannot be dumped.
    """
    if isinstance(block, MAPPINGS):
        return dict(block)
    dump = getattr(block, "model_dump", None)
    if dump is None:
        raise InvalidHistory(
            f"a content block is {type(block).__name__}, neither a mapping nor an SDK object"
        )
    options: dict[str, Any] = {"mode": "json", "exclude_unset": True, "by_alias": True}
    hidden = getattr(block, "__api_exclude__", None)
    if hidden:
        options["exclude"] = hidden
    try:
        plain = dump(**options)
    except (ValueError, RecursionError) as error:
        raise InvalidHistory(f"a {type(block).__name__} that cannot be sent: {error}") from error
    return cast("dict[str, Any]", plain)


def wire_value(value: object) -> object:
    """Return the JSON value that the anthropic SDK sends for *value*, which is no JSON value.

    Raises TypeError if the SDK cannot encode it.
    """
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, MAPPINGS) or hasattr(value, "model_dump"):
        return as_dict(value)
    if isinstance(value, AbstractSet) and not isinstance(value, MappingView):
        return sorted(value, key=canonical_json)  # a set's own order differs between processes
    if isinstance(value, _LIST_TYPES) and not isinstance(value, _CHARACTER_TYPES):
        return list(cast("Iterable[object]", value))
    if isinstance(value, os.PathLike):
        # The data of a picture: the client reads the file when it sends the request.
        return os.fspath(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


@cache
def _encoder(
    *, ensure_ascii: bool = True, indent: int | None = None, sort_keys: bool = False
) -> json.JSONEncoder:
    """Return an encoder for values of messages, also of the SDKs' classes; NaN raises ValueError.

    The JSON is compact if *indent* is None.
    """
    separators = (",", ":") if indent is None else None
    return json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=indent,
        sort_keys=sort_keys,
        separators=separators,
        default=wire_value,
        allow_nan=False,
    )


_COMPACT = _encoder(ensure_ascii=False)
_SORTED = _encoder(sort_keys=True)


def compact_json(value: object) -> str:
    """Return *value* as JSON without spaces, as the client sends it.

    Non-ASCII characters are not escaped, and keys keep their order. Raises InvalidHistory if the
    client cannot send the value.
    """
    return join(_encode(_COMPACT, value))


def as_json(value: object, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    """Return *value* as JSON, with *indent* spaces per level, or without spaces.

    With *ensure_ascii* other characters are escaped, lone surrogates too. Raises InvalidHistory if
    the client cannot send the value.
    """
    return join(_encode(_encoder(ensure_ascii=ensure_ascii, indent=indent), value))


def json_pieces(value: object, *, ensure_ascii: bool = True) -> Iterable[str]:
    """Return *value* as compact JSON in pieces, for hashing or writing without a copy of it all."""
    return _encode(_encoder(ensure_ascii=ensure_ascii), value)


def canonical_json(value: object) -> str:
    """Return *value* as compact ASCII JSON with sorted keys.

    Raises InvalidHistory if the client cannot send the value.
    """
    return join(canonical_pieces(value))


def canonical_pieces(value: object) -> Iterable[str]:
    """Return `canonical_json` of *value* in pieces."""
    return _encode(_SORTED, value)


def _encode(encoder: json.JSONEncoder, value: object) -> Iterable[str]:
    """Return the JSON of *value* in pieces; in one piece if that is fast and possible.

    Encoding in steps gives the same text, but is slower. It is necessary in these cases:

    - The value is long.
    - The encoder gives up, because the value is too deep or has keys of several types.
    - Keys are sorted and some are numbers. The encoder sorts 9 before 10, but after the value was
      stored as JSON they are texts, which sort the other way round.
    """
    if weight([value], _MAX_STEP_CHARS) > _MAX_STEP_CHARS:
        return _encode_in_steps(encoder, value)
    try:
        text = _encode_indented(encoder, value) if encoder.indent else encoder.encode(value)
    except (RecursionError, TypeError, ValueError):
        return _encode_in_steps(encoder, value)
    if encoder.sort_keys and _may_sort_otherwise(value, text):
        return _encode_in_steps(encoder, value)
    return [text]


def _may_sort_otherwise(value: object, text: str) -> bool:
    """Return True if a key of *value* may be no text; *text* is the JSON of *value*.

    In a long text it takes several times as long to look for such a key as in the value.
    """
    if len(text) > _LONG_CHARS and _has_text_keys(value):
        return False
    return _KEY_LIKE_A_VALUE.search(text) is not None


def _has_text_keys(value: object) -> bool:
    """Return True if *value* has only plain types and all keys are texts."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                return False
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item
        elif not isinstance(item, _JSON_TYPES):
            return False
    return True


def _encode_indented(encoder: json.JSONEncoder, value: object, depth: int = 1) -> str:
    """Return the text of ``encoder.encode(value)``, in less time.

    The indent of *encoder* must be a number of spaces; with one, Python's encoder does not use its
    C code. Keys are not sorted here, so *encoder* must not sort them either. *depth* is the level
    of nesting of *value*, 1 for the outermost value.

    Raises RecursionError if *value* is nested too deeply, and TypeError or ValueError if the
    encoder cannot encode a part of it.
    """
    margin = "\n" + " " * cast("int", encoder.indent) * (depth - 1)
    if not value or not isinstance(value, dict | list | tuple):
        return encoder.encode(value).replace("\n", margin)  # an SDK object has several lines
    if depth > MAX_DEPTH + _LEVELS_AROUND:
        raise RecursionError  # `_encode_in_steps` then refuses the value and says why
    inner_margin = margin + " " * cast("int", encoder.indent)
    quote = encode_basestring_ascii if encoder.ensure_ascii else encode_basestring
    parts: list[str] = []
    if isinstance(value, dict):
        begin = "{"
        end = "}"
        for key, inner_value in value.items():
            if isinstance(inner_value, str):
                text = quote(inner_value)
            else:
                text = _encode_indented(encoder, inner_value, depth + 1)
            parts.append(f"{quote(_key_text(key))}: {text}")
    else:
        begin = "["
        end = "]"
        parts = [_encode_indented(encoder, inner_value, depth + 1) for inner_value in value]
    return f"{begin}{inner_margin}{f',{inner_margin}'.join(parts)}{margin}{end}"


def _encode_in_steps(encoder: json.JSONEncoder, value: object) -> Iterator[str]:
    """Yield the JSON of *value* in pieces. Raises InvalidHistory if it cannot be sent as JSON."""
    try:
        yield from _encode_flat(encoder, value)
    except (TypeError, ValueError) as error:
        raise InvalidHistory(_CANNOT_BE_SENT.format(error)) from error


def _encode_flat(encoder: json.JSONEncoder, value: object) -> Iterator[str]:
    """Yield the text of *encoder* in pieces, without recursion.

    `pending` has one iterator for each level of nesting: the parts of that object or list which are
    not encoded yet. The innermost is the last one. Raises ValueError if *value* is nested more than
    MAX_DEPTH levels deep, and the errors of *encoder*.
    """
    pending: list[Iterator[tuple[bool, Any]]] = [iter([(False, value)])]
    while pending:
        for is_text, item in pending[-1]:
            if is_text:
                yield item
                continue
            plain = item if isinstance(item, _JSON_TYPES) else wire_value(item)
            if isinstance(plain, str):
                yield '"'
                for piece in pieces(plain):
                    yield encoder.encode(piece)[1:-1]
                yield '"'
            elif not isinstance(plain, dict | list | tuple):
                yield encoder.encode(plain)
            elif not plain:
                yield "{}" if isinstance(plain, dict) else "[]"
            elif (
                len(pending) < _SHORT_DEPTH and (text := _encode_short(encoder, plain)) is not None
            ):
                yield text
            elif len(pending) > MAX_DEPTH + _LEVELS_AROUND:
                raise ValueError(f"it is nested more than {MAX_DEPTH:,} levels deep")
            else:
                pending.append(_parts(encoder, plain, len(pending)))
                break
        else:
            pending.pop()


def _encode_short(encoder: json.JSONEncoder, value: object) -> str | None:
    """Return the text of *value* in one step, such as that of a message in a long journal entry.

    Returns None if it is not short, or if `_encode` gives the reason why steps are necessary.
    """
    if encoder.indent or weight([value], _SHORT_CHARS) > _SHORT_CHARS:
        return None
    try:
        text = encoder.encode(value)
    except (RecursionError, TypeError, ValueError):
        return None
    return None if encoder.sort_keys and _may_sort_otherwise(value, text) else text


def _key_text(key: object) -> str:
    """Return *key* as JSON makes it a text: True becomes "true"."""
    if isinstance(key, str):
        return key
    return _COMPACT.encode({key: 0})[2:-4]  # from '{"key":0}'


def _parts(
    encoder: json.JSONEncoder, item: dict[Any, Any] | Sequence[Any], depth: int
) -> Iterator[tuple[bool, Any]]:
    """Yield the parts of the text of *item*: (True, a text), or (False, a value to be encoded)."""
    margin = ""
    inner_margin = ""
    if isinstance(encoder.indent, int):
        margin = "\n" + " " * encoder.indent * (depth - 1)
        inner_margin = margin + " " * encoder.indent
    if isinstance(item, dict):
        separator = "{" + inner_margin
        for key in sorted(item, key=_key_text) if encoder.sort_keys else item:
            yield True, separator + encoder.encode(_key_text(key)) + encoder.key_separator
            yield False, item[key]
            separator = encoder.item_separator + inner_margin
        yield True, margin + "}"
        return
    separator = "[" + inner_margin
    for part in item:
        yield True, separator
        yield False, part
        separator = encoder.item_separator + inner_margin
    yield True, margin + "]"


# Checking -----------------------------------------------------------------------------------------


def encoding_fault(value: object) -> str:
    """Return why *value* cannot be sent, as a phrase that continues "it holds"; "" if it can.

    `SURROGATE` if lone surrogates are the only fault: they can be replaced.
    """
    fault = ""
    pending: list[tuple[object, int]] = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, str):
            if not is_encodable(item):
                fault = SURROGATE
        elif isinstance(item, int | float):
            if not _is_number(item):
                return "a number that JSON cannot represent"
        elif item is not None and not isinstance(item, date):
            inner_values = (
                _values_in_mapping(item) if isinstance(item, MAPPINGS) else _values_in(item)
            )
            if isinstance(inner_values, str):
                return inner_values
            if depth > MAX_DEPTH:
                return f"values nested more than {MAX_DEPTH:,} levels deep"
            pending.extend(zip(inner_values, repeat(depth + 1)))
    return fault


def _values_in(item: object) -> Iterable[object] | str:
    """Return the values in *item* that must be checked; a text if *item* itself cannot be sent.

    The text is that of `encoding_fault`.
    """
    if hasattr(item, "model_dump"):
        try:
            return (as_dict(item),)  # the client sends the object's own dump
        except InvalidHistory as error:
            return str(error)
    if isinstance(item, _LIST_TYPES) and not isinstance(item, _CHARACTER_TYPES):
        return cast("Iterable[object]", item)
    if isinstance(item, Iterator):
        return f"a {type(item).__name__}, which can be read only once (give a list)"
    return f"a {type(item).__name__}, which the client library cannot encode"


def _values_in_mapping(item: Mapping[Any, object]) -> list[object] | str:
    """Return the keys and values of *item* that must be checked, or a text as `_values_in` does.

    ASCII text needs no check and is left out: most text is ASCII, and to check each again would
    take longer than all other checks of a history.
    """
    inner_values: list[object] = []
    for key, value in item.items():
        if not (type(key) is str and key.isascii()):
            if not isinstance(key, _KEY_TYPES):
                return f"a key that is {type(key).__name__}, not text"
            inner_values.append(key)
        if value is None or (type(value) is str and value.isascii()):
            continue
        # The path of a picture or document, which the client reads when it sends the request.
        is_file = isinstance(value, os.PathLike) and item.get("type") == "base64"
        if not (key == "data" and is_file):
            inner_values.append(value)
    return inner_values


def _is_number(value: float) -> bool:
    """Return True if JSON can represent *value* and Python can write it."""
    if isinstance(value, int):
        return value.bit_length() <= _MAX_BITS
    return math.isfinite(value)


def is_encodable(text: str) -> bool:
    """Return True if *text* can be sent as UTF-8: it has no lone surrogate."""
    if text.isascii():  # constant time for the common case
        return True
    try:
        for piece in pieces(text):
            piece.encode()
    except UnicodeEncodeError:
        return False
    return True


_PIECE_CHARS = 2**15  # a codec takes some 100 ms to replace a million surrogates


def without_surrogates(text: str) -> str:
    """Return *text* with U+FFFD for each lone surrogate, which the client refuses to send."""
    if is_encodable(text):
        return text
    return "".join(
        piece.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for piece in pieces(text, _PIECE_CHARS)
    )


# Reading and copying ------------------------------------------------------------------------------


def leaves(value: object) -> Iterator[tuple[str, object]]:
    """Yield every text, number and None inside *value*, in order, with its key.

    *value* is a message, a block or the input of a call. The key of a leaf in a list is that of the
    list.
    """
    pending: list[tuple[str, object]] = [("", value)]
    while pending:
        name, item = pending.pop()
        if isinstance(item, str):
            yield name, item
        elif isinstance(item, MAPPINGS):
            pending += [(str(key), inner) for key, inner in reversed(list(item.items()))]
        elif isinstance(item, list | tuple):
            pending += zip(repeat(name), reversed(item))
        elif hasattr(item, "model_dump"):
            pending.append((name, as_dict(item)))
        else:
            yield name, item


def strings(value: object) -> Iterator[str]:
    """Yield every string inside a message, a block or the input of a call, in order; no keys."""
    return (leaf for _, leaf in leaves(value) if isinstance(leaf, str))


def rebuilt(value: object, leaf: Callable[[Any], object], *, keys: bool = False) -> Any:
    """Return a copy of *value* in plain dicts and lists, with *leaf* applied to each leaf.

    Leaves are texts, numbers and None. With *keys*, *leaf* is applied to keys too; a key that then
    exists already gets a number. *leaf* is also called with each mapping: if it returns another
    value, that replaces the mapping. Raises InvalidHistory if the client cannot send the value.
    """
    root: list[Any] = [None]
    pending: list[tuple[Any, Any, Any]] = [(value, root, 0)]  # a value, and where its copy goes
    while pending:
        item, holder, place = pending.pop()
        if not isinstance(item, _JSON_TYPES):
            try:
                item = wire_value(item)
            except TypeError as error:
                raise InvalidHistory(_CANNOT_BE_SENT.format(error)) from error
        if isinstance(item, list | tuple):
            parts: list[Any] = [None] * len(item)
            holder[place] = parts
            pending += [(inner, parts, index) for index, inner in enumerate(item)]
            continue
        new = leaf(item)
        holder[place] = new
        if new is item and isinstance(item, MAPPINGS):
            fields: dict[Any, Any] = {}
            holder[place] = fields
            for key, inner in item.items():
                name = _free_name(leaf(key), fields) if keys else key
                fields[name] = None  # reserves its place, so that keys keep their order
                pending.append((inner, fields, name))
    return root[0]


def _free_name(name: object, fields: Mapping[object, object]) -> object:
    """Return *name*, with a number if *fields* has such a key already."""
    free = name
    number = 2
    while free in fields:
        free = f"{name} {number}"
        number += 1
    return free


def deep_copy(value: Any) -> Any:
    """Return a deep copy of *value*; in plain JSON values if it is too deep or cannot be copied."""
    try:
        return copy.deepcopy(value)
    except (RecursionError, TypeError, copy.Error):
        return copy_containers(value)


def copy_containers(value: Any) -> Any:
    """Return *value* in new lists and dicts that share its texts."""
    return rebuilt(value, lambda item: item)


def sendable(value: object) -> Any:
    """Return a copy of *value* with U+FFFD for each lone surrogate in its texts and keys.

    Raises InvalidHistory if the client cannot send the value.
    """
    return rebuilt(value, _sendable_leaf, keys=True)


def _sendable_leaf(leaf: Any) -> Any:
    return without_surrogates(leaf) if isinstance(leaf, str) else leaf


def is_equal(one: object, other: object) -> bool:
    """Return True if two values are equal. If they are too deep, their JSON is compared."""
    try:
        return bool(one == other)
    except RecursionError:
        return as_json(one) == as_json(other)


# Texts by their places ----------------------------------------------------------------------------


def find_texts(value: Any, locations: Mapping[str, str]) -> Iterator[tuple[list[Any], str]]:
    """Yield each text in *value* that is a key of *locations*: its place, and `locations[text]`.

    A place is a list of keys and indices, such as ``["content", 0, "text"]``. The last text comes
    first. Keys of mappings are not searched, values of keys that are no text are skipped, and so
    are texts with lone surrogates.
    """
    pending: list[tuple[Any, list[Any]]] = [(value, [])]
    while pending:
        item, place = pending.pop()
        if isinstance(item, str):
            if item in locations and is_encodable(item):
                yield place, locations[item]
        elif isinstance(item, Mapping):
            for key, inner in item.items():
                if isinstance(key, str):  # JSON turns other keys into texts
                    pending.append((inner, [*place, key]))
        elif isinstance(item, list | tuple):
            for index, inner in enumerate(item):
                pending.append((inner, [*place, index]))


def value_at(value: Any, place: Sequence[Any]) -> Any:
    """Return the value at *place* in *value*; None if there is no such place."""
    try:
        for part in place:
            value = value[part]
    except (LookupError, TypeError):
        return None
    return value


def replace_text(value: Any, place: Sequence[Any], text: str) -> str | None:
    """Replace the text at *place* in *value* by *text*, and return the old text.

    Return None, without a change, if there is no text at *place*.
    """
    old = value_at(value, place)
    if not isinstance(old, str):
        return None
    value_at(value, place[:-1])[place[-1]] = text
    return old
