"""Replace a long history by its summary, and restore the working set of files.

The module `partition` has a picture of a compacted context.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..._text import short_repr
from ...errors import SettingsError, safe_text
from ...settings import FLAG, PIN, SIZE, SUMMARIZER, check_settings, excerpt, instance_of
from ...storage import Archive
from ...storage.protocol import ARCHIVE
from ...storage.references import check_reference, reference_of
from ...summarizers import AgentSummarizer, AnthropicSummarizer, PromptSummarizer, Summarizer
from ...summarizers.protocol import summarizer_name
from ...summarizers.retry import FinishedSummary
from ..protocol import Change, Intent, Skip, Turn
from ..reading.pins import Pin
from .archives import digest_of_rest
from .background import PendingSummary
from .breaker import Attempts, Breaker
from .compaction import Compaction
from .restore import Restore
from .split_context import SplitContext
from .summary import summarizer_for
from .trigger import may_begin_early, reason_to_skip

__all__ = ["Breaker", "Compact", "Evidence", "Restore"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts that `Compact` copies from the history into the new context, whatever the summary says.

    The list of paths takes up to *tokens* raw tokens; commands, identifiers and the user's requests
    are limited in proportion. Paths that do not fit are listed in a file next to the archive.

    *pin* chooses messages that stay unchanged: a function, or texts to look for in the user's
    words. They are part of the content that a compaction carries over (see `Compact`). That
    content, restored files and the evidence have one limit, half of the budget's target. The
    content that is carried over comes first, and in it pinned messages before most others; files
    and evidence share the rest of that half. Pinned messages that do not fit are moved to a file
    that the context names. Messages that the model has not answered are not subject to these
    limits: they stay whole as long as the context window holds them, otherwise the user's words in
    them are cut to head and tail.

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
    at most half of the target (`Evidence` says what comes first). What does not fit is stored in a
    file that the context and the report name.

    *breaker* limits how often a summary is tried, and how long no attempt is made after failures
    (see `Breaker`).

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
        summarize: object = self.summarize  # the caller may have given anything
        if isinstance(summarize, Archive) and not callable(summarize):
            raise SettingsError(
                f"summarize is {excerpt(summarize)}, a storage; give it as archive="
            )
        if hasattr(summarize, "messages") and not callable(summarize):
            raise SettingsError(
                f"summarize is {type(summarize).__name__}, a client; "
                "give AnthropicSummarizer(client)"
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
        if self.archive is None and self.require_archive:
            raise SettingsError(
                "Compact needs an archive for the raw messages; "
                "give archive=, or require_archive=False"
            )
        check_reference(reference_of(self.archive))

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Compact the context if it has reached the trigger, or by force.

        Raises StorageError or SummaryFailed if the archive or the summary cannot be written.
        """
        turn.recall(Attempts).turns += 1
        context = SplitContext(turn)
        skip = await reason_to_skip(turn, context, self.breaker)
        if skip is None:
            return await self._attempt(turn, context)
        # Checks all other reasons to skip again: this one may be only that the trigger is far.
        if self.background and await may_begin_early(turn, context, self.summarize, self.breaker):
            writer = summarizer_for(turn, self.summarize)
            await PendingSummary.begin(turn, context, writer, self.breaker.retry)
        return skip

    async def plan(self, turn: Turn) -> Skip | Intent:
        """Return a Skip, or an Intent: the outcome is unknown before the summary is written."""
        context = SplitContext(turn)
        skip = await reason_to_skip(turn, context, self.breaker)
        if skip is not None:
            return skip
        writer = summarizer_name(summarizer_for(turn, self.summarize))
        tokens = await turn.tokens()
        return Intent(
            f"{writer} would summarize {len(context.rest)} messages: "
            f"{tokens:,} tokens, with a target of {turn.budget.target:,}"
        )

    def with_focus(self, focus: str) -> Compact:
        """Return the same stage with a summary that attends to *focus*, if its summarizer can."""
        writer = self.summarize or AgentSummarizer()
        if not isinstance(writer, AgentSummarizer | AnthropicSummarizer | PromptSummarizer):
            return self
        return replace(self, summarize=replace(writer, focus=focus), background=False)

    async def _attempt(self, turn: Turn, context: SplitContext) -> Change | Skip:
        """Compact the *context* of *turn* once, and record a failure for the circuit breaker.

        A failure is raised unchanged. An archive that a failed attempt has written is remembered,
        so that the next attempt does not write it again.
        """
        attempts = turn.recall(Attempts)
        compaction = Compaction(
            turn,
            context,
            summarize=self.summarize,
            archive=self.archive,
            restore=self.restore,
            evidence_tokens=self.evidence.tokens,
            pin=self.evidence.pin,
            breaker=self.breaker,
            require_archive=self.require_archive,
            background=self.background,
        )
        # An earlier attempt may have left an archive: it was cancelled, or shortened nothing.
        previous_archive = attempts.archive
        try:
            answer = await compaction.run()
        except Exception as error:
            attempts.record_failure(self.breaker.cooldown_end(), safe_text(error))
            # By this digest the next attempt sees that the archive has its messages.
            has_new_archive = attempts.archive != previous_archive
            if has_new_archive and not attempts.archived:
                attempts.archived = await digest_of_rest(context)
            raise
        if isinstance(answer, Skip):
            # The summary shortens nothing. That of a Change stays until the end of the turn: if the
            # turn is cancelled before, the next one uses it.
            turn.memory.pop(FinishedSummary, None)
        return answer
