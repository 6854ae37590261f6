"""Which conversation a request continues: one rule for every adapter and for the gateway.

A request continues the conversation of its name with which it has the longest history in common,
compared by what the items say. Where that history was changed before a reply, it goes on as a fork:
under the same session, with what is known of their common beginning. A request that continues none
begins a new conversation. So a name narrows the search, and is never needed: clients that share
one, or that give none, do not disturb each other.

Conversations are looked up by how they begin, their first message and the first reply to it, in
memory and among the journals alike: the id of a session is made of the name and of that beginning.
However many there are, a lookup asks for a few ids.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast
from weakref import WeakValueDictionary

import anyio

from .._logs import logger
from .._threads.bulk import weight
from .._values import JsonObject
from ..conversation.conversation import Conversation
from ..conversation.decisions import Decisions
from ..errors import CtxpipeError
from ..messages import CALLS, THINKING, Message, as_blocks, as_dict, kind, with_content
from ..messages import field as read
from ..messages.identity import digest, says_the_same
from ..placeholders.names import ALL_UNNAMED, SIBLING_CHARS, UNNAMED, hashed_name, sibling_id
from ..placeholders.placeholders import OPENING
from ..providers.response_items import ANSWERED_ITEMS, SERVER_ITEMS, VOLATILE_FIELDS
from ..settings import MAX_SESSION_ID, SESSION_ID
from .body import Body
from .codec import Codec, Item, ItemReader
from .translation import Translation, Verbatim, translation_of
from .values import client_block

MAX_BYTES = 1 << 30
OVERHEAD = 4
"""Bytes that a conversation takes for each byte of its items: as they came, and in its session."""
OWN_BYTES = 16_000
"""Bytes that it takes besides."""
MAX_COMPARED = 256
"""So many of the newest bodies are compared with a new one, to read only what is new of it."""
MAX_REMEMBERED = 10_000
"""So many of the newest responses and calls that providers hold are remembered."""
MAX_CALL = 2_000  # characters of such a call; what a longer one answers stays as it is
READ_BACK = "read_offloaded"
"""The tool whose call an unknown one is taken for."""
MAX_NAME = MAX_SESSION_ID - SIBLING_CHARS
"""A name is cut to this, so that every conversation of it can have an id."""
HELD = (
    "a request continues what the provider holds; results of calls that were not seen here are sent"
    " as they came"
)
ALTERNATING = (
    "several conversations come without a name, and are told apart by their histories alone: to "
    "find them by name in logs and folders, give session_id=, or call the client inside "
    "ctxpipe.wire.conversation(name)"
)

SessionName: TypeAlias = str | Callable[[Any], str | None]
"""The name of the conversation, or a function that finds it in a request; None: it has none."""

OpenSession: TypeAlias = "Callable[[str, bool], Conversation]"
"""Makes the session of an id, which reads its journal at its first turn; an object of its own where
another conversation in memory has that id.
"""

_named: ContextVar[str | None] = ContextVar("ctxpipe_conversation", default=None)


# Names --------------------------------------------------------------------------------------------


@contextmanager
def conversation(name: str) -> Iterator[None]:
    """Meanwhile requests belong to the conversation *name*, whatever is found in them.

    For code that calls a client deep inside somebody else's: ``with conversation("job-42"):``. A
    mount that was given a ``session_id`` keeps to that. Raises SettingsError for an invalid name.
    """
    SESSION_ID.check("name", name)
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def conversation_name(
    session_id: SessionName | None, request: Any, found: Iterable[object] = ()
) -> str:
    """The name of the conversation that *request* belongs to, "" where it has none.

    That is what *session_id* says; else that of `conversation`; else the first text of *found*,
    which is where a framework keeps it.
    """
    given = session_id(request) if callable(session_id) else session_id
    for name in (given, _named.get(), *found):
        if isinstance(name, str) and name:
            return name if len(name) <= MAX_NAME else hashed_name(name, MAX_NAME)
    return ""


def texts_at(holder: JsonObject, *paths: str) -> Iterator[object]:
    """What *holder* has at each of *paths*, such as "metadata.session_id"."""
    for path in paths:
        value: object = holder
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        yield value


# How a conversation begins ------------------------------------------------------------------------


class Beginning(NamedTuple):
    """Digests of a conversation's *first* message and of the *reply* to it, which may not be there.

    Thinking is no part of a reply: clients leave it out later.
    """

    first: bytes
    reply: bytes = b""


def beginning_of(messages: Iterable[Message]) -> Beginning | None:
    """How *messages* begin; None where the user has said nothing.

    Where the client begins with words of the model, such as the history of another agent, only the
    first block of these counts: the first reply may be joined to them.
    """
    first = b""
    is_opened = False
    for message in messages:
        if message["role"] == "user" and not first:
            first = digest(message)
            is_opened = message["content"] == OPENING
        elif message["role"] == "assistant" and first:
            said = [block for block in as_blocks(message) if kind(block) not in THINKING]
            if is_opened:
                said = said[:1]
            return Beginning(first, digest(with_content(message, said)))
    return Beginning(first) if first else None


def _replies(codec: ItemReader, items: Iterable[Item]) -> Iterator[int]:
    """Where in *items* each reply begins; one may have several items."""
    is_in_reply = False
    for index, item in enumerate(items):
        was_in_reply, is_in_reply = is_in_reply, codec.read(item).side == "assistant"
        if is_in_reply and not was_in_reply:
            yield index


def _end_of_asked(codec: ItemReader, items: Sequence[Item]) -> int:
    """Return where the last thing that the model was asked ends in *items*, those of a request.

    An answer behind it is one that the client has begun: the next request has it in other words.
    """
    end = len(items)
    while end and codec.read(items[end - 1]).side == "assistant":
        end -= 1
    return end or len(items)


def session_ids(name: str, begins: Beginning) -> Iterator[str]:
    """Where a conversation *name* that so *begins* may be kept: the first that is its own or free.

    It bears the name alone; or, where another conversation does, it is below that name, by the
    digest of its first message; or of the first reply, too. Without a name the first message is the
    name.
    """
    root = name or f"{UNNAMED}-{begins.first.hex()[:12]}"
    yield root
    yield sibling_id(root, begins.first)
    if begins.reply:
        yield sibling_id(root, begins.first + begins.reply)


# The conversations --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, weakref_slot=True)
class Dialog:
    """One conversation of *name*: its *session*, and the items of its last request.

    They came in *body*, where they came in bytes. *saved* is how many raw tokens its context has
    less than its history, *size* about how long its items are, in bytes or characters. One that
    *is_provisional* has asked no more than others have: it gets a session of its own with its first
    reply.
    """

    name: str
    session: Conversation
    codec: ItemReader = field(repr=False)
    begins: Beginning = field(repr=False)
    translation: Translation | Verbatim = field(init=False, repr=False)
    items: Sequence[Item] = field(default=(), repr=False)
    body: Body | None = field(default=None, repr=False)
    lock: anyio.Lock = field(default_factory=anyio.Lock, repr=False)
    saved: int = 0
    size: int = 0
    is_provisional: bool = False

    def __post_init__(self) -> None:
        self.translation = translation_of(self.codec)

    @property
    def bytes(self) -> int:
        """What it takes in memory, about."""
        return OWN_BYTES + OVERHEAD * self.size

    def agreement(self, items: Sequence[Item]) -> Agreement:
        """How far *items* say what this conversation has said."""
        same = 0
        for one, other in zip(self.items, items, strict=False):
            if one is not other and not _say_the_same(self.codec, one, other):
                break
            same += 1
        later_items = self.items[same : max(same, _end_of_asked(self.codec, self.items))]
        is_continued = same > 0 and next(_replies(self.codec, later_items), None) is None
        return Agreement(same, is_continued)


class Held(NamedTuple):
    """What the provider holds: a response of a session, or a *call* in one."""

    session_id: str
    call: Item | None = None


class Agreement(NamedTuple):
    """How many leading items are the *same*, and whether the conversation *is_continued*.

    It is where no reply was dropped: a request that was not answered in the history was a side
    question, or is asked again in other words.
    """

    same: int
    is_continued: bool


def _say_the_same(codec: ItemReader, one: Item, other: Item) -> bool:
    """Whether two items do, whatever their form and cache marks are."""
    ours, theirs = codec.read(one), codec.read(other)
    if ours.side != theirs.side:
        return False
    blocks = ({"role": "user", "content": reading.blocks} for reading in (ours, theirs))
    return says_the_same(*cast("Iterator[Message]", blocks))


class Conversations:
    """The conversations of one mount or gateway.

    At most *max_bytes* and *max_sessions* of them stay in memory; the longest unused go first, and
    are found again in their journals. Several processes may write to these: a journal is read where
    a request goes on from further back than a turn, or where its conversation has just begun.

    What one conversation of a name has moved to files is moved again where another one of that name
    sends it. With *is_one_client* the conversations without a name are of one client, and have that
    in common, too.
    """

    def __init__(
        self,
        *,
        max_sessions: int = 10_000,
        max_bytes: int = MAX_BYTES,
        is_one_client: bool = False,
    ) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._held: OrderedDict[Dialog, None] = OrderedDict()  # the longest unused first
        self._by_key: dict[object, list[Dialog]] = {}
        self._by_id: dict[object, list[Dialog]] = {}
        self._newest_unnamed: Dialog | None = None
        self._warned: set[str] = set()
        self._remembered: OrderedDict[str, Held] = OrderedDict()  # the oldest first
        self._reply_items: OrderedDict[bytes, None] = OrderedDict()  # the oldest first
        self.bytes: int = 0  # what all of them take in memory, about
        self._is_one_client = is_one_client
        self._decisions: WeakValueDictionary[str, Decisions] = WeakValueDictionary()

    def __iter__(self) -> Iterator[Dialog]:
        return iter(self._held)

    async def find(
        self,
        name: str,
        codec: ItemReader,
        items: Sequence[Item],
        open_session: OpenSession,
        body: Body | None = None,
    ) -> Dialog | None:
        """The conversation *name* that *items* continue; None where the user says nothing in them.

        *body* is what they came in, where that were bytes.
        """
        # Up to the second reply: whether calls are answered is said after the first.
        end = _end_of_asked(codec, items)
        second = next(itertools.islice(_replies(codec, items[:end]), 1, None), end)
        begins = beginning_of(translation_of(codec).read(items[:second]).messages)
        if begins is None:
            return None
        dialog = None
        while dialog is None:  # while journals were read, another request may have begun the same
            dialog, is_certain = self._find_continued(name, codec, begins, items)
            if not is_certain:
                dialog = await self._open(name, codec, begins, items, open_session, dialog)
                if dialog is not None:
                    self.share(dialog.session, name)
        if not name:
            if dialog in self._held and dialog is not self._newest_unnamed:
                self.warn_once(ALTERNATING)
            self._newest_unnamed = dialog
        self._forget(dialog)
        new = weight(items[len(dialog.items) :])
        dialog.size = len(body.raw) if body is not None else dialog.size + new
        dialog.items, dialog.begins, dialog.body = items, begins, body
        self._held[dialog] = None
        self.bytes += dialog.bytes
        for index, key in self._places(dialog):
            index.setdefault(key, []).append(dialog)
        while len(self._held) > 1 and (
            self.bytes > self._max_bytes or len(self._held) > self._max_sessions
        ):
            self._forget(next(iter(self._held)))
        return dialog

    def remember(self, reply: object, codec: ItemReader, session_id: str) -> None:
        """Remember the id and the calls of *reply*, which the provider may hold."""
        output = read(reply, "output")
        if not output:
            return
        self._remembered[str(read(reply, "id"))] = Held(session_id)
        for item in output:
            for block in codec.read(item).blocks:
                if kind(block) in CALLS and weight([item]) < MAX_CALL:
                    self._remembered[block["id"]] = Held(session_id, item)
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def remember_items(self, items: Iterable[object]) -> None:
        """Remember *items* of a reply, so that they are part of it when the client sends them back.

        Those of a known type need not be remembered. One that defines tools stays the client's: it
        governs what the model can do, and must not be summarized with the reply.
        """
        for item in items:
            name = kind(item)
            is_known = name in SERVER_ITEMS or name in ANSWERED_ITEMS or name == "message"
            if is_known or isinstance(read(item, "tools"), list | tuple):
                continue
            for key in _item_keys(item):
                self._reply_items[key] = None
                self._reply_items.move_to_end(key)
        while len(self._reply_items) > MAX_REMEMBERED:
            self._reply_items.popitem(last=False)

    def is_from_reply(self, item: Item) -> bool:
        """Return True if *item* was in a reply that was seen here."""
        if not self._reply_items:
            return False
        return any(key in self._reply_items for key in _item_keys(item))

    def bind(self, codec: Codec, max_head_chars: int) -> Codec:
        """Return a copy of *codec* that knows which items were in replies.

        *max_head_chars* limits the unknown items of its head.
        """
        return codec.for_conversations(max_head_chars, self.is_from_reply)

    def recall(self, state_id: str, codec: Codec, items: Iterable[Item]) -> tuple[str, list[Item]]:
        """The id of the session that what the provider holds as *state_id* is of, "" where that is
        unknown, and the calls that *items* answer.

        A call that is unknown is taken for one that reads back: what that gives is not offloaded.
        """
        session_id = self._remembered.get(state_id, Held("")).session_id
        calls: list[Item] = []
        for block in (block for item in items for block in codec.read(item).blocks):
            if kind(block) != "tool_result":
                continue
            name = block["tool_use_id"]
            known = self._remembered.get(name)
            if known is None:
                self.warn_once(HELD)
                use = {"type": "tool_use", "id": name, "name": READ_BACK, "input": {}}
                calls += codec.new("assistant", [use])
            else:
                session_id = session_id or known.session_id
                calls.append(known.call)
        return session_id, calls

    def share(self, session: Conversation, name: str) -> None:
        """Have *session*, a conversation *name*, share what goes to files with others of that name.

        Those without a name share it where they are of one client.
        """
        scope_id = name or (ALL_UNNAMED if self._is_one_client else "")
        if not scope_id:
            return
        decisions = self._decisions.get(scope_id)
        if decisions is None:
            decisions = self._decisions[scope_id] = Decisions(scope_id)
        session.share(decisions)

    def bodies(self) -> Iterator[Body]:
        """What the newest conversations have asked last, the newest first."""
        newest = itertools.islice(reversed(self._held), MAX_COMPARED)
        return (dialog.body for dialog in newest if dialog.body is not None)

    def warn_once(self, text: str) -> None:
        """Log *text* the first time only."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)

    def _forget(self, dialog: Dialog) -> None:
        if dialog not in self._held:
            return
        del self._held[dialog]
        self.bytes -= dialog.bytes
        for index, key in self._places(dialog):
            index[key].remove(dialog)
            if not index[key]:
                del index[key]

    def _places(self, dialog: Dialog) -> Iterator[tuple[dict[object, list[Dialog]], object]]:
        """Each index that *dialog* is in, and what it is there under."""
        yield self._by_key, (dialog.name, type(dialog.codec), dialog.begins)
        if not dialog.is_provisional:
            yield self._by_id, dialog.session.session_id

    def _find_continued(
        self, name: str, codec: ItemReader, begins: Beginning, items: Sequence[Item]
    ) -> tuple[Dialog | None, bool]:
        """The one in memory that *items* continue furthest, and whether it is certain that no
        journal knows more: of several replies that are new, another process has passed on some.
        """
        near = list(self._by_key.get((name, type(codec), begins), ()))
        if begins.reply:
            near += self._by_key.get((name, type(codec), Beginning(begins.first)), ())
        continued, most = None, 0
        for dialog in near:
            agreement = dialog.agreement(items)
            if agreement.is_continued and agreement.same >= most:
                continued, most = dialog, agreement.same
        if continued is None or (continued.is_provisional and begins.reply):
            return None, False
        if continued.session.journal is None or continued.session.has_unsaved:
            return continued, True
        has_parted = begins.reply != continued.begins.reply
        return continued, not has_parted and len(list(_replies(codec, items[most:]))) <= 1

    async def _open(
        self,
        name: str,
        codec: ItemReader,
        begins: Beginning,
        items: Sequence[Item],
        open_session: OpenSession,
        likely: Dialog | None,
    ) -> Dialog | None:
        """The conversation that begins so: *likely*, unless its journal knows more, or one that
        memory does not hold. None where memory has got others meanwhile.
        """
        is_new = {Beginning(begins.first)}
        session_id = ""
        for session_id in session_ids(name, begins):
            holders = list(self._by_id.get(session_id, ()))
            session = open_session(session_id, bool(holders))
            lines = await _histories(session)
            if holders != list(self._by_id.get(session_id, ())):
                return None
            found = {beginning_of(line) for line in lines} | {holder.begins for holder in holders}
            if begins not in found and not found <= is_new:
                continue  # of another conversation
            if likely in holders:
                known = len(likely.session.known)
                if all(len(line) <= known for line in lines):
                    return likely
                self._forget(likely)
            elif holders and session.journal is None:
                nearest = max(holders, key=lambda holder: holder.agreement(items).same)
                session = nearest.session.fork()
            return Dialog(name, session, codec, begins)
        # It says no more than others do so far. What it begins with is shaped without a journal.
        session = open_session(session_id, True).fork()
        return Dialog(name, session, codec, begins, is_provisional=True)


def _item_keys(item: object) -> Iterator[bytes]:
    """Yield what an item of a reply is recognized by when the client sends it back.

    That is its id, which some clients leave out, and what it says without the fields that clients
    change.
    """
    name = kind(item)
    own = read(item, "id")
    if isinstance(own, str) and own:
        yield _hash(f"{name} {own}")
    plain = as_dict(item)
    said = {
        key: value
        for key, value in plain.items()
        if value is not None and key not in VOLATILE_FIELDS
    }
    yield _hash(client_block(said, name)["json"])


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


async def _histories(session: Conversation) -> list[Sequence[Message]]:
    """What *session* knows, else the lines of its journal; none where that cannot be read."""
    if session.known or session.journal is None:
        return [session.known] if session.known else []
    try:
        branches = ["", *await session.branches()]
        return [history for name in branches if (history := await session.history(branch=name))]
    except CtxpipeError:
        return []  # its first turn says what is wrong with it
