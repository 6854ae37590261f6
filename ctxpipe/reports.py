"""What happened to the context, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .messages import Message, Problem
    from .prices import RewriteCost

__all__ = ["Compacted", "Detail", "Offloaded", "Outcome", "Result", "StageReport", "Truncated"]


class Outcome(StrEnum):
    """How a stage's turn ended.

    "changed"; "skipped": nothing to do, the reason says why; "refused": a proposal broke a rule, did not shrink, or was
    vetoed; "failed": the stage raised, and the turn went on without it; "planned": what a dry run would do.
    """

    CHANGED = "changed"
    SKIPPED = "skipped"
    REFUSED = "refused"
    FAILED = "failed"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Tool results moved into files. *chars* are the characters that left, gross; *saved_chars* net of placeholders.

    *results* and *inputs* count the blocks that were rewritten. *failed* says why others stayed inline: their file
    could not be written.
    """

    files: tuple[str, ...] = ()
    chars: int = 0
    saved_chars: int = 0
    results: int = 0
    inputs: int = 0
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compacted:
    """A history replaced by its summary. Token counts are raw (exact tiktoken) and of the messages alone.

    *restored* are the paths of files that stand in the context again, *folded* of those reduced to their names.
    *attempts* and *input_tokens* (the *cached_tokens* among them), *output_tokens* are those of the summary, as billed.
    *over_target* and *over_budget* say that the result is still above the budget's target, or trigger; *holds* what
    keeps it there.
    """

    tokens_before: int
    tokens_after: int
    messages_summarised: int
    summarizer: str = ""
    archive: str | None = None
    restored: tuple[str, ...] = ()
    restored_tokens: int = 0
    folded: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    attempts: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    over_target: bool = False
    over_budget: bool = False
    holds: str = ""


@dataclass(frozen=True, slots=True)
class Truncated:
    """Tool calls *filtered* (each with its result), file views *folded* to their names, messages *deleted*.

    Token counts are raw (exact tiktoken), with those of system prompt and tools. *still_over* says that the limit was
    not reached, *holds* what could not be removed.
    """

    tokens_before: int
    tokens_after: int
    filtered: int = 0
    folded: int = 0
    deleted: int = 0
    archive: str | None = None
    still_over: bool = False
    holds: str = ""


Detail: TypeAlias = Offloaded | Compacted | Truncated


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage's part in one turn.

    *seconds* is the time it took. *tokens_saved* is in raw tokens, None where nothing was counted.
    *first_changed_index* is the first message that differs from the turn's input; everything behind it leaves the
    provider's prompt cache. *cost* says what that burns and saves in dollars, where the pipeline knows the prices.
    """

    stage: str
    session_id: str
    outcome: Outcome
    seconds: float
    reason: str = ""
    detail: Detail | None = None
    tokens_saved: int | None = None
    first_changed_index: int | None = None
    cost: RewriteCost | None = None
    error: Exception | None = None

    def __str__(self) -> str:
        told = f"{self.stage} [{self.session_id}] {self.outcome}"
        if self.reason:
            told += f": {self.reason}"
        if self.outcome is Outcome.CHANGED:
            saved = "" if self.tokens_saved is None else f", {self.tokens_saved} tokens saved"
            told += f" from message {self.first_changed_index} on{saved}: {self.detail}"
            if self.cost is not None:
                told += f"; ${self.cost.burnt:.4f} burnt, ${self.cost.saved_per_call:.4f} saved per later call"
        return f"{told} ({self.seconds * 1000:.1f} ms)"


@dataclass(frozen=True, slots=True)
class Result:
    """The context to send, and how it came to be.

    *repaired* lists what was broken in the history and is mended in *messages*. *request_options* are further
    arguments that the request needs; pass them on as keywords. From a session, *covered* says how many messages of
    the history are in it, and *notices* what a user should know about the history or the journal.
    *first_changed_index* is the first message that differs from what was handed in, None when none does; from
    *changed_end* on the messages are as they came.
    """

    messages: list[Message]
    reports: tuple[StageReport, ...] = ()
    repaired: tuple[Problem, ...] = ()
    request_options: Mapping[str, Any] = field(default_factory=dict)
    covered: int = 0
    notices: tuple[str, ...] = ()
    first_changed_index: int | None = None
    changed_end: int | None = None

    @property
    def changed(self) -> bool:
        """Whether *messages* differ from what was handed in."""
        return self.first_changed_index is not None

    @property
    def tokens_saved(self) -> int:
        """Raw tokens that all stages together took out of the context."""
        return sum(report.tokens_saved or 0 for report in self.reports)

    def __str__(self) -> str:
        return "\n".join(map(str, self.reports))
