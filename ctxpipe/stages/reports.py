"""Reports of what the stages changed in a context, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from .._text import as_dollars, count_phrase, one_line
from ..messages import Message, Problem
from ..providers.prices import RewriteCost
from ..tokens.spent import Kind

MAX_LINE = 240
"""Largest number of characters of a report in the log."""


class Outcome(StrEnum):
    """Outcome of one stage in one turn.

    "changed"; "skipped": there was nothing to do, and the reason says why; "refused": a proposal
    broke a rule, did not shrink the context, or was vetoed; "failed": the stage raised an error,
    and the turn continued without it; "planned": the stage would do this outside a dry run.
    """

    CHANGED = "changed"
    SKIPPED = "skipped"
    REFUSED = "refused"
    FAILED = "failed"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Tool results, or images and documents, that were moved into files.

    *chars* is the number of characters that left; *saved_chars* is that number less the characters
    of the placeholders. *results*, *inputs* and *media* are the numbers of tool results, of calls,
    and of images and documents that were rewritten. *failed* has the errors of files that could not
    be written, whose texts stayed in place.
    """

    files: tuple[str, ...] = field(default=(), repr=False)
    chars: int = 0
    saved_chars: int = 0
    results: int = 0
    inputs: int = 0
    media: int = 0
    failed: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        """Return how many blocks and characters were moved, and how many failed."""
        block_count = count_phrase(self.results + self.inputs + self.media, "block")
        text = f"{block_count} moved to files, {self.chars:,} characters"
        if not self.failed:
            return text
        return f"{text}; {len(self.failed)} could not be written"


@dataclass(frozen=True, slots=True)
class Compacted:
    """A history that was replaced by its summary.

    The context:

    - *tokens_before*, *tokens_after*: raw tokens (exact tiktoken) of the messages alone
    - *messages_summarized*: the number of messages that the summary describes
    - *over_target*, *over_budget*: True if the result is still above the budget's target, or its
      trigger; *holds* then names the parts of the context with their tokens, else it is ""
    - *restored*: the paths of the files that were read again into the context, of together
      *restored_tokens* raw tokens; *folded*: those of files reduced to the names that they define

    The summary:

    - *summarizer*: the name of its writer; *model*: that of the model, "" without one
    - *attempts*: the number of requests for it
    - *input_tokens* (of which *cached_tokens* came from the cache), *output_tokens*: the tokens
      that the API reported for these requests
    - *dollars*: their cost, None if the usage or the price is unknown

    The content that left:

    - *archive*: the location of the raw messages, None without an archive
    - *removed*: the number of blocks that are no longer in the context, by their kind
      ("tool_result", "image" …)
    - *left_out*: the names of the content that should have been carried over but did not fit;
      *left_out_file*: the file with it, "" if all fit

    *warnings* are sentences on what was cut, left out or not restored, and on problems with a file
    or the model.
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
        """Return a line with the messages summarized, by what model, and what came back or left."""
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
            # Their texts name files, which are logged only for debugging.
            parts.append(f"{count_phrase(len(self.warnings), 'warning')} in detail.warnings")
        if self.removed:
            counts = ", ".join(f"{number} {name}" for name, number in self.removed.items())
            parts.append(f"removed {counts}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Truncated:
    """A history that was shortened in the middle.

    *filtered* tool calls were removed with their results, *folded* file views were reduced to
    names, and *deleted* messages were removed. Token counts are raw (exact tiktoken) and include
    the system prompt and the tools. *still_over* is True if the limit was not reached; *holds* says
    where the remaining tokens are. *removed* counts the blocks, by kind, that are no longer in the
    context. *warnings* are sentences on removed content that still applies.
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
    warnings: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        """Return how many calls, views and messages were removed or folded."""
        parts = []
        if self.filtered:
            parts.append(f"{count_phrase(self.filtered, 'call')} removed")
        if self.folded:
            parts.append(f"{count_phrase(self.folded, 'file view')} folded")
        if self.deleted:
            parts.append(f"{count_phrase(self.deleted, 'message')} deleted")
        if self.warnings:
            parts.append(count_phrase(len(self.warnings), "warning"))
        if not self.still_over:
            return ", ".join(parts)
        return ", ".join([*(parts or ["nothing removed"]), "still over its limit"])


