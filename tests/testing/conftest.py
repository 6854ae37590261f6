"""Two files try all that the servers send with the SDKs of today: older ones do not know it all."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

TRIED = {"anthropic": 2, "openai": 3}  # major versions
OF_TODAY = {"test_openai_server.py", "test_server.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]):
    older = [name for name, major in TRIED.items() if int(version(name).partition(".")[0]) < major]
    if not older:
        return
    too_old = pytest.mark.skip(
        reason=f"{' and '.join(older)} older than the servers are tried with"
    )
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in OF_TODAY:
            item.add_marker(too_old)
