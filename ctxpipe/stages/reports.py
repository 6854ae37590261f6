"""What happened to the context, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from .._text import as_dollars, count_phrase, one_line
from ..messages import Message, Problem
from ..providers.prices import RewriteCost

MAX_LINE = 240  # of a report in the log, whatever happened


class Outcome(StrEnum):
    """How a stage's turn ended.

    "changed"; "skipped": nothing to do, the reason says why; "refused": a proposal broke a rule,
    did not shrink, or was vetoed; "failed": the stage raised, and the turn went on without it;
    "planned": what a dry run would do.
    """

    CHANGED = "changed"
    SKIPPED = "skipped"
    REFUSED = "refused"
    FAILED = "failed"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Tool results, or images and documents, moved into files.

    *chars* are the characters that left, gross; *saved_chars* net of placeholders. *results*,
    *inputs* and *media* count the blocks that were rewritten. *failed* says why others stayed
    inline: their file could not be written.
    """

    files: tuple[str, ...] = field(default=(), repr=False)
    chars: int = 0
    saved_chars: int = 0
    results: int = 0
    inputs: int = 0
    media: int = 0
    failed: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        blocks = count_phrase(self.results + self.inputs + self.media, "block")
        moved = f"{blocks} moved to files, {self.chars:,} characters"
        if not self.failed:
            return moved
        return f"{moved}; {len(self.failed)} could not be written"


