"""A history that its caller rebuilds between two turns: what has left its context stays out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

from api_histories import few
from hypothesis import example, given
from hypothesis import strategies as st
from seeded import Talk

from ctxpipe import BatchOffload, ContextPipeline, DirectOffload, LocalStorage
from ctxpipe._values import is_encodable
from ctxpipe.messages import Message, as_blocks, as_dict, blocks, tool_results
from ctxpipe.messages.identity import says_the_same
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.reading.results import placeholder_file, text_of


def pipeline(folder: str | Path) -> ContextPipeline:
    """Two stages: one takes new results out, one old results that were shorter."""
    storage = LocalStorage(folder)
    return ContextPipeline(
        [
            DirectOffload(storage, min_chars=1_000),
            BatchOffload(storage, gate=RatioGate(0.1), min_chars=300),
        ]
    )


def is_result(block: object) -> bool:
    return as_dict(block).get("type") == "tool_result"


def rebuild(history: Sequence[Message], start: int, random: Random) -> list[Message]:
    """The same conversation, whose messages from *start* on are merged, split and re-ordered."""
    rebuilt = list(history[:start])
    for message in history[start:]:
        content = list(as_blocks(message))
        results = [block for block in content if is_result(block)]
        rest = [block for block in content if not is_result(block)]
        previous = rebuilt[-1] if len(rebuilt) > start else None
        if message["role"] != "user":
            rebuilt.append(message)
        elif previous is not None and previous["role"] == "user" and random.random() < 0.5:
            rebuilt[-1] = said([*as_blocks(previous), *content])
        elif results and rest and random.random() < 0.5:
            rebuilt += [said(results), said(rest)]
        elif random.random() < 0.5:
            rebuilt.append(said([*random.sample(results, len(results)), *rest]))
        else:
            rebuilt.append(message)
    return rebuilt


def said(content: Sequence[Any]) -> Message:
    return cast("Message", {"role": "user", "content": list(content)})


def agreement(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Return the number of leading messages with the same content."""
    same = [says_the_same(*pair) for pair in zip(one, other, strict=False)]
    return [*same, False].index(False)


class Seen:
    """The forms in which each result was sent, its text or a placeholder, by its id and text."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, str], set[str]] = {}
        self.histories: list[list[Message]] = []

    def check(self, history: list[Message], context: list[Message]):
        """Check that a result that left a context has a placeholder in later histories.

        Messages that an earlier history shares must be sent as they were sent before, or have just
        left.
        """
        start = max((agreement(old, history) for old in self.histories), default=0)
        self.histories.append(list(history))
        sent = {result.tool_use_id: text_of(result.content) for result in tool_results(context)}
        for result in tool_results(history):
            name, text = result.tool_use_id, text_of(result.content)
            if not is_encodable(text):
                continue  # it is sent, and comes from a journal, in another form
            shown = self.shown.setdefault((name, text), set())
            left = shown - {text}
            if left and result.message >= start:
                assert {sent[name]} == left
            assert sent[name] in {*shown, text} or (not left and placeholder_file(name, sent[name]))
            shown.add(sent[name])


async def converse(seed: int, folder: Path, *, has_journal: bool) -> Seen:
    """A conversation whose history is rebuilt from somewhere on before some of its turns."""
    random = Random(seed)
    talk, seen = Talk(random), Seen()
    pipe = pipeline(folder)
    journal = LocalStorage(folder) if has_journal else None
    session = pipe.new_session("s", journal=journal)
    history = [talk.user()]
    for _ in range(random.randrange(3, 9)):
        history += talk.loop(random.randrange(1, 3), history)
        if blocks(history[-1]) and random.random() < 0.5:
            history.append(talk.user())
        if random.random() < 0.6:
            history = rebuild(history, random.randrange(1, len(history)), random)
        if has_journal and random.random() < 0.4:
            session = pipeline(folder).new_session("s", journal=LocalStorage(folder))
        result = await session.run(history)
        seen.check(history, result.messages)
    return seen


@few
@given(st.integers(0, 2**32), st.booleans())
@example(seed=427, has_journal=True)  # a new process begins where the history left the journal
@example(seed=472, has_journal=True)  # a process has left the entry that took a result out
def test_content_that_left_a_context_stays_out_when_the_caller_rebuilds_the_history(
    tmp_path_factory, seed: int, has_journal: bool
):
    folder = tmp_path_factory.mktemp("rebuilt")
    asyncio.run(converse(seed, folder, has_journal=has_journal))
