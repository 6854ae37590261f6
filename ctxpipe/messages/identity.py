"""The plain form of a message, its identity, and its cache marks.

Two messages say the same if they have the same canonical form: the role and the blocks as JSON,
without cache marks and without keys that are None. So these say the same:

    {"role": "user", "content": "Go."}
    {"role": "user", "content": [TextBlock(text="Go.", citations=None)]}
    {"role": "user", "content": [{"type": "text", "text": "Go.", "cache_control": {…}}]}
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from .._values import as_dict, canonical_json, canonical_pieces, is_equal
from ..errors import InvalidHistory
from .vocabulary import Block, Message, as_blocks, blocks, field, inner_blocks, with_content

MARK = "cache_control"
_PLAIN_VALUES = frozenset({str, int, float, bool, type(None), dict})


# The plain form -----------------------------------------------------------------------------------


def parse(message: Message, index: int = 0) -> Message:
    """Return *message* in plain dicts and lists, its blocks as the SDK would send them.

    A plain message is returned unchanged, as the same object. Raises InvalidHistory, with *index*
    and the index of the block, if a block cannot be sent.
    """
    content: object = message["content"]
    if content is None or isinstance(content, str):
        if type(message) is dict:
            return message
        return cast("Message", dict(message))
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


def parse_from(messages: Sequence[Message], start: int = 0) -> list[Message]:
    """Return the messages from *start* on in plain form. Raises InvalidHistory as `parse` does."""
    return [parse(message, index) for index, message in enumerate(messages[start:], start)]


def _are_plain(content: object) -> bool:
    """Return True if *content* consists of plain lists and dicts only."""
    if type(content) is not list:
        return False
    for block in content:
        if type(block) is not dict:
            return False
        for value in block.values():
            if type(value) is list:
                if any(type(part) not in _PLAIN_VALUES for part in value):
                    return False
            elif type(value) not in _PLAIN_VALUES:
                return False
    return True


def _parse_block(block: Block) -> Block:
    """Return *block* in plain dicts and lists; unchanged if it is no mapping or SDK object."""
    if not (isinstance(block, Mapping) or hasattr(block, "model_dump")):
        return block
    return {key: _parse_value(value) for key, value in as_dict(block).items()}


def _parse_value(value: object) -> object:
    """Return a field's *value* in plain types; a list is read as blocks."""
    if isinstance(value, list | tuple):
        return [_parse_block(part) for part in value]
    if hasattr(value, "model_dump"):
        return as_dict(value)
    return value


# Identity -----------------------------------------------------------------------------------------


def says_the_same(one: Message, other: Message) -> bool:
    """Return True if two messages have the same canonical form.

    These make no difference: cache marks, keys that are None, text as a string or as one block, and
    values that are equal in JSON, such as a list and a tuple.
    """
    if is_equal(one, other):
        return True
    canonical = _canonical(one)
    other_canonical = _canonical(other)
    if is_equal(canonical, other_canonical):
        return True
    try:
        return canonical_json(canonical) == canonical_json(other_canonical)
    except InvalidHistory:
        return False


def digest(message: Message) -> bytes:
    """Return the SHA-256 digest of the canonical form of *message*."""
    return digest_of(message, hashlib.sha256)


def digest_of(message: Message, new_hash: Callable[[], Any]) -> bytes:
    """Return the digest of the canonical form of *message*, by the hash that *new_hash* returns."""
    hasher = new_hash()
    for piece in canonical_pieces(_canonical(message)):
        hasher.update(piece.encode())
    return cast("bytes", hasher.digest())


def _canonical(message: Message) -> list[Any]:
    return [message["role"], *[_canonical_block(block) for block in as_blocks(message)]]


def _canonical_block(block: Block) -> Any:
    """Return *block* in plain types, without cache marks, also in the blocks inside it."""
    plain = without_mark(block)
    if not isinstance(plain, dict):
        return plain
    if content := inner_blocks(plain):
        plain["content"] = [without_mark(inner) for inner in content]
    return plain


def without_mark(block: Block) -> Any:
    """Return *block* as a dict without its cache mark and without keys that are None.

    A value that is neither a mapping nor a model object, such as text, is returned unchanged.
    """
    if not isinstance(block, Mapping) and not hasattr(block, "model_dump"):
        return block
    plain = as_dict(block)
    return {key: value for key, value in plain.items() if key != MARK and value is not None}


# Cache marks --------------------------------------------------------------------------------------


def with_marks(message: Message, source: Message) -> Message:
    """Return *message* with the cache marks of *source*, the message that it was made from.

    Each block gets the mark of the block at the same index. If their numbers differ, *message* gets
    no marks.
    """
    content = as_blocks(message)
    sources = as_blocks(source)
    if len(content) != len(sources):
        return without_marks(message)
    marked_content = [
        _copy_marks(block, source_block)
        for block, source_block in zip(content, sources, strict=True)
    ]
    return _replace_content(message, content, marked_content)


def without_marks(message: Message) -> Message:
    """Return *message* without cache marks; the same object if it has none."""
    content = blocks(message)
    return _replace_content(message, content, [_copy_marks(block, {}) for block in content])


def _replace_content(message: Message, old: Sequence[Block], new: Sequence[Block]) -> Message:
    """Return *message* with the blocks *new*; the same object if these are the blocks *old*."""
    if _are_same_objects(old, new):
        return message
    return with_content(message, new)


def _are_same_objects(old: Sequence[Block], new: Sequence[Block]) -> bool:
    return all(before is after for before, after in zip(old, new, strict=True))


def _copy_marks(block: Block, source: Block) -> Block:
    """Return *block* with the cache marks of *source*: its own, and those of the blocks inside.

    If the two have different numbers of inner blocks, these get no marks.
    """
    content = inner_blocks(block)
    sources = inner_blocks(source)
    if len(sources) != len(content):
        sources = [{}] * len(content)
    marked_content = [
        _copy_own_mark(inner, source_inner)
        for inner, source_inner in zip(content, sources, strict=True)
    ]
    if not _are_same_objects(content, marked_content):
        block = {**as_dict(block), "content": marked_content}
    return _copy_own_mark(block, source)


def _copy_own_mark(block: Block, source: Block) -> Block:
    """Return *block* with the mark of *source*; the same object if it has that mark already."""
    mark = field(source, MARK)
    if field(block, MARK) == mark:
        return block
    plain = as_dict(block)
    plain.pop(MARK, None)
    if mark:
        plain[MARK] = mark
    return plain
