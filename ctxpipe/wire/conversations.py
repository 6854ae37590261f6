"""Find the conversation that a request continues, for every adapter and for the gateway.

A request continues the conversation of its name with which it has the longest history in common;
items are compared by content. If that history was changed before a reply, the request continues as
a fork in the same session, with the records of the common beginning. A request that continues no
conversation begins a new one. So a name narrows the search but is never required: clients that
share a name, or send none, do not disturb each other.

Conversations are looked up by their beginning, the first message and the first reply to it, both in
memory and in journals: the id of a session is derived from the name and the beginning. However many
conversations exist, a lookup reads only a few ids. For example, three conversations called "job-42"
have these sessions:

    job-42                     first message "Fix bug A."
    job-42/<digest of first>   first message "Fix bug B.", first reply "I read b.py."
    job-42/<digest of both>    first message "Fix bug B.", first reply "I run the tests."
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, cast
from weakref import WeakValueDictionary

import anyio

from .._logs import logger
from .._threads.bulk import weight
from .._values import JsonObject
from ..errors import CtxpipeError
from ..messages import (
    CALLS,
    THINKING,
    Message,
    as_blocks,
    as_dict,
    common_prefix,
    kind,
    with_content,
)
from ..messages import field as read
from ..messages.identity import digest, says_the_same
from ..placeholders.names import ALL_UNNAMED, SIBLING_CHARS, UNNAMED, hashed_name, sibling_id
from ..placeholders.placeholders import OPENING
from ..providers.response_items import ANSWERED_ITEMS, SERVER_ITEMS, VOLATILE_FIELDS
from ..session.conversation import Conversation
from ..settings import MAX_SESSION_ID, SESSION_ID
from ..stages.offload.shared_decisions import SharedDecisions
from .body import Body
from .body_index import BodyIndex
from .codec import Codec, Item, ItemReader
from .translation import Translation, Verbatim, translation_of
from .values import client_block

MAX_BYTES = 1 << 30
OVERHEAD = 4
"""Bytes of memory for each byte of a conversation's items, including their copy in a session."""
OWN_BYTES = 16_000
"""Memory in bytes for a conversation without items."""
MAX_REMEMBERED = 10_000
"""Maximum number of remembered responses and calls that a provider stores."""
MAX_CALL = 2_000
"""Maximum size of a remembered call, in characters; the result of a longer one stays unchanged."""
READ_BACK = "read_offloaded"
"""Tool name used for a call that the provider stores and that is not remembered here."""
MAX_NAME = MAX_SESSION_ID - SIBLING_CHARS
"""Maximum length of a name: it leaves space for the suffix of a session's id."""
UNKNOWN_CALLS = (
    "a request continues a conversation that the provider stores; results of calls that this "
    "process has not received are sent unchanged"
)
UNNAMED_CONVERSATIONS = (
    "several conversations have no name and are distinguished by their histories only: to find "
    "them by name in logs and folders, give session_id=, or call the client inside "
    "ctxpipe.wire.conversation(name)"
)

SessionName: TypeAlias = str | Callable[[Any], str | None]
"""Name of the conversation, or a function that finds it in a request and may return None."""


class OpenSession(Protocol):
    """Function that creates the session of an id; the session reads its journal at its first turn.

    *is_id_used* is True if another conversation in memory has that id: then the function must
    return a separate object.
    """

    def __call__(self, session_id: str, *, is_id_used: bool) -> Conversation: ...


_block_name: ContextVar[str | None] = ContextVar("ctxpipe_conversation", default=None)


# Names --------------------------------------------------------------------------------------------


@contextmanager
def conversation(name: str) -> Iterator[None]:
    """Give all requests within the ``with`` statement the conversation *name*.

    Use it around code of another library that calls the client: ``with conversation("job-42"):``.
    An adapter with a *session_id* ignores it. Raises SettingsError if the name is invalid.
    """
    SESSION_ID.check("name", name)
    token = _block_name.set(name)
    try:
        yield
    finally:
        _block_name.reset(token)


def conversation_name(
    session_id: SessionName | None, request: Any, candidates: Iterable[object] = ()
) -> str:
    """Return the name of the conversation of *request*, "" if it has none.

    It is the value of *session_id*, else the name of the block `conversation`, else the first text
    among *candidates*, the values in which a framework may store a name.
    """
    chosen_name = session_id(request) if callable(session_id) else session_id
    for name in (chosen_name, _block_name.get(), *candidates):
        if isinstance(name, str) and name:
            return name if len(name) <= MAX_NAME else hashed_name(name, MAX_NAME)
    return ""


