"""The models that tests name."""

from __future__ import annotations

from ctxpipe.settings import EXAMPLE_MODEL, SUMMARY_MODEL

__all__ = ["MODEL", "OTHER_MODEL", "SUMMARIES"]

MODEL = EXAMPLE_MODEL
OTHER_MODEL = "claude-sonnet-5"
SUMMARIES = SUMMARY_MODEL.default
