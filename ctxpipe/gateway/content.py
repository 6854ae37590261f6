"""What the tokens of a conversation's contexts are spent on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..messages import common_prefix
from ..tokens.spent import Pieces

if TYPE_CHECKING:
    from ..messages import Message
    from ..tokens import TokenCounter
    from ..tokens.spent import Kind


class Content:
    """Tells the tokens of one conversation's contexts apart by kind, as the replay page does.

    What a context has in common with the one before it is not read again.
    """

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._sums: list[Counter[Kind]] = [Counter()]  # of the first 0, 1, 2 … messages

    def read(
        self,
        counter: TokenCounter,
        messages: Sequence[Message],
        system: Any = None,
        tools: Any = None,
    ) -> Mapping[Kind, int]:
        """The raw tokens of a context by kind; one context at a time."""
        pieces = Pieces(counter)  # a new one each time: it keeps the messages that it has read
        del self._sums[common_prefix(self._messages, messages) + 1 :]
        for message in messages[len(self._sums) - 1 :]:
            found = Counter(self._sums[-1])
            for piece in pieces.of(message):
                found[piece.kind] += piece.tokens
            self._sums.append(found)
        self._messages = list(messages)
        whole = Counter(self._sums[-1])
        whole["system"] += counter.total([], system=system)
        whole["tools"] += counter.total([], tools=tools)
        return {kind: tokens for kind, tokens in whole.items() if tokens}
