"""Signals that an agent misses its collapsed steps are counted and reported once."""

from __future__ import annotations

import time
from typing import Any

from histories import assistant, conversation, step, user

from ctxpipe import Collapse, ContextPipeline, LocalStorage, Session
from ctxpipe.diagnostics import Signals
from ctxpipe.diagnostics.collapse_watch import CollapseWatch
from ctxpipe.messages import Message
from ctxpipe.providers.prices import Prices
from ctxpipe.storage.memory import MemoryStorage
from ctxpipe.tokens import TokenCounter

LONG = "some words of a result that was long " * 60

READ_BACK = "collapsed steps were read back"
REPEATED = "of the calls repeat an earlier one"
IMITATED = "imitates lines of the notes"


def session(storage: Any = None, **settings: Any) -> Session:
    store = MemoryStorage()
    stage = Collapse(
        store, prices=Prices.relative(read=1.25), min_calls=0, min_tokens=1, keep_recent=2
    )
    return ContextPipeline([stage]).session("job", **settings)


def bash(number: int, command: str = "") -> list[Message]:
    return step(f"t{number}", "bash", {"command": command or f"make {number}"}, LONG)


async def played(session: Session, *parts: list[Message]) -> list[str]:
    """Hand the history over turn by turn; the notices."""
    history = conversation(user("Go."))
    notices: list[str] = []
    for part in parts:
        history = [*history, *part]
        notices += (await session.run(history)).notices
    return notices


BEGINNING = [bash(number) for number in range(4)]  # of which two collapse


async def test_calls_that_name_the_file_of_a_step_are_counted():
    watched = session()

    await played(
        watched,
        *BEGINNING,
        step("a", "read_offloaded", {"path": "/ctxpipe/job/s1.md"}),
        step("b", "bash", {"command": "cd /ctxpipe/job && head -3 s1.md s2-0a1b2c3d.md"}),
        step("c", "bash", {"command": "cat /ctxpipe/job/s{1..2}.md | grep port"}),
        step("d", "bash", {"command": "cat /ctxpipe/other/s1.md src/s1.md notes1.md s.md"}),
    )

    assert watched.diagnostics.signals.steps_read_back == 3
    # The reply of the turn in which it collapsed, and these.
    assert watched.diagnostics.signals.calls == 5


async def test_before_the_first_collapse_nothing_counts_as_read_back_or_imitated():
    watched = session()

    await played(watched, step("a", "bash", {"command": "cat s1.md"}, say="1 bash ls → 3 chars"))

    assert watched.diagnostics.signals == Signals(tool_calls_before=1)


async def test_repeated_calls_are_counted_before_and_after_the_first_rewrite():
    watched = session()

    await played(watched, bash(0), bash(1, "make 0"), *BEGINNING[2:], bash(4, "make 2"), bash(5))

    signals = watched.diagnostics.signals
    assert (signals.repeated_before, signals.repeated_after) == (1, 1)
    assert signals.tool_calls_before + signals.tool_calls_after == 6
    assert signals.repeat_share_before == 1 / signals.tool_calls_before


async def test_the_same_tool_with_another_input_repeats_nothing():
    watched = session()

    await played(
        watched,
        step("a", "Read", {"path": "a.py", "offset": 0}),
        step("b", "Read", {"path": "a.py", "offset": 100}),
        step("c", "view", {"path": "a.py", "offset": 0}),
    )

    assert watched.diagnostics.signals.repeated_before == 0


async def test_too_many_steps_read_back_are_reported_once():
    reads = [step(f"r{n}", "bash", {"command": f"sed -n {n}p s1.md"}) for n in range(30)]
    watched = session()

    notices = await played(watched, *BEGINNING, *reads)

    assert [READ_BACK in notice for notice in notices].count(True) == 1
    assert watched.diagnostics.signals.read_back_rate > 15


async def test_too_many_repeated_calls_are_reported_once():
    repeated = [bash(10 + n, "make 0") for n in range(30)]

    notices = await played(session(), *BEGINNING, *repeated)

    assert [REPEATED in notice for notice in notices].count(True) == 1


async def test_as_many_repeated_calls_as_before_are_not_reported():
    before = [bash(n, "make 0") for n in range(4)]
    after = [bash(10 + n, "make 0") for n in range(30)]

    assert await played(session(), *before, *after) == []


async def test_a_reply_that_imitates_a_note_is_reported_at_once_and_once():
    imitation = "17 bash make → 30 chars"

    notices = await played(
        session(),
        *BEGINNING,
        [assistant(imitation), user("Call it.")],
        [assistant(imitation), user("Call it!")],
    )

    assert [IMITATED in notice for notice in notices] == [True]


async def test_few_calls_give_no_warning():
    watch = CollapseWatch("job", TokenCounter(), None, time.time)
    watch.begin_after_rewrite()
    watch.count(conversation(*(step(f"r{n}", "bash", {"command": "cat s1.md"}) for n in range(19))))

    assert watch.signals.read_back_rate == 100
    assert watch.new_warnings() == []


async def test_a_session_continued_from_another_process_counts_on(tmp_path):
    storage = LocalStorage(tmp_path)
    history = conversation(user("Go."), *BEGINNING)
    await session(journal=storage).run(history)
    again = session(journal=storage)

    await again.run([*history, *step("a", "bash", {"command": "make 0"})])
    assert again.diagnostics.signals == Signals(
        calls=1, tool_calls_before=4, tool_calls_after=1, repeated_after=1
    )


async def test_going_back_in_the_history_repeats_no_call():
    watched = session()
    history = conversation(user("Go."), *BEGINNING)
    await watched.run(history)
    before = watched.diagnostics.signals

    await watched.run([user("Go!"), *history[1:]])

    assert watched.diagnostics.signals == before


async def test_without_collapse_nothing_is_counted():
    plain = ContextPipeline([]).session("job")
    await plain.run(conversation(user("Go."), *BEGINNING))

    assert plain.diagnostics.signals == Signals()
