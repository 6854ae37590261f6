"""Who writes the summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import SummaryFailed
from ..messages import Message


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a history, who wrote it, and what it cost as billed.

    *input_tokens* include the cached ones.
    """

    text: str = field(repr=False)
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    attempts: int = 1
    writer: str = ""


class Summarizer(Protocol):
    """Writes the summary of a history: any async callable of this form."""

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        """Summarize *messages* for whoever goes on; an earlier summary among them is included.

        Raises PromptTooLong when they are too many for one request, SummaryRefused when asking
        again cannot help, and any other exception for another failure: the retry layer handles
        all three.
        """
        ...


class PromptTooLong(SummaryFailed):
    """The messages do not fit into one request: they are to be summarized in parts.

    *refused*: a request to the model was spent on finding out. *instead* is who should summarize
    them from now on.
    """

    def __init__(
        self, text: str, *, refused: bool = False, instead: Summarizer | None = None
    ) -> None:
        super().__init__(text)
        self.refused = refused
        self.instead = instead


class SummaryRefused(SummaryFailed):
    """The model refused, or its answer was too long: the same request would fail again.

    *instead* is who may be asked instead, once; None: nobody.
    """

    def __init__(self, text: str, *, instead: Summarizer | None = None) -> None:
        super().__init__(text)
        self.instead = instead


def summarizer_name(summarize: Summarizer) -> str:
    """What a report calls *summarize*."""
    return getattr(summarize, "__name__", type(summarize).__name__)
