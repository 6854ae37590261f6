"""The services that some storages need: one of each for a whole run, started when it is needed."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from importlib.util import find_spec

import pytest
from services import S3, Postgres, RedisServer, Server, absent


def need(package: str, extra: str) -> None:
    if find_spec(package) is None:
        absent(f"there is no {package}: pip install 'ctxpipe[{extra}]'")


def run(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    need("psycopg", "postgres")
    yield from run(Postgres())


@pytest.fixture(scope="session")
def redis() -> Iterator[Server]:
    need("redis", "redis")
    yield from run(RedisServer())


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    need("obstore", "object-store")
    yield from run(S3())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Nothing is skipped where `make test-services` has promised the services."""
    report = yield
    if report.skipped and os.environ.get("CTXPIPE_SERVICES") == "required":
        report.outcome = "failed"
    return report
