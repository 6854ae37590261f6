"""Shorten the middle of a history without a model: the fallback that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from typing import cast

from ..._text import short_repr
from ..._threads.threads import in_thread
from ...errors import SettingsError
from ...messages import Message, MessageLike, ensure_messages, rewrite
from ...providers.agent_tools import COMMON_READING_TOOLS, READING_TOOLS, ReadingTools
from ...settings import FLAG, NUMBER, PIN, SIZE, TEXT, TOOLS, check_settings, one_of
from ...storage import Archive
from ...storage.protocol import ARCHIVE
from ...tokens import Counting, TokenCounter, as_counter
from ..archive import archive_record, save_raw
from ..compact.carry import count_removed
from ..compact.layout import FOLDER, FileFolder, fold_files, raw_limit
from ..compact.partition import Pin, pinned_indices
from ..protocol import Change, Skip, Turn
from ..reading.citations import without_dangling_citations
from ..reading.groups import after_compaction, has_compaction
from ..reports import Truncated
from . import selection as truncate
from .selection import MIDDLE_END, MIDDLE_START, FileView, Window

MAX_TOKENS = 50_000


@dataclass(frozen=True, slots=True, repr=False)
class Truncation:
    """Result of `smart_truncate`: the shortened messages, and a report of the removed parts.

    Token counts in *detail* are raw (exact tiktoken).
    """

    messages: list[Message] = field(repr=False)
    detail: Truncated

    __repr__ = short_repr


async def smart_truncate(
    messages: Sequence[MessageLike],
    *,
    max_tokens: int = MAX_TOKENS,
    middle_start: Fraction | float = MIDDLE_START,
    middle_end: Fraction | float = MIDDLE_END,
    window: Window = "average",
    reading_tools: ReadingTools = READING_TOOLS,
    shell: bool = False,
    system: object = None,
    tools: Iterable[object] | None = None,
    folder: FileFolder | None = None,
    marker: str = "",
    counter: Counting | None = None,
) -> Truncation:
    """Shorten the middle of *messages* without a model.

    The middle are the messages that lie wholly between *middle_start* and *middle_end* of all
    tokens. There are two steps. The first is taken whatever the length of the history: tool calls
    in the middle are removed with their results, except file views (calls that read a file); and
    file views in the whole history, also outside the middle, are folded to the names that the file
    defines.

    The second step is taken if more than *max_tokens* raw tokens are left, including *system* and
    *tools*. It deletes one run of neighboring messages around the center of the middle, once:
    ceil(excess / average) messages, where the excess is the tokens above *max_tokens* and the
    average is that of the messages in the middle. With ``window="covering"`` it deletes at least
    that many, and enough to cover the excess. *marker* is appended to the user's text before the
    run.

    The system messages at the beginning, the first request, the last turn and messages with a
    user's ``<command>`` are never deleted; only file views in them may be folded. Returns the very
    same list if there is nothing to do.

    Raises InvalidHistory if *messages* is not a valid message list, SettingsError if a setting is
    invalid.
    """
    ensure_messages(messages)
    messages = cast("list[Message]", messages)
    settings = SmartTruncate(None, max_tokens, middle_start, middle_end, reading_tools, shell)
    one_of("average", "covering").check("window", window)
    TEXT.check("marker", marker)
    FOLDER.optional.check("folder", folder)
    counter = as_counter(counter)
    sums = [0, *accumulate(await counter.counts(messages))]
    overhead = await counter.count([], system=system, tools=tools)
    return await _shorten(
        settings, _Task(messages, sums, counter, overhead, max_tokens, window, folder, marker)
    )


@dataclass(frozen=True, slots=True, repr=False)
class SmartTruncate:
    """Shorten the middle of the history if it is still too long.

    It is the last resort, after a compaction that failed or was postponed, or in a pipeline without
    one. The stage acts if the context has reached the budget's trigger, or with ``Turn.force``.

    The goal is *max_tokens* estimated tokens, or the budget's target if that is lower. A first pass
    removes as much as this goal requires, as `smart_truncate` does. It can fall short, because the
    first request, the last turn and messages that *pin* chooses (a call together with its result)
    stay exactly as they are. Further passes then remove more, each from the new middle, only until
    the context is below the trigger (with ``Turn.force``: until it has reached the goal), or
    nothing more can be removed. Blocks that ctxpipe does not know, references to files and calls
    that loaded tools are removed last, and only if the context window does not hold them.

    *archive* is the storage for the raw messages that are removed or changed. If *require_archive*
    is False, the context is shortened even without an archive, or if it cannot be written.

    A server tool's call and its result, with all calls of its program, stay or go together. Nothing
    up to a summary of the server's own (a compaction block) is touched: the API reads nothing
    before it.

    Raises SettingsError if a setting is invalid.
    """

    archive: Archive | None = None
    max_tokens: int = MAX_TOKENS
    middle_start: Fraction | float = MIDDLE_START
    middle_end: Fraction | float = MIDDLE_END
    reading_tools: ReadingTools = field(default_factory=lambda: COMMON_READING_TOOLS)
    shell: bool = False
    require_archive: bool = True
    pin: Pin | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_settings(
            self,
            archive=ARCHIVE.optional,
            max_tokens=SIZE,
            middle_start=NUMBER,
            middle_end=NUMBER,
            reading_tools=TOOLS,
            shell=FLAG,
            require_archive=FLAG,
            pin=PIN.optional,
        )
        if not 0 <= self.middle_start < self.middle_end <= 1:
            raise SettingsError(
                f"middle_start and middle_end are {self.middle_start} and {self.middle_end}; "
                "give two fractions from 0 to 1, the lower one first"
            )

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Shorten the context and archive the raw messages that leave.

        Raises StorageError if a required archive cannot be written.
        """
        proposal = await self.plan(turn)
        if isinstance(proposal, Skip) or self.archive is None:
            return proposal
        if not isinstance(proposal.detail, Truncated):
            return proposal
        retained_ids = {id(message) for message in proposal.messages}
        leaving = [message for message in turn.messages if id(message) not in retained_ids]
        location = await save_raw(
            self.archive,
            turn.session_id,
            "truncate",
            archive_record(leaving),
            required=self.require_archive,
        )
        return replace(proposal, detail=replace(proposal.detail, archive=location))

    async def plan(self, turn: Turn) -> Change | Skip:
        """Return the change that this turn would make, without writing anything."""
        tokens = await turn.tokens()
        limit = min(self.max_tokens, turn.budget.target)
        if not turn.force and not turn.budget.reached(tokens):
            return Skip(f"{tokens:,} tokens, below the trigger of {turn.budget.trigger:,}")
        if tokens <= limit:
            return Skip(f"{tokens:,} tokens are within the {limit:,} that truncation leaves")
        messages = list(turn.messages)
        task = _Task(
            messages,
            await turn.prefix_sums(),
            turn.counter,
            overhead=turn.overhead,
            limit=raw_limit(turn, limit),
            protected=turn.protected,
            strict=True,
            spares_carried=True,
        )
        # A second run would act only above the trigger, or by force. Blocks that should stay are
        # removed only if they do not fit the window.
        acceptable = task.limit
        window_limit = task.limit
        if not turn.force:
            acceptable = max(acceptable, raw_limit(turn, turn.budget.trigger - 1))
            window = turn.budget.window - (turn.budget.reserve_output or 0)
            window_limit = max(acceptable, raw_limit(turn, window))
        result = await _shorten_until_it_fits(self, task, acceptable)
        if result.detail.tokens_after > window_limit:
            result = await _shorten_carried(self, task, result, acceptable)
        if result.messages is messages:
            return Skip(f"nothing of the middle can go: {result.detail.holds}", result.detail)
        removed = await in_thread(count_removed, messages, result.messages)
        return Change(result.messages, replace(result.detail, removed=removed))


