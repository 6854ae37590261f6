"""The services that some storages need."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from services import pgbouncer, postgres, redis, redis_cluster, s3, valkey

__all__ = [
    "pgbouncer",
    "postgres",
    "pytest_runtest_makereport",
    "redis",
    "redis_cluster",
    "s3",
    "valkey",
]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Nothing is skipped where `make test-services` has promised the services."""
    report = yield
    if report.skipped and os.environ.get("CTXPIPE_SERVICES") == "required":
        report.outcome = "failed"
    return report
