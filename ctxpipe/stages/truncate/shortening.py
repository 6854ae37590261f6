"""Shorten the middle of a history in steps, until it is short enough."""

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
from . import selection as truncate
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
    """A history to bring down to *limit* tokens, raw and including *overhead*.

    ``sums[n]`` are the tokens of the first n messages. Nothing before message *protected* changes.
    If *strict* is True, nothing outside the middle changes either, except file views before the
    last turn. Unless *released* is None, unknown blocks, references, loaded tools and what still
    applies stay, except the messages in *released*, by their identity. If *aim* is a number, the
    block that is deleted is only as large as needed to reach it.
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


async def shorten_until_it_fits(
    rules: MiddleRules, task: ShorteningTask, acceptable: int
) -> Truncation:
    """Shorten the middle, and again while more than *acceptable* tokens are left.

    Each time other messages are the middle. The result is a fixed point: the same stage would leave
    it unchanged.
    """
    tokens_before = task.tokens
    messages = task.messages
    total = Truncated(0, 0)
    while True:
        shortened = await shorten(rules, task)
        detail = shortened.detail
        total = replace(
            detail,
            filtered=total.filtered + detail.filtered,
            folded=total.folded + detail.folded,
            deleted=total.deleted + detail.deleted,
        )
        is_shorter = detail.tokens_after < detail.tokens_before
        if is_shorter:
            messages = shortened.messages
        if detail.tokens_after <= acceptable or not is_shorter:
            break
        task = await _with_messages(task, messages)
    return Truncation(messages, replace(total, tokens_before=tokens_before))


async def _with_messages(task: ShorteningTask, messages: list[Message]) -> ShorteningTask:
    """Return *task* for other *messages*."""
    sums = [0, *accumulate(await task.counter.counts(messages))]
    return replace(task, messages=messages, sums=sums)


async def shorten_carried(
    rules: MiddleRules, task: ShorteningTask, result: Truncation, acceptable: int
) -> Truncation:
    """Shorten *result* to *acceptable* tokens, also of what it should carry on.

    The largest of these messages may go first, then more and more of them.
    """
    task = replace(task, aim=acceptable)
    is_last_try = False
    while result.detail.tokens_after > acceptable and not is_last_try:
        task = await _with_messages(task, result.messages)
        released = await in_thread(_release, task, result.detail.tokens_after - acceptable)
        is_last_try = len(released) == len(task.released or {})
        task = replace(task, released=None if is_last_try else released)
        result = _add_counts(result, await shorten_until_it_fits(rules, task, acceptable))
    return result


def _release(task: ShorteningTask, excess: int) -> dict[int, Message]:
    """Return the released messages of *task*, and the largest others that have *excess* tokens.

    At least an eighth of the others is released, so that few tries are needed. Words of the system
    and definitions of tools are released only when everything else is.
    """
    messages = task.messages
    released = dict(task.released or {})
    held: list[int] = []
    for indices in truncate.indices_to_carry(messages):
        held = [index for index in indices if id(messages[index]) not in released]
        if held:
            break
    held.sort(key=lambda index: (task.sums[index] - task.sums[index + 1], index))
    for number, index in enumerate(held):
        if excess <= 0 and number > len(held) // 8:
            break
        released[id(messages[index])] = messages[index]
        excess -= task.sums[index + 1] - task.sums[index]
    return released


def _add_counts(first_result: Truncation, second_result: Truncation) -> Truncation:
    """Return *second_result*, whose detail also counts what *first_result* has removed."""
    first = first_result.detail
    second = second_result.detail
    detail = replace(
        second,
        tokens_before=first.tokens_before,
        filtered=first.filtered + second.filtered,
        folded=first.folded + second.folded,
        deleted=first.deleted + second.deleted,
    )
    return Truncation(second_result.messages, detail)


async def shorten(rules: MiddleRules, task: ShorteningTask) -> Truncation:
    """Fold file views, filter calls, and delete one block if the result is still too long."""
    messages = task.messages
    region, views, foldable_views = await in_thread(_survey, rules, task)
    folds = await _fold_views(foldable_views, task.folder, task.counter)
    folded_messages = await in_thread(rewrite, messages, folds) if folds else messages
    places = {view.place for view in views}
    parts, call_count = await in_thread(filter_calls, folded_messages, region, places)
    tokens = await task.counter.counts(part.message for part in parts)
    aim = task.limit if task.aim is None else task.aim
    excess = task.overhead + sum(tokens) - aim
    remaining = await in_thread(
        delete_center, parts, tokens, region, excess, task.window, task.marker
    )
    deleted_count = len(parts) - len(remaining)
    tokens = await task.counter.counts(part.message for part in remaining)
    tokens_after = task.overhead + sum(tokens)
    detail = Truncated(task.tokens, tokens_after, call_count, len(folds), deleted_count)
    if tokens_after > task.limit:
        holds = await in_thread(
            truncate.breakdown_by_source, remaining, tokens, region, task.overhead
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
    what must be carried over. A file view is a result that shows a file.
    """
    messages = task.messages
    stays = {index for index, message in enumerate(messages) if has_compaction(message)}
    joinable: set[int] = set()
    if task.released is not None:
        joinable = truncate.joinable_indices(messages) - stays
        for index in set[int]().union(*truncate.indices_to_carry(messages)):
            if id(messages[index]) not in task.released:
                stays.add(index)
    if rules.pin:
        pinned = pinned_indices(messages, rules.pin)
        stays |= pinned
        joinable -= pinned
    # The server reads nothing before its own summary.
    protected = max(task.protected, after_compaction(messages))
    ends = truncate.find_ends(messages)
    middle = truncate.middle(messages, task.sums, ends, rules.start, rules.end, protected)
    region = truncate.editable_region(
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
