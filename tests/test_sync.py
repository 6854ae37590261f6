"""Synchronous sessions: from threads, after a fork, at exit, when interrupted: right, or an error.

Never a hang.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import anthropic
import pytest
from histories import chat, conversation, step, user
from mounts import offloading, placeholders
from places import ROOT
from processes import prepared_python
from readme import run_adapter_program

from ctxpipe import (
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    InvalidHistory,
    LocalStorage,
    Session,
    SettingsError,
    Turn,
    sync,
)
from ctxpipe.messages import Message
from ctxpipe.summarizers import Summary
from ctxpipe.testing import MessagesServer

LONG = "a long line of output\n" * 200
SECONDS = 60
ASKED: Any = {"model": "m", "max_tokens": 100}


def ran(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of its own; it fails the test when it does not end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*prepared_python(), "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment,
    )


def test_a_synchronous_turn_gives_the_same_as_an_asynchronous_one(tmp_path):
    history = conversation(user("go"), step("t1", result=LONG))
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path))])

    with sync.Session(pipeline, "s") as session:
        blocking = session.run(history)

    assert blocking.messages == asyncio.run(pipeline.session("s").run(history)).messages != history


def test_eight_threads_on_one_session_wait_for_each_other_and_request_one_summary(
    tmp_path,
):
    asked = 0

    async def summarize(_messages: Sequence[Message], /) -> Summary:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return Summary("so far")

    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline(
        [Compact(summarize, storage)], budget=Budget(window=3000, trigger=2400)
    )
    session = sync.Session(pipeline, "s", journal=storage)
    history = conversation(
        user("go"), *(step(f"t{i}", result=f"line {i} " * 60) for i in range(30))
    )

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: session.run(history), range(32)))

    assert asked == 1
    assert all(result.messages == results[0].messages for result in results)
    assert session.history() == history


def test_sessions_of_eight_threads_do_not_affect_each_other(tmp_path):
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path))])

    def played(number: int) -> list[Message]:
        session = sync.Session(pipeline, f"s{number}")
        return [
            session.run([user(f"go {number}"), *chat(stop)[1:]]).messages for stop in range(1, 30)
        ][-1]

    with ThreadPoolExecutor(8) as threads:
        contexts = list(threads.map(played, range(40)))

    assert [context[0] for context in contexts] == [user(f"go {number}") for number in range(40)]


# What a user needs; what adapters and tools need is the conversation's.
MEMBERS = """run create stream append history branches go_back fork
observe compact compact_next recover
session_id journal diagnostics removals last_result"""


@pytest.mark.parametrize("kind", [Session, sync.Session])
def test_a_session_has_these_members(kind: type):
    assert {name for name in dir(kind) if not name.startswith("_")} == set(MEMBERS.split())


def test_an_error_reaches_the_caller():
    with pytest.raises(InvalidHistory, match="not a mapping"):
        sync.Session(ContextPipeline(), "s").run([3])  # type: ignore[list-item]


def test_an_object_that_is_not_a_pipeline_is_refused():
    with pytest.raises(SettingsError, match="give a ContextPipeline"):
        sync.Session(None, "s")  # type: ignore[arg-type]


def test_a_stage_that_calls_a_synchronous_session_gets_an_error_and_no_deadlock():
    async def calls(_turn: Turn):
        inner.run(chat(1))

    inner = sync.Session(ContextPipeline(), "inner")
    outer = sync.Session(ContextPipeline([calls], on_error="raise"), "outer")

    with pytest.raises(RuntimeError, match="its own event loop"):
        outer.run(chat(1))


def test_a_caller_with_a_running_event_loop_can_use_a_synchronous_session():
    code = """
import asyncio
from ctxpipe import ContextPipeline, sync
async def blocked():
    return sync.Session(ContextPipeline(), "s").run([{"role": "user", "content": "go"}]).covered
print(asyncio.run(blocked()))
"""
    assert ran(code).stdout.strip() == "1"


def test_a_session_created_before_a_fork_raises_in_the_child_and_a_new_one_works(
    tmp_path,
):
    code = """
