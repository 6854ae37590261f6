"""The services that some storages need: one of each for a whole run, started when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
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
