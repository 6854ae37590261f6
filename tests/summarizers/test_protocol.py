"""What a summarizer is."""

from __future__ import annotations

from ctxpipe.errors import SummaryFailed
from ctxpipe.summarizers import ExtractiveSummarizer, PromptTooLong
from ctxpipe.summarizers.protocol import summarizer_name


def test_too_long_is_a_failed_summary():
    assert issubclass(PromptTooLong, SummaryFailed)


def test_a_summarizer_is_called_by_its_functions_or_its_types_name():
    async def terse(_messages: object) -> object: ...

    assert summarizer_name(terse) == "terse"  # type: ignore[arg-type]
    assert summarizer_name(ExtractiveSummarizer()) == "ExtractiveSummarizer"