import os, sys
from ctxpipe import ContextPipeline, LocalStorage, sync
storage = LocalStorage(sys.argv[1])
history = [{"role": "user", "content": "go"}]
session = sync.Session(ContextPipeline(), "s", journal=storage)
session.run(history)
child = os.fork()
if child == 0:
    try:
        session.run(history)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    again = sync.Session(ContextPipeline(), "s", journal=storage)
    print(again.history() == history, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(session.run(history).covered)
"""
    done = ran(code, str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "SettingsError session 's' belongs to another process: make a new one after a fork",
        "True",
        "1",
    ]


@pytest.mark.parametrize("where", ["atexit", "__del__", "thread"])
def test_a_synchronous_session_does_not_hang_at_the_end_of_the_interpreter(where):
    code = f"""
import atexit, threading, time
from ctxpipe import ContextPipeline, sync
session = sync.Session(ContextPipeline(), "s")
history = [{{"role": "user", "content": "go"}}]
session.run(history)
def late():
    try:
        print(session.run(history).covered, flush=True)
    except RuntimeError as error:
        print(error, flush=True)
class Late:
    def __del__(self):
        late()
if {where!r} == "atexit":
    atexit.register(late)
elif {where!r} == "__del__":
    kept = Late()
    kept.itself = kept
else:
    threading.Thread(target=lambda: (time.sleep(0.2), late())).start()
"""
    done = ran(code)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in (
        "1",
        "the interpreter is shutting down; nothing can be run any more",
        "",
    )


def test_an_interrupt_ends_the_turn_and_the_session_stays_usable():
    code = """
import asyncio, os, signal
from ctxpipe import ContextPipeline, sync
slow = [True]
async def stage(turn):
    if slow[0]:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(50)
session = sync.Session(ContextPipeline([stage]), "s")
history = [{"role": "user", "content": "go"}]
try:
    session.run(history)
except KeyboardInterrupt:
    print("interrupted", flush=True)
slow[0] = False
print(session.run(history).covered)
"""
    begun = time.monotonic()
    done = ran(code)

    assert done.stdout.split() == ["interrupted", "1"], done.stderr
    assert time.monotonic() - begun < SECONDS / 2


@pytest.mark.parametrize("is_begun", [True, False], ids=["after", "before"])
def test_an_interrupt_while_a_turn_is_handed_over_ends_it_too(monkeypatch, is_begun):
    begun, ended = threading.Event(), threading.Event()

    async def stage(_turn: Turn):
        begun.set()
        try:
            await asyncio.sleep(SECONDS)
        finally:
            ended.set()

    def interrupted(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop):
        if is_begun:
            hand_over(work, loop)
            assert begun.wait(SECONDS / 2)
        raise KeyboardInterrupt

    hand_over = asyncio.run_coroutine_threadsafe
    session = sync.Session(ContextPipeline([stage]), "s")
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run([user("go")])

    assert not is_begun or ended.wait(SECONDS / 2)
    assert begun.is_set() == is_begun
    assert sync.call_on_loop(int) == 0  # nothing has ended the loop


async def test_a_session_in_use_by_another_event_loop_raises_instead_of_waiting_for_ever():
    entered, left = threading.Event(), threading.Event()

    async def slow(_turn: Turn):
        entered.set()
        await asyncio.to_thread(left.wait)

    session = ContextPipeline([slow]).session("s")
    thread = threading.Thread(target=lambda: asyncio.run(session.run(chat(1))))
    thread.start()
    await asyncio.to_thread(entered.wait)
    try:
        with pytest.raises(SettingsError, match=r"another event loop.*ctxpipe\.sync"):
            await session.run(chat(1))
    finally:
        left.set()
        await asyncio.to_thread(thread.join)

    assert (await session.run(chat(1))).covered == 1


def test_one_event_loop_after_another_may_use_a_session():
    session = ContextPipeline().session("s")

    covered = [asyncio.run(session.run(chat(stop))).covered for stop in (1, 3, 5)]

    assert covered == [1, 3, 5]


@contextmanager
def serve(*replies: str) -> Iterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    """A server with an event loop in a thread of its own, and a client for it."""
    stop, ready = threading.Event(), threading.Event()
    server = MessagesServer(replies)

    async def run() -> None:
        async with server:
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait(SECONDS)
    client = anthropic.AsyncAnthropic(base_url=server.url, api_key="test", max_retries=0)
    try:
        yield server, client
    finally:
        stop.set()
        thread.join()
        with suppress(Exception):
            sync.wait_for(client.close())


def test_the_model_is_called_and_streamed_without_await():
    session = sync.Session(ContextPipeline(), "s")
    with serve("first", "second") as (_, client):
        reply = session.create(client, messages=chat(1), **ASKED)
        with session.stream(client, messages=chat(1), **ASKED) as stream:
            streamed = "".join(stream.text_stream)

    [block] = reply.content
    assert block.type == "text"
    assert (block.text, streamed) == ("first", "second")


def test_the_program_of_the_page_sends_placeholders(tmp_path):
    history = conversation(user("go"), step("t1", result=LONG))
    with serve("Done.") as (server, client):
        session = run_adapter_program("sessions", offloading(tmp_path))["session"]
        reply = session.create(client, messages=history, **ASKED)

    assert reply.content[0].text == "Done."
    assert placeholders(server.requests[-1]) == 1
    assert (tmp_path / "job-42" / "t1.md").read_text() == LONG
