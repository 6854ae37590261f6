"""Make one attempt at a compaction: archive, summary, evidence and files, and the new context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..._text import count_phrase
from ..._threads.threads import in_thread
from ...messages import Message
from ...placeholders.summaries import SEARCHABLE
from ...storage import Archive
from ...summarizers import Summarizer
from ...summarizers.protocol import Summary, summarizer_name
from ..archive import archive_digest, archive_record, save_raw
from ..protocol import Change, Skip, Turn
from ..reading.carry_candidates import Candidate
from ..reading.conversation_facts import ConversationFacts
from ..reading.pins import Pin
from ..reading.removed import count_removed
from ..reading.what_applies import Applicable, what_applies
from ..reports import Compacted
from .archives import digest_of_rest, source_of
from .breaker import Attempts, Breaker
from .governing import Shortening, governing_pieces, instruction_notes
from .layout import Layout, choose_layout, token_breakdown
from .partition import Replacement, replacements
from .pieces import CarryRules
from .restore import Restore, RestoredFiles
from .side_files import SideFiles
from .source import Source, gather_facts
from .split_context import SplitContext
from .summary import summarizer_for, warn_without_model, write_summary


@dataclass(frozen=True, slots=True)
class Compaction:
    """An attempt to replace the *context* of *turn* by its summary.

    The other fields are settings of the stage `Compact`; *evidence_tokens* and *pin* are those of
    its `Evidence`.
    """

    turn: Turn
    context: SplitContext
    summarize: Summarizer | None
    archive: Archive | None
    restore: Restore | None
    evidence_tokens: int
    pin: Pin | None
    breaker: Breaker
    require_archive: bool
    background: bool

    async def run(self) -> Change | Skip:
        """Archive the messages, write the summary, and build the new context.

        Raises StorageError or SummaryFailed if the archive or the summary cannot be written.
        """
        turn = self.turn
        context = self.context
        rest = context.rest
        files = SideFiles(self.archive, turn.session_id)
        source = await source_of(turn, context, self.archive, files.visible_path)
        facts = await in_thread(gather_facts, source)
        raw = source.messages if source.is_raw else rest
        pieces = await in_thread(
            partial(
                what_applies, raw, is_history=source.is_raw, notes_folder=files.visible_folder()
            )
        )
        # The archive comes before the summary, so that no summary is paid for if nothing can be
        # stored. After an attempt that stored its messages but got no summary it comes after the
        # summary: not every attempt writes an archive.
        is_first_attempt = not turn.recall(Attempts).archive
        path = await self._save(rest, facts) if is_first_attempt else None
        writer = summarizer_for(turn, self.summarize)
        model_warning = warn_without_model(turn, self.summarize, writer)
        summary, covered_count, described_count = await write_summary(
            turn, context, writer, self.breaker.retry, background=self.background
        )
        if not is_first_attempt:
            path = await self._save(rest, facts)
        if not source.is_raw:
            described_count = None
        if described_count is not None:
            source, later_requests = _divide(source, described_count)
            facts = await in_thread(gather_facts, source)
            facts = replace(facts, requests=[*facts.requests, *later_requests])
        restored_files = await self._read_files_again(source)
        notes = [SEARCHABLE] if turn.can_search else []
        notes += [*_notes(restored_files), *instruction_notes(pieces)]
        facts = replace(facts, notes=notes)
        visible_archive = ""
        if path:
            visible_archive = files.visible_path(path)
            digest = await archive_digest(self.archive, path) or ""
            facts = replace(facts, archives=[*facts.archives, visible_archive], digest=digest)
        tail = context.tail if covered_count is None else covered_count
        governing = await self._governing_pieces(raw, pieces, visible_archive, source)
        make_replacements = partial(
            replacements,
            tail=tail,
            archive=visible_archive,
            carry=CarryRules(self.pin, governing),
            whole=not context.has_protected_thinking(tail),
            can_cut=covered_count is None,
        )
        possible = await in_thread(
            make_replacements, context.head, rest, summary.text, source, facts
        )
        file = files.omissions_file(rest, path)
        replacement, layout = await choose_layout(
            turn, possible, restored_files, self.evidence_tokens, file
        )
        layout, file, omissions_warning = await files.write_omissions(
            turn, replacement, layout, file
        )
        layout, paths_warning = await files.list_paths(turn, replacement, layout, file)
        warnings = [*replacement.cuts, *layout.selection.cuts, *restored_files.warnings]
        left_out = layout.selection.left_out
        if left_out:
            number = count_phrase(len(left_out), "piece")
            warnings.append(f"{number} that should be carried on did not fit: {file.path}")
        further_warnings = (model_warning, omissions_warning, paths_warning)
        warnings += [warning for warning in further_warnings if warning]
        detail = Compacted(
            await self._tokens_before(layout),
            layout.tokens,
            covered_count or len(rest),
            summarizer=summary.writer or summarizer_name(writer),
            archive=path,
            warnings=tuple(warnings),
            left_out=tuple(str(piece) for piece in left_out),
            left_out_file=file.path if left_out else "",
            removed=await in_thread(count_removed, rest, layout.messages),
        )
        detail = _with_files(_with_usage(detail, summary), layout)
        answer = await self._judge(replacement, layout, detail)
        if not isinstance(answer, Change):
            return answer
        return replace(answer, described_count=_with_reply(described_count, rest[tail:]))

    async def _tokens_before(self, layout: Layout) -> int:
        """Return the raw tokens of the context, exact if *layout* may not be shorter."""
        turn = self.turn
        tokens = await turn.raw_tokens() - turn.overhead
        if 10 * layout.tokens <= 9 * tokens:
            return tokens
        turn.count_exactly()
        return await turn.raw_tokens() - turn.overhead

    async def _governing_pieces(
        self, raw: Sequence[Message], pieces: Sequence[Applicable], archive: str, source: Source
    ) -> list[Candidate]:
        """Return the candidates for *pieces*, which still apply at the end of *raw*.

        *raw* is the history, or the context, without its head.
        """
        turn = self.turn
        place_of = _same_place
        if source.is_raw:
            head_count = len(self.context.head)
            place_of = partial(_place_in_context, turn, source.head_count, head_count)
        shortening = Shortening(turn.counter.text, archive, source.redact)
        return await in_thread(governing_pieces, raw, pieces, place_of, shortening)

    async def _save(self, rest: Sequence[Message], facts: ConversationFacts) -> str | None:
        """Store *rest* and return its location; None without an archive.

        If a failed attempt has archived the same messages, its archive is used.
        """
        if self.archive is None:
            return None
        attempts = self.turn.recall(Attempts)
        is_same = attempts.archive and attempts.archived == await digest_of_rest(self.context)
        if is_same and await archive_digest(self.archive, attempts.archive):
            return attempts.archive
        attempts.archive = ""
        attempts.archived = ""
        record = archive_record(rest, facts=facts)
        path = await save_raw(
            self.archive, self.turn.session_id, "compact", record, required=self.require_archive
        )
        attempts.archive = path or ""
        return path

    async def _read_files_again(self, source: Source) -> RestoredFiles:
        """Return the files that the messages of *source* used, as they are on disk now."""
        if self.restore is None:
            return RestoredFiles()
        turn = self.turn
        return await self.restore.read_again(
            source.messages, turn.counter, turn.session_id, self.archive
        )

    async def _judge(
        self, replacement: Replacement, layout: Layout, detail: Compacted
    ) -> Change | Skip:
        """Return the proposal or the reason against it, and record it for the circuit breaker."""
        turn = self.turn
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


def _same_place(index: int) -> int:
    return index


def _place_in_context(turn: Turn, history_head: int, context_head: int, index: int) -> int:
    """Return the index in the context of a message of the history; both without their heads."""
    place_of = turn.tracked.place_of if turn.tracked is not None else _same_place
    return place_of(index + history_head) - context_head


def _with_usage(detail: Compacted, summary: Summary) -> Compacted:
    """Return *detail* with the number of attempts for *summary*, and its cost."""
    return replace(
        detail,
        attempts=summary.attempts,
        input_tokens=summary.input_tokens,
        cached_tokens=summary.cached_tokens,
        output_tokens=summary.output_tokens,
        model=summary.model,
        dollars=summary.dollars,
    )


def _with_files(detail: Compacted, layout: Layout) -> Compacted:
    """Return *detail* with the files that *layout* puts into the context, whole or folded."""
    return replace(
        detail,
        restored=tuple(file.path for file in layout.files),
        restored_tokens=sum(file.tokens for file in layout.files),
        folded=tuple(layout.folded_texts),
    )


def _divide(source: Source, described_count: int) -> tuple[Source, list[str]]:
    """Return *source* with only the described messages, and the user's requests after them.

    These requests are at the end of the context, so the evidence does not repeat them.
    """
    count = max(0, described_count - source.head_count)
    later_requests = source.words_in(source.messages[count:])
    return replace(source, messages=source.messages[:count]), later_requests


def _with_reply(described_count: int | None, retained: Sequence[Message]) -> int | None:
    """Return *described_count*, or one more if the *retained* messages begin with a reply.

    The line before such a reply says that the task is under way. If the caller takes the reply
    back, this is no longer true, so the summary has to be undone.
    """
    if described_count is not None and retained and retained[0]["role"] == "assistant":
        return described_count + 1
    return described_count


def _notes(restored_files: RestoredFiles) -> list[str]:
    """Return the remarks for the model on files that have changed or were deleted."""
    files = [*restored_files.files, *restored_files.unfit]
    notes = [f"{file.path} is not as it was shown before" for file in files if file.changed]
    notes += [f"{path} was deleted since it was shown" for path in restored_files.deleted]
    return notes
