"""The contents of a context: tokens by kind and by tool, and the largest blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from heapq import nlargest

from .._text import count_phrase, one_line
from .._values import JsonDict
from ..messages import THINKING
from ..tokens import TokenCounter
from ..tokens.spent import KINDS, Pieces
from .records import Sums
from .transcripts import Transcript


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the conversation *file*.

    *message* is the index of its message, *what* its kind or tool, *begins* the start of its text.
    """

    message: int
    what: str
    tokens: int
    begins: str
    file: str


@dataclass(frozen=True, slots=True)
class Contents(Sums):
    """The contents of one conversation, or of several together.

    *kinds* has the raw tokens of each kind of block, *tools* those of each tool, and *tool_calls*
    the number of calls of each tool. *format* is "" for several conversations.
    """

    format: str = ""
    messages: int = 0
    calls: int = 0
    repaired: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    tool_calls: Counter[str] = field(default_factory=Counter)
    largest: list[Block] = field(default_factory=list)

    @property
    def by_tool(self) -> list[tuple[str, int, int]]:
        """The name, calls and tokens of each tool, the largest first."""
        return [(name, self.tool_calls[name], n) for name, n in self.tools.most_common()]

    def as_json(self) -> JsonDict:
        """Return the contents as an object for JSON, with the tokens of each kind and in all."""
        kinds = dict(self.kinds.most_common())
        tokens = self.kinds.total()
        fields = {**asdict(self), "kinds": kinds, "tools": self.by_tool, "tokens": tokens}
        del fields["tool_calls"]
        return fields

    def __str__(self) -> str:
        """Return the format and the numbers of messages, calls, tokens and repaired faults."""
        parts = [
            self.format,
            count_phrase(self.messages, "message"),
            count_phrase(self.calls, "call"),
            count_phrase(self.kinds.total(), "token"),
        ]
        if self.repaired:
            parts.append(f"{count_phrase(self.repaired, 'fault')} repaired")
        return ", ".join(part for part in parts if part)


def contents(transcript: Transcript, counter: TokenCounter, max_blocks: int) -> Contents:
    """Return the contents of *transcript*, with at most *max_blocks* of its largest blocks."""
    messages = transcript.messages
    result = Contents(transcript.format, len(messages), transcript.calls, len(transcript.repaired))
    pieces = Pieces(counter)
    blocks = []
    for index, message in enumerate(messages):
        pieces.learn(message)
        for piece in pieces.of(message):
            # Blocks such as images have the name that the API gives them.
            name = piece.key[0]
            has_kind = name in {"text", "call", "result", *THINKING}
            what = KINDS[piece.kind] if has_kind else name
            result.kinds[what] += piece.tokens
            if piece.tool:
                what = piece.name
                result.tools[piece.tool] += piece.tokens
                result.tool_calls[piece.tool] += name == "call"
            begins = one_line(piece.text)
            blocks.append(Block(index, what, piece.tokens, begins, transcript.name))
    return replace(result, largest=_largest(blocks, max_blocks))


def total_contents(all_contents: Iterable[Contents], max_blocks: int) -> Contents:
    """Return the sum of *all_contents*, with at most *max_blocks* of their largest blocks."""
    total = sum(all_contents, Contents())
    return replace(total, format="", largest=_largest(total.largest, max_blocks))


def _largest(blocks: list[Block], max_blocks: int) -> list[Block]:
    """Return the *max_blocks* blocks of *blocks* that have the most tokens."""
    return nlargest(max_blocks, blocks, key=lambda block: block.tokens)
