"""Which conversation a request continues, and how many of them stay in memory."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from ..errors import CtxpipeError
from ..messages import common_prefix, strings
from ..messages.identity import says_the_same
from ..tokens.spent import Pieces
from ..workers.threads import in_thread
from .formats import Format, History, Translator
from .names import session_ids

if TYPE_CHECKING:
    from ..messages import Message
    from ..session import conversation as core
    from ..tokens import TokenCounter
    from ..tokens.spent import Kind
    from .body import Body

__all__ = ["Content", "Conversation", "Conversations", "Question"]

OVERHEAD = 4
"""Bytes that a conversation takes for each byte of its body: raw, parsed, and in its session."""
OWN_BYTES = 16_000
"""Bytes that it takes besides."""
MAX_COMPARED = 256
"""So many of the newest bodies are compared with a new one, to read only what is new of it."""
MAX_RESUMED = 32
"""So many conversations of one name are looked for in the journals."""

OpenSession: TypeAlias = "Callable[[str], core.Conversation]"
"""Makes the session of an id, which reads its journal at its first turn."""


class Question:
    """What a request asks, in the *format* of its API."""

    def __init__(self, known: Format, body: Body) -> None:
        self.format = known
        self.body = body

    @cached_property
    def messages(self) -> Sequence[Message]:
        """The conversation as messages, to compare it with a journal."""
        history = self.format.new_translator().read(self.body)
        return history.messages if history is not None else ()

    def count_replies(self, start: int) -> int:
        """How many replies there are from item *start* on; a reply may have several items."""
        replies, is_in_reply = 0, False
        for item in self.body.items[start:]:
            was_in_reply, is_in_reply = is_in_reply, self.format.is_reply(item)
            replies += is_in_reply and not was_in_reply
        return replies


class Content:
    """Tells the tokens of one conversation's contexts apart by kind, as the replay page does.

    What a context has in common with the one before it is not read again.
    """

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._sums: list[Counter[Kind]] = []  # up to and with each message

    async def read(
        self,
        counter: TokenCounter,
        messages: Sequence[Message],
        *,
        system: Any = None,
        tools: Any = None,
    ) -> Mapping[Kind, int]:
        """The raw tokens of a context by kind, in a worker thread; one context at a time."""
        return await in_thread(self._read, counter, messages, system, tools)

    def _read(
        self,
        counter: TokenCounter,
        messages: Sequence[Message],
        system: Any,
        tools: Any,
    ) -> Mapping[Kind, int]:
        pieces = Pieces(counter)  # a new one each time: it keeps the messages that it has read
        del self._sums[common_prefix(self._messages, messages) :]
        for message in messages[len(self._sums) :]:
            found = Counter(self._sums[-1]) if self._sums else Counter()
            for piece in pieces.of(message):
                found[piece.kind] += piece.tokens
            self._sums.append(found)
        self._messages = list(messages)
        whole: Counter[Kind] = Counter(self._sums[-1]) if self._sums else Counter()
        whole["system"] += counter.total([], system=system)
        whole["tools"] += counter.total([], tools=tools)
        return {kind: tokens for kind, tokens in whole.items() if tokens}


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation of the name *name*: its *session*, and what its last request has asked.

    Before its first request in this process, *messages* are the history in its journal. *running*
    is how many of its requests are under way, *saved* the raw tokens that its context has less than
    its history. *size* is that of its last body in bytes, or of its history in characters.
    *content* tells what the tokens of its contexts are spent on.
    """

    name: str
    session: core.Conversation
    messages: Sequence[Message] = field(default=(), repr=False)
    question: Question | None = field(default=None, repr=False)
    translator: Translator | None = field(default=None, repr=False)
    lock: anyio.Lock = field(default_factory=anyio.Lock, repr=False)
    running: int = 0
    saved: int = 0
    content: Content = field(default_factory=Content, repr=False)
    size: int = 0

    @property
    def bytes(self) -> int:
        """What it takes in memory, about."""
        return OWN_BYTES + OVERHEAD * self.size

    def take(self, question: Question) -> None:
        """Continue with *question*, which counts as running."""
        if self.translator is None or self.question is None:
            self.translator = question.format.new_translator()
        self.question = question
        self.size = len(question.body.raw)
        self.messages = ()
        self.running += 1

    def translate(self, body: Body) -> History | None:
        """What *body*, a request of this conversation, holds."""
        if self.translator is None:
            return None
        return self.translator.read(body)

    def compare(self, question: Question) -> _Agreement:
        """How far *question* says what this conversation has said."""
        if self.question is None:
            return _Agreement.of(self.messages, question.messages, says_the_same, _is_reply)
        known = self.question.format
        if known is not question.format:
            return _Agreement(0, is_continued=False, has_reply=False)
        before, now = self.question.body.items, question.body.items
        return _Agreement.of(before, now, known.says_the_same, known.is_reply)