def texts_at(holder: JsonObject, *paths: str) -> Iterator[object]:
    """Yield the value in *holder* at each of *paths*, such as "metadata.session_id"."""
    for path in paths:
        value: object = holder
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        yield value


# Beginnings of conversations ----------------------------------------------------------------------


class Beginning(NamedTuple):
    """Digests of a conversation's *first* message and of the first *reply*, b"" without a reply.

    The digest of a reply excludes thinking, because clients omit it later.
    """

    first: bytes
    reply: bytes = b""


def beginning_of(messages: Iterable[Message]) -> Beginning | None:
    """Return the beginning of *messages*, None without a message of the user.

    If the history begins with words of the model, such as the history of another agent, only the
    first block of these is included: the first reply may be merged with them later.
    """
    first = b""
    is_opened = False
    for message in messages:
        if message["role"] == "user" and not first:
            first = digest(message)
            is_opened = message["content"] == OPENING
        elif message["role"] == "assistant" and first:
            reply_blocks = [block for block in as_blocks(message) if kind(block) not in THINKING]
            if is_opened:
                reply_blocks = reply_blocks[:1]
            return Beginning(first, digest(with_content(message, reply_blocks)))
    return Beginning(first) if first else None


def _replies(codec: ItemReader, items: Iterable[Item]) -> Iterator[int]:
    """Yield the index of the first item of each reply in *items*.

    Adjacent items of the assistant are one reply.
    """
    was_in_reply = False
    for index, item in enumerate(items):
        is_in_reply = codec.read(item).side == "assistant"
        if is_in_reply and not was_in_reply:
            yield index
        was_in_reply = is_in_reply


def _end_of_prompt(codec: ItemReader, items: Sequence[Item]) -> int:
    """Return the index after the last item of the request *items* that is not of the assistant.

    Assistant items at the end are the beginning of an answer, written by the client; the next
    request contains that answer in other words.
    """
    end = len(items)
    while end and codec.read(items[end - 1]).side == "assistant":
        end -= 1
    return end or len(items)


def session_ids(name: str, beginning: Beginning) -> Iterator[str]:
    """Yield the ids that the session of a conversation may have, the preferred one first.

    The first id is the name itself. If another conversation uses it, the next ids add the digest of
    the first message, and then also that of the first reply. A conversation without a name is named
    by the digest of its first message.
    """
    root = name or f"{UNNAMED}-{beginning.first.hex()[:12]}"
    yield root
    yield sibling_id(root, beginning.first)
    if beginning.reply:
        yield sibling_id(root, beginning.first + beginning.reply)


# The conversations --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, weakref_slot=True)
class Dialog:
    """A conversation called *name*: its *session*, and the *items* of its last request.

    *sent_items* are those that were sent instead, if an adapter places cache breakpoints in them.
    *body* is the body that contained the items, None if they were passed as objects.
    *saved_tokens* is the number of raw tokens that shaping has saved, *size* the approximate size
    of the items in bytes or characters. A conversation that *is_provisional* so far equals the
    beginning of another one; it gets its own session with its first reply.
    """

    name: str
    session: Conversation
    codec: ItemReader = field(repr=False)
    beginning: Beginning = field(repr=False)
    translation: Translation | Verbatim = field(init=False, repr=False)
    items: Sequence[Item] = field(default=(), repr=False)
    sent_items: Sequence[Item] = field(default=(), repr=False)
    body: Body | None = field(default=None, repr=False)
    lock: anyio.Lock = field(default_factory=anyio.Lock, repr=False)
    saved_tokens: int = 0
    size: int = 0
    is_provisional: bool = False

    def __post_init__(self) -> None:
        self.translation = translation_of(self.codec)

    @property
    def bytes(self) -> int:
        """Approximate memory that the conversation takes, in bytes."""
        return OWN_BYTES + OVERHEAD * self.size

    def compare(self, items: Sequence[Item]) -> Continuation:
        """Count the first *items* that equal those of this conversation's last request.

        Form and cache marks of equal items may differ. The conversation is continued if at least
        one item is equal, and no reply in the prompt of that request comes after the last equal
        one.
        """
        same = common_prefix(self.items, items)
        for one, other in zip(self.items[same:], items[same:], strict=False):
            if not _say_the_same(self.codec, one, other):
                break
            same += 1
        later_items = self.items[same : max(same, _end_of_prompt(self.codec, self.items))]
        is_continued = same > 0 and next(_replies(self.codec, later_items), None) is None
        return Continuation(same, is_continued)


