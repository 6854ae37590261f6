"""The settings of a pipeline, the memory of a conversation, and the object that carries a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, TypeVarTuple

from .._logs import logger
from .._text import one_line
from .._threads.threads import in_thread
from ..errors import SettingsError, safe_text
from ..messages import FactSums, Message
from ..providers.prices import Prices, context_window
from ..providers.refusals import Refusal
from ..settings import FLAG, MAPPING, excerpt
from ..stages.protocol import Change, Stage, Turn
from ..stages.reports import StageReport
from ..summarizers.retry import FinishedSummary
from ..tokens import Budget, Ledger, TokenCounter
from ..tokens.billed import context_tokens
from ..tokens.silent_cuts import SilentCuts

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from ..journal.memory import Memory
    from ..journal.step import Step
    from ..messages import Problem
    from ..stages.offload.shared_decisions import SharedDecisions
    from ..stages.reports import Result
    from ..summarizers import AgentModel

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

Veto: TypeAlias = Callable[[Turn, Change], bool | str]
"""Function that is called with each change that a stage proposes, before the change is made.

It returns False to accept the change. To refuse it, it returns True or a sentence with the reason.
"""

Thinking: TypeAlias = Literal["keep", "strip", "protect"]
"""What happens to signed thinking when text before it is rewritten; see `ContextPipeline`."""


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a model request that matter to a turn, without the messages.

    *options* are its other arguments, such as the model. With *force* the stages act below their
    thresholds too. *cache_expired* is True if the provider's prompt cache is known to have expired.
    *agent_model* is the model object of the agent, if an adapter lends it to write summaries.
    """

    system: object = field(default=None, repr=False)
    tools: Iterable[object] | None = field(default=None, repr=False)
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    force: bool = False
    cache_expired: bool = False
    agent_model: AgentModel | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.tools is not None and isinstance(self.tools, str | bytes | Mapping):
            raise SettingsError(
                f"tools is {excerpt(self.tools)}; "
                "give the list of tools that the request is sent with"
            )
        if self.options:
            MAPPING.check("request", self.options)
        FLAG.check("force", self.force)


class Overhead(NamedTuple):
    """System prompt and tools of the last request, and their *tokens* as tiktoken counts them.

    *can_search* is True if `search_history` is one of the tools.
    """

    system: object = None
    tools: Iterable[object] | None = None
    tokens: int = 0
    can_search: bool = False


@dataclass(slots=True)
class State:
    """Memory of a conversation beside its messages: running totals and the records of stages.

    The totals in *ledger* and *fact_sums* describe the first *summed_count* messages of the newest
    context; they save counting these again. *memories* has the records of each stage, by the
    stage's position in the pipeline: for example the circuit breaker of `Compact`. *windows* has
    the largest size that a model accepts, by model, as its refusals have shown; the key None is
    for requests that name no model. *cuts* compares usages with prompts; *cut_models* are the
    models whose window is known from prompts that were cut without an error. *is_compacted*
    is True if a stage has taken something out of the context; None if that is not known, because
    the conversation comes from a journal.
    """

    settings: PipelineSettings
    ledger: Ledger
    summed_count: int = 0
    memories: dict[int, dict[object, Any]] = field(default_factory=dict, repr=False)
    fact_sums: FactSums = field(default_factory=FactSums, repr=False)
    overhead: Overhead = field(default=Overhead(), repr=False)
    windows: dict[str | None, int] = field(default_factory=dict)
    cuts: SilentCuts = field(default_factory=SilentCuts, repr=False)
    cut_models: set[str | None] = field(default_factory=set, repr=False)
    is_compacted: bool | None = None

    def rewind(self, length: int) -> None:
        """Make totals and records describe only the first *length* messages of the context."""
        self.fact_sums.rewind(length)
        self.summed_count = min(self.summed_count, length)
        self.ledger.rewind(length)
        for memory in self.memories.values():
            for record in memory.values():
                # isinstance with a protocol would take forty times as long.
                rewind = getattr(record, "rewind", None)
                if rewind is not None:
                    rewind(length)

    def end_turn(self, context_length: int) -> None:
        """Record that the totals describe all *context_length* messages of the new context.

        Also drops finished summaries that no stage has used: only a cancelled turn keeps one for
        the next turn.
        """
        self.summed_count = context_length
        for memory in self.memories.values():
            memory.pop(FinishedSummary, None)


