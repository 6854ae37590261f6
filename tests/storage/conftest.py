"""The services that some storages need."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from services import postgres, redis, s3

__all__ = ["postgres", "pytest_runtest_makereport", "redis", "s3"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Nothing is skipped where `make test-services` has promised the services."""
    report = yield
    if report.skipped and os.environ.get("CTXPIPE_SERVICES") == "required":
        report.outcome = "failed"
    return report