# Shared by the function and the stage -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Task:
    """A history to bring down to *limit* tokens, raw and including *overhead*.

    ``sums[n]`` are the tokens of the first n messages. Nothing before message *protected* changes.
    If *strict* is True, nothing outside the middle changes either, except file views before the
    last turn. If *spares_carried* is True, unknown blocks, references and loaded tools stay. If
    *aim* is a number, the block that is deleted is only as large as needed to reach it.
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
    spares_carried: bool = False
    aim: int | None = None

    @property
    def tokens(self) -> int:
        """The raw tokens of the messages and the overhead."""
        return self.overhead + self.sums[-1]


async def _shorten_until_it_fits(
    settings: SmartTruncate, task: _Task, acceptable: int
) -> Truncation:
    """Shorten the middle, and again while more than *acceptable* tokens are left.

    Each time other messages are the middle. The result is a fixed point: the same stage would leave
    it unchanged.
    """
    tokens_before = task.tokens
    messages = task.messages
    total = Truncated(0, 0)
    while True:
        shortened = await _shorten(settings, task)
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


async def _with_messages(task: _Task, messages: list[Message]) -> _Task:
    """Return *task* for other *messages*."""
    sums = [0, *accumulate(await task.counter.counts(messages))]
    return replace(task, messages=messages, sums=sums)


async def _shorten_carried(
    settings: SmartTruncate, task: _Task, result: Truncation, acceptable: int
) -> Truncation:
    """Shorten *result* to *acceptable* tokens, also its unknown blocks and references."""
    task = await _with_messages(task, result.messages)
    task = replace(task, spares_carried=False, aim=acceptable)
    second_result = await _shorten_until_it_fits(settings, task, acceptable)
    first = result.detail
    second = second_result.detail
    detail = replace(
        second,
        tokens_before=first.tokens_before,
        filtered=first.filtered + second.filtered,
        folded=first.folded + second.folded,
        deleted=first.deleted + second.deleted,
    )
    return Truncation(second_result.messages, detail)


async def _shorten(settings: SmartTruncate, task: _Task) -> Truncation:
    """Fold file views, filter calls, and delete one block if the result is still too long."""
    messages = task.messages
    region, views, foldable_views = await in_thread(_survey, settings, task)
    folds = await _fold_views(foldable_views, task.folder, task.counter)
    folded_messages = await in_thread(rewrite, messages, folds) if folds else messages
    places = {view.place for view in views}
    parts, call_count = await in_thread(truncate.filter_calls, folded_messages, region, places)
    tokens = await task.counter.counts(part.message for part in parts)
    aim = task.limit if task.aim is None else task.aim
    excess = task.overhead + sum(tokens) - aim
    remaining = await in_thread(
        truncate.delete_center, parts, tokens, region, excess, task.window, task.marker
    )
    deleted_count = len(parts) - len(remaining)
    tokens = await task.counter.counts(part.message for part in remaining)
    tokens_after = task.overhead + sum(tokens)
    detail = Truncated(task.tokens, tokens_after, call_count, len(folds), deleted_count)
    if tokens_after > task.limit:
        holds = await in_thread(
            truncate.breakdown_by_source, messages, remaining, tokens, region, task.overhead
        )
        detail = replace(detail, still_over=True, holds=holds)
    if not call_count and not deleted_count:
        return Truncation(folded_messages, detail)
    joined = await in_thread(truncate.join_parts, remaining)
    if task.strict:
        joined = await in_thread(without_dangling_citations, messages, joined)
    return Truncation(joined, detail)


def _survey(
    settings: SmartTruncate, task: _Task
) -> tuple[truncate.EditableRegion, list[FileView], list[FileView]]:
    """Return the region that may be edited, all file views, and those that may be folded.

    The region is the middle of the history, without pinned messages, summaries by the server and
    what must be carried over. A file view is a result that shows a file.
    """
    messages = task.messages
    stays = {index for index, message in enumerate(messages) if has_compaction(message)}
    if task.spares_carried:
        stays |= truncate.indices_to_carry(messages)
    if settings.pin:
        stays |= pinned_indices(messages, settings.pin)
    # The server reads nothing before its own summary.
    protected = max(task.protected, after_compaction(messages))
    middle = truncate.middle(
        messages, task.sums, settings.middle_start, settings.middle_end, protected
    )
    region = truncate.editable_region(messages, middle, strict=task.strict, pinned=stays)
    views = truncate.file_views(messages, settings.reading_tools, settings.shell)
    end = truncate.last_turn(messages) if task.strict else len(messages)
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
