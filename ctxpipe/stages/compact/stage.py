"""Replace a long history by its summary, and restore the working set of files.

The module `partition` has a picture of a compacted context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..._logs import logger
from ..._text import count_phrase, short_repr
from ..._threads.threads import in_thread
from ...errors import SettingsError, safe_text
from ...messages import Message, has_thinking, split_system
from ...placeholders.names import session_folder
from ...placeholders.summaries import SEARCHABLE, acknowledged_count, omissions_name
from ...settings import FLAG, PIN, SIZE, SUMMARIZER, check_settings, excerpt, instance_of
from ...storage import Archive, TextWriter
from ...storage.protocol import ARCHIVE
from ...storage.references import check_reference, reference_of, visible_path
from ...summarizers import (
    AgentSummarizer,
    AnthropicSummarizer,
    ExtractiveSummarizer,
    FinishedParts,
    PromptSummarizer,
    Summarizer,
    summarize_with_retry,
)
from ...summarizers.agent import warning_without_model, with_agent_model
from ...summarizers.protocol import Summary, summarizer_name
from ...summarizers.retry import FinishedSummary, digest_of
from ..archive import archive_digest, archive_record, save_raw
from ..protocol import Change, Intent, Skip, Turn
from ..reading.conversation_facts import ConversationFacts
from ..reading.pins import Pin
from ..reading.removed import count_removed
from ..reading.unanswered import open_tail
from ..reports import Compacted
from ..window import window_holds
from . import partition as compact
from .background import BACKGROUND_SHARE, PendingSummary, answer_boundary
from .breaker import Attempts, Breaker
from .expand import source_of
from .layout import (
    Layout,
    can_keep,
    choose_layout,
    list_paths,
    omissions_key,
    token_breakdown,
    write_omissions,
)
from .omissions import OmissionsFile
from .restore import Restore, RestoredFiles
from .source import Source, gather_facts

__all__ = ["Breaker", "Compact", "Evidence", "Restore"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts that `Compact` copies from the history into the new context, whatever the summary says.

    The list of paths takes up to *tokens* raw tokens; commands, identifiers and the user's requests
    are limited in proportion. Paths that do not fit are listed in a file next to the archive.

    *pin* chooses messages that stay unchanged: a function, or texts to look for in the user's
    words. Pinned messages and all other content that a compaction carries over take, together with
    restored files and the evidence, at most half of the budget's target; files and evidence get
    what the other content leaves of it. Pinned messages come before most of the other content;
    those that do not fit are moved to a file that the context names. Messages that the model has
    not answered are not subject to these limits: they stay whole as long as the context window
    holds them, otherwise the user's words in them are cut to head and tail.

    Raises SettingsError if a setting is invalid.
    """

    tokens: int = 2000
    pin: Pin | None = None

    def __post_init__(self) -> None:
        check_settings(self, tokens=SIZE, pin=PIN.optional)


