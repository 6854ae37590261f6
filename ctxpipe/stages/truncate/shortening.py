"""Shorten the middle of a history until it is short enough.

One pass, `shorten`, does up to three things: it folds the results that show a file to the names
that the file defines, it removes tool calls that are not needed any more (`calls`), and, if the
history is still too long, it deletes one run of messages around the center (`deletion`).

`shorten_until_it_fits` repeats the pass, each time with the new middle. Content that must be
carried on stays in all these passes. `shorten_carried` removes that as well, the largest messages
first, if nothing else is left to remove.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from ..._text import short_repr
from ..._threads.threads import in_thread
from ...messages import Message, rewrite
from ...tokens import TokenCounter
from ..file_folding import FileFolder, fold_files
from ..reading.citations import without_dangling_citations
from ..reading.groups import after_compaction, has_compaction
from ..reading.pins import pinned_indices
from ..reports import Truncated
from . import selection
from .calls import FileView, file_views, filter_calls
from .deletion import delete_center
from .parts import EditableRegion, join_parts
from .selection import MiddleRules, Window


@dataclass(frozen=True, slots=True, repr=False)
class Truncation:
    """Result of `smart_truncate`: the shortened messages, and a report of the removed parts.

    Token counts in *detail* are raw (exact tiktoken).
    """

    messages: list[Message] = field(repr=False)
    detail: Truncated

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class ShorteningTask:
    """A history to shorten, and how far.

    - ``sums[n]`` are the raw tokens of the first n messages, *overhead* those of the system prompt
      and the tools, counted by *counter*.
    - *limit* is the largest number of tokens, raw and with the overhead, that should remain. The
      run of messages that is deleted saves what is above *aim*, or above *limit* if that is None.
    - *window* says how long the deleted run is (see `delete_center`). *marker* is added to the
      user's last message before it.
    - *folder* folds file views; None is the default one.
    - Nothing before message *protected* changes. If *strict* is True, nothing outside the middle
      changes either, except file views before the last turn.
    - If *released* is None, any message of the middle may be removed. Otherwise unknown blocks,
      references, loaded tools and what still applies stay; messages in *released*, by their
      identity, may go all the same.
    """

    messages: list[Message]
    sums: Sequence[int]
    counter: TokenCounter
    overhead: int
    limit: int
    window: Window = "covering"
    folder: FileFolder | None = None
    marker: str = ""
    protected: int = 0
    strict: bool = False
    released: Mapping[int, Message] | None = None
    aim: int | None = None

    @property
    def tokens(self) -> int:
        """The raw tokens of the messages and the overhead."""
        return self.overhead + self.sums[-1]


# One pass -----------------------------------------------------------------------------------------


async def shorten(rules: MiddleRules, task: ShorteningTask) -> Truncation:
    """Fold file views, remove tool calls, and delete one run if the result is still too long.

    The result has the very same list if nothing has changed.
    """
    messages = task.messages
    region, views, foldable_views = await in_thread(_survey, rules, task)

    folds = await _fold_views(foldable_views, task.folder, task.counter)
    folded_messages = messages
    if folds:
        folded_messages = await in_thread(rewrite, messages, folds)

    places_of_views = {view.place for view in views}
    parts, call_count = await in_thread(filter_calls, folded_messages, region, places_of_views)

    tokens = await task.counter.counts(part.message for part in parts)
    aim = task.limit if task.aim is None else task.aim
    excess = task.overhead + sum(tokens) - aim
    remaining = await in_thread(
        delete_center, parts, tokens, region, excess, task.window, task.marker
    )
    deleted_count = len(parts) - len(remaining)

    tokens = await task.counter.counts(part.message for part in remaining)
    tokens_after = task.overhead + sum(tokens)
    detail = Truncated(
        task.tokens, tokens_after, filtered=call_count, folded=len(folds), deleted=deleted_count
    )
    if tokens_after > task.limit:
        holds = await in_thread(
            selection.breakdown_by_source, remaining, tokens, region, task.overhead
        )
        detail = replace(detail, still_over=True, holds=holds)
    if not call_count and not deleted_count:
        return Truncation(folded_messages, detail)
    joined = await in_thread(join_parts, remaining)
    if task.strict:
        joined = await in_thread(without_dangling_citations, messages, joined)
    return Truncation(joined, detail)


def _survey(
    rules: MiddleRules, task: ShorteningTask
) -> tuple[EditableRegion, list[FileView], list[FileView]]:
    """Return the region that may be edited, all file views, and those that may be folded.

    The region is the middle of the history, without pinned messages, summaries by the server and
    what must be carried on. A file view is a result that shows a file.
    """
    messages = task.messages
    stays = {index for index, message in enumerate(messages) if has_compaction(message)}
    joinable: set[int] = set()
    if task.released is not None:
        joinable = selection.joinable_indices(messages) - stays
        for indices in selection.indices_to_carry(messages):
            stays |= {index for index in indices if id(messages[index]) not in task.released}
    if rules.pin:
        pinned = pinned_indices(messages, rules.pin)
        stays |= pinned
        joinable -= pinned
    # The server reads nothing before its own summary.
    protected = max(task.protected, after_compaction(messages))
    ends = selection.find_ends(messages)
    middle = selection.middle(messages, task.sums, ends, rules.start, rules.end, protected)
    region = selection.editable_region(
        messages, ends, middle, strict=task.strict, pinned=stays, joinable=joinable
    )
    views = file_views(messages, rules.reading_tools, rules.shell)
    end = ends.last_turn if task.strict else len(messages)
    may_change = set(range(protected, end)) - stays
    foldable_views = [view for view in views if view.place[0] in may_change and view.is_foldable]
    return region, views, foldable_views


async def _fold_views(
    views: Sequence[FileView], folder: FileFolder | None, counter: TokenCounter
) -> dict[tuple[int, int], str]:
    """Return the folded text of each view that becomes shorter, by the place of the view."""
    if not views:
        return {}
    folded_texts = await fold_files(folder, [(view.path, view.text) for view in views], counter)
    texts = [text or view.text for view, text in zip(views, folded_texts, strict=True)]
    tokens_before = await counter.texts([view.text for view in views])
    tokens_after = await counter.texts(texts)
    folds: dict[tuple[int, int], str] = {}
    for view, text, before, after in zip(views, texts, tokens_before, tokens_after, strict=True):
        if after < before:
            folds[view.place] = text
    return folds


# Several passes -----------------------------------------------------------------------------------


async def shorten_until_it_fits(
    rules: MiddleRules, task: ShorteningTask, acceptable: int
) -> Truncation:
    """Shorten the middle, and again while more than *acceptable* raw tokens are left.

    Each time other messages are the middle. It ends when a pass saves nothing, so that a second run
    of the same stage would not change the result.
    """
    messages = task.messages
    total: Truncated | None = None
    while True:
        shortened = await shorten(rules, task)
        detail = shortened.detail
        total = detail if total is None else _after_both(total, detail)
        is_shorter = detail.tokens_after < detail.tokens_before
        if is_shorter:
            messages = shortened.messages
        if detail.tokens_after <= acceptable or not is_shorter:
            return Truncation(messages, total)
        task = await _with_messages(task, messages)


async def shorten_carried(
    rules: MiddleRules, task: ShorteningTask, result: Truncation, acceptable: int
) -> Truncation:
    """Shorten *result* to *acceptable* raw tokens, also messages that it should carry on.

    The largest of these messages may go first, then more and more of them. In the last try, any
    message of the middle may go.
    """
    task = replace(task, aim=acceptable)
    is_last_try = False
    while result.detail.tokens_after > acceptable and not is_last_try:
        task = await _with_messages(task, result.messages)
        excess = result.detail.tokens_after - acceptable
        released = await in_thread(_release_largest, task, excess)
        is_last_try = len(released) == len(task.released or {})
        task = replace(task, released=None if is_last_try else released)
        shorter = await shorten_until_it_fits(rules, task, acceptable)
        result = Truncation(shorter.messages, _after_both(result.detail, shorter.detail))
    return result


async def _with_messages(task: ShorteningTask, messages: list[Message]) -> ShorteningTask:
    """Return *task* for other *messages*."""
    sums = [0, *accumulate(await task.counter.counts(messages))]
    return replace(task, messages=messages, sums=sums)


def _after_both(first: Truncated, second: Truncated) -> Truncated:
    """Return the report on two passes, of which *second* shortened the result of *first*."""
    return replace(
        second,
        tokens_before=first.tokens_before,
        filtered=first.filtered + second.filtered,
        folded=first.folded + second.folded,
        deleted=first.deleted + second.deleted,
    )


def _release_largest(task: ShorteningTask, excess: int) -> dict[int, Message]:
    """Return the released messages of *task*, and the largest others that have *excess* tokens.

    At least an eighth of the others is released, so that few tries are needed. Words of the system
    and definitions of tools are released only when everything else is.
    """
    messages = task.messages
    released = dict(task.released or {})
    sizes = {index: task.sums[index + 1] - task.sums[index] for index in range(len(messages))}
    held_indices: list[int] = []
    for indices in selection.indices_to_carry(messages):
        held_indices = [index for index in indices if id(messages[index]) not in released]
        if held_indices:
            break
    held_indices.sort(key=lambda index: (-sizes[index], index))
    for number, index in enumerate(held_indices):
        if excess <= 0 and number > len(held_indices) // 8:
            break
        released[id(messages[index])] = messages[index]
        excess -= sizes[index]
    return released
