"""A storage of somebody's own may raise anything, anywhere: it is reported, and costs no turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
from histories import assistant, conversation, step, user
from in_memory import messages_api
from recorded import in_turn

from ctxpipe import (
    BatchOffload,
    Collapse,
    Compact,
    ContextPipeline,
    DirectOffload,
    MemoryStorage,
    Session,
    SettingsError,
    SmartTruncate,
    TrimReadBacks,
)
from ctxpipe.messages import Message, check
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.protocol import Stage
from ctxpipe.storage import Page
from ctxpipe.storage.records import Record
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import MessagesServer

LONG = "a long line of output\n" * 200
METHODS = [
    "location",
    "write",
    "read",
    "missing",
    "touch",
    "save",
    "records",
    "append",
    "entries",
    "set_aside",
    "lease",
    "lease's end",
]
ERRORS: list[Callable[[], BaseException]] = [
    lambda: RuntimeError("the exporter is down"),
    lambda: ExceptionGroup("several", [KeyError("a"), OSError(5, "b")]),
    lambda: SettingsError("of another library"),
    StopAsyncIteration,
]
NAMES = ["error", "group", "relative", "end"]


class Failing:
    """A storage with metrics around each call, whose exporter may be down."""

    def __init__(self) -> None:
        self.inner = MemoryStorage()
        self.error: Callable[[], BaseException] | None = None
        self.failing = ""
        self.raised = 0

    def measure(self, method: str):
        if method == self.failing and self.error is not None:
            self.raised += 1
            raise self.error()

    def location(self, key: str, /) -> str:
        self.measure("location")
        return self.inner.location(key)

    async def write(self, texts: Sequence[tuple[str, str]], /) -> Sequence[str]:
        self.measure("write")
        return await self.inner.write(texts)

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        self.measure("read")
        return await self.inner.read(location, offset, limit)

    async def missing(self, locations: Sequence[str], /) -> list[str]:
        self.measure("missing")
        return [where for where in locations if "gone" in where]

    async def ensure_not_deleted(self, session_id: str, /):  # noqa: ARG002
        self.measure("ensure_not_deleted")

    async def touch(self, session_id: str, /):  # noqa: ARG002  the protocol's
        self.measure("touch")

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        self.measure("save")
        return await self.inner.save(session_id, stem, record)

    async def records(self, session_id: str, /) -> Sequence[str]:
        self.measure("records")
        return await self.inner.records(session_id)

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        self.measure("append")
        return await self.inner.append(session_id, number, entry)

    async def entries(self, session_id: str, start: int = 0, /) -> Sequence[str]:
        self.measure("entries")
        entries = await self.inner.entries(session_id, start)
        if self.failing == "set_aside" and not start:
            return [*entries, "damaged"]
        return entries

    async def set_aside(self, session_id: str, /) -> str:
        self.measure("set_aside")
        return await self.inner.set_aside(session_id)

    @asynccontextmanager
    async def lease(self, session_id: str, seconds: float, /) -> AsyncIterator[bool]:
        self.measure("lease")
        async with self.inner.lease(session_id, seconds) as is_held:
            yield is_held
        self.measure("lease's end")


class WithoutMissing(Failing):
    """It is asked for each text by itself."""

    missing = None  # type: ignore[assignment]


STORAGES: dict[str, tuple[type[Failing], str]] = {
    **{method: (Failing, method) for method in METHODS},
    "read, each text by itself": (WithoutMissing, "read"),
}


def stages(storage: Failing, kind: str) -> list[Stage]:
    if kind == "collapse":
        return [DirectOffload(storage), Collapse(storage)]
    return [
        DirectOffload(storage),
        TrimReadBacks(storage),
        BatchOffload(storage, RatioGate(0), min_chars=300),
        Compact(ExtractiveSummarizer(), archive=storage),
        SmartTruncate(archive=storage),
    ]


def session(storage: Failing, kind: str = "compact") -> Session:
    pipeline = ContextPipeline(stages(storage, kind))
    return pipeline.session("s", journal=storage, lease_seconds=1)


def history(turns: int) -> list[Message]:
    messages = [user("go")]
    for number in range(turns):
        messages += step(f"t{number}", result=LONG if number % 2 else "word " * 90)
        messages += [assistant(f"a{number}"), user(f"question {number}")]
    return conversation(*messages)


async def turn(session: Session, turns: int, *, force: bool = False) -> Any:
    """One turn, which gives a valid context that ends with the newest message."""
    messages = history(turns)
    result = await session.run(messages, force=force)
    assert check(result.messages) == []
    assert result.messages[-1] == messages[-1]
    return result


NAMES_AND_KINDS = [(name, kind) for kind in ("compact", "collapse") for name in NAMES]


@pytest.mark.parametrize(("failing", "name_and_kind"), in_turn(STORAGES, last=NAMES_AND_KINDS))
async def test_whatever_a_storage_raises_and_whenever_costs_no_turn(failing, name_and_kind):
    name, kind = name_and_kind
    error = ERRORS[NAMES.index(name)]
    storage_type, method = STORAGES[failing]
    storage = storage_type()
    storage.failing = method

    async def while_failing(session: Session, turns: int):
        storage.error, before = error, storage.raised
        result = await turn(session, turns, force=turns % 2 == 0)
        after = await turn(session, turns)  # a lease ends after the result
        storage.error = None
        if storage.raised > before and method not in {"records", "read"}:
            failed = [report for report in result.reports if report.error or report.reason]
            assert [*result.notices, *after.notices, *failed] != []

    first = session(storage, kind)
    await while_failing(first, 1)
    await turn(first, 2)
    await while_failing(first, 4)
    await turn(first, 5)
    resumed = session(storage, kind)
    await while_failing(resumed, 6)
    await turn(resumed, 7)
    last = session(storage, kind)
    await turn(last, 8, force=True)
    if method != "set_aside":
        assert await last.history() == history(8)


# A write is part of a stage, which fails if what it waited for was cancelled: the next test.
INTERRUPTIONS: list[tuple[str, type[BaseException]]] = [
    ("write", KeyboardInterrupt),
    *product(
        ["append", "entries", "touch", "lease", "missing"],
        [KeyboardInterrupt, asyncio.CancelledError],
    ),
]


@pytest.mark.parametrize(("method", "error"), INTERRUPTIONS)
async def test_an_interruption_passes(method, error: type[BaseException]):
    storage = Failing()
    await turn(session(storage), 1)
    storage.failing, storage.error = method, error

    with pytest.raises(error):
        await turn(session(storage), 2)


async def test_a_text_whose_write_was_cancelled_by_others_costs_its_stage_only():
    storage = Failing()
    await turn(session(storage), 1)
    storage.failing, storage.error = "write", asyncio.CancelledError

    result = await turn(session(storage), 2)

    assert any(report.outcome == "failed" for report in result.reports)
    assert result.messages[-1] == history(2)[-1]


@pytest.mark.parametrize("error", ERRORS, ids=NAMES)
async def test_a_reply_is_not_lost_because_a_journal_cannot_take_it(
    error: Callable[[], BaseException],
):
    storage = Failing()
    storage.failing = "append"
    async with messages_api(MessagesServer(["one", "two"])) as (_, client):
        owner = session(storage)
        owner.append(user("first"))
        storage.error = error
        reply: Any = await owner.create(client, model="m", max_tokens=9)
        assert reply.content[0].text == "one"
        storage.error = None
        owner.append(user("second"))
        await owner.create(client, model="m", max_tokens=9)

    kept = [message["role"] for message in await session(storage).history()]
    assert kept == ["user", "assistant", "user", "assistant"]


async def test_the_notice_names_what_was_raised_and_where_and_none_of_its_text():
    storage = Failing()
    storage.failing, storage.error = "touch", ERRORS[1]

    result = await turn(session(storage), 1)

    [notice] = result.notices
    assert notice.startswith("the texts cannot be marked as used: ")
    assert "KeyError" in notice
    assert "several" not in notice


@pytest.mark.parametrize("has_journal", [False, True], ids=["no journal", "a journal elsewhere"])
@pytest.mark.parametrize("error", ERRORS, ids=NAMES)
async def test_a_storage_of_texts_that_cannot_say_whether_a_session_was_deleted_costs_no_turn(
    error: Callable[[], BaseException], has_journal
):
    texts, journal = Failing(), MemoryStorage() if has_journal else None
    texts.failing, texts.error = "ensure_not_deleted", error
    pipeline = ContextPipeline(stages(texts, "compact"))

    for turns in (1, 2):
        await turn(pipeline.session("s", journal=journal), turns)
    again = ContextPipeline(stages(texts, "compact")).session("s", journal=journal)
    await turn(again, 3)

    assert texts.raised > 0
