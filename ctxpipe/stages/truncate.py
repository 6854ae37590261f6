"""The fallback that always works: shorten the middle of a history without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate

from .._text import short_repr
from .._threads.threads import in_thread
from ..edits import truncate
from ..edits.carry import count_removed
from ..edits.citations import without_dangling_citations
from ..edits.compact import Pin, pinned_indices
from ..edits.groups import after_compaction, has_compaction
from ..edits.truncate import MIDDLE_END, MIDDLE_START, FileView, Window
from ..errors import SettingsError
from ..messages import Message, ensure_messages, rewrite
from ..providers.agent_tools import COMMON_READING_TOOLS, READING_TOOLS, ReadingTools
from ..settings import FLAG, NUMBER, PIN, SIZE, TEXT, TOOLS, check_settings, one_of
from ..storage import Archive
from ..storage.protocol import ARCHIVE
from ..tokens import Counting, TokenCounter, as_counter
from .archive import archive_record, save_raw
from .layout import FOLDER, FileFolder, fold_files, raw_limit
from .protocol import Change, Skip, Turn
from .reports import Truncated

MAX_TOKENS = 50_000


@dataclass(frozen=True, slots=True, repr=False)
class Truncation:
    """What `smart_truncate` made of a history, and how.

    Token counts in *detail* are raw (exact tiktoken).
    """

    messages: list[Message] = field(repr=False)
    detail: Truncated

    __repr__ = short_repr


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
    """Shorten the middle of *messages* without a model.

    Tool calls are filtered, file views folded, and messages deleted if it is still too long. What
    is wholly between *middle_start* and *middle_end* of the tokens loses its tool calls; file views
    stay with their calls, and all of them, also outside the middle, are reduced to names. Only when
    that leaves more than *max_tokens*, raw and with those of *system* and *tools*, one block is
    deleted around the middle's centre, in one pass: ceil(excess / average) messages, or with
    ``window="covering"`` at least that many and enough to cover the excess. *marker* is appended to
    the user's text before the block. The head, the first request, the last turn and messages with a
    user's ``<command>`` are never deleted. With nothing to do, the very same list comes back.

    Raises InvalidHistory when *messages* is not a valid message list, SettingsError for invalid
    bounds.
    """
    ensure_messages(messages)
    settings = SmartTruncate(None, max_tokens, middle_start, middle_end, reading_tools, shell)
    one_of("average", "covering").check("window", window)
    TEXT.check("marker", marker)
    FOLDER.optional.check("folder", folder)
    counter = as_counter(counter)
    sums = [0, *accumulate(await counter.counts(messages))]
    overhead = await counter.count([], system=system, tools=tools)
    return await _shorten(
        settings, _Input(messages, sums, counter, overhead, max_tokens, window, folder, marker)
    )


@dataclass(frozen=True, slots=True, repr=False)
class SmartTruncate:
    """Shorten the middle of the history when it is still too long.

    That is so when compaction failed, was postponed, or is not used. It acts when the context has
    reached the pipeline's trigger, or with `Turn.force`, and brings it down to *max_tokens*
    (estimated; never above the pipeline's target), as `smart_truncate` does. The first request and
    the last turn stay exactly as they are, and so does what *pin* chooses, a call with its result.
    The middle is shortened again until the context is below the trigger or nothing more can go.
    Blocks that ctxpipe does not know, references to files and calls that loaded tools go last, and
    only where the window does not hold them. *archive* keeps the raw messages that leave or change;
    without *require_archive* a failed archive is no reason to let the context overflow.

    A server tool's call and its result, with all calls of its program, stay or go together. Nothing
    up to a summary of the server's own (a compaction block) is touched: the API reads nothing
    before it.

    Raises SettingsError for settings that are invalid.
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
        """Raises StorageError when a required archive of the raw messages cannot be written."""
        proposal = await self.plan(turn)
        if isinstance(proposal, Skip) or self.archive is None:
            return proposal
        if not isinstance(proposal.detail, Truncated):
            return proposal
        kept = {id(message) for message in proposal.messages}
        leaving = [message for message in turn.messages if id(message) not in kept]
        location = await save_raw(
            self.archive,
            turn.session_id,
            "truncate",
            archive_record(leaving),
            required=self.require_archive,
        )
        return replace(proposal, detail=replace(proposal.detail, archive=location))

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        tokens = await turn.tokens()
        limit = min(self.max_tokens, turn.budget.target)
        if not turn.force and not turn.budget.reached(tokens):
            return Skip(f"{tokens:,} tokens, below the trigger of {turn.budget.trigger:,}")
        if tokens <= limit:
            return Skip(f"{tokens:,} tokens are within the {limit:,} that truncation leaves")
        messages = list(turn.messages)
        given = _Input(
            messages,
            await turn.prefix_sums(),
            turn.counter,
            overhead=turn.overhead,
            limit=raw_limit(turn, limit),
            protected=turn.protected,
            strict=True,
            spares_carried=True,
        )
        # A second run would act above the trigger, or by force; the window is for what must stay.
        most = fitting = given.limit
        if not turn.force:
            most = max(most, raw_limit(turn, turn.budget.trigger - 1))
            window = turn.budget.window - (turn.budget.reserve_output or 0)
            fitting = max(most, raw_limit(turn, window))
        result = await _shorten_until_it_fits(self, given, most)
        if result.detail.tokens_after > fitting:
            result = await _shorten_carried(self, given, result, most)
        if result.messages is messages:
            return Skip(f"nothing of the middle can go: {result.detail.holds}", result.detail)
        removed = await in_thread(count_removed, messages, result.messages)
        return Change(result.messages, replace(result.detail, removed=removed))


# What the function and the stage share ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Input:
    """What to bring down to *limit* tokens, raw and with those of *overhead*.

    *sums* are the tokens of the first 0, 1, 2 … messages; *counter* knows those of each text.
    Nothing before message *protected* changes; with *strict* nothing outside the middle either,
    except file views that are not of the last turn. With *spares_carried* unknown blocks,
    references and loaded tools stay. With *aim* no more is deleted than brings it down to that.
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


async def _shorten_until_it_fits(settings: SmartTruncate, given: _Input, most: int) -> Truncation:
    """Shorten the middle, and again while more than *most* tokens are left.

    Each time another part of the messages is the middle. The result is a fixed point: the same
    stage leaves it as it is.
    """
    original = given
    messages = given.messages
    total = Truncated(0, 0)
    while True:
        shortened = await _shorten(settings, given)
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
        if detail.tokens_after <= most or not is_shorter:
            break
        given = await _with_messages(given, messages)
    return Truncation(messages, replace(total, tokens_before=original.tokens))


async def _with_messages(given: _Input, messages: list[Message]) -> _Input:
    """Return *given* with other *messages*."""
    sums = [0, *accumulate(await given.counter.counts(messages))]
    return replace(given, messages=messages, sums=sums)


async def _shorten_carried(
    settings: SmartTruncate, given: _Input, result: Truncation, most: int
) -> Truncation:
    """Shorten *result* further, unknown blocks and references as well, to *most* tokens."""
    given = await _with_messages(given, result.messages)
    given = replace(given, spares_carried=False, aim=most)
    further = await _shorten_until_it_fits(settings, given, most)
    first = result.detail
    last = further.detail
    detail = replace(
        last,
        tokens_before=first.tokens_before,
        filtered=first.filtered + last.filtered,
        folded=first.folded + last.folded,
        deleted=first.deleted + last.deleted,
    )
    return Truncation(further.messages, detail)


async def _shorten(settings: SmartTruncate, given: _Input) -> Truncation:
    messages = given.messages
    ground, views, foldable = await in_thread(_survey, settings, given)
    folds = await _fold_views(foldable, given.folder, given.counter)
    folded = await in_thread(rewrite, messages, folds) if folds else messages
    places = {view.place for view in views}
    left, calls = await in_thread(truncate.filter_calls, folded, ground, places)
    tokens = await given.counter.counts(part.message for part in left)
    aim = given.limit if given.aim is None else given.aim
    excess = given.overhead + sum(tokens) - aim
    parts = await in_thread(
        truncate.delete_centre, left, tokens, ground, excess, given.window, given.marker
    )
    deleted = len(left) - len(parts)
    tokens = await given.counter.counts(part.message for part in parts)
    before = given.overhead + given.sums[-1]
    after = given.overhead + sum(tokens)
    detail = Truncated(before, after, calls, len(folds), deleted)
    if after > given.limit:
        holds = await in_thread(
            truncate.breakdown_by_source, messages, parts, tokens, ground, given.overhead
        )
        detail = replace(detail, still_over=True, holds=holds)
    if calls or deleted:
        joined = await in_thread(truncate.join_parts, parts)
        if given.strict:
            joined = await in_thread(without_dangling_citations, messages, joined)
        return Truncation(joined, detail)
    return Truncation(folded, detail)


def _survey(
    settings: SmartTruncate, given: _Input
) -> tuple[truncate.EditableRegion, list[FileView], list[FileView]]:
    """Where something may go, all views of files, and those of them that may be folded."""
    messages = given.messages
    stays = {index for index, message in enumerate(messages) if has_compaction(message)}
    if given.spares_carried:
        stays |= truncate.indices_to_carry(messages)
    if settings.pin:
        stays |= pinned_indices(messages, settings.pin)
    # The server reads nothing before its own summary.
    protected = max(given.protected, after_compaction(messages))
    middle = truncate.middle(
        messages, given.sums, settings.middle_start, settings.middle_end, protected
    )
    ground = truncate.editable_region(messages, middle, strict=given.strict, pinned=stays)
    views = truncate.file_views(messages, settings.reading_tools, settings.shell)
    end = truncate.last_turn(messages) if given.strict else len(messages)
    free = set(range(protected, end)) - stays
    return ground, views, [view for view in views if view.place[0] in free and view.foldable]


async def _fold_views(
    views: Sequence[FileView], folder: FileFolder | None, counter: TokenCounter
) -> dict[tuple[int, int], str]:
    """The folded text for the place of each view that it makes smaller."""
    if not views:
        return {}
    folded = await fold_files(folder, [(view.path, view.text) for view in views], counter)
    before = await counter.texts([view.text for view in views])
    texts = [text or view.text for view, text in zip(views, folded, strict=True)]
    after = await counter.texts(texts)
    both = zip(views, texts, before, after, strict=True)
    return {view.place: text for view, text, old, new in both if new < old}
