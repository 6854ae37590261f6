"""Remove citations whose document has left the context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..._values import as_dict, is_equal
from ...messages import Block, Message, blocks, field, inner_blocks, kind, with_content

# A citation names its source by kind, and by its number among all blocks of that kind in a request.
_NUMBERS = {"document_index": "document", "search_result_index": "search_result"}


def without_dangling_citations(before: Sequence[Message], after: list[Message]) -> list[Message]:
    """Return *after* without citations of documents that were in *before* and have been removed.

    A document whose number has changed counts as removed, as the citation would point to another
    one. The cited texts stay. Returns the very same list if there is no such citation.
    """
    places = [index for index, message in enumerate(after) if has_citations(message)]
    if not places:
        return after
    removed: dict[str, set[int]] = {}
    for key, name in _NUMBERS.items():
        old_blocks = list(_blocks_of_kind(before, name))
        new_blocks = list(_blocks_of_kind(after, name))
        removed[key] = {
            number
            for number, block in enumerate(old_blocks)
            if number >= len(new_blocks) or not _is_same(block, new_blocks[number])
        }
    edited = list(after)
    for place in places:
        edited[place] = _without_citations(after[place], removed)
    is_same = all(new is old for new, old in zip(edited, after, strict=True))
    return after if is_same else edited


def _is_same(one: Block, other: Block) -> bool:
    return one is other or is_equal([one], [other])


def has_citations(message: Message) -> bool:
    """Return True if *message* is a reply that cites a document or a search result."""
    if message["role"] != "assistant":
        return False
    return any(field(block, "citations") for block in blocks(message))


def _blocks_of_kind(messages: Sequence[Message], name: str) -> Iterator[Block]:
    """Yield the blocks of the kind *name* in the user's messages, those in results included."""
    for message in messages:
        if message["role"] != "user":
            continue
        for block in blocks(message):
            if kind(block) == name:
                yield block
            for part in inner_blocks(block):
                if kind(part) == name:
                    yield part


def _without_citations(message: Message, removed: Mapping[str, set[int]]) -> Message:
    """Return *message* without citations of *removed* documents; the same object if it has none."""
    content: list[Block] = []
    has_changed = False
    for block in blocks(message):
        citations = field(block, "citations")
        if not isinstance(citations, list | tuple):
            content.append(block)
            continue
        remaining = [citation for citation in citations if not _is_dangling(citation, removed)]
        if len(remaining) == len(citations):
            content.append(block)
            continue
        has_changed = True
        new_block = as_dict(block)
        if remaining:
            new_block["citations"] = remaining
        else:
            del new_block["citations"]
        content.append(new_block)
    return with_content(message, content) if has_changed else message


def _is_dangling(citation: object, removed: Mapping[str, set[int]]) -> bool:
    """Return True if *citation* points to a removed document, by the numbers in *removed*."""
    return any(field(citation, key) in numbers for key, numbers in removed.items())
