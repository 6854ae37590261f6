"""Who writes the summary, behind one protocol; and the one place where it is tried again."""

from __future__ import annotations

from .anthropic import AnthropicSummarizer
from .extractive import ExtractiveSummarizer
from .prompt import PromptSummarizer
from .protocol import PromptTooLong, Summarizer, Summary
from .retry import Retry, summarised

__all__ = [
    "AnthropicSummarizer",
    "ExtractiveSummarizer",
    "PromptSummarizer",
    "PromptTooLong",
    "Retry",
    "Summarizer",
    "Summary",
    "summarised",
]
