"""A client of the Messages API that answers "a1", "a2", …, and short conversations with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from histories import text, user

from ctxpipe import Session
from ctxpipe.messages import Message

REQUEST: dict[str, Any] = {"model": "m", "max_tokens": 99}


@dataclass
class Reply:
    content: list[Any]
    stop_reason: str = "end_turn"


@dataclass
class Client:
    """A client of the Messages API that answers "a1", "a2", … and records what it is sent."""

    requests: list[list[Any]] = field(default_factory=list)
    failures: int = 0

    @property
    def messages(self) -> Client:
        return self

    async def create(self, *, messages: list[Any], **_: Any) -> Reply:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the network is down")
        self.requests.append(messages)
        return Reply([text(f"a{len(self.requests)}")])


async def talk(session: Session, client: Any, *questions: str) -> None:
    """Ask each of the *questions* in a turn of its own."""
    for question in questions:
        session.append(user(question))
        await session.create(client, **REQUEST)


def words(messages: Sequence[Message]) -> list[str]:
    """Return the text of each of *messages*."""
    said: list[str] = []
    for message in messages:
        content: Any = message["content"]
        said.append(content if isinstance(content, str) else content[0]["text"])
    return said