@dataclass(frozen=True, slots=True)
class Collapsed:
    """Old exchanges (*steps*) that were collapsed into *notes*, with one line for each call.

    *steps*, *notes*, *lines* and *messages* are numbers: of exchanges that left, of notes, of lines
    of the exchanges that the notes quote, and of messages that left. *files* has the files with the
    whole exchanges, in order, and *calls* the ids of the tool calls in them ("" for an answer
    without calls). *archive* is the file with the raw messages that left. *freed_tokens* are raw,
    less those of the notes.
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
        steps = count_phrase(self.steps, "step")
        notes = count_phrase(self.notes, "note")
        return f"{steps} collapsed into {notes}, {count_phrase(self.lines, 'line')} quoted"


Detail: TypeAlias = Collapsed | Compacted | Offloaded | Truncated
"""Facts about the change of a stage. A stage of your own may return None in its place."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Content that one stage has removed from the context in one turn.

    *turn* is the number of the turn in its session, the first is 1. *what* describes the content in
    numbers, such as "2 blocks moved to files, 9,000 characters". *files* are the locations of the
    texts and archives that have all of it, for the model's reading tools and `storage.read`. *time*
    is the end of the turn, in seconds since 1970.
    """

    turn: int
    stage: str
    what: str
    files: tuple[str, ...]
    time: float

    def __str__(self) -> str:
        """Return one line: turn, stage, what was removed, and the files that have it."""
        files = ", ".join(self.files) or "no file"
        return f"turn {self.turn}: {self.stage}: {self.what} → {files}"


class RemovalLog:
    """Removals in the order in which they were made.

    A long session has thousands of them, and they are rarely read. So they are stored as lines
    of JSON, in a third of the memory that the objects would take.
    """

    def __init__(self) -> None:
        self._lines = bytearray()

    def __iter__(self) -> Iterator[Removal]:
        """Yield the removals, the oldest first."""
        for line in self._lines.splitlines():
            turn, stage, what, files, time = json.loads(line)
            yield Removal(turn, stage, what, tuple(files), time)

    def extend(self, removals: Iterable[Removal]) -> None:
        """Add *removals* at the end."""
        for removal in removals:
            values = (removal.turn, removal.stage, removal.what, removal.files, removal.time)
            self._lines += json.dumps(values).encode() + b"\n"


def removals_of(reports: Iterable[StageReport], time: float) -> list[Removal]:
    """Return what the stages of a turn that ended at *time* have removed, in their order."""
    removals = []
    for report in reports:
        detail = report.detail
        if report.outcome is not Outcome.CHANGED or detail is None:
            continue
        files = list(getattr(detail, "files", ()))
        for name in ("archive", "left_out_file"):
            location = getattr(detail, name, None)
            if location:
                files.append(location)
        removals.append(Removal(report.turn, report.stage, str(detail), tuple(files), time))
    return removals


@dataclass(frozen=True, slots=True, repr=False)
class StageReport:
    """The report of one stage in one turn.

    *turn* is the number of the turn in its session; the first turn is 1.
    *tokens_before* and *tokens_after* are the raw tokens (tiktoken) of the context before and after
    the stage, including the system prompt and the tools: each report begins where the one before it
    ends. If *is_estimate* is True, *tokens_before* is partly an estimate: texts that left before
    they were counted are estimated by their characters and the tokens per character in this
    session. In the first turn of a long history, *tokens_after* of a stage is an estimate too until
    that text has left. *seconds* is the time that the stage took. *first_changed_index* is the
    index of the first message that differs from the turn's input; what follows it must be written
    to the provider's prompt cache again. *cost* is what that costs and saves in dollars, if the
    pipeline knows the prices.

    *reason* and ``str(report)`` have counts and names, never text of the conversation. *error* is
    what the stage raised; its text may quote anything.
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
    turn: int = 0

    @property
    def tokens_saved(self) -> int:
        """Raw tokens that the stage removed from the context; below 0 if it added some."""
        return self.tokens_before - self.tokens_after

    def __str__(self) -> str:
        """Return one line: stage, session, outcome, reason and changes, and the milliseconds."""
        duration = f" ({self.seconds * 1000:.1f} ms)"
        stage = one_line(self.stage, 40)
        session = one_line(self.session_id, 40)
        place = f"{session}, turn {self.turn}" if self.turn else session
        text = f"{stage} [{place}] {self.outcome}"
        facts = [fact for fact in (str(self.reason), *self._changes()) if fact]
        if facts:
            text = f"{text}: {'; '.join(facts)}"
        return one_line(text, MAX_LINE - len(duration)) + duration

    def _changes(self) -> Iterator[str]:
        """Yield the first changed message, tokens, detail and cost; nothing without a change."""
        if self.outcome is not Outcome.CHANGED:
            return
        if self.first_changed_index is not None:
            yield f"from message {self.first_changed_index} on"
        if self.tokens_before or self.tokens_after:
            about = "an estimated " if self.is_estimate else ""
            yield f"{about}{self.tokens_before:,} to {self.tokens_after:,} tokens"
        if self.detail is not None:
            yield str(self.detail)
        if self.cost is not None:
            rewrite_cost = as_dollars(self.cost.burnt)
            saving = as_dollars(self.cost.saved_per_call)
            yield f"{rewrite_cost} burnt, {saving} saved per later call"

    def __repr__(self) -> str:
        return f"<StageReport {self}>"


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The context to send, and the reports of how it was made.

    *tokens_before* and *tokens_after* are the raw tokens (tiktoken) of the context before the first
    stage and as it is sent, including the system prompt and the tools. *tokens_after* is exact;
    *tokens_before* is an estimate if ``is_estimate`` of the first report is True. *repaired* lists
    the broken rules of the history that are repaired in *messages*. *request_options* are further
    arguments that the request needs; pass them on as keywords. From a session, *covered* is the
    number of messages of the history that the context represents, and *notices* are warnings for
    the user about the history or the journal. *turn* is the number of the turn in its session; the
    first turn is 1.

    This turn has rewritten the part ``messages[first_changed_index:changed_end]``; both indices are
    None if nothing was rewritten. The messages before it, and those from *changed_end* on, are
    those of the turn's input: the context of the last turn in a session, and the new messages. In a
    session that several processes share, *first_changed_index* includes what another process has
    rewritten since the last turn.
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
    turn: int = 0
    count_by_kind: Callable[[], Mapping[Kind, int]] | None = field(
        default=None, repr=False, compare=False
    )
    """Function that computes `composition`; None if the context was made without a counter."""

    @property
    def composition(self) -> Mapping[Kind, int]:
        """Raw tokens of the context by kind of content: "system", "tools", "user", "results" ….

        "carried" is what the newest compaction has carried over from the part that it summarized;
        the other kinds do not include it. The kinds with 0 tokens are missing. It is computed when
        it is read.
        """
        return {} if self.count_by_kind is None else self.count_by_kind()

    @property
    def changed(self) -> bool:
        """True if *messages* differ from the input."""
        return self.first_changed_index is not None

    @property
    def tokens_saved(self) -> int:
        """Raw tokens that this run removed from the context."""
        return self.tokens_before - self.tokens_after

    def __str__(self) -> str:
        return "\n".join(str(report) for report in self.reports)

    def __repr__(self) -> str:
        """Return the number of messages, tokens before and after, reports and repairs."""
        parts = [
            count_phrase(len(self.messages), "message"),
            f"{self.tokens_before:,} to {self.tokens_after:,} tokens",
            count_phrase(len(self.reports), "report"),
        ]
        if self.repaired:
            parts.append(f"{len(self.repaired)} repaired")
        return f"<Result: {', '.join(parts)}>"