@dataclass(frozen=True, slots=True, repr=False)
class Compact:
    """Replace the history by its summary when the context comes near its limit.

    The summary is followed by the *evidence*, facts that must not be forgotten, and by the files
    that the agent used last, read again from the disk. A compaction starts when the estimated
    tokens of the context reach the budget's *trigger*, or when the caller forces it. The new
    context should have at most the budget's *target* tokens: first the restored files are left out,
    the oldest of them first, then the evidence is reduced. A result that is still above the target
    but smaller than before is used, and reported as ``over_target`` with the parts that take the
    tokens. While a call waits for its result, also a call of a server tool, compaction is
    postponed. If the API itself has compacted the conversation, the stage leaves compaction to the
    API.

    *summarize* writes the summary. The default is `AgentSummarizer`, which uses the agent's own
    model if a session's client or an adapter provides it; otherwise `ExtractiveSummarizer` is used,
    with one warning in a session. The report has the name of the summarizer, its model, and its
    cost.

    *archive* is the storage to which the raw messages are saved, before anything else happens. It
    is required unless *require_archive* is False.

    *restore* says which of the user's files may be read again after the summary. Without it no file
    is opened, and the report has a warning.

    *evidence* says how much of the history's facts is kept: paths, commands, requests, pinned
    messages. Messages that the model has not answered stay whole, including images, documents and
    results, even above the target, as long as the context window holds them and the summary. If it
    does not, they are cut, and the report's warnings say what is missing.

    Some content is *carried over* unchanged: system messages from the middle of the history, pinned
    messages, the request that is being worked on, blocks of types that ctxpipe does not know,
    references to files, and the calls that loaded tools. Together with files and evidence it takes
    at most half of the target. What does not fit is stored in a file that the context and the
    report name.

    *breaker* limits how often a summary is tried, and how long no attempt is made after failures.

    If *background* is True, the summary is started early, at 0.85 of the trigger, and written while
    the agent continues. This works only in a session to which the caller passes the history. The
    turn that reaches the trigger waits only until that summary is complete; the messages since its
    start follow it unchanged. Each summary covers fewer messages than one at the trigger would, so
    over a long conversation more summaries are paid for. The turn requests a new summary instead if
    the background summary failed, if the history was edited, or if the caller asks for a *focus*.
    The end of the session's ``async with`` cancels an unfinished summary.

    No text is trusted because of its wording. In a session the evidence comes from the caller's
    history, and otherwise from archives of the same session whose digest matches. A message that
    only looks like a summary or a note of ctxpipe adds nothing to the evidence.

    Raises SettingsError if a setting is invalid.
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
        """Compact the context if it has reached the trigger, or by force.

        Raises StorageError or SummaryFailed if the archive or the summary cannot be written.
        """
        turn.recall(Attempts).turns += 1
        skip = await self._reason_to_skip(turn)
        if skip is None:
            return await self._attempt(turn)
        if self.background and await self._may_begin(turn):
            await PendingSummary.begin(turn, self._writer(turn), self.breaker.retry)
        return skip

    async def plan(self, turn: Turn) -> Skip | Intent:
        """Return a Skip, or an Intent: the outcome is unknown before the summary is written."""
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
        """Return the same stage with a summary that attends to *focus*, if its summarizer can."""
        writer = self.summarize or AgentSummarizer()
        if not isinstance(writer, AgentSummarizer | AnthropicSummarizer | PromptSummarizer):
            return self
        return replace(self, summarize=replace(writer, focus=focus), background=False)

    async def _attempt(self, turn: Turn) -> Change | Skip:
        """Compact the history once, and record a failure for the circuit breaker.

        A failure is raised unchanged. An archive that a failed attempt has written is remembered,
        so that the next attempt does not write it again.
        """
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

    async def _reason_to_skip(self, turn: Turn) -> Skip | None:
        """Return a Skip if the context need not or must not be compacted now, else None.

        It need not below its trigger. It must not in the middle of an exchange, if its fixed part
        alone exceeds the budget, or while the circuit breaker is open.
        """
        tokens = await turn.tokens()
        is_over = turn.budget.reached(tokens)
        if not turn.force and not is_over:
            return Skip(f"{tokens:,} tokens, below the trigger of {turn.budget.trigger:,}")
        head, rest = split_system(turn.messages)
        reason = compact.reason_to_postpone(rest)
        if reason:
            return Skip(reason)
        fixed_tokens = turn.overhead + await turn.counter.count(head)
        raw = await turn.raw_tokens()
        must_cut = not open_tail(rest) or _has_protected_thinking(turn, rest)
        if must_cut and not turn.force and window_holds(turn, raw):
            return Skip("postponed: only what the model has not answered could go")
        if turn.budget.reached(turn.ledger.estimate(fixed_tokens)):
            reason = (
                "over budget: system prompt, tools and system messages have "
                f"{fixed_tokens:,} tokens"
            )
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
        """Return True if the next summary should be started in the background.

        That is not so if protected thinking may forbid to keep the messages after it, or if the
        summarizer costs no time to wait for.
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
        """Return the summarizer of the settings, or else one that uses the model of the agent.

        An extractive summarizer becomes brief, because the evidence has the same facts.
        """
        configured = self.summarize or AgentSummarizer()
        writer = with_agent_model(configured, turn.agent_model, turn.budget.window)
        if isinstance(writer, ExtractiveSummarizer):
            # The evidence has its facts in a better form, so its summary need not repeat them.
            return replace(writer, brief=True)
        return writer

    def _warn_without_model(self, turn: Turn, writer: Summarizer) -> str:
        """Return a warning if *writer* is used for lack of a model; "" if it was chosen.

        The first warning of a session is logged.
        """
        was_chosen = isinstance(self.summarize, ExtractiveSummarizer)
        if was_chosen or not isinstance(writer, ExtractiveSummarizer):
            return ""
        attempts = turn.recall(Attempts)
        warning = warning_without_model(self.summarize, turn.agent_model)
        if not attempts.warned:
            logger.warning("session %r: %s", turn.session_id[:40], warning)
        attempts.warned = True
        return warning

    async def _compact(self, turn: Turn) -> Change | Skip:
        """Archive the messages, write the summary, and build the new context."""
        _, rest = split_system(turn.messages)
        folder = session_folder(turn.session_id)
        visible_path_of = partial(visible_path, reference_of(self.archive), folder)
        source = await source_of(turn, self.archive, visible_path_of)
        facts = await in_thread(gather_facts, source)
        # The archive comes before the summary, so that no summary is paid for if nothing can be
        # stored. After an attempt that stored its messages but got no summary it comes after the
        # summary: not every attempt writes an archive.
        is_first_attempt = not turn.recall(Attempts).archive
        path = await self._archive(turn, rest, facts) if is_first_attempt else None
        writer = self._writer(turn)
        model_warning = self._warn_without_model(turn, writer)
        summary, covered_count = await self._summarize(turn, writer, rest)
        if not is_first_attempt:
            path = await self._archive(turn, rest, facts)
        described_count = _count_described(turn, covered_count) if source.is_raw else None
        if described_count is not None:
            source, later_requests = _divide(source, turn, described_count)
            facts = await in_thread(gather_facts, source)
            facts = replace(facts, requests=[*facts.requests, *later_requests])
        restored_files = RestoredFiles(warnings=(_NO_RESTORE,))
        if self.restore is not None:
            restored_files = await self.restore.read_again(
                source.messages, turn.counter, turn.session_id, self.archive
            )
        notes = [SEARCHABLE] if turn.can_search else []
        facts = replace(facts, notes=notes + _notes(restored_files))
        replacements = await self._replacements(
            turn, summary, covered_count, source, facts, path, visible_path_of
        )
        file = self._omissions_file(turn, rest, path, visible_path_of)
        replacement, layout = await choose_layout(
            turn, replacements, restored_files, self.evidence.tokens, file
        )
        layout, file, omissions_warning = await write_omissions(
            turn, replacement, layout, self.archive, visible_path_of, file
        )
        layout, paths_warning = await list_paths(
            turn, replacement, layout, self.archive, visible_path_of, file
        )
        selection = layout.selection
        warnings = [*replacement.cuts, *selection.cuts, *restored_files.warnings]
        if selection.left_out:
            number = count_phrase(len(selection.left_out), "piece")
            warnings.append(f"{number} that should be carried on did not fit: {file.path}")
        further_warnings = (model_warning, omissions_warning, paths_warning)
        warnings += [warning for warning in further_warnings if warning]
        detail = Compacted(
            await turn.raw_tokens() - turn.overhead,
            await turn.counter.count(layout.messages),
            covered_count or len(rest),
            summarizer=summary.writer or summarizer_name(writer),
            archive=path,
            restored=tuple(restored_file.path for restored_file in layout.files),
            restored_tokens=sum(restored_file.tokens for restored_file in layout.files),
            folded=tuple(layout.folded_texts),
            warnings=tuple(warnings),
            left_out=tuple(str(piece) for piece in selection.left_out),
            left_out_file=file.path if selection.left_out else "",
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
        return replace(answer, described_count=described_count)

    async def _summarize(
        self, turn: Turn, writer: Summarizer, rest: Sequence[Message]
    ) -> tuple[Summary, int | None]:
        """Return the summary, and the number of messages of *rest* that it covers; None for all.

        There are four cases:

        1. A summary from the background is ready, and the messages since then fit: it is used. If
        they
           do not fit, they are summarized after it.
        2. The caller replaces messages at the end of the history: only the answered ones are
           summarized.
        3. The summarizer is free: everything is summarized, without records of earlier attempts.
        4. Otherwise everything is summarized. The record of an attempt that failed or was cancelled
           lets the next one continue, so that nothing is paid for twice.
        """
        # A free summary is always written again, so that it is the same in every process.
        is_free = isinstance(writer, ExtractiveSummarizer)
        parts = None if is_free else turn.recall(FinishedParts)
        earlier_writer = None if parts is None else parts.writer
        if (
            parts is not None
            and isinstance(writer, AgentSummarizer)
            and isinstance(earlier_writer, AgentSummarizer)
        ):
            # The client of an earlier request may be closed by now, or its key expired.
            parts.writer = replace(earlier_writer, agent_model=writer.agent_model)
        pending = turn.memory.get(PendingSummary)
        covered_count = pending.place(turn) if self.background and pending else 0
        if pending and covered_count:
            summary = await pending.summary(turn)
            if summary is None:  # it failed, or the history was edited
                pending.cancel()
                del turn.memory[PendingSummary]
            elif await can_keep(turn, rest[covered_count:]):
                return summary, covered_count
            else:
                covered_digest = await in_thread(digest_of, rest[:covered_count])
                parts = FinishedParts(writer, writer, covered_count, covered_digest, summary)
                turn.memory[FinishedParts] = parts
        if turn.tracked is not None and turn.tracked.has_changing_end:
            _, place = answer_boundary(turn)
            if place and await can_keep(turn, rest[place:]):
                return await summarize_with_retry(writer, rest[:place], self.breaker.retry), place
        if parts is None:
            return await summarize_with_retry(writer, rest, self.breaker.retry), None
        finished_summary = turn.memory.get(FinishedSummary)
        if (
            finished_summary is not None
            and finished_summary.summarizer == writer
            and finished_summary.count <= len(rest)
        ):
            beginning_digest = await in_thread(digest_of, rest[: finished_summary.count])
            if beginning_digest == finished_summary.digest and finished_summary.summary is not None:
                if finished_summary.count == len(rest):
                    return finished_summary.summary, None
                parts = finished_summary
        digest = await in_thread(digest_of, rest)
        summary = await summarize_with_retry(writer, rest, self.breaker.retry, parts)
        # Stored with no await after the summary: if the turn is cancelled, it is not paid for
        # again.
        turn.memory[FinishedSummary] = FinishedSummary(writer, writer, len(rest), digest, summary)
        return summary, None

    async def _archive(
        self, turn: Turn, rest: Sequence[Message], facts: ConversationFacts
    ) -> str | None:
        """Store *rest* and return its location; None without an archive.

        If a failed attempt has archived the same messages, its archive is used.
        """
        if self.archive is None:
            return None
        attempts = turn.recall(Attempts)
        is_same = attempts.archive and attempts.archived == await _digest_of(turn)
        if is_same and await archive_digest(self.archive, attempts.archive):
            return attempts.archive
        attempts.archive = ""
        attempts.archived = ""
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
        covered_count: int | None,
        source: Source,
        facts: ConversationFacts,
        archive: str | None,
        visible_path_of: Callable[[str], str],
    ) -> list[compact.Replacement]:
        """Return the contexts that may replace the history, which is stored in the file *archive*.

        *visible_path_of* returns its path as the model sees it.
        """
        head, rest = split_system(turn.messages)
        path = ""
        if archive:
            path = visible_path_of(archive)
            digest = await archive_digest(self.archive, archive) or ""
            facts = replace(facts, archives=[*facts.archives, path], digest=digest)
        make_replacements = partial(
            compact.replacements,
            archive=path,
            pin=self.evidence.pin,
            whole=not _has_protected_thinking(turn, rest),
            covered_count=covered_count,
        )
        return await in_thread(make_replacements, head, rest, summary.text, source, facts)

    def _omissions_file(
        self,
        turn: Turn,
        rest: Sequence[Message],
        archive: str | None,
        visible_path_of: Callable[[str], str],
    ) -> OmissionsFile:
        """Return the file for the pieces that are not carried over.

        It has the path for the model, and that of the file of the compaction before.
        """
        if self.archive is None or not isinstance(self.archive, TextWriter):
            return OmissionsFile(visible_path_of(archive) if archive else "")
        key = omissions_key(turn.session_id)
        before = ""
        if rest and acknowledged_count(rest):
            before = omissions_name(rest[0])
        if before:
            folder, _, _ = key.rpartition("/")
            before = visible_path_of(self.archive.location(f"{folder}/{before}"))
        return OmissionsFile(visible_path_of(self.archive.location(key)), before)

    async def _judge(
        self, turn: Turn, replacement: compact.Replacement, layout: Layout, detail: Compacted
    ) -> Change | Skip:
        """Return the proposal or the reason against it, and record it for the circuit breaker."""
        attempts = turn.recall(Attempts)
        until = self.breaker.cooldown_end()
        budget = turn.budget
        before = detail.tokens_before
        after = detail.tokens_after
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


