"""Wrong set-ups are refused where they are made, in words that name the setting and the way out."""

from __future__ import annotations

import functools
import types
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anthropic
import pytest
from anthropic.types import Message as Reply
from anthropic.types import TextBlock, Usage
from histories import conversation, user

from ctxpipe import (
    Budget,
    Change,
    ContextPipeline,
    DirectOffload,
    InvalidHistory,
    LocalStorage,
    MemoryStorage,
    Outcome,
    RatioGate,
    SettingsError,
    Skip,
    SmartTruncate,
    TokenCounter,
    Turn,
)