@dataclass(frozen=True, slots=True)
class Compacted:
    """A history replaced by its summary.

    Token counts are raw (exact tiktoken) and of the messages alone. *restored* are the paths of
    files that are in the context again, *folded* of those reduced to their names. *attempts* and
    *input_tokens* (the *cached_tokens* among them), *output_tokens* are those of the summary, as
    reported by the API; *model* has written it ("": none has), and *dollars* is what it cost, None
    where usage or price is not known. *over_target* and *over_budget* say that the result is still
    above the budget's target, or trigger; *holds* what keeps it there.
    """

    tokens_before: int
    tokens_after: int
    messages_summarized: int
    summarizer: str = ""
    archive: str | None = None
    restored: tuple[str, ...] = field(default=(), repr=False)
    restored_tokens: int = 0
    folded: tuple[str, ...] = field(default=(), repr=False)
    warnings: tuple[str, ...] = field(default=(), repr=False)
    attempts: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    model: str = ""
    dollars: float | None = None
    over_target: bool = False
    over_budget: bool = False
    holds: str = ""
    left_out: tuple[str, ...] = field(default=(), repr=False)
    left_out_file: str = ""
    removed: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        writers = [self.summarizer or "summarizer"]
        if self.model:
            writers.append(one_line(self.model, 60))
            if self.dollars is not None:
                writers.append(as_dollars(self.dollars))
        count = count_phrase(self.messages_summarized, "message")
        parts = [f"{count} summarized ({', '.join(writers)})"]
        if self.restored:
            parts.append(f"{count_phrase(len(self.restored), 'file')} brought back")
        if self.over_target:
            parts.append("still over its target")
        if self.left_out:
            parts.append(f"{len(self.left_out)} left out")
        if self.warnings:
            parts.append(count_phrase(len(self.warnings), "warning"))
        if self.removed:
            counts = ", ".join(f"{number} {name}" for name, number in self.removed.items())
            parts.append(f"removed {counts}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Truncated:
    """Tool calls *filtered* (each with its result), file views *folded* to their names, messages
    *deleted*.

    Token counts are raw (exact tiktoken), with those of system prompt and tools. *still_over* says
    that the limit was not reached, *holds* what could not be removed. *removed* counts, by kind,
    the blocks that are no longer in the context.
    """

    tokens_before: int
    tokens_after: int
    filtered: int = 0
    folded: int = 0
    deleted: int = 0
    archive: str | None = None
    still_over: bool = False
    holds: str = ""
    removed: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        parts = []
        if self.filtered:
            parts.append(f"{count_phrase(self.filtered, 'call')} removed")
        if self.folded:
            parts.append(f"{count_phrase(self.folded, 'file view')} folded")
        if self.deleted:
            parts.append(f"{count_phrase(self.deleted, 'message')} deleted")
        if not self.still_over:
            return ", ".join(parts)
        return ", ".join([*(parts or ["nothing removed"]), "still over its limit"])


@dataclass(frozen=True, slots=True)
class Collapsed:
    """Old exchanges collapsed into *notes*: one line for each of their *steps*.

    *lines* of what the steps said are quoted in the notes. *files* hold the steps whole, in order,
    and *calls* are the ids of the tool calls in them ("" for an answer without calls). *archive*
    holds the *messages* raw messages that left. *freed_tokens* are raw, and net of the notes.
    """

    steps: int
    notes: int
    lines: int
    messages: int
    freed_tokens: int
    archive: str | None = None
    files: tuple[str, ...] = field(default=(), repr=False)
    calls: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        steps, notes = count_phrase(self.steps, "step"), count_phrase(self.notes, "note")
        return f"{steps} collapsed into {notes}, {count_phrase(self.lines, 'line')} quoted"


Detail: TypeAlias = Collapsed | Compacted | Offloaded | Truncated


@dataclass(frozen=True, slots=True, repr=False)
class StageReport:
    """One stage's part in one turn.

    *tokens_before* and *tokens_after* are the raw tokens (tiktoken) of the context, system prompt
    and tools included, as the stage found and left it: each report begins where the one before it
    ends. With *is_estimate* the first holds an estimate of texts that left before they were
    counted: by their characters, and the tokens of a character in this session. *seconds* is the
    time it took. *first_changed_index* is the first message that differs from the turn's input;
    everything after it leaves the provider's prompt cache. *cost* says what that burns and saves in
    dollars, where the pipeline knows the prices.

    *reason* and ``str(report)`` hold counts and names, never text of the conversation. What a stage
    raised is in *error*; its text may quote anything.
    """

    stage: str
    session_id: str
    outcome: Outcome
    seconds: float
    reason: str = ""
    detail: Detail | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    is_estimate: bool = False
    first_changed_index: int | None = None
    cost: RewriteCost | None = None
    error: Exception | None = None

    @property
    def tokens_saved(self) -> int:
        """Raw tokens that the stage took out of the context.

        Below 0 for a stage that added some.
        """
        return self.tokens_before - self.tokens_after

    def __str__(self) -> str:
        took = f" ({self.seconds * 1000:.1f} ms)"
        stage, session = one_line(self.stage, 40), one_line(self.session_id, 40)
        name = f"{stage} [{session}] {self.outcome}"
        facts = "; ".join(filter(None, [str(self.reason), *self._changes()]))
        text = f"{name}: {facts}" if facts else name
        return one_line(text, MAX_LINE - len(took)) + took

    def _changes(self) -> Iterator[str]:
        """What changed, in a few words each."""
        if self.outcome is not Outcome.CHANGED:
            return
        if self.first_changed_index is not None:
            yield f"from message {self.first_changed_index} on"
        if self.tokens_before or self.tokens_after:
            about = "about " if self.is_estimate else ""
            yield f"{about}{self.tokens_before:,} to {self.tokens_after:,} tokens"
        if self.detail is not None:
            yield str(self.detail)
        if self.cost is not None:
            burnt, saved = self.cost.burnt, self.cost.saved_per_call
            yield f"{as_dollars(burnt)} burnt, {as_dollars(saved)} saved per later call"

    def __repr__(self) -> str:
        return f"<StageReport {self}>"


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The context to send, and how it came to be.

    *tokens_before* and *tokens_after* are the raw tokens (tiktoken) of the context, system prompt
    and tools included, as the first stage found it and as it is sent; the former is an estimate
    where the first report is. *repaired* lists what was
    broken in the history and is repaired in *messages*. *request_options* are further arguments
    that the request needs; pass them on as keywords. From a session, *covered* says how many
    messages of the history are in it, and *notices* what a user should know about the history or
    the journal. *first_changed_index* is the first message that differs from the input, None
    when none does; from *changed_end* on the messages are as they came.
    """

    messages: list[Message]
    reports: tuple[StageReport, ...] = ()
    repaired: tuple[Problem, ...] = ()
    request_options: Mapping[str, Any] = field(default_factory=dict)
    covered: int = 0
    notices: tuple[str, ...] = ()
    first_changed_index: int | None = None
    changed_end: int | None = None
    tokens_before: int = 0
    tokens_after: int = 0

    @property
    def changed(self) -> bool:
        """Whether *messages* differ from the input."""
        return self.first_changed_index is not None

    @property
    def tokens_saved(self) -> int:
        """Raw tokens that this run took out of the context."""
        return self.tokens_before - self.tokens_after

    def __str__(self) -> str:
        return "\n".join(map(str, self.reports))

    def __repr__(self) -> str:
        parts = [
            count_phrase(len(self.messages), "message"),
            f"{self.tokens_before:,} to {self.tokens_after:,} tokens",
            count_phrase(len(self.reports), "report"),
        ]
        if self.repaired:
            parts.append(f"{len(self.repaired)} repaired")
        return f"<Result: {', '.join(parts)}>"
