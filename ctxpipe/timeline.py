"""History and context as one alignment: what the caller handed in, what is sent, and which stands
for which.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias, cast

from .edits.diff import Edit, apply_edits, diff, first_changed_block
from .edits.thinking import Stale, mark_stale, shift_stale
from .messages import common_prefix, ensure_messages, is_equal
from .messages.identity import digest, parse, parse_from, says_the_same, unmarked, with_marks

if TYPE_CHECKING:
    from .messages import Message
    from .stage import Stored

__all__ = ["Step", "Timeline"]

RECENT = 64
"""Messages from the end in which a caller moves cache marks in place."""
WATCHED = 200
"""Messages from the end that are looked at in every turn for a content that was exchanged or has
grown.
"""
SLICES = 16
"""Turns after which all older messages have been looked at, too."""
LEAST_SLICE = 16
"""Of the older messages so many are looked at in a turn, or all."""

Marked: TypeAlias = "tuple[Message, Message]"
"""A message of the context with other cache marks: in plain form, and as it is sent."""

_content = itemgetter("content")


@dataclass(slots=True)
class Step:
    """What one turn makes of a timeline.

    The first *known* messages of the history stand (with *adopted*: of the context, which the
    caller goes on with as his history), and *messages* follow. Then come the *edits* of the
    stages. *stale* is the thinking of the context that was signed over another text. These five
    repeat the turn on an equal timeline. *stored* are texts that the stages have put into files.

    The others follow from them: the *history* as handed in; what is *given* to the model where no
    stage acts, and the same in plain form, the *context*. Its first *kept* messages are those of
    the last turn, the first *same* untouched; the history goes on in it from message *fresh* on.
    *raw* is the history where the caller keeps it himself, None once he goes on with the context.
    *moved* are messages of the history that changed in form alone, *marked* those of the context
    with other cache marks. *changed* is the first place that an edit has changed, *tail* how many
    messages at the end none has. *is_bulk* says whether to look at the new messages takes long.
    """

    known: int
    adopted: bool
    messages: list[Message]
    edits: list[Edit] = field(default_factory=list)
    stale: Stale = field(default_factory=dict)
    stored: list[Stored] = field(default_factory=list)
    history: list[Message] = field(default_factory=list)
    raw: Sequence[Message] | None = None
    given: list[Message] = field(default_factory=list)
    context: list[Message] = field(default_factory=list)
    kept: int = 0
    fresh: int = 0
    same: int = 0
    moved: list[int] = field(default_factory=list)
    marked: dict[int, Marked] = field(default_factory=dict)
    cursor: int = 0
    digests: tuple[list[bytes], list[bytes]] | None = None
    is_cut: bool = False
    has_diverged: bool = False
    is_bulk: bool | None = None
    changed: tuple[int, int] | None = None
    tail: int = sys.maxsize

    @property
    def is_idle(self) -> bool:
        """Whether the turn leaves the timeline as it was."""
        return not (self.messages or self.edits or self.is_cut or self.adopted)

    def forget_changes(self) -> tuple[int, int] | None:
        """The first place changed so far; what comes is a change of its own."""
        place, self.changed = self.changed, None
        return place

    def edit(
        self, before: Sequence[Message], after: Sequence[Message], *, paired: bool = True
    ) -> list[Edit]:
        """Note that the context *before* has become *after*.

        The edits that say so, *paired* as in `diff`.
        """
        edits = diff(before, after, paired=paired)
        if not edits:
            return edits
        last, first = edits[0], edits[-1]
        place = first.start, first_changed_block(before, first)
        self.changed = min(place, self.changed or place)
        self.tail = min(self.tail, len(before) - last.stop)
        for edit in edits:
            self.stale = shift_stale(self.stale, edit)
        self.edits += edits
        return edits


class Timeline:
    """A conversation: its *history*, its *context*, and what in the one stands for what in the
    other.

    ``context[k]`` stands for ``history[starts[k]:ends[k]]``; both columns rise. The first message
    of an edit stands for all that it took out, the others for nothing. *sent* is the context with
    the caller's own objects wherever they were not touched. As long as nothing was, the three
    lists are one.

    With *verify* every edit inside known messages is noticed, at the price of reading them all.
    """

    __slots__ = (
        "_contents",
        "_cursor",
        "_digests",
        "_ends",
        "_sizes",
        "_starts",
        "_verify",
        "context",
        "history",
        "sent",
        "stale",
    )

    def __init__(self, *, verify: bool = False) -> None:
        self._verify = verify
        self.history: list[Message] = []
        self.context = self.sent = self.history
        self._starts, self._ends = array("q"), array("q")  # empty while nothing was touched
        self.stale: Stale = {}
        self._contents: list[object] = []  # of the history, as they were last seen
        self._sizes = array("I")  # blocks, or characters, of each
        self._cursor = 0
        self._digests: tuple[list[bytes], list[bytes]] = ([], [])  # of history and context

    @property
    def starts(self) -> array[int]:
        """Where in the history each message of the context begins to stand for it."""
        return array("q", range(len(self.history))) if self._is_untouched else self._starts

    @property
    def ends(self) -> array[int]:
        """Where in the history each message of the context ceases to."""
        return array("q", range(1, len(self.history) + 1)) if self._is_untouched else self._ends

    @property
    def _is_untouched(self) -> bool:
        return self.context is self.history

    # A turn ---------------------------------------------------------------------------------------

    def begin(self, history: list[Message], *, thorough: bool = False) -> Step:
        """What *history* means for this timeline, which stays as it is until `apply`.

        One that was shortened, branched or rebuilt is cut back to the common beginning. A caller
        who goes on with the context itself is recognized. With *thorough* every known message is
        looked at for an exchanged content, else the newest and a part of the others. Raises
        InvalidHistory.
        """
        ensure_messages(history, sys.maxsize)  # the new messages are looked at by the runner
        now = list(history)  # what is appended while the turn runs belongs to the next one
        agreed, moved = _agreement(self.history, now)
        adopted = False
        if agreed < len(self.history) and self.context:
            taken, moved_there = _agreement(self.sent, now)
            if (
                taken > agreed
            ):  # whether he goes on with all of the context, or has cut it back already
                agreed, moved, adopted = taken, moved_there, True
        known, cursor = self._unedited(now, agreed, adopted=adopted, thorough=thorough)
        ensure_messages(now, known)
        step = Step(
            known,
            adopted,
            now[known:],
            history=now,
            moved=[i for i in moved if i < known],
            cursor=cursor,
        )
        self._open(step)
        whole = len(self.sent if adopted else self.history)
        step.is_cut = known < whole
        # One message may grow in place; of anything more the caller is told.
        grew = agreed == whole and known >= whole - 1 and step.kept >= len(self.context) - 1
        step.has_diverged = not grew or step.fresh < known
        if self.stale:
            step.stale = {place: block for place, block in self.stale.items() if place < step.kept}
        if step.fresh < known:  # a change is taken back, and the model has answered behind it
            mark_stale(step.stale, step.context, (step.kept, 0))
        return step

    def _standing(self, step: Step) -> tuple[int, int]:
        """How much of the context stands in *step*, and where the history goes on behind it."""
        known = step.known
        if step.adopted or self._is_untouched:
            return known, known
        kept = bisect_right(self._ends, known)
        fresh = self._ends[kept - 1] if kept else 0
        behind = self._starts[kept] if kept < len(self._starts) else len(self.history)
        # What was taken out stays out, unless the caller has gone back to the last of it.
        is_newest = behind == known < len(self.history) and not step.messages
        return kept, behind if fresh < behind <= known and not is_newest else fresh

    def _open(self, step: Step) -> None:
        """The context of *step* before any stage."""
        step.kept, step.fresh = self._standing(step)
        step.marked = dict(self._new_marks(step)) if step.moved or not self._is_untouched else {}
        step.same = min(step.marked, default=step.kept)
        new = step.messages if step.fresh == step.known else step.history[step.fresh :]
        plain = parse_from(step.history, step.fresh)
        pairs = [*zip(plain, new, strict=True), *step.marked.values()]
        are_apart = any(one is not other for one, other in pairs)
        if not are_apart and (self._is_untouched or (step.adopted and self.sent is self.context)):
            step.given = step.context = step.history
            return
        step.given = step.context = [*self.context[: step.kept], *plain]
        for place, (message, _) in step.marked.items():
            step.context[place] = message
        if are_apart or self.sent is not self.context:
            step.given = [*self.sent[: step.kept], *new]
            for place, (_, message) in step.marked.items():
                step.given[place] = message

    def snapshot(self) -> Step:
        """One step from nothing to this timeline, as it is."""
        plain = parse_from(self.history)
        edits = diff(plain, self.context)
        return Step(0, False, list(self.history), edits, self.stale)

    def apply(self, step: Step) -> None:
        """Take *step* in, with its edits."""
        if not step.history:  # it is repeated from a journal
            ours = self.sent if step.adopted else self.history
            step.history = [*ours[: step.known], *step.messages]
            self._open(step)
        if self._verify and step.digests is None:
            self.look(step)
        if step.adopted:
            self.history = self.context = self.sent = list(self.sent)
            self._contents, self._sizes = [], array("I")
        del self.history[step.known :]
        self.history += step.messages
        for index in step.moved:
            self.history[index] = step.history[index]
        if step.context is step.history and not step.edits:
            self.context = self.sent = self.history
            self._starts, self._ends = array("q"), array("q")
        else:
            self._starts = self.starts[: step.kept] + array(
                "q", range(step.fresh, len(self.history))
            )
            self._ends = self.ends[: step.kept] + array(
                "q", range(step.fresh + 1, len(self.history) + 1)
            )
            edits = list(map(self._aligned, step.edits))
            self.context = self.sent = apply_edits(step.context, edits)
            if step.given is not step.context:
                self.sent = apply_edits(step.given, edits)
        self.stale, self._cursor = step.stale, step.cursor
        self._watch(step)

    def _aligned(self, edit: Edit) -> Edit:
        """*edit* as the context takes it in, once the columns say what its messages stand for.

        The first stands for all that went out, the others for nothing.
        """
        start, stop, messages = edit
        first = self._starts[start] if start < stop else self._ends[start - 1] if start else 0
        last = self._ends[stop - 1] if start < stop else first
        self._starts[start:stop] = array(
            "q", [first, *[last] * (len(messages) - 1)][: len(messages)]
        )
        self._ends[start:stop] = array("q", [last] * len(messages))
        if stop - start != 1 or len(messages) != 1:  # nothing is left to take cache marks from
            messages = list(map(unmarked, messages))
        return Edit(start, stop, messages)

    # Edits in place -------------------------------------------------------------------------------

    def is_edited(self, step: Step) -> bool:
        """Whether the content of any message that *step* takes for known was exchanged, or has
        grown.
        """
        is_watched = not (self._verify or step.adopted)
        return is_watched and self._first_edited(step.history, 0, step.known) is not None

    def _unedited(
        self, now: Sequence[Message], agreed: int, *, adopted: bool, thorough: bool
    ) -> tuple[int, int]:
        """How many of the *agreed* messages are as they were, and from where the next turn looks at
        older ones.
        """
        if self._verify:
            pairs = zip(self._digests[adopted], map(digest, now[:agreed]), strict=False)
            return next((index for index, (old, new) in enumerate(pairs) if old != new), agreed), 0
        if adopted:
            return next((place for place in range(agreed) if self._has_grown(place)), agreed), 0
        cursor = self._cursor
        newest = 0 if thorough else max(0, agreed - WATCHED)
        found = self._first_edited(now, newest, agreed)
        if newest:
            start = self._cursor if self._cursor < newest else 0
            stop = min(
                newest, start + max(LEAST_SLICE, -(-newest // (SLICES - 2)))
            )  # it grows meanwhile
            older = self._first_edited(now, start, stop)
            if older is not None:
                return older, self._cursor  # to be found again, should the turn fail
            cursor = stop
        return (agreed if found is None else found), cursor

    def _first_edited(self, now: Sequence[Message], start: int, stop: int) -> int | None:
        try:
            contents = list(map(_content, now[start:stop]))
            sizes = _sizes(contents)
        except (KeyError, TypeError):
            ensure_messages(now)
            raise
        if sizes == self._sizes[start:stop] and is_equal(contents, self._contents[start:stop]):
            return None
        numbered = enumerate(contents, start)
        return next(
            (index for index, content in numbered if self._differs(now[index], index, content)),
            None,
        )

    def _has_grown(self, place: int) -> bool:
        """Whether message *place* of what is sent, an object of the caller's, is not as it was in
        the history.
        """
        index = self._starts[place]
        if index == len(self.history) or self.sent[place] is not self.history[index]:
            return False
        return _size(self.sent[place]["content"]) != self._sizes[index]

    def _differs(self, message: Message, index: int, content: object) -> bool:
        held = self._contents[index]
        if content is held:
            return _size(content) != self._sizes[index]
        if _size(held) != self._sizes[index]:
            return True  # what was there is known no more
        return not says_the_same(message, cast("Message", {**message, "content": held}))

    def look(self, step: Step) -> None:
        """Work out the digests that `apply` keeps of *step*: ahead of it, since that takes long."""
        context = apply_edits(step.context, step.edits)
        same = min([step.kept, *(edit.start for edit in step.edits)])
        history = [*self._digests[step.adopted][: step.known], *map(digest, step.messages)]
        step.digests = history, [*self._digests[1][:same], *map(digest, context[same:])]

    def _watch(self, step: Step) -> None:
        """Remember what edits in place are recognized by."""
        known = min(len(self._contents), step.known)
        contents = list(map(_content, self.history[known:]))
        self._contents[known:] = contents
        self._sizes[known:] = _sizes(contents)
        for index in step.moved:
            self._contents[index] = self.history[index]["content"]
            self._sizes[index] = _size(self._contents[index])
        if step.digests is not None:
            self._digests = step.digests

    # Cache marks ----------------------------------------------------------------------------------

    def _new_marks(self, step: Step) -> Iterator[tuple[int, Marked]]:
        """The messages of the context whose cache marks are no longer those of the history, as they
        are to be.
        """
        if step.adopted or self._is_untouched:
            yield from (
                (index, (parse(step.history[index]), step.history[index])) for index in step.moved
            )
            return
        known = min(len(step.history), len(self.history))
        for index in {*step.moved, *range(max(0, known - RECENT), known)}:
            place = self._place(index)
            if place is None or place >= step.kept:
                continue
            now = step.history[index]
            if self.sent[place] is self.history[index]:
                if index in step.moved:
                    yield place, (parse(now), now)
                continue
            message = with_marks(self.context[place], now)
            if message is not self.context[place]:
                yield place, (message, message)

    def _place(self, index: int) -> int | None:
        """Where message *index* of the history stands in the context, alone.

        None where it does not.
        """
        if self._is_untouched:
            return index
        place = bisect_left(self._ends, index + 1)
        if (
            place == len(self._ends)
            or self._starts[place] != index
            or self._ends[place] != index + 1
        ):
            return None
        return place


def _sizes(contents: list[object]) -> array[int]:
    try:
        return array("I", map(len, contents))  # type: ignore[arg-type]
    except TypeError:  # None among them
        return array("I", map(_size, contents))


def _size(content: object) -> int:
    return 0 if content is None else len(content)  # type: ignore[arg-type]


def _agreement(ours: Sequence[Message], now: list[Message]) -> tuple[int, list[int]]:
    """How many leading messages say the same, and which of them differ in form.

    Raises InvalidHistory.
    """
    # Compared in place: at 20,000 messages a slice of them would take five times as long as the
    # comparison.
    rest = now[len(ours) :]
    del now[len(ours) :]
    are_equal = is_equal(now, ours)
    now += rest
    if are_equal:
        return len(ours), []
    agreed = common_prefix(ours, now)
    ensure_messages(now, agreed)
    moved: list[int] = []
    for index in range(agreed, min(len(ours), len(now))):
        if not is_equal(ours[index], now[index]):
            if not says_the_same(ours[index], now[index]):
                return index, moved
            moved.append(index)
    return min(len(ours), len(now)), moved
