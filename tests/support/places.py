"""Paths of the folders and files in this repository."""

from __future__ import annotations

from pathlib import Path

import ctxpipe

TESTS = Path(__file__).resolve().parents[1]
SUPPORT = TESTS / "support"
SOURCES = SUPPORT / "sources"
ROOT = TESTS.parent
PACKAGE = Path(ctxpipe.__file__).parent  # below ROOT, or where the wheel is installed
