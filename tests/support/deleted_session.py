"""A process that holds a session which somebody else deletes.

    python deleted_session.py KIND PLACE

Each line of standard input is a command, each line of standard output what came of it, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any

from histories import conversation, step, user

from ctxpipe import (
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    ObjectJournal,
    ObjectStorage,
    PostgresJournal,
    RedisJournal,
    SmartTruncate,
    SQLiteJournal,
)
from ctxpipe.messages import Message

SESSION = "cust1/anna"
WORDS = "my diagnosis is a broken heart"


def storages(kind: str, place: str) -> list[Any]:
    """The journal, and where the texts are, if that is somewhere else."""
    if kind == "local":
        return [LocalStorage(place)]
    if kind == "sqlite":
        texts: Any = LocalStorage(f"{place}/texts")
        return [SQLiteJournal(f"{place}/journal.sqlite", texts=texts), texts]
    if kind == "object":
        from obstore.store import LocalStore

        texts = ObjectStorage(LocalStore(f"{place}/bucket", mkdir=True, automatic_cleanup=True))
        return [SQLiteJournal(f"{place}/journal.sqlite", texts=texts), texts]
    if kind == "bucket":
        from obstore.store import LocalStore

        store = LocalStore(f"{place}/bucket", mkdir=True, automatic_cleanup=True)
        texts = ObjectStorage(store)
        return [ObjectJournal(store, texts=texts), texts]
    folder, _, url = place.partition("|")
    texts = LocalStorage(f"{folder}/texts")
    if kind == "postgres":
        return [PostgresJournal(url, texts=texts, table="deleted"), texts]
    return [RedisJournal(url, texts=texts, prefix="deleted"), texts]


def talk() -> list[Message]:
    """Return the words of a person, with a result that leaves the context."""
    return conversation(user(WORDS), step("t1", "bash", result=f"{WORDS}\n" * 500))


async def play(kind: str, place: str):
    sent: list[Any] = []

    async def create(**request: Any) -> Any:
        sent.append(list(request["messages"]))
        return {"role": "assistant", "content": f"an answer about {request['messages'][0]}"}

    client: Any = SimpleNamespace(messages=SimpleNamespace(create=create))
    used = storages(kind, place)
    stages: list[Any] = [DirectOffload(used[-1], min_chars=1000), SmartTruncate(archive=used[-1])]
    session = ContextPipeline(stages).session(SESSION, journal=used[0])

    async def act(command: str) -> Any:
        if command == "run":
            return (await session.run(talk(), force=True)).notices
        if command == "own":
            session.append(user(WORDS))
            return await session.create(client, model="m", max_tokens=10)
        if command == "history":
            return await session.history()
        if command == "again":
            result = await session.run(conversation(user("hello again")))
            return [result.messages, len(result.notices), await session.history()]
        sent.clear()
        session.append(user("it is me"))
        return [await session.create(client, model="m", max_tokens=10), sent]

    for line in sys.stdin:
        try:
            answer = await act(line.strip())
        except Exception as error:  # noqa: BLE001  the other process says what it expects
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer, default=str), flush=True)
    for storage in used:
        if hasattr(storage, "aclose"):
            await storage.aclose()


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1], sys.argv[2]))
