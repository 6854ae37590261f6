"""The settings of a pipeline, what a conversation remembers, and what a turn is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..errors import SettingsError
from ..messages import FactSums
from ..providers.prices import Prices, context_window
from ..providers.refusals import Refusal
from ..settings import FLAG, MAPPING, excerpt
from ..stages.protocol import Change, Stage, Turn
from ..stages.reports import StageReport
from ..summarizers.retry import FinishedSummary
from ..tokens import Budget, Ledger, TokenCounter

if TYPE_CHECKING:
    from ..summarizers import AgentModel

Veto: TypeAlias = Callable[[Turn, Change], bool | str]
"""Function that is called with each change that a stage proposes, before it is used.

It refuses the change by returning True, or a sentence with the reason; False accepts it.
"""

Thinking: TypeAlias = Literal["keep", "strip", "protect"]
"""Treatment of thinking whose signature a rewrite has made invalid; see `ContextPipeline`."""


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a model request that matter to a turn, without the messages.

    *options* are the other arguments of the request. With *force* the stages act below their
    thresholds too. *cache_expired* is True if the provider's prompt cache is known to have expired.
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
    """System prompt and tools of the last request, and their raw *tokens*.

    *can_search* is True if `search_history` is one of the tools.
    """

    system: object = None
    tools: Iterable[object] | None = None
    tokens: int = 0
    can_search: bool = False


@dataclass(slots=True)
class State:
    """What a conversation remembers beside its messages: running totals and the stages' records.

    It saves time and keeps circuit breakers open, and never decides what a context contains. The
    totals in *ledger* and *fact_sums* describe the first *summed_count* messages of the last
    context. *memories* has the records of the stages, by the stage's place. *windows* has, by
    model, the size above which the model has refused a request.
    """

    settings: PipelineSettings
    ledger: Ledger
    summed_count: int = 0
    memories: dict[int, dict[object, Any]] = field(default_factory=dict, repr=False)
    fact_sums: FactSums = field(default_factory=FactSums, repr=False)
    overhead: Overhead = field(default=Overhead(), repr=False)
    windows: dict[str | None, int] = field(default_factory=dict)

    def rewind(self, length: int) -> None:
        """Drop what the running totals say of messages from index *length* of the context on."""
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
        """Note the number of messages in the new context, which the totals describe.

        Also drops the records that only a cancelled turn leaves to the next one.
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

    def new_state(self) -> State:
        """Return the state of a new conversation."""
        return State(self, Ledger(self.counter))

    def budget_for(self, state: State, model: str | None) -> Budget:
        """Return the budget of a request to *model*.

        It is lower than that of the pipeline if the model has refused a shorter request. It is also
        lower if the budget names no window, and the listed window of the model is smaller.
        """
        window = state.windows.get(model, self.budget.window)
        if self.budget.is_default and model is not None:
            window = min(window, context_window(model) or window)
        return self.budget.within(window)


def learn_window(
    refusal: Refusal, state: State, budget: Budget, model: str | None, tokens: int
) -> str:
    """Store the window that *refusal* shows for *model* in *state*, and return a notice of that.

    Returns "" if the window is not smaller than that of the *budget*. If only a code reports that a
    prompt of *tokens* was too long, the window is at most that long.
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
