"""Find how much of a history is unchanged since the last turn.

A caller can change previous messages in two ways. It may pass other messages in their place: that
is found by comparing them with the remembered ones (`compare_histories`). Or it may edit a message
in place, so that the remembered object is the edited one: that is found by the content that the
object had in the last turn (`PreviousContents`). An edit inside a block is found only by digests.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from ..messages import Message, common_prefix, ensure_messages, is_equal, with_content
from ..messages.identity import digest, says_the_same
from ..messages.vocabulary import begins_with
from .earlier import has_only_grown

WATCHED = 200
"""Number of the newest messages that are checked for edits in place in every turn."""
SLICES = 16
"""Number of turns within which all older messages are checked."""
LEAST_SLICE = 16
"""The fewest older messages that are checked in a turn."""


def compare_histories(previous: Sequence[Message], now: list[Message]) -> tuple[int, list[int]]:
    """Return the number of leading messages that say the same, and those that differ in form.

    *previous* are the messages as the session remembers them. Raises InvalidHistory.
    """
    if begins_with(now, previous):
        return len(previous), []
    agreed = common_prefix(previous, now)
    ensure_messages(now, agreed)
    moved: list[int] = []
    shorter = min(len(previous), len(now))
    for index in range(agreed, shorter):
        if is_equal(previous[index], now[index]):
            continue
        if not _may_say_the_same(previous[index], now[index]):
            return index, moved
        moved.append(index)
    return shorter, moved


def _may_say_the_same(previous: Message, now: Message) -> bool:
    """Return True if two messages say the same, or if the caller has emptied the previous one."""
    try:
        return says_the_same(previous, now)
    except (LookupError, TypeError, AttributeError):
        return True  # the remembered content shows whether it differs


class PreviousContents:
    """The content that each message of the history had in the last turn, and its size.

    The size is the number of blocks or characters: a list of blocks that has grown is the same
    object as before. *digests* are only computed for a timeline with ``verify``: those of the
    history, and those of the context.
    """

    def __init__(self) -> None:
        self._contents: list[object] = []
        self._sizes = array("I")
        self._cursor = 0  # the next check of older messages begins there
        self.digests: tuple[list[bytes], list[bytes]] = ([], [])

    def __len__(self) -> int:
        return len(self._contents)

    def record(self, history: Sequence[Message], start: int, *, others: Iterable[int] = ()) -> None:
        """Record the contents of *history* from *start* on, and those with the indices *others*.

        Raises TypeError, before anything changes, if a content has no size.
        """
        contents = [message["content"] for message in history[start:]]
        sizes = _sizes(contents)
        self._contents[start:] = contents
        self._sizes[start:] = array("I", sizes)
        for index in others:
            content = history[index]["content"]
            self._contents[index] = content
            self._sizes[index] = _size(content)

    def move_cursor(self, cursor: int) -> None:
        """Begin the next check of older messages at *cursor*."""
        self._cursor = cursor

    def first_difference(
        self, now: Sequence[Message], agreed: int, *, thorough: bool
    ) -> tuple[int, int]:
        """Return the number of the *agreed* messages before the first one that was edited.

        The second value is the index at which the next check begins. With *thorough* all messages
        are checked, otherwise the newest ones and a slice of the older ones.
        """
        newest = max(0, agreed - WATCHED)
        if thorough or not newest:
            return self.first_edited(now, 0, agreed), self._cursor
        start = self._cursor
        if start >= newest:
            start = 0
        # The number of older messages grows until all have been checked; two slices are for these.
        slice_size = -(-newest // (SLICES - 2))
        stop = min(newest, start + max(LEAST_SLICE, slice_size))
        older = self.first_edited(now, start, stop)
        if older < stop:
            return older, self._cursor  # so that it is found again if the turn fails
        return self.first_edited(now, newest, agreed), stop

    def first_edited(self, now: Sequence[Message], start: int, stop: int) -> int:
        """Return the index of the first message from *start* to *stop* that was edited.

        Returns *stop* if none was.
        """
        try:
            contents = [message["content"] for message in now[start:stop]]
            sizes = _sizes(contents)
        except (KeyError, TypeError):
            ensure_messages(now)
            raise
        seen = self._sizes[start:stop].tolist()
        if seen == sizes and is_equal(contents, self._contents[start:stop]):
            return stop
        for index in range(start, stop):
            if self._differs(now[index], index):
                return index
        return stop

    def has_new_size(self, index: int, content: object) -> bool:
        """Return True if *content*, of message *index*, has another size than in the last turn."""
        return _size(content) != self._sizes[index]

    def has_only_grown(self, index: int, before: Message, now: Message) -> bool:
        """Return True if *now* begins with all that *before*, message *index*, has said."""
        content = self._contents[index]
        if content is now["content"]:
            return _size(content) > self._sizes[index]
        if self.has_new_size(index, content):
            return False  # edited in place: its old content is lost
        return has_only_grown(with_content(before, content), now)

    def _differs(self, message: Message, index: int) -> bool:
        """Return True if *message* was edited since it became message *index* of the history."""
        content = self._contents[index]
        if self.has_new_size(index, content):
            return True  # edited in place: its old content is lost
        if message["content"] is content:
            return False
        return not says_the_same(message, with_content(message, content))

    def count_equal_digests(self, now: Sequence[Message], *, in_context: bool) -> int:
        """Return how many leading messages of *now* have the digest of the last turn.

        They are compared with the context if *in_context* is True, otherwise with the history.
        """
        return common_prefix([digest(message) for message in now], self.digests[in_context])


def _sizes(contents: Sequence[object]) -> list[int]:
    """Return the number of blocks, or of characters, of each of the *contents*."""
    try:
        return [len(content) for content in contents]  # type: ignore[arg-type]
    except TypeError:  # a content is None
        return [_size(content) for content in contents]


def _size(content: object) -> int:
    """Return the number of blocks, or of characters, of *content*."""
    if content is None:
        return 0
    return len(content)  # type: ignore[arg-type]