class ProviderState(NamedTuple):
    """A response that the provider stores, of a session, or a *call* in such a response."""

    session_id: str
    call: Item | None = None


class Continuation(NamedTuple):
    """Number of leading items that are the *same*, and whether the conversation *is_continued*.

    A conversation is continued if no reply was dropped. A dropped request without a reply was a
    side question, or is repeated in other words.
    """

    same: int
    is_continued: bool


def _say_the_same(codec: ItemReader, one: Item, other: Item) -> bool:
    """Return True if both items have equal contents; their form and cache marks may differ."""
    first = codec.read(one)
    second = codec.read(other)
    if first.side != second.side:
        return False
    return says_the_same(
        cast("Message", {"role": "user", "content": first.blocks}),
        cast("Message", {"role": "user", "content": second.blocks}),
    )


class Conversations:
    """The conversations of one adapter or gateway.

    At most *max_bytes* and *max_sessions* of them stay in memory; the least recently used ones
    leave first, and are found again in their journals. Several processes may write to the same
    journals: a journal is read if a request continues from more than one turn ago, or if its
    conversation is new.

    Content that one conversation of a name has moved to files is also moved if another conversation
    of that name contains it. With *is_one_client* this includes all conversations without a name,
    because all of them belong to the same client.
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
        self._dialogs: OrderedDict[Dialog, None] = OrderedDict()  # the least recently used first
        self._by_key: dict[object, list[Dialog]] = {}
        self._by_id: dict[object, list[Dialog]] = {}
        self._newest_unnamed: Dialog | None = None
        self._warned: set[str] = set()
        self._provider_states: OrderedDict[str, ProviderState] = OrderedDict()  # the oldest first
        self._reply_items: OrderedDict[bytes, None] = OrderedDict()  # the oldest first
        self.bytes: int = 0
        """Approximate memory that all conversations take, in bytes."""
        self._bodies = BodyIndex()
        self._is_one_client = is_one_client
        self._decisions: WeakValueDictionary[str, SharedDecisions] = WeakValueDictionary()

    def __iter__(self) -> Iterator[Dialog]:
        return iter(self._dialogs)

    async def find(
        self,
        name: str,
        codec: ItemReader,
        items: Sequence[Item],
        open_session: OpenSession,
        body: Body | None = None,
    ) -> Dialog | None:
        """Return the conversation *name* that *items* continue, or a new one.

        Returns None if they contain no message of the user. *codec* reads the items. *open_session*
        opens a session by its id. *body* is the body with the items, None if they were passed as
        objects.

        The conversation is added to those in memory, with *items* as its newest ones. If these are
        too many or too large, the ones unused for the longest time are removed from memory.
        """
        # Up to the second reply, because the results of calls follow the first one.
        end = _end_of_prompt(codec, items)
        second = next(itertools.islice(_replies(codec, items[:end]), 1, None), end)
        beginning = beginning_of(translation_of(codec).read(items[:second]).messages)
        if beginning is None:
            return None
        dialog = None
        while dialog is None:  # another request may begin the same while journals are read
            dialog, is_certain = self._find_continued(name, codec, beginning, items)
            if not is_certain:
                dialog = await self._open(name, codec, beginning, items, open_session, dialog)
                if dialog is not None:
                    self.share(dialog.session, name)
        if not name:
            if dialog in self._dialogs and dialog is not self._newest_unnamed:
                self.warn_once(UNNAMED_CONVERSATIONS)
            self._newest_unnamed = dialog
        self._forget(dialog)
        if body is not None:
            if dialog.body is not None:
                body.continue_writing(dialog.body)
            dialog.size = body.size
        else:
            dialog.size += weight(items[len(dialog.items) :])
        dialog.items = items
        dialog.beginning = beginning
        dialog.body = body
        self._dialogs[dialog] = None
        self.bytes += dialog.bytes
        if body is not None:
            self._bodies.add(body)
        for index, key in self._places(dialog):
            index.setdefault(key, []).append(dialog)
        while len(self._dialogs) > 1 and (
            self.bytes > self._max_bytes or len(self._dialogs) > self._max_sessions
        ):
            self._forget(next(iter(self._dialogs)))
        return dialog

    def remember(self, reply: object, codec: ItemReader, session_id: str) -> None:
        """Remember the id and the calls of *reply*, which the provider may store.

        *codec* reads the reply's items. *session_id* is the session that the id and the calls lead
        to. A call with a weight of `MAX_CALL` or more is not remembered, and the oldest entries
        above `MAX_REMEMBERED` are dropped. Does nothing if the reply has no output.
        """
        output = read(reply, "output")
        if not output:
            return
        self._provider_states[str(read(reply, "id"))] = ProviderState(session_id)
        for item in output:
            for block in codec.read(item).blocks:
                if kind(block) in CALLS and weight([item]) < MAX_CALL:
                    self._provider_states[block["id"]] = ProviderState(session_id, item)
        while len(self._provider_states) > MAX_REMEMBERED:
            self._provider_states.popitem(last=False)

    def remember_items(self, items: Iterable[object]) -> None:
        """Remember the unknown items of a reply, to recognize them when the client sends them back.

        Items of known types need not be remembered. An item that defines tools is treated as the
        client's: it governs what the model can do, so it must not be summarized with the reply.
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
        """Return True if *item* was in a reply that this process has received."""
        if not self._reply_items:
            return False
        return any(key in self._reply_items for key in _item_keys(item))

    def bind(self, codec: Codec, max_head_chars: int) -> Codec:
        """Return a copy of *codec* that recognizes unknown items of earlier replies.

        *max_head_chars* limits the unknown items that may belong to the head of a request.
        """
        return codec.for_conversations(max_head_chars, self.is_from_reply)

    def recall(self, state_id: str, codec: Codec, items: Iterable[Item]) -> tuple[str, list[Item]]:
        """Return the session id of the provider's state *state_id*, and the calls of the results.

        If that state is unknown, the id is that of the first known call, or "" without one. The
        calls are those that the results in *items*, read by *codec*, answer. An unknown call is
        replaced with a call of `READ_BACK`, whose result is not offloaded, and a warning is logged
        once.
        """
        session_id = self._provider_states.get(state_id, ProviderState("")).session_id
        calls: list[Item] = []
        for item in items:
            for block in codec.read(item).blocks:
                if kind(block) != "tool_result":
                    continue
                call_id = block["tool_use_id"]
                state = self._provider_states.get(call_id)
                if state is None:
                    self.warn_once(UNKNOWN_CALLS)
                    use = {"type": "tool_use", "id": call_id, "name": READ_BACK, "input": {}}
                    calls += codec.new("assistant", [use])
                else:
                    session_id = session_id or state.session_id
                    calls.append(state.call)
        return session_id, calls

    def share(self, session: Conversation, name: str) -> None:
        """Let *session* share decisions about offloading with other conversations called *name*.

        Conversations without a name share them only if they all belong to one client.
        """
        scope_id = name or (ALL_UNNAMED if self._is_one_client else "")
        if not scope_id:
            return
        decisions = self._decisions.get(scope_id)
        if decisions is None:
            decisions = SharedDecisions(scope_id)
            self._decisions[scope_id] = decisions
        session.share(decisions)

    def bodies(self, key: str) -> list[Body]:
        """Return the last body of each conversation whose items have the name *key*.

        They are in the order of their bytes, as `nearest` expects them.
        """
        return self._bodies.bodies(key)

    def warn_once(self, text: str) -> None:
        """Log the warning *text*, the first time only."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)

    def _forget(self, dialog: Dialog) -> None:
        """Remove *dialog* from memory and from the indices; do nothing if it is not there."""
        if dialog not in self._dialogs:
            return
        del self._dialogs[dialog]
        self.bytes -= dialog.bytes
        if dialog.body is not None:
            self._bodies.remove(dialog.body)
        for index, key in self._places(dialog):
            index[key].remove(dialog)
            if not index[key]:
                del index[key]

    def _places(self, dialog: Dialog) -> Iterator[tuple[dict[object, list[Dialog]], object]]:
        """Yield each index that contains *dialog*, with its key there."""
        yield self._by_key, (dialog.name, type(dialog.codec), dialog.beginning)
        if not dialog.is_provisional:
            yield self._by_id, dialog.session.session_id

    def _find_continued(
        self, name: str, codec: ItemReader, beginning: Beginning, items: Sequence[Item]
    ) -> tuple[Dialog | None, bool]:
        """Return the conversation in memory with which *items* have the most in common.

        Only conversations with this *name* and type of *codec* are compared, of which the
        *beginning* is the same or was only its first message, without a reply. The first value is
        None if *items* continue none of them. The second value is True if certainly no journal
        contains more of it. If *items* contain several new replies, another process has forwarded
        some of them.
        """
        candidates = list(self._by_key.get((name, type(codec), beginning), ()))
        if beginning.reply:
            candidates += self._by_key.get((name, type(codec), Beginning(beginning.first)), ())
        best = None
        most = 0
        for dialog in candidates:
            continuation = dialog.compare(items)
            if continuation.is_continued and continuation.same >= most:
                best = dialog
                most = continuation.same
        if best is None or (best.is_provisional and beginning.reply):
            return None, False
        if best.session.journal is None or best.session.owned_history.has_unsaved:
            return best, True
        if best.beginning.reply != beginning.reply:
            return best, False
        new_reply_count = len(list(_replies(codec, items[most:])))
        return best, new_reply_count <= 1

    async def _open(
        self,
        name: str,
        codec: ItemReader,
        beginning: Beginning,
        items: Sequence[Item],
        open_session: OpenSession,
        likely: Dialog | None,
    ) -> Dialog | None:
        """Return the conversation with this *beginning*: from memory, from a journal, or a new one.

        *name*, *codec*, *items* and *open_session* are those of `find`.

        It is *likely*, a conversation in memory, unless its journal contains more. Returns None if
        other conversations were added to memory while journals were read.
        """
        without_reply = {Beginning(beginning.first)}
        session_id = ""
        for session_id in session_ids(name, beginning):
            holders = list(self._by_id.get(session_id, ()))
            session = open_session(session_id, is_id_used=bool(holders))
            lines = await _histories(session)
            if holders != list(self._by_id.get(session_id, ())):
                return None
            # The id is this conversation's if another history with the same beginning is stored
            # there, or if nothing there has a reply yet.
            beginnings = {beginning_of(line) for line in lines}
            beginnings |= {holder.beginning for holder in holders}
            if beginning not in beginnings and not beginnings <= without_reply:
                continue  # the id belongs to another conversation
            if likely in holders:
                history_length = len(likely.session.memory.history)
                if all(len(line) <= history_length for line in lines):
                    return likely
                self._forget(likely)
            elif holders and session.journal is None:
                nearest = max(holders, key=lambda holder: holder.compare(items).same)
                session = nearest.session.fork()
            return Dialog(name, session, codec, beginning)
        # All ids belong to others with the same first message. Until its first reply shows whether
        # this conversation continues one of them, it is shaped without a journal.
        session = open_session(session_id, is_id_used=True).fork()
        return Dialog(name, session, codec, beginning, is_provisional=True)


def _item_keys(item: object) -> Iterator[bytes]:
    """Yield digests by which an item of a reply is recognized when the client sends it back.

    The first is that of its id, which some clients leave out; the second that of its fields except
    those that clients change.
    """
    name = kind(item)
    item_id = read(item, "id")
    if isinstance(item_id, str) and item_id:
        yield _hash(f"{name} {item_id}")
    stable_fields = {
        key: value
        for key, value in as_dict(item).items()
        if value is not None and key not in VOLATILE_FIELDS
    }
    yield _hash(client_block(stable_fields, name)["json"])


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


async def _histories(session: Conversation) -> list[Sequence[Message]]:
    """Return the history of *session*, or those of all branches in its journal if it has none yet.

    Returns an empty list if the journal cannot be read.
    """
    if session.memory.history:
        return [session.memory.history]
    if session.journal is None:
        return []
    histories: list[Sequence[Message]] = []
    try:
        for name in ["", *await session.owned_history.branches()]:
            history = await session.owned_history.read(branch=name)
            if history:
                histories.append(history)
    except CtxpipeError:
        return []  # the session's first turn reports the error
    return histories
