"""A worker whose session has turn after turn, until it is killed or stopped.

    python stopped_worker.py KIND PLACE [inside]

It prints its process id, then the number of each turn that has returned. KIND is a key of
`JOURNALS`, PLACE its folder or URL. With "inside" it stops itself in its third write, while it
holds the lock of a file.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio
from histories import assistant, user

from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.messages import Message
from ctxpipe.storage import ObjectJournal, PostgresJournal, RedisJournal, SQLiteJournal, journals


def bucket_in(folder: str) -> ObjectJournal:
    """A journal in an object store that is a folder."""
    from obstore.store import LocalStore

    return ObjectJournal(LocalStore(f"{folder}/bucket", mkdir=True))


JOURNALS: dict[str, Callable[[str], Any]] = {
    "local": LocalStorage,
    "sqlite": lambda folder: SQLiteJournal(f"{folder}/journal.sqlite"),
    "postgres": lambda url: PostgresJournal(url, table="stopped"),
    "redis": lambda url: RedisJournal(url, prefix="stopped"),
    "bucket": bucket_in,
}
SESSION = "job"
WRITES = 3


def history_of(turns: int) -> list[Message]:
    """The history that a caller hands in after so many turns."""
    history: list[Message] = [user("go")]
    for number in range(turns):
        history += [assistant(f"done {number} " * 20), user(f"and {number}")]
    return history


def stop_inside() -> None:
    """Have the third write of a file stop this process when the lock is held."""
    writes = iter(range(WRITES))

    def stop_at_last() -> None:
        if next(writes, None) == WRITES - 1:
            # To this thread: another one would let it go on for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    write = journals._write

    def write_or_stop(*arguments: Any, **options: Any) -> None:
        stop_at_last()
        write(*arguments, **options)

    journals._write = write_or_stop

    class Stopping(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> Any:
            if "insert into ctxpipe_journal" in statement and ":name" not in statement:
                stop_at_last()
            return super().execute(statement, *values)

    connect = sqlite3.connect

    def connect_to_stop(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return connect(*arguments, **options, factory=Stopping)

    sqlite3.connect = connect_to_stop  # type: ignore[assignment]


async def work(kind: str, place: str) -> None:
    session = ContextPipeline([]).new_session(SESSION, journal=JOURNALS[kind](place))
    for turns in range(10_000):
        await session.run(history_of(turns))
        print(turns, flush=True)
        await anyio.sleep(0.002)


if __name__ == "__main__":
    print(os.getpid(), flush=True)
    if sys.argv[3:] == ["inside"]:
        stop_inside()
    anyio.run(work, sys.argv[1], sys.argv[2])
