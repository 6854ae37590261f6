"""Summarizers, which write the summary of a compaction, and the retries around them."""

from __future__ import annotations

from .agent import AgentAnswer, AgentModel, AgentSummarizer
from .anthropic import WITHOUT_MODEL, AnthropicSummarizer
from .extractive import ExtractiveSummarizer
from .prompt import PromptSummarizer
from .protocol import PromptTooLong, Summarizer, Summary, SummaryRefused
from .retry import FinishedParts, Retry, summarize_with_retry

__all__ = [
    "WITHOUT_MODEL",
    "AgentAnswer",
    "AgentModel",
    "AgentSummarizer",
    "AnthropicSummarizer",
    "ExtractiveSummarizer",
    "FinishedParts",
    "PromptSummarizer",
    "PromptTooLong",
    "Retry",
    "Summarizer",
    "Summary",
    "SummaryRefused",
    "summarize_with_retry",
]
