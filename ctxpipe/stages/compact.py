"""Replace a long history by its summary, and restore the working set of files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from ..edits import compact
from ..errors import SettingsError, StorageError, SummaryFailed, safe_text
from ..markers.summaries import reminder, safe_summary
from ..messages import ensure_messages, has_thinking
from ..names import session_folder
from ..reports import Compacted
from ..settings import (
    COMPACT_MAX_RETRIES,
    COMPACT_OUTPUT_DIR,
    FLAG,
    FUNCTION,
    NUMBER,
    SIZE,
    SUMMARIZER,
    SUMMARY_MAX_WORDS,
    TEXT,
    check_settings,
    instance_of,
)
from ..stage import Change, Intent, Skip, Turn
from ..storage import Archive, LocalStorage
from ..storage.files import FileReader
from ..storage.protocol import ARCHIVE
from ..storage.records import Record
from ..summarizers import (
    WITHOUT_MODEL,
    AnthropicSummarizer,
    ExtractiveSummarizer,
    FinishedParts,
    PromptSummarizer,
    Retry,
    Summarizer,
    summarize_with_retry,
)
from ..summarizers.protocol import summarizer_name
from ..tokens import Counting, as_counter, should_compact
from ..workers.threads import in_thread
from .archive import archive_digest, archive_record, load_archive
from .attempts import Attempts
from .layout import (
    FileFolder,
    Fold,
    Layout,
    check_folder,
    choose_layout,
    fold_texts,
    list_paths,
    token_breakdown,
)
from .references import check_reference, visible_path
from .restore import Restore, RestoredFiles, restore_files
from .source import source_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ..messages import Message
    from ..tokens import TokenCounter

__all__ = [
    "Compact",
    "CompactResult",
    "CompactStats",
    "FileFolder",
    "Restore",
    "compact_messages",
    "load_archive",
    "restore_files",
]

logger = logging.getLogger("ctxpipe")

# The function, literal to the requirements --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactStats:
    """What a compaction did. Tokens are raw, of the messages alone. Source: CR-45."""

    original_token_count: int
    compacted_token_count: int
    compaction_ratio: float
    compacted_message_count: int
    retained_message_count: int
    restored_file_count: int
    restored_token_count: int


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What `compact_messages` returns.

    Without a compaction, *messages* is the very list given and *reason* says why.
    """

    messages: list[Message] = field(repr=False)
    compacted: bool = False
    stats: CompactStats | None = None
    original_messages_path: str | None = None
    reason: str = ""


