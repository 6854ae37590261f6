"""Sessions that earlier versions have written: the program that wrote them, and what it wrote.

The files in tests/storage/older were written by development versions, whose commits are their
names, on storages of every kind. To write one again, with servers at the two URLs::

    git worktree add --detach /srv/agent/checkout 3c43c3b
    PYTHONPATH=/srv/agent/checkout python tests/support/older_sessions.py \\
        tests/storage/older/3c43c3b.json POSTGRES_URL REDIS_URL

So this module imports nothing that these versions do not have. The files on the disk are written
below /srv/agent/files: placeholders name their paths.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    ObjectStorage,
    PostgresJournal,
    RedisJournal,
    SQLiteJournal,
)
from ctxpipe.summarizers import ExtractiveSummarizer

FOLDER = Path(__file__).parents[1] / "storage" / "older"
VERSIONS = sorted(path.stem for path in FOLDER.glob("*.json"))
SESSION = "porting-7"
SYSTEM = "You port code."
TURNS = 6
WRITTEN_BELOW = Path("/srv/agent/files")


def conversation_of(turns: int) -> list[Any]:
    """Return a conversation of so many tool calls; every third result is long."""
    messages: list[Any] = [{"role": "user", "content": "Port the parser. Never change fixtures."}]
    for turn in range(turns):
        line_count = 12 if turn % 3 else 50
        lines = [f"report_{turn}.py:{line}: unexpected token" for line in range(line_count)]
        said = f"Module {turn}: the parser reads field {turn} before the header. " * 6
        call = {
            "type": "tool_use",
            "id": f"toolu_{turn}",
            "name": "bash",
            "input": {"command": f"pytest tests/test_report_{turn}.py"},
        }
        result = {
            "type": "tool_result",
            "tool_use_id": f"toolu_{turn}",
            "content": "\n".join(lines),
        }
        messages.append({"role": "assistant", "content": [{"type": "text", "text": said}, call]})
        messages.append({"role": "user", "content": [result]})
    return messages


def pipeline_on(storage: Any, window: int = 1_000) -> ContextPipeline:
    """Return a pipeline that offloads to *storage*, and compacts in a small *window* of tokens."""
    stages: list[Any] = [
        DirectOffload(storage, min_chars=1_200),
        BatchOffload(storage, min_chars=300, keep_recent=2),
        Compact(ExtractiveSummarizer(), archive=storage),
    ]
    return ContextPipeline(stages, budget=Budget(window=window))


def objects_in(folder: Path) -> ObjectStorage:
    """Return an object store in *folder*."""
    from obstore.store import LocalStore

    return ObjectStorage(LocalStore(folder, mkdir=True))


# What is written ----------------------------------------------------------------------------------


async def write_session(storage: Any, journal: Any) -> list[Any]:
    """Run the conversation turn by turn, and return the last context."""
    session = pipeline_on(storage).session(SESSION, journal=journal)
    for turns in range(1, TURNS + 1):
        result = await session.run(conversation_of(turns), system=SYSTEM)
    return list(result.messages)


def files_below(folder: Path) -> dict[str, str]:
    """Return the texts of all files below *folder*, by their paths."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in paths}


def rows_of(url: str) -> list[Any]:
    """Return the rows of the journal in a PostgreSQL database."""
    import psycopg

    with psycopg.connect(url) as connection:
        query = "select session, number, entry, token from ctxpipe_journal order by number"
        return connection.execute(query).fetchall()


def values_of(url: str) -> dict[str, Any]:
    """Return the values in a Redis database, by their keys: texts, lists and sorted sets."""
    import redis

    client: Any = redis.Redis.from_url(url, decode_responses=True)
    values: dict[str, Any] = {}
    with client:
        for key in client.scan_iter():
            kind = client.type(key)
            if kind == "list":
                values[key] = client.lrange(key, 0, -1)
            elif kind == "string":
                values[key] = client.get(key)
            else:
                raise ValueError(f"{key} is a {kind}")
    return values


async def write_kind(kind: str, url: str) -> dict[str, Any]:
    """Write the session on storages of one kind; return what they contain then."""
    shutil.rmtree(WRITTEN_BELOW, ignore_errors=True)
    WRITTEN_BELOW.mkdir(parents=True)
    database = WRITTEN_BELOW.with_suffix(".db")
    database.unlink(missing_ok=True)
    storage: Any = LocalStorage(WRITTEN_BELOW)
    if kind == "objects":
        storage = objects_in(WRITTEN_BELOW)
    if kind == "local":
        context = await write_session(storage, storage)
        return {"context": context, "files": files_below(WRITTEN_BELOW)}
    makers: dict[str, Callable[[], Any]] = {
        "postgres": lambda: PostgresJournal(url, texts=storage),
        "redis": lambda: RedisJournal(url, texts=storage),
    }
    make = makers.get(kind, lambda: SQLiteJournal(str(database), texts=storage))
    async with make() as journal:
        context = await write_session(storage, journal)
    content: Any = None
    if kind == "postgres":
        content = rows_of(url)
    elif kind == "redis":
        content = values_of(url)
    else:
        connection = sqlite3.connect(database)
        [form] = connection.execute("pragma user_version").fetchone()
        content = [*connection.iterdump(), f"pragma user_version = {form};"]
        connection.close()
    return {"context": context, "files": files_below(WRITTEN_BELOW), "journal": content}


async def main(out: str, postgres_url: str, redis_url: str) -> None:
    """Write the session on each kind of storage, and the contents of all to the file *out*."""
    urls = {"local": "", "sqlite": "", "objects": "", "postgres": postgres_url, "redis": redis_url}
    written = {kind: await write_kind(kind, url) for kind, url in urls.items()}
    Path(out).write_text(json.dumps(written, indent=0, ensure_ascii=False) + "\n", "utf-8")


# What is put back ---------------------------------------------------------------------------------


def read_session(version: str, kind: str) -> dict[str, Any]:
    """Return what *version* has written on storages of one kind."""
    written: dict[str, Any] = json.loads((FOLDER / f"{version}.json").read_text("utf-8"))[kind]
    return written


def put_files(written: dict[str, Any], folder: Path) -> None:
    """Write the files of *written* below *folder*, with the permissions that ctxpipe uses."""
    for name, text in written["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(text, "utf-8")
        path.chmod(0o600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
