"""The values inside messages as the client library sends them: encoded, compared and rebuilt.

Tool inputs and unknown blocks may be nested to any depth. Nothing here calls itself for a level of
nesting, so that no depth makes a turn fail, however deep the caller's own stack is.
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
"""An object as it was parsed, which is only read."""

JsonDict: TypeAlias = dict[str, Any]
"""An object that is being written."""


SURROGATE = "a lone surrogate"
MAX_DEPTH = 500
"""Levels of nesting above which a block is refused, before it is written or sent.

Python's JSON gives up at about 1,000 levels, where the levels around a block and the calls that led
there count as well. So what was written with more could not be read again.
"""
_LEVELS_AROUND = 10
"""Levels that an archive has around a block: the record, its messages, a message, its content."""

# Characters. A longer value is encoded in steps: a single step would hold the interpreter too long.
_IN_ONE_STEP = 1_000_000
_CANNOT_BE_SENT = "a value in a message cannot be sent: {}"
_MOST_BITS = 14_000  # Python writes no whole number of more than 4,300 digits
_JSON = (str, dict, list, tuple, int, float, type(None))
_KEYS = (str, int, float, type(None))
_KEY_LIKE_A_VALUE = re.compile(r'"(?:-?\d[^"\\]*|true|false|null)":')
_LISTS = (list, tuple, Sequence, AbstractSet, MappingView)
_CHARACTERS = (str, bytes, bytearray, memoryview, UserString)


# What is sent -------------------------------------------------------------------------------------


def as_dict(block: object) -> dict[str, Any]:
    """A plain, shallow dict of *block*; a model object of the SDK as it would be sent."""
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
    """What the anthropic SDK puts into a request for *value*, which JSON does not know."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, MAPPINGS) or hasattr(value, "model_dump"):
        return as_dict(value)
    if isinstance(value, AbstractSet) and not isinstance(value, MappingView):
        return sorted(value, key=canonical_json)  # its own order is another in each process
    if isinstance(value, _LISTS) and not isinstance(value, _CHARACTERS):
        return list(cast("Iterable[object]", value))
    if isinstance(value, os.PathLike):
        # The data of a picture: the client reads the file when it sends.
        return os.fspath(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


@cache
def _encoder(
    *, ensure_ascii: bool = True, indent: int | None = None, sort_keys: bool = False
) -> json.JSONEncoder:
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
    """*value* as JSON without spaces, as the client sends it: non-ASCII as it is, key order kept.

    Raises InvalidHistory for a value that the client could not send either.
    """
    return join(_encode(_COMPACT, value))


def as_json(value: object, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    """*value* as JSON, with *indent* spaces a level, or compact; ASCII holds lone surrogates too.

    Raises InvalidHistory for a value that the client could not send either.
    """
    return join(_encode(_encoder(ensure_ascii=ensure_ascii, indent=indent), value))


def json_pieces(value: object, *, ensure_ascii: bool = True) -> Iterable[str]:
    """`as_json` of *value* in pieces: what is hashed or written needs no copy of the whole."""
    return _encode(_encoder(ensure_ascii=ensure_ascii), value)


def canonical_json(value: object) -> str:
    """*value* as compact ASCII JSON in which the order of keys makes no difference.

    Raises InvalidHistory for a value that the client could not send either.
    """
    return join(canonical_pieces(value))


def canonical_pieces(value: object) -> Iterable[str]:
    """`canonical_json` of *value* in pieces."""
    return _encode(_SORTED, value)


def _encode(encoder: json.JSONEncoder, value: object) -> Iterable[str]:
    """The text of *value*, a long or deep one in pieces."""
    if weight([value], _IN_ONE_STEP) > _IN_ONE_STEP:
        return _encode_in_steps(encoder, value)
    # What is too deep, or has keys of several types, is left to the steps. And numbers sort
    # otherwise than the texts that they become.
    try:
        text = _encode_indented(encoder, value, "\n") if encoder.indent else encoder.encode(value)
    except (RecursionError, TypeError, ValueError):
        return _encode_in_steps(encoder, value)
    if encoder.sort_keys and _KEY_LIKE_A_VALUE.search(text):
        return _encode_in_steps(encoder, value)
    return [text]


def _encode_indented(encoder: json.JSONEncoder, value: object, margin: str) -> str:
    """The text of the encoder itself, which with an indent is slow Python, in less time.

    *margin* is a line break and the indentation of *value*.
    """
    if not value or not isinstance(value, dict | list | tuple):
        return encoder.encode(value).replace("\n", margin)  # an SDK object has lines of its own
    inner = margin + " " * cast("int", encoder.indent)
    quote = encode_basestring_ascii if encoder.ensure_ascii else encode_basestring
    if isinstance(value, dict):
        begin, end = "{}"
        parts = [
            f"{quote(_key_text(key))}: "
            f"{quote(held) if isinstance(held, str) else _encode_indented(encoder, held, inner)}"
            for key, held in value.items()
        ]
    else:
        begin, end = "[]"
        parts = [_encode_indented(encoder, held, inner) for held in value]
    return f"{begin}{inner}{f',{inner}'.join(parts)}{margin}{end}"


def _encode_in_steps(encoder: json.JSONEncoder, value: object) -> Iterator[str]:
    try:
        yield from _encode_flat(encoder, value)
    except (TypeError, ValueError) as error:
        raise InvalidHistory(_CANNOT_BE_SENT.format(error)) from error


def _encode_flat(encoder: json.JSONEncoder, value: object) -> Iterator[str]:
    """The same text as the encoder's own, piece by piece and without a call for each level."""
    unread: list[Iterator[tuple[bool, Any]]] = [iter([(False, value)])]
    while unread:
        for is_text, item in unread[-1]:
            if is_text:
                yield item
                continue
            plain = item if isinstance(item, _JSON) else wire_value(item)
            if isinstance(plain, str):
                yield '"'
                for piece in pieces(plain):
                    yield encoder.encode(piece)[1:-1]
                yield '"'
            elif not isinstance(plain, dict | list | tuple):
                yield encoder.encode(plain)
            elif not plain:
                yield "{}" if isinstance(plain, dict) else "[]"
            elif len(unread) > MAX_DEPTH + _LEVELS_AROUND:
                raise ValueError(f"it is nested more than {MAX_DEPTH:,} levels deep")
            else:
                unread.append(_parts(encoder, plain, len(unread)))
                break
        else:
            unread.pop()


def _key_text(key: object) -> str:
    return key if isinstance(key, str) else _COMPACT.encode({key: 0})[2:-4]  # '{"key":0}'


def _parts(
    encoder: json.JSONEncoder, item: dict[Any, Any] | Sequence[Any], depth: int
) -> Iterator[tuple[bool, Any]]:
    """The parts of the text of *item*: (True, a text), or (False, a value yet to be encoded)."""
    inner = outer = ""
    if isinstance(encoder.indent, int):
        outer = "\n" + " " * encoder.indent * (depth - 1)
        inner = outer + " " * encoder.indent
    is_object = isinstance(item, dict)
    begin, end = "{}" if is_object else "[]"
    separator = begin + inner
    for key in sorted(item, key=_key_text) if is_object and encoder.sort_keys else item:
        yield True, separator
        if isinstance(item, dict):
            yield True, encoder.encode(_key_text(key)) + encoder.key_separator
            yield False, item[key]
        else:
            yield False, key
        separator = encoder.item_separator + inner
    yield True, outer + end


def encoding_fault(value: object) -> str:
    """What keeps *value* from being sent, "" when nothing does.

    `SURROGATE` where lone surrogates are all: they can be replaced. Anything else is a phrase that
    continues "it holds".
    """
    found = ""
    todo: list[tuple[object, int]] = [(value, 1)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, str):
            if not is_encodable(item):
                found = SURROGATE
        elif isinstance(item, int | float):
            if not _is_number(item):
                return "a number that JSON cannot say"
        elif item is not None and not isinstance(item, date):
            inside = _inside_mapping(item) if isinstance(item, MAPPINGS) else _inside(item)
            if isinstance(inside, str):
                return inside
            if depth > MAX_DEPTH:
                return f"values nested more than {MAX_DEPTH:,} levels deep"
            todo.extend(zip(inside, repeat(depth + 1)))
    return found


def _inside(item: object) -> Iterable[object] | str:
    """The values in *item* that must be checked; or what keeps it from being sent."""
    if hasattr(item, "model_dump"):
        try:
            return (as_dict(item),)  # what is sent is the model's own dump
        except InvalidHistory as error:
            return str(error)
    if isinstance(item, _LISTS) and not isinstance(item, _CHARACTERS):
        return cast("Iterable[object]", item)
    if isinstance(item, Iterator):
        return f"a {type(item).__name__}, which can be read only once (give a list)"
    return f"a {type(item).__name__}, which the client library cannot encode"


def _inside_mapping(item: Mapping[Any, object]) -> list[object] | str:
    inside: list[object] = []
    for key, value in item.items():
        # Nearly all is ASCII text: to check each again would cost more than all other rules
        # together.
        if not (type(key) is str and key.isascii()):
            if not isinstance(key, _KEYS):
                return f"a key that is {type(key).__name__}, not text"
            inside.append(key)
        if value is None or (type(value) is str and value.isascii()):
            continue
        # The path of a picture or document, which the client reads on sending.
        is_file = isinstance(value, os.PathLike) and item.get("type") == "base64"
        if not (key == "data" and is_file):
            inside.append(value)
    return inside


def _is_number(value: float) -> bool:
    return value.bit_length() <= _MOST_BITS if isinstance(value, int) else math.isfinite(value)


def is_encodable(text: str) -> bool:
    """Whether *text* can be sent as UTF-8: it holds no lone surrogate."""
    if text.isascii():  # constant time for the common case
        return True
    try:
        for piece in pieces(text):
            piece.encode()
    except UnicodeEncodeError:
        return False
    return True


_REPLACED_CHARS = 2**15  # a codec takes some 100 ms to replace a million surrogates


def without_surrogates(text: str) -> str:
    """*text* with each lone surrogate, which the client refuses to send, as U+FFFD."""
    if is_encodable(text):
        return text
    return "".join(
        piece.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for piece in pieces(text, _REPLACED_CHARS)
    )


# Walking ------------------------------------------------------------------------------------------


def leaves(value: object) -> Iterator[tuple[str, object]]:
    """Every text, number and None inside a message, a block or the input of a call, in order.

    Each has the key beside it that holds it, or that holds the list which it is in.
    """
    todo: list[tuple[str, object]] = [("", value)]
    while todo:
        name, item = todo.pop()
        if isinstance(item, str):
            yield name, item
        elif isinstance(item, MAPPINGS):
            todo += [(str(key), held) for key, held in reversed(list(item.items()))]
        elif isinstance(item, list | tuple):
            todo += zip(repeat(name), reversed(item))
        elif hasattr(item, "model_dump"):
            todo.append((name, as_dict(item)))
        else:
            yield name, item


def strings(value: object) -> Iterator[str]:
    """Every string inside a message, a block or the input of a call, in order, without the keys."""
    return (leaf for _, leaf in leaves(value) if isinstance(leaf, str))


def rebuilt(value: object, leaf: Callable[[Any], object], *, keys: bool = False) -> Any:
    """A copy of *value* in plain dicts and lists, as it is sent, with *leaf* applied to each leaf.

    Leaves are texts, numbers and None, and with *keys* the keys too: one that is taken then gets a
    number. *leaf* is asked about mappings as well: any answer but the mapping itself replaces it.
    Raises InvalidHistory for a value that the client could not send either.
    """
    root: list[Any] = [None]
    todo: list[tuple[Any, Any, Any]] = [(value, root, 0)]
    while todo:
        item, holder, place = todo.pop()
        if not isinstance(item, _JSON):
            try:
                item = wire_value(item)
            except TypeError as error:
                raise InvalidHistory(_CANNOT_BE_SENT.format(error)) from error
        if isinstance(item, list | tuple):
            parts: list[Any] = [None] * len(item)
            holder[place] = parts
            todo += [(inner, parts, index) for index, inner in enumerate(item)]
            continue
        new = leaf(item)
        holder[place] = new
        if new is item and isinstance(item, MAPPINGS):
            fields: dict[Any, Any] = {}
            holder[place] = fields
            for key, inner in item.items():
                name = _free_name(leaf(key), fields) if keys else key
                fields[name] = None  # in their order
                todo.append((inner, fields, name))
    return root[0]


def _free_name(name: object, fields: Mapping[object, object]) -> object:
    """*name*, with a number when one of *fields* is called that already."""
    free = name
    number = 2
    while free in fields:
        free = f"{name} {number}"
        number += 1
    return free


def deep_copy(value: Any) -> Any:
    """A deep copy of *value*; in plain JSON values where it is too deep or cannot be copied."""
    try:
        return copy.deepcopy(value)
    except (RecursionError, TypeError, copy.Error):
        return copy_containers(value)


def copy_containers(value: Any) -> Any:
    """*value* in new lists and dicts, with the very same texts, however long."""
    return rebuilt(value, lambda item: item)


def is_equal(one: object, other: object) -> bool:
    """Whether two values are equal; of those too deep to compare, whether their JSON is."""
    try:
        return bool(one == other)
    except RecursionError:
        return as_json(one) == as_json(other)


# Texts by their places ----------------------------------------------------------------------------


def find_texts(value: Any, locations: Mapping[str, str]) -> Iterator[tuple[list[Any], str]]:
    """Where in *value* the texts are that *locations* names, and where each is."""
    pending: list[tuple[Any, list[Any]]] = [(value, [])]
    while pending:
        item, place = pending.pop()
        if isinstance(item, str):
            if item in locations and is_encodable(item):
                yield place, locations[item]
        elif isinstance(item, Mapping):
            for key, held in item.items():
                if isinstance(key, str):  # JSON makes other keys into texts
                    pending.append((held, [*place, key]))
        elif isinstance(item, list | tuple):
            for index, held in enumerate(item):
                pending.append((held, [*place, index]))


def value_at(value: Any, place: Sequence[Any]) -> Any:
    """What is at *place* in *value*; None when there is no such place."""
    try:
        for part in place:
            value = value[part]
    except (LookupError, TypeError):
        return None
    return value


def replace_text(value: Any, place: Sequence[Any], text: str) -> str | None:
    """Replace the text at *place* in *value* by *text*; the old one, None when there is none."""
    old = value_at(value, place)
    if not isinstance(old, str):
        return None
    value_at(value, place[:-1])[place[-1]] = text
    return old
