"""The models that tests name."""

from __future__ import annotations

from ctxpipe.settings import EXAMPLE_MODEL, SUMMARY_MODEL

MODEL = EXAMPLE_MODEL
OTHER_MODEL = "claude-sonnet-5"
SUMMARIES = SUMMARY_MODEL.default
