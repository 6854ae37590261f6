"""The contents of a context: tokens by kind and by tool, and the largest blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from heapq import nlargest
from operator import attrgetter

from .._text import count_phrase, one_line
from .._values import JsonDict
from ..messages import THINKING
from ..tokens import TokenCounter
from ..tokens.spent import KINDS, Pieces
from .records import Sums
from .transcripts import Transcript


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the conversation *file*: where it is, what it is, its tokens and how it begins."""

    message: int
    what: str
    tokens: int
    begins: str
    file: str


@dataclass(frozen=True, slots=True)
class Contents(Sums):
    """The contents of one conversation, or of several together.

    *kinds* are the raw tokens by the kind of block, *tools* those by tool, of which *tool_calls*
    counts the calls. *format* is "" for several.
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
        """Each tool's name, calls and tokens, the largest first."""
        return [(name, self.tool_calls[name], n) for name, n in self.tools.most_common()]

    def as_json(self) -> JsonDict:
        """The same by name."""
        kinds = dict(self.kinds.most_common())
        own = {**asdict(self), "kinds": kinds, "tools": self.by_tool, "tokens": self.kinds.total()}
        del own["tool_calls"]
        return own

    def __str__(self) -> str:
        parts = [
            self.format,
            count_phrase(self.messages, "message"),
            count_phrase(self.calls, "call"),
            count_phrase(self.kinds.total(), "token"),
        ]
        if self.repaired:
            parts.append(f"{count_phrase(self.repaired, 'fault')} repaired")
        return ", ".join(filter(None, parts))


def contents(transcript: Transcript, counter: TokenCounter, most: int) -> Contents:
    """The contents of *transcript*, with its *most* largest blocks."""
    messages = transcript.messages
    found = Contents(transcript.format, len(messages), transcript.calls, len(transcript.repaired))
    pieces = Pieces(counter)
    blocks = []
    for index, message in enumerate(messages):
        pieces.learn(message)
        for piece in pieces.of(message):
            # What is neither text nor of a tool is called as the API calls it.
            name = piece.key[0]
            is_of_kind = name in {"text", "call", "result", *THINKING}
            what = KINDS[piece.kind] if is_of_kind else name
            found.kinds[what] += piece.tokens
            if piece.tool:
                what = piece.name
                found.tools[piece.tool] += piece.tokens
                found.tool_calls[piece.tool] += name == "call"
            begins = one_line(piece.text)
            blocks.append(Block(index, what, piece.tokens, begins, transcript.name))
    return replace(found, largest=nlargest(most, blocks, key=attrgetter("tokens")))


def total_contents(all_contents: Iterable[Contents], most: int) -> Contents:
    """*all_contents* together, with the *most* largest blocks of all."""
    total = sum(all_contents, Contents())
    largest = nlargest(most, total.largest, key=attrgetter("tokens"))
    return replace(total, format="", largest=largest)
