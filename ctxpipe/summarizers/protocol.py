"""The protocol of summarizers, their result, and the errors by which they steer the retries."""

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
    """Summary of a history, with its writer and its cost.

    *input_tokens* (which include *cached_tokens*) and *output_tokens* are those that the API
    reported, 0 if it reported none. *attempts* is the number of requests. *writer* is the name of
    the summarizer. *model* is the name of the model that wrote the text, "" without a model.
    *dollars* is the price of all requests, None if the usage or the price is unknown.
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
    """Writer of summaries: any async callable of this form.

    async def summarize(messages):
        return Summary(await my_model("Summarize: " + str(messages)))
    """

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        """Summarize *messages* for an agent that continues the work from the summary alone.

        *messages* may begin with an earlier summary; its contents belong in the new one. They are
        copies, which may be modified.

        Three kinds of errors are handled by the caller, `summarize_with_retry`. PromptTooLong: the
        messages are too long for one request, and are summarized in parts. SummaryRefused: another
        attempt cannot help. Any other exception: the summary is requested again, except after a
        programming error such as TypeError, or an HTTP status such as 401, which would recur.
        """
        ...


class PromptTooLong(SummaryFailed):
    """Error of a summarizer: the messages do not fit into one request.

    `summarize_with_retry` then summarizes them in parts. *refused* is True if the model refused a
    request, and False if the summarizer found out without one. *instead* is a summarizer to use
    from now on; with it the messages are not split.
    """

    def __init__(
        self, text: str, *, refused: bool = False, instead: Summarizer | None = None
    ) -> None:
        super().__init__(text)
        self.refused = refused
        self.instead = instead


class SummaryRefused(SummaryFailed):
    """Error of a summarizer: the model refused, or its answer was cut off.

    The same request would fail again, so it is not repeated. *instead* is another summarizer to
    try once, such as one that asks for a shorter summary; None if there is no other.
    """

    def __init__(self, text: str, *, instead: Summarizer | None = None) -> None:
        super().__init__(text)
        self.instead = instead


def summarizer_name(summarize: Summarizer) -> str:
    """Return the name of *summarize* for reports."""
    return getattr(summarize, "__name__", type(summarize).__name__)


async def with_price(
    summary: Summary, usage: Mapping[str, int] | None, reply_model: str = ""
) -> Summary:
    """Return *summary* with the tokens and the price of *usage*, a usage of the Messages API.

    The price is that of the model named in the reply, or else that of the summary's model. A name
    may begin with the provider, as in "openai/gpt-5.2".
    """
    if not usage:
        return summary
    cached = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    dollars = None
    for name in (reply_model, summary.model, summary.model.rpartition("/")[2]):
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
