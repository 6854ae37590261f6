"""What a summariser is, and how an API says that a prompt is too long."""

from __future__ import annotations

import pytest

from ctxpipe.errors import SummaryFailed
from ctxpipe.summarizers import ExtractiveSummarizer, PromptTooLong
from ctxpipe.summarizers.protocol import is_too_long, summarizer_name


class ApiError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status_code = status


@pytest.mark.parametrize(
    "error",
    [
        ApiError(400, "prompt is too long: 200251 tokens > 200000 maximum"),
        ApiError(400, "This model's maximum context length is 128000 tokens"),
        ApiError(400, "code: context_length_exceeded"),
        ApiError(413, "Request exceeds the maximum size"),
        PromptTooLong("ours"),
    ],
)
def test_every_way_of_saying_too_long_is_understood(error: Exception) -> None:
    assert is_too_long(error)


@pytest.mark.parametrize(
    "error", [ApiError(400, "messages: at least one"), ApiError(500, "too long"), ValueError("too long"), None]
)
def test_other_errors_do_not_pass_for_it(error: Exception | None) -> None:
    assert not is_too_long(error)


def test_too_long_is_a_failed_summary() -> None:
    assert issubclass(PromptTooLong, SummaryFailed)


def test_a_summariser_is_called_by_its_functions_or_its_types_name() -> None:
    async def terse(_messages: object) -> object: ...

    assert summarizer_name(terse) == "terse"  # type: ignore[arg-type]
    assert summarizer_name(ExtractiveSummarizer()) == "ExtractiveSummarizer"
