"""A session rebuilt from its journal, however many of its steps are applied at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from compactions import Writer, words
from histories import MARK, step, text, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import BatchOffload, Compact, ContextPipeline, DirectOffload, MemoryStorage, Session
from ctxpipe.journal.branches import path_to
from ctxpipe.journal.packing import Packing
from ctxpipe.journal.replay import Replay
from ctxpipe.journal.timeline import Timeline
from ctxpipe.messages import Message
from ctxpipe.storage.sealed import Entry, Journal

LONG = "a line of a result\n"
EVENTS = ("talk", "talk", "talk", "long", "grow", "back", "adopt", "compact", "resume", "mark")


class Life:
    """A session in which random things happen to the history, and other processes join."""

    def __init__(self, seed: int, *, redacts: bool) -> None:
        self.random = random.Random(seed)
        redact = (lambda text: text.replace("secret", "***")) if redacts else None
        self.storage = MemoryStorage(redact=redact)
        self.history: list[Any] = [user("Go.")]
        self.sent: list[Message] = []
        self.sessions: list[Session] = [self.new_session() for _ in range(2)]

    def new_session(self) -> Session:
        pipeline = ContextPipeline(
            [
                DirectOffload(self.storage, min_chars=2_000),
                BatchOffload(self.storage),
                Compact(Writer(), archive=self.storage),
            ],
            counter=words,
        )
        return pipeline.session("s", journal=self.storage)

    async def live(self, events: Sequence[str]) -> None:
        for number, event in enumerate(events):
            session = self.random.choice(self.sessions)
            self.change_history(event, number)
            if event == "resume":
                self.sessions[0] = session = self.new_session()
            if event == "compact" and self.sent:
                result = await session.compact(self.history)
            else:
                result = await session.run(self.history)
            self.sent = result.messages

    def change_history(self, event: str, number: int) -> None:
        if event == "back":
            del self.history[self.random.randrange(1, len(self.history) + 1) :]
        elif event == "adopt" and self.sent:
            self.history = list(self.sent)
        elif event == "grow" and isinstance(self.history[-1]["content"], list):
            last = self.history[-1]
            self.history[-1] = {**last, "content": [*last["content"], text("secret words")]}
            return
        elif event == "mark":
            self.history[-1] = user({**text("a marked request"), **MARK})
        result = LONG * (200 if event == "long" else 3)
        command = {"command": f"secret {number}"}
        self.history += step(f"t{number}", "bash", command, result, think="I look.")


def everything_of(replay: Replay) -> dict[str, Any]:
    timeline = replay.timeline
    return {
        "history": timeline.history,
        "context": timeline.context,
        "sent": timeline.sent,
        "starts": timeline.alignment.starts,
        "ends": timeline.alignment.ends,
        "stale": timeline.stale,
        "earlier": timeline.earlier,
        "turn": timeline.turn,
        "turn_ends": list(timeline.turn_ends),
        "ancestors": timeline.ancestors,
        "removals": list(timeline.removals),
        "placeholders": timeline.placeholders,
        "has_changing_end": timeline.has_changing_end,
        "unchanged": [a is b for a, b in zip(timeline.sent, timeline.context, strict=True)],
        "raw": replay.raw,
        "files": replay.files,
        "has_hidden": replay.has_hidden,
        "is_adopted": replay.is_adopted,
        "agreed": replay.agreed,
        "fitting": (replay.fitting, replay.fitted),
        "abandoned": replay.abandoned,
    }


def rebuilt(path: Sequence[Entry], history: list[Message], *, at_once: bool) -> dict[str, Any]:
    packing = Packing(None, "s", texts=True)
    if at_once:
        return everything_of(packing.replay(path, history, Timeline))
    with patch.object(Replay, "_only_adds", return_value=False):
        return everything_of(packing.replay(path, history, Timeline))


@given(
    st.integers(0, 2**32), st.lists(st.sampled_from(EVENTS), min_size=1, max_size=12), st.booleans()
)
def test_steps_applied_at_once_rebuild_the_session_that_they_rebuild_one_by_one(
    seed, events, redacts
):
    life = Life(seed, redacts=redacts)
    asyncio.run(life.live(events))
    entries, _ = asyncio.run(Journal(life.storage, "s").read())
    histories = [life.history, life.history[: len(life.history) // 2], life.sent, []]
    for end in {len(entries) // 2, len(entries)}:
        path = path_to(entries, end)
        for history in histories:
            one_by_one = rebuilt(path, history, at_once=False)
            assert rebuilt(path, history, at_once=True) == one_by_one
    assert asyncio.run(Journal(life.storage, "s").read()) == (entries, False)


def test_steps_that_only_add_are_applied_at_once():
    life = Life(0, redacts=False)
    asyncio.run(life.live(["talk"] * 20))
    entries, _ = asyncio.run(Journal(life.storage, "s").read())
    with patch.object(Timeline, "apply", autospec=True, side_effect=Timeline.apply) as apply:
        replay = Packing(None, "s", texts=True).replay(entries, [], Timeline)
    assert apply.call_count == 1
    assert [number for number, _ in replay.timeline.turn_ends] == list(range(1, 21))