def model_of(state: State, options: Mapping[str, object]) -> str | None:
    """Return the model of a request with *options*, by default the one that replied last."""
    model = options.get("model")
    return model if isinstance(model, str) else state.ledger.model


@dataclass(slots=True)
class PipelineSettings:
    """The settings of a pipeline; `ContextPipeline` explains each of them."""

    budget: Budget
    counter: TokenCounter
    on_report: Callable[[StageReport], object] | None = None
    veto: Veto | None = None
    on_error: Literal["skip", "raise"] = "skip"
    thinking: Thinking = "keep"
    prices: Prices | None = None
    stages: list[Stage] = field(default_factory=list)
    logged_failures: dict[str, str] = field(default_factory=dict, repr=False)
    """Cause of the storage's last failure that was logged, by the name of the stage."""

    def new_state(self) -> State:
        """Return the state of a new conversation."""
        return State(self, Ledger(self.counter))

    def budget_for(self, state: State, model: str | None) -> Budget:
        """Return the budget of a request to *model*.

        The window is smaller than that of the pipeline's budget if a refusal has shown that the
        model accepts less. It is also smaller if the caller gave no window and genai-prices lists a
        smaller one for the model.
        """
        window = state.windows.get(model, self.budget.window)
        if self.budget.is_default and model is not None:
            listed_window = context_window(model)
            if listed_window is not None:
                if listed_window > self.budget.window:
                    _log_unused_window(model, listed_window, self.budget.window)
                window = min(window, listed_window)
        return self.budget.within(window)


@lru_cache(maxsize=1024)
def _log_unused_window(model: str, listed_window: int, window: int) -> None:
    """Log once that contexts for *model* are kept within a *window* that is not all it has."""
    logger.info(
        "contexts for %s are kept within the default window of %s tokens, because long prompts "
        "cost more in each turn; the model has %s: Budget(window=%s) uses more",
        one_line(model, 80),
        f"{window:,}",
        f"{listed_window:,}",
        f"{listed_window:_}",
    )


def learn_window(
    refusal: Refusal, state: State, budget: Budget, model: str | None, tokens: int
) -> str:
    """Store the window that *refusal* shows for *model* in *state*; return a sentence for the log.

    If the refusal names no number but its error code says that the prompt was too long, the window
    is at most *tokens*, the estimated size of that prompt, or the size that the model last accepted
    if that is larger. Returns "" if nothing was stored, because the window is not smaller than that
    of *budget*.
    """
    window = refusal.window
    is_named = window is not None
    if window is not None:
        reserved = budget.reserve_output or 0  # the budget keeps it free in any window
        window -= max(0, refusal.answer_tokens - reserved)
    elif refusal.has_code:
        window = max(tokens, state.ledger.last_bill(model))
    if window is None or window >= budget.window:
        return ""
    state.windows[model] = window
    return (
        f"the window of {model or 'the model'} is {'' if is_named else 'at most '}{window:,} "
        f"tokens, not {budget.window:,}: the budget of this session is lowered"
    )


def observe_cut(
    usage: object, messages: Sequence[Message], state: State, budget: Budget, model: str | None
) -> str:
    """Compare *usage* with its prompt; return a sentence for the log if the server has cut it.

    The prompt has *messages*. If the server has cut it without an error, the window of *model* is
    lowered in *state* to what it has accepted. If a later reply shows that the window is larger, it
    is raised again. *budget* is that of the pipeline. Returns "" if there is nothing to report.
    """
    window = state.windows.get(model)
    if model in state.cut_models and window is not None and context_tokens(usage) > window:
        del state.windows[model]
        state.cut_models.discard(model)
        return f"{_name(model)} has accepted more than {window:,} tokens: its window is larger"
    overhead = state.overhead.tokens
    counted_tokens = state.ledger.last_total + overhead
    shown_window = state.cuts.window(
        usage,
        messages,
        state.ledger.counter,
        counted_tokens=counted_tokens,
        overhead=overhead,
        model=model,
    )
    if shown_window is None or shown_window >= min(budget.window, window or budget.window):
        return ""
    state.windows[model] = shown_window
    state.cut_models.add(model)
    return (
        f"the server reports {context_tokens(usage):,} tokens for a prompt of about "
        f"{counted_tokens:,}: it has cut the prompt without an error. The window of "
        f"{_name(model)} is taken to be {shown_window:,} tokens, not {budget.window:,}; if it is "
        "larger, set it in the server (num_ctx in Ollama) and give Budget(window=…)"
    )


