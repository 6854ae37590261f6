"""Who writes the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from .._threads.threads import in_thread
from ..errors import SummaryFailed
from ..messages import Message
from ..providers.prices import find_prices, usage_dollars


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a history, its writer, and its cost as the API reported it.

    *input_tokens* include the cached ones. *model* is the one that wrote it, "" for none. *dollars*
    is the price of all requests for it; None where the usage or the price is not known.
    """

    text: str = field(repr=False)
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    attempts: int = 1
    writer: str = ""
    model: str = ""
    dollars: float | None = None


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


async def with_price(
    summary: Summary, usage: Mapping[str, int] | None, answered: str = ""
) -> Summary:
    """Return *summary* with the tokens and the price of *usage*, in the Messages API's form.

    The price is that of the model which has *answered*, else that of the summary's model; a name
    may begin with its provider, as in "openai/gpt-5.2".
    """
    if not usage:
        return summary
    cached = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    dollars = None
    for name in (answered, summary.model, summary.model.rpartition("/")[2]):
        prices = await in_thread(find_prices, name) if name else None
        if prices is not None:
            dollars = usage_dollars(prices, usage)
            break
    return replace(
        summary,
        input_tokens=(usage.get("input_tokens") or 0) + cached + written,
        cached_tokens=cached,
        output_tokens=usage.get("output_tokens") or 0,
        dollars=dollars,
    )
