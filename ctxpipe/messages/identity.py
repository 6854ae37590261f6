"""What a message says, whatever its form.

And its cache marks, which are no part of what it says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, cast

from ..errors import InvalidHistory
from ..pieces import pieces
from .values import as_dict, is_equal, sorted_json
from .vocabulary import as_blocks, blocks, field

if TYPE_CHECKING:
    from .vocabulary import Block, Message

__all__ = ["digest", "digest_of", "parse", "parse_from", "says_the_same", "unmarked", "with_marks"]

MARK = "cache_control"
_PLAIN = frozenset({str, int, float, bool, type(None)})


# One plain form -----------------------------------------------------------------------------------


def parse(message: Message, index: int = 0) -> Message:
    """*message* in plain dicts and lists, its blocks as the SDK would send them; the same object
    when it is plain.

    Raises InvalidHistory, naming *index* and block, for what cannot be sent.
    """
    content: object = message["content"]
    if type(message) is dict and (
        content is None or isinstance(content, str) or _are_plain(content)
    ):
        return message
    plain: list[object] = []
    for place, block in enumerate(blocks(message)):
        try:
            plain.append(_parse_block(block))
        except InvalidHistory as error:
            raise InvalidHistory(f"message {index}, block {place}: it holds {error}") from error
    return cast(
        "Message",
        {**message, "content": content if content is None or isinstance(content, str) else plain},
    )


def parse_from(messages: Sequence[Message], start: int = 0) -> list[Message]:
    """The messages from *start* on in plain form. Raises InvalidHistory as `parse` does."""
    return [parse(messages[index], index) for index in range(start, len(messages))]


def _are_plain(content: object) -> bool:
    return type(content) is list and all(map(_is_plain, content))


def _is_plain(block: object) -> bool:
    if type(block) is not dict:
        return False
    return all(
        type(value) in _PLAIN or type(value) is dict or _holds_plain(value)
        for value in block.values()
    )


def _holds_plain(value: object) -> bool:
    return type(value) is list and all(type(item) in _PLAIN or type(item) is dict for item in value)


def _parse_block(block: Block) -> Block:
    if not (isinstance(block, Mapping) or hasattr(block, "model_dump")):
        return block
    plain = as_dict(block)
    return {key: _parse_value(value) for key, value in plain.items()}


def _parse_value(value: object) -> object:
    if isinstance(value, list | tuple):
        return list(map(_parse_block, value))
    if hasattr(value, "model_dump"):
        return as_dict(value)
    return value


# What it says -------------------------------------------------------------------------------------


def says_the_same(one: Message, other: Message) -> bool:
    """Whether two messages say the same: cache marks, keys that are None, and text as one block
    make no difference.
    """
    return is_equal(one, other) or is_equal(_canonical(one), _canonical(other))


def digest(message: Message) -> bytes:
    """A hash of what *message* says."""
    return digest_of(message, hashlib.sha256)


def digest_of(message: Message, make: Callable[[], Any]) -> bytes:
    """What the hash object that *make* gives says of *message*."""
    whole = make()
    for piece in pieces(sorted_json(_canonical(message))):
        whole.update(piece.encode())
    return cast("bytes", whole.digest())


def _canonical(message: Message) -> list[Any]:
    return [message["role"], *map(_canonical_block, as_blocks(message))]


def _canonical_block(block: Block) -> Any:
    told = _without_mark(block)
    if isinstance(told, dict) and isinstance(told.get("content"), list | tuple):
        told["content"] = [_without_mark(held) for held in told["content"]]
    return told


def _without_mark(block: Block) -> Any:
    """*block* beside its cache mark.

    Text and the like, which only an unknown block holds, as it is.
    """
    if not isinstance(block, Mapping) and not hasattr(block, "model_dump"):
        return block
    return {
        key: value for key, value in as_dict(block).items() if key != MARK and value is not None
    }


# Cache marks --------------------------------------------------------------------------------------


def with_marks(message: Message, source: Message) -> Message:
    """*message* with the cache marks that *source*, the message it was made from, has at the same
    blocks.
    """
    ours, theirs = as_blocks(message), as_blocks(source)
    if len(ours) != len(theirs):
        return unmarked(message)
    return _with(
        message, ours, [_marked(own, other) for own, other in zip(ours, theirs, strict=True)]
    )


def unmarked(message: Message) -> Message:
    """*message* without cache marks; the same object when it has none."""
    ours = blocks(message)
    return _with(message, ours, [_marked(block, {}) for block in ours])


def _with(message: Message, ours: Sequence[Block], content: Sequence[Block]) -> Message:
    return (
        message
        if all(map(is_, ours, content))
        else cast("Message", {**message, "content": content})
    )


def _marked(block: Block, source: Block) -> Block:
    held, given = field(block, "content"), field(source, "content")
    inner = held
    if isinstance(held, list | tuple):
        sources = (
            given
            if isinstance(given, list | tuple) and len(given) == len(held)
            else [{}] * len(held)
        )
        inner = [_own_mark(one, other) for one, other in zip(held, sources, strict=True)]
        inner = held if all(map(is_, inner, held)) else inner
    return _own_mark(block if inner is held else {**as_dict(block), "content": inner}, source)


def _own_mark(block: Block, source: Block) -> Block:
    """*block* with the mark of *source*; the same object where it has that already."""
    mark = field(source, MARK)
    if field(block, MARK) == mark:
        return block
    plain = {key: value for key, value in as_dict(block).items() if key != MARK}
    return {**plain, MARK: mark} if mark else plain
