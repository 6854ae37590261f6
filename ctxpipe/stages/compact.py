"""Replace a long history by its summary, and restore the working set of files."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial

import anyio
from anyio import to_thread

from .._logs import logger
from .._text import count_phrase, short_repr
from .._threads.threads import in_thread
from ..edits import compact
from ..edits.carry import count_removed
from ..edits.compact import Facts, Pin, Source, after_summary
from ..errors import SettingsError, StorageError, SummaryFailed, safe_text
from ..messages import Message, ensure_messages, has_thinking, split_system
from ..placeholders.names import session_folder
from ..placeholders.summaries import (
    SEARCHABLE,
    acknowledged_count,
    archive_references,
    leading_count,
    omissions_name,
    reminder,
    safe_summary,
    summary_body,
    text_of,
)
from ..settings import (
    COMPACT_MAX_RETRIES,
    COMPACT_OUTPUT_DIR,
    FLAG,
    PIN,
    SIZE,
    SUMMARIZER,
    SUMMARY_MAX_WORDS,
    check_settings,
    excerpt,
    instance_of,
)
from ..storage import Archive, LocalStorage, TextWriter
from ..storage.files import FileReader
from ..storage.protocol import ARCHIVE
from ..storage.records import message_redactor_of, redactor_of
from ..storage.references import check_reference, reference_of, visible_path
from ..summarizers import (
    AgentSummarizer,
    AnthropicSummarizer,
    ExtractiveSummarizer,
    FinishedParts,
    PromptSummarizer,
    Retry,
    Summarizer,
    summarize_with_retry,
)
from ..summarizers.agent import warning_without_model, with_agent_model
from ..summarizers.protocol import Summary, summarizer_name
from ..summarizers.retry import FinishedSummary, digest_of
from ..tokens import Counting, TokenCounter, as_counter, should_compact
from .archive import (
    ArchiveContent,
    archive_digest,
    archive_record,
    last_part,
    load_archive,
    read_verified,
    records_by_name,
    save_raw,
)
from .background import BACKGROUND_SHARE, PendingSummary, answer_boundary
from .breaker import Attempts, Breaker
from .layout import (
    FileFolder,
    Layout,
    OmissionsFile,
    can_keep,
    choose_layout,
    fold_texts,
    list_paths,
    omissions_key,
    token_breakdown,
    window_holds,
    write_omissions,
)
from .protocol import Change, Intent, Skip, Turn
from .reports import Compacted
from .restore import Restore, RestoredFiles, restore_files

RECENT = 3
"""How many earlier compactions are opened; what was before them is known from the last one."""
MOST_ARCHIVES = 100
"""How many are opened where they have kept no facts, as those of `compact_messages`."""


async def source_of(turn: Turn, archive: Archive | None, shown: Callable[[str], str]) -> Source:
    """The raw messages behind the context of *turn*, and the archives of its compactions.

    The archives are named by the paths that the model sees. In a session the messages are the
    caller's history, to the letter. Otherwise the context is all there is, and a summary at its
    beginning is believed only as far as it names archives of this very session, with the right
    digest: the messages in them take its place, and before those the facts that they have kept.
    What cannot be verified contributes nothing.
    """
    _, rest = split_system(turn.messages)
    source = await _expand(rest, turn.session_id, archive, shown)
    if turn.history is not None:
        _, history = split_system(turn.history)
        # Otherwise it is a context that a caller has kept, and given to a session as its history.
        if not acknowledged_count(history):
            return Source(history, source.archives, is_raw=True, redact=source.redact)
    return source


async def _expand(
    messages: Sequence[Message],
    session_id: str,
    archive: Archive | None,
    shown: Callable[[str], str],
) -> Source:
    """*messages* with what archives hold in place of the summary at the beginning.

    The archives are named oldest first.
    """
    later: list[list[Message]] = []
    names: list[str] = []
    redact = message_redactor_of(archive)
    candidates: Sequence[tuple[str, str]] = []
    if messages and summary_body(messages[0]) is not None:
        candidates = archive_references(text_of(messages[0]))
    # Listed once: a long session has many archives, and thousands of files beside them.
    records = await records_by_name(archive, session_id) if candidates else {}
    facts: Facts | None = None
    while candidates and len(names) < (RECENT if facts else MOST_ARCHIVES):
        name, found = await _first_verified(candidates, records, archive)
        if found is None or name in names:
            break
        later.append(await in_thread(after_summary, messages, found.messages, redact))
        names.append(name)
        messages = found.messages
        facts = found.facts
        candidates = found.before
    # The facts are those of the messages in the last archive, too.
    raw = [] if facts else list(messages[leading_count(messages) :])
    for part in reversed(later):
        raw += part
    archives = list(map(shown, reversed(names)))
    return Source(raw, archives, redact=redactor_of(archive), earlier=facts or Facts())


async def _first_verified(
    candidates: Sequence[tuple[str, str]], records: Mapping[str, str], archive: Archive | None
) -> tuple[str, ArchiveContent | None]:
    """The first of the archives *candidates*, by path and digest, that is verified.

    Its record, one of the session's *records* by their names, and what it holds.
    """
    for path, digest in candidates:
        record = records.get(last_part(path))
        if record is None:
            continue
        found = await read_verified(archive, record, digest)
        if found is not None:
            return record, found
    return "", None


__all__ = [
    "Breaker",
    "Compact",
    "CompactResult",
    "CompactStats",
    "Evidence",
    "FileFolder",
    "Restore",
    "compact_messages",
    "load_archive",
    "restore_files",
]

# The function, literal to the requirements --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactStats:
    """What a compaction did. Tokens are raw, of the messages alone."""

    original_token_count: int
    compacted_token_count: int
    compaction_ratio: float
    compacted_message_count: int
    retained_message_count: int
    restored_file_count: int
    restored_token_count: int


@dataclass(frozen=True, slots=True, repr=False)
class CompactResult:
    """What `compact_messages` returns.

    Without a compaction, *messages* is the very list given and *reason* says why.
    """

    messages: list[Message] = field(repr=False)
    compacted: bool = False
    stats: CompactStats | None = None
    original_messages_path: str | None = None
    reason: str = ""

    __repr__ = short_repr


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
    disk and follow the summary. The very same list comes back below
    *context_token_limit* x *compact_threshold_ratio* (200,000 x 0.92 raw tokens, *system* and
    *tools* included), when no summary can be had after *max_retries* (2), and when the result would
    not be smaller. *messages* is not modified.

    The raw messages go first to ``<output_dir>/<session_id>/compact-<UTC seconds>-<n>.json``
    (*output_dir*: .compact), for `load_archive` to read back: plain messages come back equal, model
    objects of the SDK as they would be sent. A failed save is logged and does not stop the
    compaction unless *require_archive*.

    *summarize* writes the summary. By default that is `AnthropicSummarizer` with *model* and
    *summary_max_words*: the messages are sent to Anthropic with the credentials that the
    environment holds for it, whatever the agent itself uses; without any, `ExtractiveSummarizer`
    writes.
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
        max_words = SUMMARY_MAX_WORDS(summary_max_words)
        summarize = AnthropicSummarizer(model=model, max_words=max_words, counter=counter)
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
    _, rest = split_system(messages)
    if not rest:
        return CompactResult(messages, reason="nothing but system messages")
    if not is_long:
        return CompactResult(messages, reason="below the threshold")
    if archive is None:
        folder = output_dir or COMPACT_OUTPUT_DIR()
        archive = await to_thread.run_sync(partial(LocalStorage, folder, on_conflict="number"))
    path = None
    try:
        path = await save_raw(archive, session_id, "compact", rest, required=require_archive)
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
    folded: Mapping[str, str] = {}
    if fold_unrestored:
        folded = await fold_texts(restored.unfit, counter)
    commands = reminder(compact.extract_commands(rest))
    text = "\n\n".join([safe_summary(summary.text) + commands, *folded.values()])
    result = await _largest_smaller_result(messages, text, restored, counter)
    return replace(result, original_messages_path=path)


async def _largest_smaller_result(
    original: list[Message], text: str, restored: RestoredFiles, counter: TokenCounter
) -> CompactResult:
    """The result with as many of the restored files as leave it smaller than the *original*."""
    head, rest = split_system(original)
    before = await counter.count(original)
    for number in range(len(restored.files), -1, -1):
        files = restored.files[:number]
        messages = compact.assemble(head, text, [file.message for file in files])
        after = await counter.count(messages)
        if after < before:
            stats = CompactStats(
                original_token_count=before,
                compacted_token_count=after,
                compaction_ratio=after / before,
                compacted_message_count=len(rest),
                retained_message_count=len(head),
                restored_file_count=number,
                restored_token_count=sum(file.tokens for file in files),
            )
            return CompactResult(messages, True, stats)
    reason = f"the compacted messages would not be smaller than {before:,} tokens"
    logger.warning("%s", reason)
    return CompactResult(original, reason=reason)


# The stage ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """What `Compact` keeps word for word, whatever the summary says.

    A list of paths of up to *tokens* tokens and, in proportion, commands, identifiers and the
    user's requests; paths that exceed this are listed in a file beside the archive. *pin* chooses
    messages to keep as they are: a function, or texts, one of which the user says in them. They
    share half of the budget's target with all else that is carried on, and come before most of it;
    those that do not fit are in a file that the context names. What the model has not answered
    stays whole as long as the window holds it; else the user's words in it are cut, head and tail.

    Raises SettingsError for settings that are invalid.
    """

    tokens: int = 2000
    pin: Pin | None = None

    def __post_init__(self) -> None:
        check_settings(self, tokens=SIZE, pin=PIN.optional)


@dataclass(frozen=True, slots=True, repr=False)
class Compact:
    """Near the limit, replace the history by its summary.

    The evidence that no model may forget and the working set of files follow the summary. It begins
    when the calibrated estimate of the context reaches the budget's trigger (or by force) and aims
    at its target: restored files give way first, the oldest of them first, then the evidence. A
    result that is still above the target but smaller than before is used, and reported as
    ``over_target`` with what keeps it there. While a call waits for its result, one of a server
    tool included, compaction is postponed; where the API itself has compacted, it is left to the
    API.

    *summarize* writes the summary: by default `AgentSummarizer`, the agent's own model, where a
    session's client or an adapter lends it, and elsewhere `ExtractiveSummarizer`, with one warning
    in a session. The report names the one that wrote, its model, and what it cost.

    *archive* keeps the raw messages, before anything else happens; without it nothing is compacted,
    unless *require_archive* is False.

    *restore* says which of the user's files may be read again; without it no file is opened, and
    the report says so.

    *evidence* says how much is kept word for word: paths, commands, requests, pinned messages. What
    the model has not answered stays whole, images, documents and results included, as long as the
    window holds it beside the summary, also above the target; where it does not, the report's
    warnings say what is missing.

    System messages from the middle of the history, pinned messages, the request under way, blocks
    of types that ctxpipe does not know, and references to files are carried on word for word, and
    so are the calls that loaded tools. Together with files and evidence they take at most half of
    the target. What does not fit is stored in a file that the context and the report name.

    *breaker* says how often a summary is tried, and when no attempt is made for a while.

    With *background* a session that is handed its history begins the summary at `BACKGROUND_SHARE`
    of the trigger, while the agent goes on. The turn that reaches the trigger waits only for what
    is still missing; the messages that came since stay behind the summary, word for word. As each
    summary then covers less, there are more of them. Where one fails, or the history was edited,
    the turn asks for its own, as with a focus. The end of the session's ``async with`` cancels what
    is not written yet.

    Nothing is believed because of what a text says: in a session the evidence comes from the
    caller's history, and elsewhere from archives of the same session whose digest is right. Texts
    that only look like ours contribute nothing.

    Raises SettingsError for settings that are invalid.
    """

    summarize: Summarizer | None = None
    archive: Archive | None = None
    restore: Restore | None = None
    evidence: Evidence = Evidence()
    breaker: Breaker = field(default_factory=Breaker)
    require_archive: bool = True
    background: bool = False

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.archive is None and isinstance(self.summarize, Archive):
            raise SettingsError(
                f"summarize is {excerpt(self.summarize)}, a storage; give it as archive="
            )
        if self.archive is None and self.require_archive:
            raise SettingsError(
                "Compact needs an archive for the raw messages; "
                "give archive=, or require_archive=False"
            )
        check_settings(
            self,
            restore=instance_of(Restore, "a Restore such as Restore(work_dir='.')").optional,
            summarize=SUMMARIZER.optional,
            archive=ARCHIVE.optional,
            evidence=instance_of(Evidence, "an Evidence such as Evidence(tokens=2000)"),
            breaker=instance_of(Breaker, "a Breaker such as Breaker(cooldown_seconds=300)"),
            require_archive=FLAG,
            background=FLAG,
        )
        check_reference(reference_of(self.archive))

    async def __call__(self, turn: Turn) -> Change | Skip:
        turn.recall(Attempts).turns += 1
        skip = await self._reason_to_skip(turn)
        if skip is None:
            return await self._attempt(turn)
        if self.background and await self._may_begin(turn):
            await PendingSummary.begin(turn, self._writer(turn), self.breaker.retry)
        return skip

    async def plan(self, turn: Turn) -> Skip | Intent:
        """What would be done; a summary cannot be known without writing it."""
        skip = await self._reason_to_skip(turn)
        if skip is not None:
            return skip
        writer = summarizer_name(self._writer(turn))
        _, rest = split_system(turn.messages)
        tokens = await turn.tokens()
        return Intent(
            f"{writer} would summarize {len(rest)} messages: "
            f"{tokens:,} tokens, with a target of {turn.budget.target:,}"
        )

    def with_focus(self, focus: str) -> Compact:
        """The same stage whose summary attends to *focus*, if its summarizer can do that."""
        writer = self.summarize or AgentSummarizer()
        if not isinstance(writer, AgentSummarizer | AnthropicSummarizer | PromptSummarizer):
            return self
        return replace(self, summarize=replace(writer, focus=focus), background=False)

    async def _attempt(self, turn: Turn) -> Change | Skip:
        attempts = turn.recall(Attempts)
        before = attempts.archive  # of an attempt that was cancelled, or made nothing shorter
        try:
            answer = await self._compact(turn)
        except Exception as error:
            attempts.record_failure(self.breaker.cooldown_end(), safe_text(error))
            if attempts.archive != before and not attempts.archived:
                attempts.archived = await _digest_of(turn)
            raise
        if isinstance(answer, Skip):
            turn.memory.pop(FinishedSummary, None)
        return answer

    # Whether --------------------------------------------------------------------------------------

    async def _reason_to_skip(self, turn: Turn) -> Skip | None:
        tokens = await turn.tokens()
        is_over = turn.budget.reached(tokens)
        if not turn.force and not is_over:
            return Skip(f"{tokens:,} tokens, below the trigger of {turn.budget.trigger:,}")
        head, rest = split_system(turn.messages)
        obstacle = compact.obstacle(rest)
        if obstacle:
            return Skip(obstacle)
        fixed = turn.overhead + await turn.counter.count(head)
        raw = await turn.raw_tokens()
        must_cut = not compact.open_tail(rest) or _has_protected_thinking(turn, rest)
        if must_cut and not turn.force and window_holds(turn, raw):
            return Skip("postponed: only what the model has not answered could go")
        if turn.budget.reached(turn.ledger.estimate(fixed)):
            reason = f"over budget: system prompt, tools and system messages hold {fixed:,} tokens"
        else:
            attempts = turn.recall(Attempts)
            # The clock of another process may be ahead.
            attempts.open_until = min(attempts.open_until, self.breaker.cooldown_end())
            reason = attempts.refusal(self.breaker.clock(), tokens)
        if not reason:
            return None
        raw -= turn.overhead
        return Skip(reason, Compacted(raw, raw, 0, attempts=0, over_budget=is_over, holds=reason))

    async def _may_begin(self, turn: Turn) -> bool:
        """Whether the next summary is to be begun in the background.

        Not where kept thinking may forbid to keep what comes after it; and what costs nothing is
        not waited for.
        """
        is_early = await turn.tokens() < BACKGROUND_SHARE * turn.budget.trigger
        if is_early or turn.protected or isinstance(self._writer(turn), ExtractiveSummarizer):
            return False
        pending = turn.memory.get(PendingSummary)
        if pending:
            if pending.place(turn):
                return False
            pending.cancel()
        return not await self._reason_to_skip(replace(turn, force=True))

    def _writer(self, turn: Turn) -> Summarizer:
        own = self.summarize or AgentSummarizer()
        writer = with_agent_model(own, turn.agent_model, turn.budget.window)
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
        warning = warning_without_model(self.summarize, turn.agent_model)
        if not attempts.warned:
            logger.warning("session %r: %s", turn.session_id[:40], warning)
        attempts.warned = True
        return warning

    # What -----------------------------------------------------------------------------------------

    async def _compact(self, turn: Turn) -> Change | Skip:
        _, rest = split_system(turn.messages)
        shown = partial(visible_path, reference_of(self.archive), session_folder(turn.session_id))
        source = await source_of(turn, self.archive, shown)
        facts = await in_thread(compact.gather_facts, source)
        # Before the summary, so that none is paid for where nothing can be kept. After an attempt
        # that has kept its messages and had no summary it is after it: not once for each attempt.
        is_first = not turn.recall(Attempts).archive
        path = await self._archive(turn, rest, facts) if is_first else None
        writer = self._writer(turn)
        no_model = self._warn_without_model(turn, writer)
        summary, covered = await self._summarize(turn, writer, rest)
        if not is_first:
            path = await self._archive(turn, rest, facts)
        described = _number_described(turn, covered) if source.is_raw else None
        if described is not None:
            source, later = _divide(source, turn, described)
            facts = await in_thread(compact.gather_facts, source)
            facts = replace(facts, requests=[*facts.requests, *later])
        restored = RestoredFiles(warnings=(_NOT_RESTORED,))
        if self.restore is not None:
            restored = await self.restore.read_again(
                source.messages, turn.counter, turn.session_id, self.archive
            )
        notes = [SEARCHABLE] if turn.can_search else []
        facts = replace(facts, notes=notes + _notes(restored))
        found = await self._replacements(turn, summary, covered, source, facts, path, shown)
        file = self._omissions_file(turn, rest, path, shown)
        replacement, layout = await choose_layout(turn, found, restored, self.evidence.tokens, file)
        layout, file, not_written = await write_omissions(
            turn, replacement, layout, self.archive, shown, file
        )
        layout, not_listed = await list_paths(turn, replacement, layout, self.archive, shown, file)
        carried = layout.carried
        warnings = [*replacement.cuts, *carried.cuts, *restored.warnings]
        if carried.left_out:
            number = count_phrase(len(carried.left_out), "piece")
            warnings.append(f"{number} that should be carried on did not fit: {file.path}")
        warnings += [warning for warning in (no_model, not_written, not_listed) if warning]
        detail = Compacted(
            await turn.raw_tokens() - turn.overhead,
            await turn.counter.count(layout.messages),
            covered or len(rest),
            summarizer=summary.writer or summarizer_name(writer),
            archive=path,
            restored=tuple(file.path for file in layout.files),
            restored_tokens=sum(file.tokens for file in layout.files),
            folded=tuple(layout.folded),
            warnings=tuple(warnings),
            left_out=tuple(map(str, carried.left_out)),
            left_out_file=file.path if carried.left_out else "",
            removed=await in_thread(count_removed, rest, layout.messages),
            attempts=summary.attempts,
            input_tokens=summary.input_tokens,
            cached_tokens=summary.cached_tokens,
            output_tokens=summary.output_tokens,
            model=summary.model,
            dollars=summary.dollars,
        )
        answer = await self._judge(turn, replacement, layout, detail)
        if not isinstance(answer, Change):
            return answer
        return replace(answer, described_count=described)

    async def _summarize(
        self, turn: Turn, writer: Summarizer, rest: Sequence[Message]
    ) -> tuple[Summary, int | None]:
        """The summary of *rest*, or the one from the background and how many messages it covers.

        What came since may be too much to be kept: then it is summarized, with that summary before
        it.
        """
        # What costs nothing is written anew: then it says the same in every process.
        is_free = isinstance(writer, ExtractiveSummarizer)
        parts = None if is_free else turn.recall(FinishedParts)
        earlier = None if parts is None else parts.writer
        if isinstance(writer, AgentSummarizer) and isinstance(earlier, AgentSummarizer) and parts:
            # What an earlier request has lent may be closed by now, or its key be out of date.
            parts.writer = replace(earlier, agent_model=writer.agent_model)
        pending = turn.memory.get(PendingSummary)
        if self.background and pending and (covered := pending.place(turn)):
            summary = await pending.summary(turn)
            if summary is None:  # it has failed, or is of a history that was edited
                pending.cancel()
                del turn.memory[PendingSummary]
            elif await can_keep(turn, rest[covered:]):
                return summary, covered
            else:
                known = await in_thread(digest_of, rest[:covered])
                parts = FinishedParts(writer, writer, covered, known, summary)
                turn.memory[FinishedParts] = parts
        if turn.tracked is not None and turn.tracked.has_changing_end:
            _, place = answer_boundary(turn)
            if place and await can_keep(turn, rest[place:]):
                return await summarize_with_retry(writer, rest[:place], self.breaker.retry), place
        if parts is None:
            return await summarize_with_retry(writer, rest, self.breaker.retry), None
        finished = turn.memory.get(FinishedSummary)
        if finished is not None and finished.summarizer == writer and finished.count <= len(rest):
            known = await in_thread(digest_of, rest[: finished.count])
            if known == finished.digest and finished.summary is not None:
                if finished.count == len(rest):
                    return finished.summary, None
                parts = finished
        digest = await in_thread(digest_of, rest)
        summary = await summarize_with_retry(writer, rest, self.breaker.retry, parts)
        # Nothing is awaited since it came: wherever the turn is cancelled, it is not paid again.
        finished = FinishedSummary(writer, writer, len(rest), digest, summary)
        turn.memory[FinishedSummary] = finished
        return summary, None

    async def _archive(
        self, turn: Turn, rest: Sequence[Message], facts: compact.Facts
    ) -> str | None:
        """Where *rest* is kept: in the archive of an attempt that failed, if that was the same."""
        if self.archive is None:
            return None
        attempts = turn.recall(Attempts)
        is_same = attempts.archive and attempts.archived == await _digest_of(turn)
        if is_same and await archive_digest(self.archive, attempts.archive):
            return attempts.archive
        attempts.archive = attempts.archived = ""
        record = archive_record(rest, facts=facts)
        path = await save_raw(
            self.archive, turn.session_id, "compact", record, required=self.require_archive
        )
        attempts.archive = path or ""
        return path

    async def _replacements(
        self,
        turn: Turn,
        summary: Summary,
        covered: int | None,
        source: compact.Source,
        facts: compact.Facts,
        archive: str | None,
        shown: Callable[[str], str],
    ) -> list[compact.Replacement]:
        """What may replace the history, which is kept in the file *archive*.

        *shown* gives its path as the model sees it.
        """
        head, rest = split_system(turn.messages)
        path = ""
        if archive:
            path = shown(archive)
            digest = await archive_digest(self.archive, archive) or ""
            facts = replace(facts, archives=[*facts.archives, path], digest=digest)
        make_replacements = partial(
            compact.replacements,
            archive=path,
            pin=self.evidence.pin,
            whole=not _has_protected_thinking(turn, rest),
            covered=covered,
        )
        return await in_thread(make_replacements, head, rest, summary.text, source, facts)

    def _omissions_file(
        self,
        turn: Turn,
        rest: Sequence[Message],
        archive: str | None,
        shown: Callable[[str], str],
    ) -> OmissionsFile:
        """Return where the model would find what is not carried on, now and by the one before."""
        if self.archive is None or not isinstance(self.archive, TextWriter):
            return OmissionsFile(shown(archive) if archive else "")
        key = omissions_key(turn.session_id)
        before = ""
        if rest and acknowledged_count(rest):
            before = omissions_name(rest[0])
        if before:
            folder, _, _ = key.rpartition("/")
            before = shown(self.archive.location(f"{folder}/{before}"))
        return OmissionsFile(shown(self.archive.location(key)), before)

    async def _judge(
        self, turn: Turn, replacement: compact.Replacement, layout: Layout, detail: Compacted
    ) -> Change | Skip:
        """Whether the proposal counts, and what is to be reported about it."""
        attempts = turn.recall(Attempts)
        until = self.breaker.cooldown_end()
        budget = turn.budget
        before, after = detail.tokens_before, detail.tokens_after
        estimate = turn.ledger.estimate(after + turn.overhead)
        is_over = budget.reached(estimate)
        if estimate > budget.target:
            holds = await token_breakdown(turn, replacement, layout)
            detail = replace(detail, over_target=True, over_budget=is_over, holds=holds)
        if after >= before:
            tokens = await turn.tokens()
            attempts.record_no_progress(until, tokens)
            reason = f"a summary would hold {after:,} tokens instead of {before:,}"
            return Skip(reason, replace(detail, over_budget=budget.reached(tokens)))
        if attempts.record_success(until):
            warning = f"compaction backs off: {attempts.why}"
            detail = replace(detail, warnings=(*detail.warnings, warning))
        elif is_over:
            attempts.record_no_progress(until, estimate)
        return Change(layout.messages, detail)


def _number_described(turn: Turn, covered: int | None) -> int | None:
    """How much of the history is described; None for all of it.

    Where its end changes from request to request, what comes after the *covered* messages is in
    neither the summary nor the evidence: else a summary would be undone in each turn.
    """
    if covered is None or turn.tracked is None or not turn.tracked.has_changing_end:
        return None
    count, place = answer_boundary(turn)
    if place == covered:
        return count
    pending = turn.memory.get(PendingSummary)
    return pending.count if pending else None


def _divide(source: Source, turn: Turn, described: int) -> tuple[Source, list[str]]:
    """*source* with the first *described* messages of the history, and the requests after them.

    Those are at the end of the context, from where they are taken out of the evidence.
    """
    head, _ = split_system(turn.history or ())
    count = max(0, described - len(head))
    later = source.words_in(source.messages[count:])
    return replace(source, messages=source.messages[:count]), later


async def _digest_of(turn: Turn) -> str:
    """The digest of what is to be summarized."""
    _, rest = split_system(turn.messages)
    return (await in_thread(digest_of, rest)).hex()


_NOT_RESTORED = "no files are restored: Compact has no restore="


def _notes(restored: RestoredFiles) -> list[str]:
    changed = [file.path for file in (*restored.files, *restored.unfit) if file.changed]
    notes = [f"{path} is not as it was shown before" for path in changed]
    notes += [f"{path} was deleted since it was shown" for path in restored.deleted]
    return notes


def _has_protected_thinking(turn: Turn, rest: Sequence[Message]) -> bool:
    """Whether unanswered messages hold thinking that must not follow a rewritten message."""
    if turn.protected <= 0:
        return False
    return any(map(has_thinking, rest[compact.open_tail(rest) :]))
