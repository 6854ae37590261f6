"""Shorten the middle of a history without a model: the fallback that needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from ..._text import short_repr
from ..._threads.threads import in_thread
from ...errors import SettingsError
from ...providers.agent_tools import COMMON_READING_TOOLS, ReadingTools
from ...settings import FLAG, NUMBER, PIN, SIZE, TOOLS, check_settings
from ...storage import Archive
from ...storage.protocol import ARCHIVE
from ..archive import archive_record, save_raw
from ..protocol import Change, Skip, Turn
from ..reading.pins import Pin
from ..reading.removed import count_removed
from ..reports import Truncated
from ..window import raw_limit
from .selection import MIDDLE_END, MIDDLE_START, MiddleRules, warnings_of_loss
from .shortening import ShorteningTask, shorten_carried, shorten_until_it_fits

MAX_TOKENS = 50_000


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
    nothing more can be removed. Blocks that ctxpipe does not know, references to files, calls that
    loaded tools, and what still applies (the user's words, skills, plans, errors, running jobs) are
    removed last, the largest first, and only if the context window does not hold them. Words of
    the system and definitions of tools come after all of these. The report then has a warning.

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

    @property
    def rules(self) -> MiddleRules:
        """The settings that say which part of a history may be shortened."""
        return MiddleRules(
            self.middle_start, self.middle_end, self.reading_tools, self.shell, self.pin
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
        turn.count_exactly()
        messages = list(turn.messages)
        task = ShorteningTask(
            messages,
            await turn.prefix_sums(),
            turn.counter,
            overhead=turn.overhead,
            limit=raw_limit(turn, limit),
            protected=turn.protected,
            strict=True,
            released={},
        )
        # A second run would act only above the trigger, or by force. Blocks that should stay are
        # removed only if they do not fit the window.
        acceptable = task.limit
        window_limit = task.limit
        if not turn.force:
            acceptable = max(acceptable, raw_limit(turn, turn.budget.trigger - 1))
            window = turn.budget.window - (turn.budget.reserve_output or 0)
            window_limit = max(acceptable, raw_limit(turn, window))
        result = await shorten_until_it_fits(self.rules, task, acceptable)
        if result.detail.tokens_after > window_limit:
            result = await shorten_carried(self.rules, task, result, acceptable)
            warnings = await in_thread(warnings_of_loss, messages, result.messages)
            result = replace(result, detail=replace(result.detail, warnings=tuple(warnings)))
        if result.messages is messages:
            return Skip(f"nothing of the middle can go: {result.detail.holds}", result.detail)
        removed = await in_thread(count_removed, messages, result.messages)
        return Change(result.messages, replace(result.detail, removed=removed))
