"""The protocol of summarizers."""

from __future__ import annotations

from ctxpipe.errors import SummaryFailed
from ctxpipe.summarizers import ExtractiveSummarizer, PromptTooLong
from ctxpipe.summarizers.protocol import summarizer_name


def test_prompt_too_long_is_a_summary_failure():
    assert issubclass(PromptTooLong, SummaryFailed)


def test_a_summarizer_has_the_name_of_its_function_or_class():
    async def terse(_messages: object) -> object: ...

    assert summarizer_name(terse) == "terse"  # type: ignore[arg-type]
    assert summarizer_name(ExtractiveSummarizer()) == "ExtractiveSummarizer"
