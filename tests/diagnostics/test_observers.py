"""The calls that observers of a conversation get; a turn needs no observer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from histories import assistant, conversation, user
from models import MODEL
from processes import new_python

from ctxpipe import ContextPipeline
from ctxpipe.diagnostics.observers import Observer, ShapedContext
from ctxpipe.messages import Message
from ctxpipe.session.session import conversation_of
from ctxpipe.stages.protocol import Turn
from ctxpipe.turn.state import Request


class Recorder(Observer):
    """Writes down what it is called with, for all sessions."""

    calls: list[tuple[Any, ...]] = []  # noqa: RUF012  one for the test

    async def shaped(self, context: ShapedContext) -> list[str]:
        self.calls.append(("shaped", self.session_id, len(context.result.messages)))
        return ["seen by an observer"]

    def sent(self, messages: Sequence[Message], body: Mapping[str, object]):
        self.calls.append(("sent", len(messages), body["model"]))

    def refused(self, messages: Sequence[Message]):
        self.calls.append(("refused", len(messages)))

    def billed(self, usage: object, messages: Sequence[Message] | None, model: str | None):
        self.calls.append(("billed", usage, messages, model))


class Watched:
    """A stage that does nothing, and names an observer."""

    observers = (f"{__name__}:Recorder",)

    async def __call__(self, turn: Turn):
        """Do not change the turn."""


async def test_an_observer_that_a_stage_names_gets_each_request():
    Recorder.calls.clear()
    watched = conversation_of(ContextPipeline([Watched()]).session("s"))
    history = conversation(user("one"))

    context = await watched.turns.run(history, Request())
    watched.usage.note_request(context, {"model": MODEL, "messages": context.messages})
    watched.usage.note_failure(context)
    usage = {"input_tokens": 3}
    watched.usage.observe(usage, context.messages, model=MODEL)

    assert Recorder.calls == [
        ("shaped", "s", 1),
        ("sent", 1, MODEL),
        ("refused", 1),
        ("billed", usage, context.messages, MODEL),
    ]


async def test_texts_of_an_observer_are_notices_of_the_result():
    session = ContextPipeline([Watched()]).session("s")

    first = await session.run(conversation(user("one")))
    second = await session.run(conversation(user("one"), assistant("1"), user("two")))

    assert first.notices == second.notices == ("seen by an observer",)


def test_the_default_observers_are_imported_with_the_first_conversation():
    script = """
import sys
from ctxpipe import ContextPipeline
print([name for name in sys.modules if "prompt_cache" in name])
ContextPipeline().session("s")
print("ctxpipe.diagnostics.cache_watch" in sys.modules)
"""
    assert new_python(script).split("\n")[:2] == ["[]", "True"]
