"""What is remembered about a conversation, and what a turn is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..errors import SettingsError
from ..journal.earlier import EarlierContext
from ..journal.timeline import Step
from ..messages import FactSums, Message
from ..messages.thinking import Stale
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
    """What matters here of a model request, beside the messages."""

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
    """What was beside the messages in the last request, and its raw *tokens*.

    *can_search* says whether `search_history` is among the tools.
    """

    system: object = None
    tools: Iterable[object] | None = None
    tokens: int = 0
    can_search: bool = False


@dataclass(slots=True)
class State:
    """What is remembered about one conversation, for speed and for circuit breakers.

    It never decides an outcome, with one exception: a caller of `ContextPipeline.run` may take back
    what a summary describes, and *earlier* is the context before that one. The sums agree with the
    first *agreed* messages of what was kept last. *given* and *context* are what the last run
    returned, as it was sent and in plain form, and *stale* its thinking with stale signatures. A
    session knows these four better, and leaves them empty. *memories* are by the stage's place,
    *windows* by model: the size above which it has refused a request.
    """

    settings: PipelineSettings
    ledger: Ledger
    agreed: int = 0
    memories: dict[int, dict[object, Any]] = field(default_factory=dict, repr=False)
    given: list[Message] = field(default_factory=list, repr=False)
    context: list[Message] = field(default_factory=list, repr=False)
    stale: Stale = field(default_factory=dict)
    earlier: EarlierContext | None = field(default=None, repr=False)
    fact_sums: FactSums = field(default_factory=FactSums, repr=False)
    overhead: Overhead = field(default=Overhead(), repr=False)
    windows: dict[str | None, int] = field(default_factory=dict)
    busy: bool = False

    def rewind(self, length: int) -> None:
        """Drop what the running totals say of messages from index *length* of the context on."""
        self.fact_sums.rewind(length)
        self.agreed = min(self.agreed, length)
        self.ledger.rewind(length)
        for memory in self.memories.values():
            for record in memory.values():
                # To ask whether it is of a protocol takes forty times as long.
                rewind = getattr(record, "rewind", None)
                if rewind is not None:
                    rewind(length)

    def end_turn(self) -> None:
        """Forget what only a turn that was cancelled leaves to the next one."""
        for memory in self.memories.values():
            memory.pop(FinishedSummary, None)

    def edit(
        self, step: Step, before: Sequence[Message], after: list[Message], *, paired: bool = True
    ) -> None:
        """Tell *step* and every sum from where on *after* differs from *before*."""
        if after is before:
            return
        edits = step.edit(before, after, paired=paired)
        self.rewind(edits[-1].start if edits else len(before))


def model_of(state: State, options: Mapping[str, object]) -> str | None:
    """The model that a request with *options* goes to.

    Where they name none, it is the one that answered last.
    """
    model = options.get("model")
    return model if isinstance(model, str) else state.ledger.model


@dataclass(slots=True)
class PipelineSettings:
    """What a pipeline is set to: its stages, its budget and counter, and what guards the stages."""

    budget: Budget
    counter: TokenCounter
    on_report: Callable[[StageReport], object] | None = None
    veto: Veto | None = None
    on_error: Literal["skip", "raise"] = "skip"
    thinking: Thinking = "keep"
    prices: Prices | None = None
    stages: list[Stage] = field(default_factory=list)

    def new_state(self) -> State:
        """An empty memory for one conversation."""
        return State(self, Ledger(self.counter))

    def budget_for(self, state: State, model: str | None) -> Budget:
        """The budget of a request to *model*.

        It is lower where the model has refused less, and where the budget names no window and that
        of the model is known to be smaller.
        """
        window = state.windows.get(model, self.budget.window)
        if self.budget.is_default and model is not None:
            window = min(window, context_window(model) or window)
        return self.budget.within(window)


def learn_window(
    refusal: Refusal, state: State, budget: Budget, model: str | None, tokens: int
) -> str:
    """Have *state* remember the window that *refusal* names for *model*, if it is smaller than
    that of the *budget*; the notice of that, else "".

    Where only a code says that a prompt of *tokens* was too long, the window is not larger.
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