def _count_described(turn: Turn, covered_count: int | None) -> int | None:
    """Return the number of messages of the history that are described; None for all of them.

    If the caller replaces messages at its end in each request, the messages after the first
    *covered_count* ones are described neither by the summary nor by the evidence. Otherwise each
    turn would undo the summary.
    """
    if covered_count is None or turn.tracked is None or not turn.tracked.has_changing_end:
        return None
    count, place = answer_boundary(turn)
    if place == covered_count:
        return count
    pending = turn.memory.get(PendingSummary)
    return pending.count if pending else None


def _divide(source: Source, turn: Turn, described_count: int) -> tuple[Source, list[str]]:
    """Return *source* with only the described messages, and the user's requests after them.

    These requests are at the end of the context, so the evidence does not repeat them.
    """
    head, _ = split_system(turn.history or ())
    count = max(0, described_count - len(head))
    later_requests = source.words_in(source.messages[count:])
    return replace(source, messages=source.messages[:count]), later_requests


async def _digest_of(turn: Turn) -> str:
    """Return the digest of the messages of *turn* that can be summarized."""
    _, rest = split_system(turn.messages)
    return (await in_thread(digest_of, rest)).hex()


_NO_RESTORE = "no files are restored: Compact has no restore="


def _notes(restored_files: RestoredFiles) -> list[str]:
    """Return the remarks for the model on files that have changed or were deleted."""
    files = [*restored_files.files, *restored_files.unfit]
    notes = [f"{file.path} is not as it was shown before" for file in files if file.changed]
    notes += [f"{path} was deleted since it was shown" for path in restored_files.deleted]
    return notes


def _has_protected_thinking(turn: Turn, rest: Sequence[Message]) -> bool:
    """Return True if unanswered messages have thinking that must not follow a rewritten message."""
    if turn.protected <= 0:
        return False
    unanswered = rest[open_tail(rest) :]
    return any(has_thinking(message) for message in unanswered)
