"""The fallback that always works: shorten the middle of a history without a model."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ..edits import truncate
from ..edits.compact import pinned
from ..edits.groups import after_compaction, has_compaction
from ..edits.truncate import MIDDLE_END, MIDDLE_START, FileView, Part, Window
from ..edits.views import COMMON_READING_TOOLS, READING_TOOLS, ReadingTools
from ..errors import SettingsError, StorageError, safe_text
from ..messages import ensure_messages, rewrite
from ..reports import Truncated
from ..settings import (
    FLAG,
    FUNCTION,
    NUMBER,
    SIZE,
    TEXT,
    TOOLS,
    check_settings,
    one_of,
)
from ..stage import Change, Skip, Turn
from ..storage import Archive
from ..storage.protocol import ARCHIVE
from ..threads import in_thread
from ..tokens import Counting, TokenCounter, as_counter
from .archive import archive_record
from .layout import FileFolder, check_folder, folder_or_default

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["SmartTruncate", "Truncation", "smart_truncate"]

MAX_TOKENS = 50_000
logger = logging.getLogger("ctxpipe")


@dataclass(frozen=True, slots=True)
class Truncation:
    """What `smart_truncate` made of a history, and how.

    Token counts in *detail* are raw (exact tiktoken).
    """

    messages: list[Message]
    detail: Truncated


async def smart_truncate(
    messages: list[Message],
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
    """Shorten the middle of *messages*: filter tool calls, fold file views, and delete if still too
    long.

    What lies wholly between *middle_start* and *middle_end* of the tokens loses its tool calls;
    file views stay with their calls, and all of them, also outside the middle, are reduced to
    names. Only when that leaves more than
    *max_tokens*, raw and with those of *system* and *tools*, one block goes from the middle's centre, in one pass:
    ceil(excess / average) messages, or with ``window="covering"`` at least so many and enough to
    cover the excess.
    *marker* is put behind the user's text before the block. The head, the first request, the last turn and messages
    with a user's ``<command>`` are never deleted. Nothing to do: the very same list.

    Raises InvalidHistory when *messages* has not the shape of messages, SettingsError for bounds
    that make no sense. Source: ST-1 to ST-22, FF-16, A-47 to A-67.
    """
    ensure_messages(messages)
    settings = SmartTruncate(
        None,
        max_tokens,
        window,
        middle_start,
        middle_end,
        reading_tools,
        shell=shell,
        folder=folder,
        marker=marker,
    )
    counter = as_counter(counter)
    sizes = _Sizes(messages, [0, *accumulate(await counter.counts(messages))], counter)
    overhead = await counter.count([], system=system, tools=tools)
    return await _shortened(settings, _Given(messages, sizes, overhead, max_tokens))


@dataclass(frozen=True, slots=True)
class SmartTruncate:
    """Shorten the middle of the history when it is still too long: compaction failed, was
    postponed, or is not used.

    It acts when the context has reached the pipeline's trigger, or with `Turn.force`, and brings it
    down to
    *max_tokens* (estimated; never above the pipeline's target), as `smart_truncate` does. The first request and the
    last turn stay exactly as they are, and so does what *pin* chooses, a call with its result.
    *archive* keeps the raw messages that leave or change; without *require_archive* a failed
    archive is no reason to let the context overflow.

    A server tool's call and its result, with all calls of its program, stay or go together. Nothing
    up to a summary of the server's own (a compaction block) is touched: the API reads nothing
    before it.

    Raises SettingsError for settings that make no sense.

    Source: CM-1 to CM-3, ST-1 to ST-22, A-65, R2, R4c, R19.
    """

    archive: Archive | None = None
    max_tokens: int = MAX_TOKENS
    window: Window = "covering"
    middle_start: Fraction | float = MIDDLE_START
    middle_end: Fraction | float = MIDDLE_END
    reading_tools: ReadingTools = field(default_factory=lambda: COMMON_READING_TOOLS)
    shell: bool = False
    folder: FileFolder | None = None
    marker: str = ""
    require_archive: bool = True
    pin: Callable[[Message], bool] | None = None

    def __post_init__(self) -> None:
        check_settings(
            self,
            archive=ARCHIVE.optional,
            max_tokens=SIZE,
            window=one_of("average", "covering"),
            middle_start=NUMBER,
            middle_end=NUMBER,
            reading_tools=TOOLS,
            shell=FLAG,
            marker=TEXT,
            require_archive=FLAG,
            pin=FUNCTION.optional,
        )
        if not 0 <= self.middle_start < self.middle_end <= 1:
            raise SettingsError(
                f"middle_start and middle_end are {self.middle_start} and {self.middle_end}; "
                "give two fractions from 0 to 1, the lower one first"
            )
        check_folder(self.folder)

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Raises StorageError when the raw messages cannot be archived, unless that is not
        required.
        """
        proposal = await self.plan(turn)
        if (
            isinstance(proposal, Skip)
            or self.archive is None
            or not isinstance(proposal.detail, Truncated)
        ):
            return proposal
        kept = {id(message) for message in proposal.messages}
        leaving = [message for message in turn.messages if id(message) not in kept]
        try:
            location = await self.archive.save(turn.session_id, "truncate", archive_record(leaving))
        except StorageError as error:
            if self.require_archive:
                raise
            logger.warning(
                "the messages that truncation removes are not archived: %s", safe_text(error)
            )
            return proposal
        return replace(proposal, detail=replace(proposal.detail, archive=location))

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        tokens, limit = await turn.tokens(), min(self.max_tokens, turn.budget.target)
        if not turn.force and not turn.budget.reached(tokens):
            return Skip(f"{tokens} tokens, below the trigger of {turn.budget.trigger}")
        if tokens <= limit:
            return Skip(f"{tokens} tokens are within the {limit} that truncation leaves")
        messages = turn.messages if isinstance(turn.messages, list) else list(turn.messages)
        sizes = _Sizes(messages, await turn.prefix_sums(), turn.counter)
        given = _Given(
            messages, sizes, turn.overhead, _raw(turn, limit), turn.protected, strict=True
        )
        result = await _shortened(self, given)
        if result.messages is messages:
            return Skip(f"nothing of the middle can go: {result.detail.holds}", result.detail)
        return Change(result.messages, result.detail)


def _raw(turn: Turn, limit: int) -> int:
    """The most raw tokens that are estimated at no more than *limit*."""
    most = range(limit + 1)  # an estimate is never below the raw count
    return max(
        0, bisect_right(most, limit, key=lambda raw: turn.ledger.estimate(raw, turn.messages)) - 1
    )


# What the function and the stage share ------------------------------------------------------------


class _Sizes:
    """The tokens of messages: of those given from the start known, of others counted once."""

    def __init__(
        self, messages: Sequence[Message], sums: Sequence[int], counter: TokenCounter
    ) -> None:
        self.sums = sums
        self.counter = counter
        # The messages are kept with their ids, so that no id is used again.
        self._known = {
            id(m): (m, after - before)
            for m, (before, after) in zip(messages, pairwise(sums), strict=True)
        }

    async def of(self, parts: Sequence[Part]) -> list[int]:
        messages = [part.message for part in parts]
        new = [message for message in messages if id(message) not in self._known]
        for message, tokens in zip(new, await self.counter.counts(new), strict=True):
            self._known[id(message)] = message, tokens
        return [self._known[id(message)][1] for message in messages]


@dataclass(frozen=True, slots=True)
class _Given:
    """What to bring down to *limit* tokens, raw and with those of *overhead*.

    Nothing before message *protected* changes; with *strict* nothing outside the middle either, but
    for file views that are not of the last turn.
    """

    messages: list[Message]
    sizes: _Sizes
    overhead: int
    limit: int
    protected: int = 0
    strict: bool = False


async def _shortened(settings: SmartTruncate, given: _Given) -> Truncation:
    messages, sizes = given.messages, given.sizes
    ground, views, foldable = await in_thread(_survey, settings, given)
    folds = await _folds(foldable, settings.folder, sizes.counter)
    folded, filtered = await in_thread(_without_calls, messages, folds, ground, views)
    left = await sizes.of(filtered.parts)
    excess = given.overhead + sum(left) - given.limit
    cut = partial(truncate.delete_centre, window=settings.window, marker=settings.marker)
    parts = await in_thread(cut, filtered.parts, left, ground, excess)
    deleted = len(filtered.parts) - len(parts)
    left = await sizes.of(parts)
    before, after = (given.overhead + tokens for tokens in (sizes.sums[len(messages)], sum(left)))
    detail = Truncated(before, after, filtered.calls, len(folds), deleted)
    if after > given.limit:
        holds = await in_thread(truncate.held, messages, parts, left, ground, given.overhead)
        detail = replace(detail, still_over=True, holds=holds)
    is_cut = filtered.calls or deleted
    return Truncation(await in_thread(truncate.joined, parts) if is_cut else folded, detail)


def _survey(
    settings: SmartTruncate, given: _Given
) -> tuple[truncate.Ground, list[FileView], list[FileView]]:
    """Where something may go, all views of files, and those of them that may be folded."""
    messages = given.messages
    middle = truncate.middle(messages, given.sizes.sums, settings.middle_start, settings.middle_end)
    stays = {index for index, message in enumerate(messages) if has_compaction(message)}
    stays |= pinned(messages, settings.pin) if settings.pin else set()
    protected = max(
        given.protected, after_compaction(messages)
    )  # the server reads nothing before its own summary
    ground = truncate.ground(
        messages, middle, protected=protected, strict=given.strict, pinned=stays
    )
    views = list(truncate.file_views(messages, settings.reading_tools, settings.shell))
    old = range(protected, truncate.last_turn(messages) if given.strict else len(messages))
    return (
        ground,
        views,
        [view for view in views if view.place[0] in old and view.place[0] not in stays],
    )


def _without_calls(
    messages: list[Message],
    folds: Mapping[tuple[int, int], str],
    ground: truncate.Ground,
    views: Iterable[FileView],
) -> tuple[list[Message], truncate.Filtered]:
    """*messages* with the views in *folds* folded, and what remains of them without the calls of
    the middle.
    """
    folded = rewrite(messages, folds) if folds else messages
    return folded, truncate.filter_calls(folded, ground, {view.place for view in views})


async def _folds(
    views: Sequence[FileView], folder: FileFolder | None, counter: TokenCounter
) -> dict[tuple[int, int], str]:
    """The folded text for the place of each view that gets smaller by it."""
    views = [view for view in views if view.foldable]
    if not views:
        return {}
    folded = await folder_or_default(folder, counter).fold(
        [(view.path, view.text) for view in views]
    )
    pairs = [(view, text) for view, text in zip(views, folded, strict=True) if text]
    tokens = await counter.texts([text for view, text in pairs for text in (view.text, text)])
    sizes = zip(tokens[::2], tokens[1::2], strict=True)
    return {
        view.place: text for (view, text), (old, new) in zip(pairs, sizes, strict=True) if new < old
    }
