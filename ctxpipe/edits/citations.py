"""Remove citations whose document has left the context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .._values import as_dict, is_equal
from ..messages import Block, Message, blocks, field, inner_blocks, kind, with_content

# Citations point to the blocks of a kind by their number among all that a request has.
_NUMBERS = {"document_index": "document", "search_result_index": "search_result"}


def without_dangling_citations(before: Sequence[Message], after: list[Message]) -> list[Message]:
    """Return *after* without the citations that pointed to a document of *before* that is gone.

    A document that has another number now counts as gone, as the citation would point to another
    one. The cited texts stay. Without such a citation the very same list comes back.
    """
    places = [index for index, message in enumerate(after) if has_citations(message)]
    if not places:
        return after
    gone: dict[str, set[int]] = {}
    for key, name in _NUMBERS.items():
        old = list(_blocks_of_kind(before, name))
        new = list(_blocks_of_kind(after, name))
        gone[key] = {
            number
            for number, block in enumerate(old)
            if number >= len(new) or not _is_same(block, new[number])
        }
    changed = list(after)
    for place in places:
        changed[place] = _without(after[place], gone)
    is_same = all(new is old for new, old in zip(changed, after, strict=True))
    return after if is_same else changed


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


def _without(message: Message, gone: Mapping[str, set[int]]) -> Message:
    """Return *message* without citations of what is *gone*; the same object if it has none."""
    content: list[Block] = []
    is_changed = False
    for block in blocks(message):
        citations = field(block, "citations")
        if not isinstance(citations, list | tuple):
            content.append(block)
            continue
        standing = [one for one in citations if not _is_gone(one, gone)]
        if len(standing) == len(citations):
            content.append(block)
            continue
        is_changed = True
        plain = as_dict(block)
        if standing:
            content.append({**plain, "citations": standing})
        else:
            content.append({key: value for key, value in plain.items() if key != "citations"})
    return with_content(message, content) if is_changed else message


def _is_gone(citation: object, gone: Mapping[str, set[int]]) -> bool:
    return any(field(citation, key) in numbers for key, numbers in gone.items())