@dataclass(frozen=True, slots=True)
class _Agreement:
    """How many leading items are the *same*, and what that means.

    The conversation *is_continued* where no reply was dropped: a request that was not answered in
    the history was a side question, or is asked again in other words. *has_reply*: of what is the
    same.
    """

    same: int
    is_continued: bool
    has_reply: bool

    @classmethod
    def of(
        cls,
        before: Sequence[Any],
        now: Sequence[Any],
        are_same: Callable[[Any, Any], bool],
        is_reply: Callable[[Any], bool],
    ) -> _Agreement:
        same = 0
        for one, other in zip(before, now, strict=False):
            if one is not other and not are_same(one, other):
                break
            same += 1
        is_continued = same > 0 and not any(map(is_reply, before[same:]))
        return cls(same, is_continued, any(map(is_reply, before[:same])))


class Conversations:
    """The conversations of one gateway, found by name and by history.

    A request continues the conversation of its name whose history it begins with. Where a history
    was changed before a reply, it goes on as a branch: under the same session, with what the
    journal holds of their common beginning. Clients that give no name, and sub-agents under one
    name with equal first messages, are told apart that way.

    At most *max_bytes* stay in memory; the longest unused go first. Journals are read where none in
    memory is continued, or one from further back than a turn. With *shared*, other processes write
    to them too.
    """

    def __init__(self, *, max_bytes: int, shared: bool = False) -> None:
        self._max_bytes = max_bytes
        self._shared = shared
        self._by_name: OrderedDict[str, list[Conversation]] = OrderedDict()
        self._held = 0  # bytes of all of them
        self._lock = anyio.Lock()  # of who reads journals

    def __iter__(self) -> Iterator[Conversation]:
        return itertools.chain.from_iterable(self._by_name.values())

    @property
    def bytes(self) -> int:
        """What all of them take in memory, about."""
        return self._held

    def bodies(self) -> list[Body]:
        """What the newest conversations have asked last, the newest first."""
        newest = reversed(self._by_name.values())
        asked = (one.question for known in newest for one in reversed(known))
        bodies = (question.body for question in asked if question is not None)
        return list(itertools.islice(bodies, MAX_COMPARED))

    async def find(self, name: str, question: Question, open_session: OpenSession) -> Conversation:
        """The conversation called *name* that *question* continues.

        It counts as running until `release`. Raises StorageError.
        """
        conversation = _next_turn_of(self._by_name.get(name, []), question)
        if conversation is None:
            async with self._lock:
                await self._read_journals(name, open_session)
            known = self._by_name[name]
            conversation = _choose(known, question, open_session) or _begin(
                name, known, open_session
            )
        known = self._by_name.setdefault(name, [])
        if conversation in known:
            self._forget(conversation)
        conversation.take(question)
        known.append(conversation)  # the newest last
        self._held += conversation.bytes
        self._by_name.move_to_end(name)
        return conversation

    def release(self, conversation: Conversation) -> None:
        """One request of *conversation* is over."""
        conversation.running -= 1
        self._shrink()

    async def _read_journals(self, name: str, open_session: OpenSession) -> None:
        """Add the conversations called *name* that only the journals know so far.

        Each line of a journal is one. It takes the place of an idle one that knows no more.
        """
        known = self._by_name.setdefault(name, [])
        held = {conversation.session.session_id for conversation in known}
        found: list[Conversation] = []
        for session_id in itertools.islice(session_ids(name), MAX_RESUMED):
            if session_id in held and not self._shared:
                continue
            session = open_session(session_id)
            if session.journal is None:
                break
            try:
                lines = await _lines(session)
            except CtxpipeError:
                continue  # another may be whole; its own turns will say what is wrong with it
            if not lines:
                break
            for line in lines:
                size = sum(map(len, strings(line)))
                found.append(Conversation(name, open_session(session_id), line, size=size))
        self._by_name.setdefault(name, [])  # it may have gone meanwhile
        for conversation in found:
            self._add(conversation)

    def _add(self, found: Conversation) -> None:
        """Add *found*, a line of a journal, unless another one says as much.

        It takes the place of idle ones that say no more than it does.
        """
        known = self._by_name[found.name]
        for conversation in list(known):
            if conversation.session.session_id != found.session.session_id:
                continue
            messages = conversation.messages
            if conversation.question is not None:
                messages = conversation.question.messages
            same = _Agreement.of(messages, found.messages, says_the_same, _is_reply).same
            if same == len(found.messages):
                return
            if same == len(messages) and not conversation.running:
                self._forget(conversation)
        known.insert(0, found)
        self._held += found.bytes

    def _forget(self, conversation: Conversation) -> None:
        self._by_name[conversation.name].remove(conversation)
        self._held -= conversation.bytes

    def _shrink(self) -> None:
        """Let go of the longest unused, until the rest fits."""
        if self._held <= self._max_bytes:
            return
        for name in list(self._by_name):
            for conversation in list(self._by_name[name]):
                if self._held > self._max_bytes and not conversation.running:
                    self._forget(conversation)
            if not self._by_name[name]:
                del self._by_name[name]
            if self._held <= self._max_bytes:
                return


