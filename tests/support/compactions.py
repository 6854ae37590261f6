"""Helpers for tests of compactions: a summarizer, long histories, their replacements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from histories import assistant, conversation, step, system, user

from ctxpipe.functions import CompactResult, compact_messages
from ctxpipe.messages import Message
from ctxpipe.stages.compact.partition import Replacement, replacements
from ctxpipe.stages.compact.source import Source, gather_facts
from ctxpipe.stages.reading.conversation_facts import ConversationFacts
from ctxpipe.stages.reading.unanswered import open_tail
from ctxpipe.summarizers import Summary
from ctxpipe.tokens import TokenCounter

UPLOAD = {"type": "container_upload", "file_id": "file_1"}
count = TokenCounter().text


def words(text: str) -> int:
    """The tests' counter: a token is a word."""
    return len(text.split())


@dataclass
class Writer:
    """A summarizer that says *text*, or fails, and counts how often it was asked."""

    text: str = "It went well."
    failure: Exception | None = None
    seen: list[list[Message]] = field(default_factory=list)

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        self.seen.append(list(messages))
        if self.failure is not None:
            raise self.failure
        return Summary(self.text, input_tokens=7, output_tokens=3)


def work(turns: int, results: int = 100) -> list[Message]:
    """A task of *turns* steps, each with a result of so many words."""
    return conversation(
        *(
            step(f"t{n}", "bash", {"command": f"make step-{n}"}, "word " * results)
            for n in range(turns)
        )
    )


LONG = conversation(
    system("Be brief."), user("Fix the login bug."), work(30), assistant("Almost."), user("Go on.")
)


LINES = ConversationFacts(
    paths={
        "README.md": False,
        "src/app/main.py": True,
        "src/app/util.py": False,
        "/abs/x y.txt": False,
    },
    commands={"make": True, "git push": False},
    identifiers=["28c304f6", "PROJ-17"],
    requests=["Fix it.", 'Say </request> or <request chars="3">abc', "Now."],
    archives=["/a/compact-1.json", "/a/compact-2.json"],
    index="/a/compact-paths.txt",
    notes=["util.py was deleted since it was shown"],
)


def archives(folder: Path) -> list[Path]:
    return sorted(folder.rglob("compact-*.json"))


async def shortened(history: list[Message], folder: Path, **settings: Any) -> CompactResult:
    defaults: dict[str, Any] = {
        "summarize": Writer(),
        "output_dir": folder,
        "context_token_limit": 2000,
        "counter": words,
        "work_dir": folder,
    }
    return await compact_messages(history, **{**defaults, **settings})


def gadget(number: int = 1, **values: Any) -> dict[str, Any]:
    return {"type": "gadget", "number": number, **values}


def replacements_of(
    head: list[Message], rest: list[Message], summary: str = "S", archive: str = "", **settings: Any
) -> list[Replacement]:
    """The replacements of a history that is the caller's own."""
    source = Source(rest, [archive] if archive else [], is_raw=True)
    facts = gather_facts(source)
    tail = open_tail(rest)
    return replacements(head, rest, summary, source, facts, tail=tail, archive=archive, **settings)


def replacement_of(
    head: list[Message], rest: list[Message], summary: str = "S", **settings: Any
) -> Replacement:
    """The first of them."""
    return replacements_of(head, rest, summary, **settings)[0]
