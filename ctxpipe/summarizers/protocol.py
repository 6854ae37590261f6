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
    """Writer of summaries: any async callable that takes messages and returns a `Summary`.

    For example:

        async def summarize(messages):
            return Summary(await my_model("Summarize: " + str(messages)))
    """

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        """Return a summary of *messages*, from which alone an agent can continue the work.

        *messages* may begin with an earlier summary; its contents belong in the new one. They are
        copies, which may be modified.

        `Compact` calls it through `summarize_with_retry`, which handles three kinds of errors:

        - `PromptTooLong`: the messages are too long for one request. They are summarized in parts,
          or given to another summarizer if the error has one (``instead``).
        - `SummaryRefused`: the same request would fail again. It is not repeated; if the error has
          another summarizer (``instead``), that one is asked once.
        - Any other exception: the summary is requested again, as `Retry` defines, unless the error
          would recur, such as TypeError or HTTP status 401.
        """
        ...


class PromptTooLong(SummaryFailed):
    """Error of a summarizer: the messages do not fit into one request.

    `summarize_with_retry` then summarizes them in parts. *refused* is True if the model refused a
    request, and False if the summarizer noticed the length before it sent one. If *instead* is set,
    the messages are not split: this other summarizer gets them, and all later requests for the same
    summary.
    """

    def __init__(
        self, text: str, *, refused: bool = False, instead: Summarizer | None = None
    ) -> None:
        super().__init__(text)
        self.refused = refused
        self.instead = instead


class SummaryRefused(SummaryFailed):
    """Error of a summarizer: the model refused to write, or its answer was cut off.

    The same request would fail again, so it is not repeated. If *instead* is set, this other
    summarizer is asked, once: for example one that asks for a shorter summary after an answer that
    was cut off. If it is None, no summary is written.
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