def _choose(
    known: Sequence[Conversation],
    question: Question,
    open_session: OpenSession,
) -> Conversation | None:
    """The one of *known* that *question* continues, else a branch of the one it shares most with.

    None where it shares no reply with any.
    """
    continued, _ = _find_continued(known, question)
    if continued is not None:
        return continued
    branched, most = None, 0
    for conversation in known:
        agreement = conversation.compare(question)
        if agreement.has_reply and agreement.same > most:
            branched, most = conversation, agreement.same
    if branched is None:
        return None
    return Conversation(branched.name, open_session(branched.session.session_id))


def _next_turn_of(known: Sequence[Conversation], question: Question) -> Conversation | None:
    """The one of *known* of which *question* is the next turn, as it is where nobody else answers.

    Of several replies that are new, this process has not passed on all.
    """
    conversation, same = _find_continued(known, question)
    return conversation if question.count_replies(same) <= 1 else None


def _find_continued(
    known: Sequence[Conversation], question: Question
) -> tuple[Conversation | None, int]:
    """The one of *known* that *question* continues furthest, and how many items both have."""
    continued, most = None, 0
    for conversation in known:
        agreement = conversation.compare(question)
        if agreement.is_continued and agreement.same >= most:
            continued, most = conversation, agreement.same
    return continued, most


async def _lines(session: core.Conversation) -> list[Sequence[Message]]:
    """The histories in the journal of *session*. Raises StorageError."""
    branches = ["", *await session.branches()]
    return [history for branch in branches if (history := await session.history(branch=branch))]


def _begin(name: str, known: Sequence[Conversation], open_session: OpenSession) -> Conversation:
    """A new conversation called *name*, beside the *known* ones."""
    ids = {conversation.session.session_id for conversation in known}
    session_id = next(made for made in session_ids(name) if made not in ids)
    return Conversation(name, open_session(session_id))


def _is_reply(message: Message) -> bool:
    return message["role"] == "assistant"
