"""What a message says, whatever its form; and its cache marks, which are no part of that."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, cast

from .._values import as_dict, canonical_json, canonical_pieces, is_equal
from ..errors import InvalidHistory
from .vocabulary import Block, Message, as_blocks, blocks, field, inner_blocks, with_content

MARK = "cache_control"
_PLAIN_VALUES = frozenset({str, int, float, bool, type(None), dict})


# One plain form -----------------------------------------------------------------------------------


def parse(message: Message, index: int = 0) -> Message:
    """*message* in plain dicts and lists, its blocks as the SDK would send them.

    A plain message is returned as it is. Raises InvalidHistory, naming *index* and block, for what
    cannot be sent.
    """
    content: object = message["content"]
    if content is None or isinstance(content, str):
        return message if type(message) is dict else cast("Message", dict(message))
    if type(message) is dict and _are_plain(content):
        return message
    plain: list[object] = []
    for place, block in enumerate(blocks(message)):
        try:
            plain.append(_parse_block(block))
        except InvalidHistory as error:
            where = f"message {index}, block {place}"
            raise InvalidHistory(f"{where}: it holds {error}") from error
    return with_content(message, plain)


def _are_plain(content: object) -> bool:
    if type(content) is not list:
        return False
    for block in content:
        if type(block) is not dict:
            return False
        for value in block.values():
            if type(value) is list:
                if not _PLAIN_VALUES.issuperset(map(type, value)):
                    return False
            elif type(value) not in _PLAIN_VALUES:
                return False
    return True


def _parse_block(block: Block) -> Block:
    if not (isinstance(block, Mapping) or hasattr(block, "model_dump")):
        return block
    return {key: _parse_value(value) for key, value in as_dict(block).items()}


def _parse_value(value: object) -> object:
    if isinstance(value, list | tuple):
        return list(map(_parse_block, value))
    if hasattr(value, "model_dump"):
        return as_dict(value)
    return value


# What it says -------------------------------------------------------------------------------------


def says_the_same(one: Message, other: Message) -> bool:
    """Whether two messages have the same canonical form.

    Cache marks, keys that are None, and text as one block make no difference, nor does the form of
    a value that JSON says in the same way, such as a tuple or a date.
    """
    if is_equal(one, other):
        return True
    ours, theirs = _canonical(one), _canonical(other)
    if is_equal(ours, theirs):
        return True
    try:
        return canonical_json(ours) == canonical_json(theirs)
    except InvalidHistory:
        return False


def digest(message: Message) -> bytes:
    """The SHA-256 digest of the canonical form of *message*."""
    return digest_of(message, hashlib.sha256)


def digest_of(message: Message, make: Callable[[], Any]) -> bytes:
    """The digest of the canonical form of *message*, by the hash object that *make* returns."""
    hasher = make()
    for piece in canonical_pieces(_canonical(message)):
        hasher.update(piece.encode())
    return cast("bytes", hasher.digest())


def _canonical(message: Message) -> list[Any]:
    return [message["role"], *map(_canonical_block, as_blocks(message))]


def _canonical_block(block: Block) -> Any:
    plain = without_mark(block)
    if not isinstance(plain, dict):
        return plain
    if content := inner_blocks(plain):
        plain["content"] = list(map(without_mark, content))
    return plain


def without_mark(block: Block) -> Any:
    """*block* without its cache mark and the keys that are None; text and the like as it is."""
    if not isinstance(block, Mapping) and not hasattr(block, "model_dump"):
        return block
    plain = as_dict(block)
    return {key: value for key, value in plain.items() if key != MARK and value is not None}


# Cache marks --------------------------------------------------------------------------------------


def with_marks(message: Message, source: Message) -> Message:
    """*message* with the cache marks of *source*, the message it was made from, block by block."""
    content = as_blocks(message)
    sources = as_blocks(source)
    if len(content) != len(sources):
        return without_marks(message)
    return _replace_content(message, content, list(map(_copy_marks, content, sources)))


def without_marks(message: Message) -> Message:
    """*message* without cache marks; the same object when it has none."""
    content = blocks(message)
    return _replace_content(message, content, [_copy_marks(block, {}) for block in content])


def _replace_content(message: Message, old: Sequence[Block], new: Sequence[Block]) -> Message:
    if all(map(is_, old, new)):
        return message
    return with_content(message, new)


def _copy_marks(block: Block, source: Block) -> Block:
    """*block* with the marks that *source* has, itself and in its content."""
    content = inner_blocks(block)
    sources = inner_blocks(source)
    if len(sources) != len(content):
        sources = [{}] * len(content)
    marked = list(map(_copy_own_mark, content, sources))
    if not all(map(is_, marked, content)):
        block = {**as_dict(block), "content": marked}
    return _copy_own_mark(block, source)


def _copy_own_mark(block: Block, source: Block) -> Block:
    """*block* with the mark of *source*; the same object where it has that mark already."""
    mark = field(source, MARK)
    if field(block, MARK) == mark:
        return block
    plain = as_dict(block)
    plain.pop(MARK, None)
    if mark:
        plain[MARK] = mark
    return plain