def _name(model: str | None) -> str:
    """Return the name of *model* for a log line."""
    return "the model" if model is None else one_line(model, 80)


@dataclass(slots=True)
class TurnRun:
    """State of one turn: its inputs, and the results of its steps so far.

    The caller gives the first group of fields. *memory* has the timeline that the turn continues,
    *state* the running totals and the records of the stages. *stages* are those that take part, by
    their places in the pipeline; with None all stages do. *decisions* says which texts other
    conversations have moved to files; this one replaces the same texts by the same placeholders. A
    plan writes nothing and calls no model.

    The steps of the turn set the other fields. `align` sets the *step* of the timeline and
    *repeated_stages*, which come first and repeat what the model has seen before, and empties
    *changes* and *reports*. *messages* is the context so far, *problems* says what was broken in
    it. *changes* has an item for each part of the turn that changed something: the index of the
    first changed message, and that of the block in it. *reports* are those of the stages.
    """

    session_id: str
    history: list[Message]
    request: Request
    state: State
    memory: Memory
    stages: Mapping[int, Stage] | None = None
    decisions: SharedDecisions | None = None
    is_plan: bool = False

    tracer: Tracer | None = None
    is_thorough: bool = False
    """Whether every message of the history is compared with what is remembered of it."""
    step: Step = field(init=False)
    turn: int = 0
    """Number of the turn in its session: 1 for the first, 0 until `align` sets it."""
    repeated_stages: Mapping[int, Stage] = field(default_factory=dict)
    messages: list[Message] = field(init=False)
    problems: tuple[Problem, ...] = ()
    changes: list[tuple[int, int]] = field(default_factory=list)
    reports: list[StageReport] = field(default_factory=list)
    result: Result = field(init=False)

    async def call(self, work: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Call *work* and return its result, in a worker thread if the turn has much to read."""
        if self.step.exceeds_inline_limit:
            return await in_thread(work, *arguments)
        return work(*arguments)

    def edit(self, messages: list[Message], *, first: int = 0, paired: bool = True) -> None:
        """Make *messages* the context, and drop what the totals say from the first change on.

        The caller knows that the first *first* messages stay. *paired* is that of
        `ctxpipe.messages.diff.diff`, which compares both contexts.
        """
        if messages is self.messages:
            return
        edits = self.step.edit(self.messages, messages, equal_count=first, paired=paired)
        first_changed = len(self.messages)
        if edits:
            first_changed = edits[-1].start  # the edits are in the order last to first
        self.state.rewind(first_changed)
        self.messages = messages

    def end_part(self) -> None:
        """Note the first place that this part of the turn has changed; the next part begins."""
        touched = self.step.touched
        if touched.first is not None:
            self.changes.append(touched.first)
        touched.first = None

    async def count(self, messages: Sequence[Message]) -> int:
        """Return the raw tokens of the context *messages*, with system prompt and tools.

        Only new messages are counted. If the counter fails, the result is 0, unless errors are to
        be raised.
        """
        ledger = self.state.ledger
        try:
            tokens = await ledger.total(messages, unchanged_count=ledger.unchanged_count)
        except Exception as error:
            if self.state.settings.on_error == "raise":
                raise
            name = self.session_id[:40]
            reason = safe_text(error)
            logger.warning("the context of session %r cannot be counted: %s", name, reason)
            logger.debug("the counter failed with", exc_info=error)
            return 0
        return tokens + self.state.overhead.tokens
