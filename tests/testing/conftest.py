"""The servers are tried with the SDKs of today: older ones do not know all that they send."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

TRIED = {"anthropic": 2, "openai": 3}  # major versions
NEEDS_NO_SDK = {"test_chat_rules.py", "test_responses_rules.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]):
    older = [name for name, major in TRIED.items() if int(version(name).partition(".")[0]) < major]
    if not older:
        return
    too_old = pytest.mark.skip(
        reason=f"{' and '.join(older)} older than the servers are tried with"
    )
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name not in NEEDS_NO_SDK:
            item.add_marker(too_old)
