"""Which conversation a request continues, and how many of them stay in memory."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import anyio

from ..errors import CtxpipeError
from ..messages.identity import says_the_same

if TYPE_CHECKING:
    from ..messages import Message
    from ..session.session import Session
    from .body import Body

__all__ = ["Conversation", "Conversations"]

OVERHEAD = 4
"""Bytes that a conversation takes for each byte of its body: raw, parsed, and in its session."""
MAX_RESUMED = 32
"""So many conversations of one name are looked for in the journals."""


OpenSession: TypeAlias = "Callable[[str], Session]"
"""Makes the session of an id, which reads its journal at its first turn."""


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation of the name *name*: its *session*, and what its last request has said.

    *messages* are the history of that request, *body* the request itself, *running* how many of
    its requests are under way, *saved* the raw tokens that its context has less than its history.
    """

    name: str
    session: Session
    messages: Sequence[Message] = field(default=(), repr=False)
    body: Body | None = field(default=None, repr=False)
    running: int = 0
    saved: int = 0

    @property
    def bytes(self) -> int:
        """What it takes in memory, about."""
        return OVERHEAD * len(self.body.raw) if self.body is not None else 0


class Conversations:
    """The conversations of one gateway, found by name and by history.

    A request continues the conversation of its name whose history it begins with. Where a history
    was changed after a reply, it goes on as a branch: under the same session, with what the journal
    holds of their common beginning. Clients that give no name, and sub-agents under one name with
    equal first messages, are told apart that way.

    At most *max_bytes* stay in memory; the longest unused go first, and come back from the journal.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_name: OrderedDict[str, list[Conversation]] = OrderedDict()
        self._resumed: set[str] = set()
        self._lock = anyio.Lock()

    def __iter__(self) -> Iterator[Conversation]:
        return itertools.chain.from_iterable(self._by_name.values())

    def bodies(self) -> list[Body]:
        """What the conversations have said last, the newest first."""
        newest = reversed(self._by_name.values())
        held = (one.body for known in newest for one in reversed(known))
        return [body for body in held if body is not None]

    async def find(
        self,
        name: str,
        messages: Sequence[Message],
        body: Body,
        open_session: OpenSession,
    ) -> Conversation:
        """The conversation called *name* that *messages*, in the request *body*, continue.

        It counts as running until `release`. Raises StorageError.
        """
        if name not in self._resumed:
            async with self._lock:
                await self._resume(name, open_session)
        known = self._by_name.setdefault(name, [])
        conversation = _continued(known, messages)
        if conversation is None:
            conversation = _branch(known, messages, open_session)
        if conversation is None:
            conversation = _begin(name, known, open_session)
        if conversation in known:
            known.remove(conversation)
        known.append(conversation)  # the newest last
        self._by_name.move_to_end(name)
        conversation.messages = list(messages)
        conversation.body = body
        conversation.running += 1
        return conversation

    def release(self, conversation: Conversation) -> None:
        """One request of *conversation* is over."""
        conversation.running -= 1
        self._shrink()

    async def _resume(self, name: str, open_session: OpenSession) -> None:
        """Find the conversations called *name* in the journals, once."""
        if name in self._resumed:
            return
        known = self._by_name.setdefault(name, [])
        held = {conversation.session.session_id for conversation in known}
        found: list[Conversation] = []
        for session_id in itertools.islice(_session_ids(name), MAX_RESUMED):
            if session_id in held:
                continue
            session = open_session(session_id)
            if session.journal is None:
                break
            try:
                history = await session.history()
            except CtxpipeError:
                continue  # another may be whole; its own turns will say what is wrong with it
            if not history:
                break
            found.append(Conversation(name, session, history))
        known[:0] = found
        self._resumed.add(name)

    def _shrink(self) -> None:
        """Let go of the longest unused, until the rest fits."""
        held = sum(conversation.bytes for conversation in self)
        for name in list(self._by_name):
            for conversation in list(self._by_name[name]):
                if held <= self._max_bytes:
                    return
                if conversation.running:
                    continue
                held -= conversation.bytes
                self._by_name[name].remove(conversation)
                self._resumed.discard(name)  # it comes back from its journal
            if not self._by_name[name]:
                del self._by_name[name]


def _begin(name: str, known: Sequence[Conversation], open_session: OpenSession) -> Conversation:
    """A new conversation called *name*, beside the *known* ones."""
    ids = {conversation.session.session_id for conversation in known}
    session_id = next(made for made in _session_ids(name) if made not in ids)
    return Conversation(name, open_session(session_id))


def _branch(
    known: Sequence[Conversation],
    messages: Sequence[Message],
    open_session: OpenSession,
) -> Conversation | None:
    """A new line of the one of *known* that shares most with *messages*, a reply at least."""
    best, shared = None, 0
    for conversation in known:
        same = _agreement(conversation.messages, messages)
        if same > shared and _has_reply(messages[:same]):
            best, shared = conversation, same
    if best is None:
        return None
    return Conversation(best.name, open_session(best.session.session_id))


def _session_ids(name: str) -> Iterator[str]:
    """The ids of the sessions for conversations called *name*, in order."""
    yield name
    for number in itertools.count(2):
        yield f"{name}-{number}"


def _continued(
    known: Sequence[Conversation],
    messages: Sequence[Message],
) -> Conversation | None:
    """The one of *known* whose history *messages* go on, the longest if there are several.

    A request that was not answered in the history may be replaced: it was a side question, or is
    asked again in other words.
    """
    best, shared = None, -1
    for conversation in known:
        same = _agreement(conversation.messages, messages)
        dropped = conversation.messages[same:]
        if same > shared and not _has_reply(dropped) and (same or not conversation.messages):
            best, shared = conversation, same
    return best


def _agreement(known: Sequence[Message], messages: Sequence[Message]) -> int:
    """How many leading messages say the same in both."""
    same = 0
    for one, other in zip(known, messages, strict=False):
        if one is not other and not says_the_same(one, other):
            break
        same += 1
    return same


def _has_reply(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "assistant" for message in messages)