async def compact_messages(
    messages: list[Message],
    *,
    summarize: Summarizer | None = None,
    model: str | None = None,
    session_id: str = "default",
    output_dir: str | os.PathLike[str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    context_token_limit: int | None = None,
    compact_threshold_ratio: float | Decimal | None = None,
    max_retries: int | None = None,
    summary_max_words: int | None = None,
    max_restore_files: int | None = None,
    max_restore_tokens_per_file: int | None = None,
    max_restore_tokens_total: int | None = None,
    require_archive: bool = False,
    fold_unrestored: bool = False,
    counter: Counting | None = None,
    system: object = None,
    tools: Sequence[object] | None = None,
    files: FileReader | None = None,
    archive: Archive | None = None,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> CompactResult:
    """Once the context reaches its threshold, replace the history by a summary.

    All but the leading system messages is replaced, and the files read last are read again from
    disk and follow the summary. Source: CR. The very same list comes back below
    *context_token_limit* x *compact_threshold_ratio* (200,000 x 0.92 raw tokens, *system* and
    *tools* included), when no summary can be had after *max_retries* (2), and when the result would
    not be smaller. *messages* is not modified.

    The raw messages go first to ``<output_dir>/<session_id>/compact-<UTC seconds>-<n>.json``
    (*output_dir*: .compact), for `load_archive` to read back: plain messages come back equal, model
    objects of the SDK as they would be sent. A failed save is logged and does not stop the
    compaction unless *require_archive*.

    *summarize* writes the summary, by default `AnthropicSummarizer` with *model* and
    *summary_max_words*, which without credentials in the environment is `ExtractiveSummarizer`.
    *work_dir* and the *max_restore_…* limits are those of `restore_files`. With *fold_unrestored*
    files that are too long are reduced to the names they define. *files*, *archive* and *sleep*
    stand in for the disk and the clock.

    It believes what *messages* say, as `restore_files` does: files come back after calls that were
    denied, too, and a message in the form of a summary or of a restored file passes for one. The
    stage `Compact` believes none of this.

    Raises InvalidHistory when *messages* is not a valid message list, SettingsError when a setting
    is invalid.
    """
    ensure_messages(messages)
    counter = as_counter(counter)
    retry = Retry(max_retries=COMPACT_MAX_RETRIES(max_retries), sleep=sleep)
    if summarize is None:
        words = SUMMARY_MAX_WORDS(summary_max_words)
        summarize = AnthropicSummarizer(model=model, max_words=words, counter=counter)
    # Counted in a worker thread now; below, the tokens of every text are known.
    await counter.count(messages, system=system, tools=tools)
    is_long = should_compact(
        messages,
        context_token_limit=context_token_limit,
        compact_threshold_ratio=compact_threshold_ratio,
        counter=counter,
        system=system,
        tools=tools,
    )
    head, rest = compact.partition(messages)
    if not rest:
        return CompactResult(messages, reason="nothing but system messages")
    if not is_long:
        return CompactResult(messages, reason="below the threshold")
    if archive is None:
        folder = output_dir or COMPACT_OUTPUT_DIR()
        archive = await to_thread.run_sync(partial(LocalStorage, folder, on_conflict="number"))
    path = None
    try:
        path = await _save(archive, session_id, rest, required=require_archive)
        summary = await summarize_with_retry(summarize, rest, retry)
    except (SummaryFailed, StorageError) as error:
        # No traceback: it may quote anything.
        logger.error("the history is not compacted: %s", safe_text(error))  # noqa: TRY400
        return CompactResult(messages, original_messages_path=path, reason=str(error))
    restored = await restore_files(
        messages,
        work_dir=work_dir,
        max_restore_files=max_restore_files,
        max_restore_tokens_per_file=max_restore_tokens_per_file,
        max_restore_tokens_total=max_restore_tokens_total,
        files=files,
        counter=counter,
    )
    folded: dict[str, str] = {}
    if fold_unrestored:
        folded = await fold_texts(restored.unfit, counter)
    commands = compact.extract_commands(rest)
    parts = [safe_summary(summary.text) + reminder(commands), *folded.values()]
    text = "\n\n".join(parts)
    return await _largest_smaller_result(
        _Original(messages, head, rest, path), text, restored, counter
    )


@dataclass(frozen=True, slots=True)
class _Original:
    messages: list[Message]
    head: list[Message]
    rest: list[Message]
    path: str | None


async def _largest_smaller_result(
    original: _Original,
    text: str,
    restored: RestoredFiles,
    counter: TokenCounter,
) -> CompactResult:
    """The result with as many of the restored files as leave it smaller than the original.

    Source: A-44.
    """
    before = await counter.count(original.messages)
    for number in range(len(restored.files), -1, -1):
        files = restored.files[:number]
        file_messages = [file.message for file in files]
        messages = compact.assemble(original.head, text, file_messages)
        after = await counter.count(messages)
        if after < before:
            stats = CompactStats(
                original_token_count=before,
                compacted_token_count=after,
                compaction_ratio=after / before,
                compacted_message_count=len(original.rest),
                retained_message_count=len(original.head),
                restored_file_count=number,
                restored_token_count=sum(file.tokens for file in files),
            )
            return CompactResult(messages, True, stats, original.path)
    reason = f"the compacted messages would not be smaller than {before} tokens"
    logger.warning("%s", reason)
    return CompactResult(original.messages, original_messages_path=original.path, reason=reason)


async def _save(
    archive: Archive,
    session_id: str,
    record: Record,
    *,
    required: bool,
) -> str | None:
    try:
        return await archive.save(session_id, "compact", record)
    except StorageError as error:
        if required:
            raise
        # No traceback: it may quote anything.
        logger.error("the raw messages are not archived: %s", safe_text(error))  # noqa: TRY400
        return None


# The stage ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compact:
    """Near the limit, replace the history by its summary.

    The evidence that no model may forget and the working set of files follow the summary. It begins
    when the calibrated estimate of the context reaches the budget's trigger (or by force) and aims
    at its target: restored files give way first, the oldest of them first, then the evidence. A
    result that is still above the target but smaller than before is used, and reported as
    ``over_target`` with what keeps it there. While a call waits for its result, one of a server
    tool included, compaction is postponed; where the API itself has compacted, it is left to the
    API.

    What the model has not answered stays whole, images and results included, as long as the new
    context meets the target. Only above it the user's words are cut to *max_request_chars*, head
    and tail, and the report's warnings say what else is missing. System messages from the middle of
    the history are carried on.

    The raw messages are archived first; without an archive nothing is compacted, unless
    *require_archive* is False. *summarize* defaults to `AnthropicSummarizer`, and without
    credentials to `ExtractiveSummarizer`; the report names the one that wrote. The evidence is a
    list of paths of up to *evidence_tokens* and, in proportion, commands, identifiers and the
    user's requests; paths that exceed the budget are listed in a file beside the archive. The model
    sees the paths of both in the form *reference*, as in `DirectOffload`. *pin* chooses messages to
    keep word for word.

    *restore* says which of the user's files may be read again; without it no file is opened, and
    the report says so. Files too long are reduced to their names by *folder* (default: by the names
    they define) unless *fold_unrestored* is off.

    After three failures in a row, and when compaction does not help or has to come back too often,
    no attempt is made for *cooldown_seconds* of *clock*.

    Nothing is believed because of what a text says: in a session the evidence comes from the
    caller's history, and elsewhere from archives of the same session whose digest is right. Texts
    that only look like ours contribute nothing.

    Raises SettingsError for settings that are invalid.
    """

    summarize: Summarizer | None = None
    archive: Archive | None = None
    require_archive: bool = True
    restore: Restore | None = None
    fold_unrestored: bool = True
    folder: FileFolder | None = None
    evidence_tokens: int = 2000
    max_request_chars: int = 20_000
    pin: Callable[[Message], bool] | None = None
    reference: str = "absolute"
    retry: Retry = field(default_factory=Retry)
    cooldown_seconds: float = 300.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if self.archive is None and self.require_archive:
            raise SettingsError(
                "Compact needs an archive for the raw messages; "
                "give archive=, or require_archive=False"
            )
        restore = instance_of(Restore, "a Restore such as Restore(work_dir='.')").optional
        restore.check("restore", self.restore)
        check_settings(
            self,
            summarize=SUMMARIZER.optional,
            archive=ARCHIVE.optional,
            require_archive=FLAG,
            fold_unrestored=FLAG,
            evidence_tokens=SIZE,
            max_request_chars=SIZE,
            pin=FUNCTION.optional,
            reference=TEXT,
            retry=instance_of(Retry, "a Retry such as Retry(max_retries=2)"),
            cooldown_seconds=NUMBER,
            clock=FUNCTION,
        )
        check_folder(self.folder)
        check_reference(self.reference)

    async def __call__(self, turn: Turn) -> Change | Skip:
        attempts = turn.recall(Attempts)
        attempts.turns += 1
        skip = await self._reason_to_skip(turn, attempts)
        if skip is not None:
            return skip
        try:
            return await self._compact(turn, attempts)
        except Exception as error:
            attempts.record_failure(self._cooldown_end(), safe_text(error))
            raise

    async def plan(self, turn: Turn) -> Skip | Intent:
        """What would be done; a summary cannot be known without writing it."""
        skip = await self._reason_to_skip(turn, turn.recall(Attempts))
        if skip is not None:
            return skip
        writer = summarizer_name(self._writer(turn))
        _, rest = compact.partition(turn.messages)
        tokens = await turn.tokens()
        return Intent(
            f"{writer} would summarize {len(rest)} messages: "
            f"{tokens} tokens, with a target of {turn.budget.target}"
        )

    def focused(self, focus: str) -> Compact:
        """The same stage whose summary attends to *focus*, if its summarizer can do that."""
        writer = self.summarize or AnthropicSummarizer()
        if not isinstance(writer, AnthropicSummarizer | PromptSummarizer):
            return self
        return replace(self, summarize=replace(writer, focus=focus))

    # Whether --------------------------------------------------------------------------------------

    async def _reason_to_skip(self, turn: Turn, attempts: Attempts) -> Skip | None:
        tokens = await turn.tokens()
        is_over = turn.budget.reached(tokens)
        if not turn.force and not is_over:
            return Skip(f"{tokens} tokens, below the trigger of {turn.budget.trigger}")
        head, rest = compact.partition(turn.messages)
        obstacle = compact.obstacle(rest)
        if obstacle:
            return Skip(obstacle)
        fixed = turn.overhead + await turn.counter.count(head)
        if turn.budget.reached(turn.ledger.estimate(fixed, head)):
            reason = f"over budget: system prompt, tools and system messages hold {fixed} tokens"
        else:
            reason = attempts.refusal(self.clock(), tokens)
        if not reason:
            return None
        raw = await turn.raw_tokens() - turn.overhead
        detail = Compacted(raw, raw, 0, attempts=0, over_budget=is_over, holds=reason)
        return Skip(reason, detail)

    def _cooldown_end(self) -> float:
        return self.clock() + self.cooldown_seconds

    def _writer(self, turn: Turn) -> Summarizer:
        writer = self.summarize or AnthropicSummarizer()
        if isinstance(writer, AnthropicSummarizer):
            writer = writer.with_client(turn.client)
            if not writer.available:
                writer = ExtractiveSummarizer(writer.max_words)
        if isinstance(writer, ExtractiveSummarizer):
            # What the evidence says better need not be in the summary too.
            return replace(writer, brief=True)
        return writer

    def _warn_without_model(self, turn: Turn, writer: Summarizer) -> str:
        """Warn, once in a session, that *writer* stands in for a model; "" when it was chosen."""
        was_chosen = isinstance(self.summarize, ExtractiveSummarizer)
        if was_chosen or not isinstance(writer, ExtractiveSummarizer):
            return ""
        attempts = turn.recall(Attempts)
        if not attempts.warned:
            logger.warning("session %r: %s", turn.session_id[:40], WITHOUT_MODEL)
        attempts.warned = True
        return WITHOUT_MODEL

    # What -----------------------------------------------------------------------------------------

    async def _compact(self, turn: Turn, attempts: Attempts) -> Change | Skip:
        head, rest = compact.partition(turn.messages)
        path = await self._archive(turn.session_id, rest)
        writer = self._writer(turn)
        no_model = self._warn_without_model(turn, writer)
        # What costs nothing is written anew: then it says the same in every process.
        is_free = isinstance(writer, ExtractiveSummarizer)
        parts = None if is_free else turn.recall(FinishedParts)
        summary = await summarize_with_retry(writer, rest, self.retry, parts)
        shown = partial(visible_path, self.reference, session_folder(turn.session_id))
        source = await source_of(turn, self.archive, shown)
        restored = await self._restore(source.messages, turn.counter)
        digest = None
        if self.archive is not None and path:
            digest = await archive_digest(self.archive, path)
        make_drafts = partial(
            compact.drafts,
            head,
            rest,
            summary.text,
            source,
            archive=shown(path) if path else "",
            archive_digest=digest or "",
            notes=_notes(restored),
            pin=self.pin,
            max_request_chars=self.max_request_chars,
            whole=not _has_protected_thinking(turn, rest),
        )
        drafts = await in_thread(make_drafts)
        fold = self._fold_for(turn)
        draft, layout = await choose_layout(turn, drafts, restored, self.evidence_tokens, fold)
        layout, not_listed = await list_paths(turn, draft, layout, self.archive, shown)
        warnings = [*draft.cuts, *restored.warnings]
        warnings += [warning for warning in (no_model, not_listed) if warning]
        detail = Compacted(
            await turn.raw_tokens() - turn.overhead,
            await turn.counter.count(layout.messages),
            len(rest),
            summarizer=summary.writer or summarizer_name(writer),
            archive=path,
            restored=tuple(file.path for file in layout.files),
            restored_tokens=sum(file.tokens for file in layout.files),
            folded=tuple(layout.folded),
            warnings=tuple(warnings),
            attempts=summary.attempts,
            input_tokens=summary.input_tokens,
            cached_tokens=summary.cached_tokens,
            output_tokens=summary.output_tokens,
        )
        return await self._judge(turn, attempts, draft, layout, detail)

    async def _archive(self, session_id: str, rest: Sequence[Message]) -> str | None:
        if self.archive is None:
            return None
        record = archive_record(rest)
        return await _save(
            self.archive,
            session_id,
            record,
            required=self.require_archive,
        )

    async def _restore(self, messages: Sequence[Message], counter: TokenCounter) -> RestoredFiles:
        if self.restore is None:
            return RestoredFiles(warnings=("no files are restored: Compact has no restore=",))
        return await self.restore.read_again(messages, counter)

    def _fold_for(self, turn: Turn) -> Fold | None:
        if not self.fold_unrestored:
            return None
        return partial(fold_texts, counter=turn.counter, folder=self.folder)

    async def _judge(
        self,
        turn: Turn,
        attempts: Attempts,
        draft: compact.Draft,
        layout: Layout,
        detail: Compacted,
    ) -> Change | Skip:
        """Whether the proposal counts, and what is to be reported about it. Source: A-44, R2."""
        budget = turn.budget
        before, after = detail.tokens_before, detail.tokens_after
        estimate = turn.ledger.estimate(after + turn.overhead, layout.messages)
        is_over = budget.reached(estimate)
        if estimate > budget.target:
            holds = await token_breakdown(turn, draft, layout)
            detail = replace(
                detail,
                over_target=True,
                over_budget=is_over,
                holds=holds,
            )
        if after >= before:
            tokens = await turn.tokens()
            attempts.record_no_progress(self._cooldown_end(), tokens)
            reason = f"a summary would hold {after} tokens instead of {before}"
            return Skip(reason, replace(detail, over_budget=budget.reached(tokens)))
        if attempts.record_success(self._cooldown_end()):
            warning = f"compaction backs off: {attempts.why}"
            detail = replace(detail, warnings=(*detail.warnings, warning))
        if is_over:
            attempts.record_no_progress(self._cooldown_end(), estimate)
        return Change(layout.messages, detail)


def _notes(restored: RestoredFiles) -> list[str]:
    files = (*restored.files, *restored.unfit)
    changed = [file.path for file in files if file.changed]
    notes = [f"{path} is not as it was shown before" for path in changed]
    notes += [f"{path} was deleted since it was shown" for path in restored.deleted]
    return notes


def _has_protected_thinking(turn: Turn, rest: Sequence[Message]) -> bool:
    """Whether unanswered messages hold thinking that must not follow a rewritten message."""
    if turn.protected <= 0:
        return False
    return any(map(has_thinking, rest[compact.open_tail(rest) :]))
