"""Count the blocks that a change removes from the context, by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...messages import OPAQUE, Block, Message, as_blocks, blocks, inner_blocks, kind
from ...messages import field as read
from ...messages.activity import one_line

MAX_NAME_CHARS = 80
"""Most characters of the name of a kind or of a file in a report."""
_COMMON_KINDS = ("tool_use", "tool_result", "text", "thinking", "redacted_thinking")


def count_removed(before: Sequence[Message], after: Sequence[Message]) -> dict[str, int]:
    """Return the number of blocks of each kind that are in *before* and not in *after*.

    Blocks inside results count too, except texts. Rare kinds come first.
    """
    staying: set[int] = set()
    for message in after:
        staying.add(id(message))
        staying.update(id(block) for block in blocks(message))
    counts: Counter[str] = Counter()
    for message in before:
        if id(message) in staying:
            continue
        for block in as_blocks(message):
            if id(block) in staying:
                continue
            counts[block_kind(block)] += 1
            for part in inner_blocks(block):
                if kind(part) != "text":
                    counts[block_kind(part)] += 1
    common = [name for name in _COMMON_KINDS if name in counts]
    seldom = sorted(name for name in counts if name not in common)
    return {name: counts[name] for name in [*seldom, *common]}


def block_kind(block: Block) -> str:
    """Return the type of *block*; for an opaque block the foreign type that it represents."""
    name = kind(block)
    if name == OPAQUE:
        name = str(read(block, "kind", OPAQUE))
    return one_line(name[:MAX_NAME_CHARS])
