"""Move large tool results into files, and leave placeholders that name the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..._text import count_phrase, short_repr
from ...errors import SettingsError
from ...placeholders.placeholders import BATCH, DIRECT, Preview
from ...providers.agent_tools import READ_BACK_TOOLS
from ...settings import (
    CALLABLE,
    DIRECT_OFFLOAD_CHAR_THRESHOLD,
    FLAG,
    OFFLOAD_CHAR_THRESHOLD,
    PIN,
    SIZE,
    TOOL_NAMES,
    Requirement,
    check_settings,
    excerpt,
    is_size,
    setting,
)
from ...storage import TextWriter
from ..moves import (
    Act,
    Move,
    Moving,
    Pointers,
    move_texts,
    recall_rules,
    worthwhile_moves,
    write_texts,
)
from ..protocol import Change, Skip, Turn
from ..reading.candidates import OffloadCandidate, OffloadRules
from ..reading.pins import Pin
from ..reading.unanswered import index_after_last_reply
from . import selection as offload
from .gates import Gate, RatioGate, Waiting
from .newest_batch import moves_to_fit_window


@dataclass(frozen=True, slots=True, repr=False)
class DirectOffload(Moving):
    """Move each new tool result that is too long into a file, before the model sees it.

    The text goes to *storage*, and a *placeholder* with the path of the file takes its place. Only
    the results after the last reply are read, so nothing that the provider has cached changes.

    A result leaves if it has *min_chars* characters or more and its placeholder has fewer tokens.
    *per_tool* replaces *min_chars* for single tools, by name; None means that their results stay.
    Images stay in place. The result of a call that a program on the server made, and reads, stays
    too. A result that was *read back*, by a call that reads an offloaded file, is not offloaded
    again; if it is long, `TrimReadBacks` shortens it.

    In one case more results leave: if the new results do not fit the context window together with
    the system prompt, the tools and the content that a compaction carries over. A compaction keeps
    new messages whole only as far as they fit, so the model would never see the rest. Then the
    largest of the new results leave too, with a preview, until the others fit. Only if that is not
    enough, new results that were read back leave as well.

    A skill, a plan and an answer of the user stay whole, unless *per_tool* has a limit for their
    tool. *pin* chooses further results that stay (see `Pins`). All of these leave only if nothing
    else makes the new results fit.

    *preview* keeps head and tail visible after the placeholder. The placeholder of a failed call
    also has the lines that say what went wrong.

    Raises SettingsError if a setting is invalid.
    """

    storage: TextWriter
    min_chars: int = setting(DIRECT_OFFLOAD_CHAR_THRESHOLD)
    preview: Preview | None = None
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    pin: Pin | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        self._pointers.check()
        check_settings(self, min_chars=SIZE, pin=PIN.optional)
        _check_limits(self.per_tool)

    @property
    def _pointers(self) -> Pointers:
        return Pointers(self.storage, DIRECT, self.preview)

    def _rules(self, session_id: str) -> OffloadRules:
        """Return the rules by which results of a session may leave; results read back stay."""
        own_paths = self._pointers.own_paths(session_id)
        return OffloadRules(self.min_chars, self.per_tool, READ_BACK_TOOLS, own_paths, pin=self.pin)

    async def _propose(self, turn: Turn, act: Act) -> Change | Skip:
        """Move new results with ``min_chars`` characters to files with *act*, and more if needed.

        More leave if the new messages would not fit the window. Returns Skip if no result is long
        enough. Raises StorageError if nothing can be written.
        """
        rules = recall_rules(turn, self.storage, self._rules)
        start = index_after_last_reply(turn.messages)
        moves: list[Move] = []
        if (await turn.fact_sums()).result_chars(start) >= rules.least_chars:
            candidates = await turn.call_from(
                max(0, start - 1), offload.candidates, turn.messages, start, rules
            )
            moves = await worthwhile_moves(self._pointers, turn, candidates, rules)
        if start < len(turn.messages):
            moves += await moves_to_fit_window(self._pointers, turn, start, moves, rules)
        if not moves:
            return Skip(f"no new result of {self.min_chars:,} characters or more")
        return await move_texts(turn, moves, act)


@dataclass(frozen=True, slots=True, repr=False)
class BatchOffload(Moving):
    """Move old tool results into files, all at once, when the gate decides that it pays.

    A result is old if the model has replied *keep_recent* times or more since. The *gate* is asked
    in each turn: `RatioGate` decides by the share of the history that would leave, `RentOrBuyGate`
    by costs. If it lets nothing leave, the context stays the very same list.

    *inputs* has the names of tools whose inputs leave too, such as
    ``ctxpipe.providers.agent_tools.WRITING_TOOLS``. In an input, each text of 1,000 characters or
    more is replaced, whatever *min_chars* is; the keys stay. Calls that a program on the server
    made stay unchanged, with their results. Results that were read back from offloaded files stay
    for good; if *keep_read_backs* is False, they leave when they are old, like any other result.
    *storage*, *min_chars*, *preview*, *per_tool* and *pin* are those of `DirectOffload`; the same
    results stay, and what *pin* chooses stays with its input.

    Raises SettingsError if a setting is invalid.
    """

    storage: TextWriter
    gate: Gate = field(default_factory=RatioGate)
    min_chars: int = setting(OFFLOAD_CHAR_THRESHOLD)
    keep_recent: int = 1
    preview: Preview | None = None
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    inputs: AbstractSet[str] = frozenset()
    keep_read_backs: bool = True
    pin: Pin | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        self._pointers.check()
        check_settings(
            self,
            min_chars=SIZE,
            gate=Requirement(CALLABLE.accepts, "a Gate such as RatioGate(0.2)"),
            keep_recent=SIZE,
            keep_read_backs=FLAG,
            inputs=TOOL_NAMES,
            pin=PIN.optional,
        )
        _check_limits(self.per_tool)
        if not (self.keep_read_backs or self.keep_recent):
            raise SettingsError(
                "keep_read_backs is False and keep_recent is 0: results that are read back would "
                "leave before the model sees them; set keep_recent to 1 or more"
            )

    @property
    def _pointers(self) -> Pointers:
        return Pointers(self.storage, BATCH, self.preview, prefix="tool-result-", indent=2)

    def _rules(self, session_id: str) -> OffloadRules:
        """Return the rules by which results and inputs of a session may leave.

        If ``keep_read_backs`` is set, results in which the model reads the session's own files
        stay.
        """
        if not self.keep_read_backs:
            return OffloadRules(
                self.min_chars, self.per_tool, input_tools=self.inputs, pin=self.pin
            )
        own_paths = self._pointers.own_paths(session_id)
        return OffloadRules(
            self.min_chars,
            self.per_tool,
            READ_BACK_TOOLS,
            own_paths,
            self.inputs,
            pin=self.pin,
        )

    async def _propose(self, turn: Turn, act: Act) -> Change | Skip:
        """Move old results to files with *act*, if the gate lets them leave.

        A forced turn does not ask the gate. Returns Skip, with the reason, if none leaves; results
        that wait are logged. Raises StorageError if nothing can be written.
        """
        rules = recall_rules(turn, self.storage, self._rules)
        index = turn.recall(offload.CandidateIndex)
        await turn.call_from(index.message_count, index.extend, turn.messages, rules)
        end = (await turn.fact_sums()).recent_from(self.keep_recent)
        scan, candidates = index.between(turn.protected, end)
        leaving: Sequence[OffloadCandidate] | str
        if turn.force:
            leaving = candidates() or "no old result is long enough to offload"
        else:
            leaving = await self.gate(turn, scan, candidates)
        if isinstance(leaving, str):
            reason = leaving
            waiting = candidates()
            if not waiting:
                return Skip(reason)
            if act is write_texts:
                turn.recall(Waiting).log(turn, waiting, scan.offloadable_chars, reason)
            return Skip(f"{count_phrase(len(waiting), 'old result')} wait; {reason}")
        moves = await worthwhile_moves(self._pointers, turn, leaving, rules)
        if not moves:
            return Skip("no placeholder would be cheaper than what it replaces")
        return await move_texts(turn, moves, act)


def _check_limits(per_tool: object) -> None:
    """Raise SettingsError unless *per_tool* maps names of tools to limits in characters."""
    if not isinstance(per_tool, Mapping):
        raise SettingsError(
            f"per_tool is {excerpt(per_tool)}; give a mapping from the name of a tool to its limit"
        )
    for tool, limit in per_tool.items():
        if limit is not None and not is_size(limit):
            raise SettingsError(
                f"per_tool[{tool!r}] is {excerpt(limit)}; "
                "give a whole number, 0 or more, or None for no limit"
            )
