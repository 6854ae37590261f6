"""Calibration by reported usage and refusals; the prompt cache and the observers of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..diagnostics import Diagnostics
from ..diagnostics.observers import Observer, ShapedContext
from ..messages import Message, field
from ..providers.prices import HOUR
from ..providers.refusals import FAR_BELOW, Refusal
from ..stages.reports import Result
from ..tokens import conservative
from ..tokens.billed import cached_tokens, check_usage, has_usage
from ..turn.state import learn_window, model_of, observe_cut
from .breakpoints import with_breakpoints, with_free_breakpoints, with_hour_marks

if TYPE_CHECKING:
    from ..journal.step import Step
    from ..turn.state import Request
    from .memory import SessionMemory

LEAST_DIFFERENCE = 0.1
"""Share of the budget's trigger by which a refused context must differ from the one before.

With a smaller difference another attempt to shorten it is not likely to help."""


class SessionUsage:
    """Calibrates the token estimates in the *memory* of a session, and follows its prompt cache."""

    def __init__(self, memory: SessionMemory) -> None:
        self._memory = memory

    # Requests -------------------------------------------------------------------------------------

    @property
    def observers(self) -> list[Observer]:
        """Objects that follow the requests of the session."""
        return self._memory.observers

    @property
    def diagnostics(self) -> Diagnostics:
        """Findings of the observers so far."""
        findings: dict[str, Any] = {}
        for observer in self.observers:
            findings.update(observer.findings())
        return Diagnostics(**findings)

    async def note_context(
        self, step: Step, request: Request, result: Result, rewritten_from: int | None
    ) -> None:
        """Report the context of *result* to the observers, before *step* is applied.

        The context differs from the previous one from message *rewritten_from* on; None if it only
        grew. The observers' notices are for the result.
        """
        edited_from = step.retained_count if step.agreement.has_diverged else None
        gone_back_to = self._memory.gone_back_to
        if gone_back_to is not None:
            edited_from = gone_back_to if edited_from is None else min(edited_from, gone_back_to)
            self._memory.gone_back_to = None
        context = ShapedContext(
            result=result,
            system=request.system,
            tools=request.tools,
            options=request.options,
            earlier=self._memory.timeline,
            known_count=step.unchanged_count,
            new_messages=step.messages,
            is_rewound=step.agreement.is_rewound or gone_back_to is not None,
            exceeds_inline_limit=step.exceeds_inline_limit,
            stored=step.stored,
            rewritten_from=rewritten_from,
            edited_from=edited_from,
        )
        for observer in self.observers:
            for notice in await observer.shaped(context):
                self._memory.journal.notices.add(notice)

    def note_turn(self, result: Result, options: Mapping[str, object]) -> None:
        """Remember the size of the context of the newest turn, and the *options* of its request."""
        self._memory.context_tokens = result.tokens_after
        self._memory.request_options = options

    def mark(
        self, context: Result, body: Mapping[str, Any], breakpoints: int | None
    ) -> dict[str, Any]:
        """Return the request *body*, which sends *context*, with cache breakpoints.

        At most *breakpoints* are added; with None only those that cost nothing. If the cache is to
        last an hour, all breakpoints of the request have that lifetime.
        """
        memory = self._memory
        start = context.first_changed_index
        end = context.changed_end
        # If a request is sent twice, its second turn changes nothing. Then the messages that the
        # first one has rewritten count.
        if start is not None and end is not None:
            memory.rewritten = (context.covered, start, end)
        covered_count, start, end = memory.rewritten
        rewritten = (start, end) if covered_count == context.covered else None
        if breakpoints is None:
            marked_body = with_free_breakpoints(body, rewritten)
        else:
            marked_body = with_breakpoints(body, breakpoints, rewritten)
        if memory.settings.cache_seconds >= HOUR:
            return with_hour_marks(marked_body)
        return marked_body

    def note_request(self, context: Result, body: Mapping[str, object]) -> None:
        """Report the request *body*, which sends *context*, to the observers before it is sent.

        Only a caller who adds cache breakpoints after the turn needs to do that. *body* has the
        arguments of ``messages.create``.
        """
        for observer in self.observers:
            observer.sent(context.messages, body)

    def note_failure(self, context: Result) -> None:
        """Report to the observers that the request with *context* has failed."""
        for observer in self.observers:
            observer.refused(context.messages)

    # Replies --------------------------------------------------------------------------------------

    def observe_reply(self, reply: object, context: Result) -> None:
        """Observe the usage of *reply*, the answer to *context*, if it reports any.

        Some gateways leave the usage out, or answer with no message at all. The caller has paid for
        such a reply too, so it is no error.
        """
        if has_usage(reply):
            self.observe(reply, context.messages)

    def observe(
        self, usage: object, sent: Sequence[Message] | None = None, *, model: str | None = None
    ) -> None:
        """Calibrate the estimates by *usage*, as `Session.observe` explains."""
        memory = self._memory
        check_usage(usage)
        if model is None:
            model = field(usage, "model")
        if not isinstance(model, str):
            model = None
        memory.refused_tokens = None
        messages = memory.sent if sent is None else sent
        overhead = memory.state.overhead.tokens
        requested_model = memory.request_options.get("model")
        if not isinstance(requested_model, str):
            requested_model = model
        notice = observe_cut(usage, messages, memory.state, memory.pipeline.budget, requested_model)
        if notice:
            memory.journal.notices.add(notice)
        memory.state.ledger.observe(usage, messages, overhead=overhead, model=model)
        memory.cached_at = memory.settings.clock() if cached_tokens(usage) else None
        for observer in self.observers:
            observer.billed(usage, sent, model)

    @property
    def is_cache_expired(self) -> bool:
        """True if the provider's prompt cache was used, and its lifetime has ended since."""
        memory = self._memory
        if memory.cached_at is None:
            return False
        return memory.settings.clock() - memory.cached_at > memory.settings.cache_seconds

    @property
    def fill(self) -> float:
        """Estimated tokens of the last context, as a share of the budget's trigger."""
        memory = self._memory
        model = model_of(memory.state, memory.request_options)
        tokens = memory.state.ledger.estimate(memory.context_tokens)
        return tokens / memory.pipeline.budget_for(memory.state, model).trigger

    # Refusals -------------------------------------------------------------------------------------

    def learn_refusal(
        self, refusal: Refusal, context: Result, options: Mapping[str, object]
    ) -> bool:
        """Calibrate the estimates by *refusal*, the answer to *context*.

        *options* are those of the request. Returns False if a shorter context would not help: the
        context is far below its budget, and the refusal names no numbers; or the last context that
        was refused had about as many tokens.
        """
        memory = self._memory
        state = memory.state
        tokens = state.ledger.estimate(context.tokens_after)
        model = model_of(state, options)
        if not state.ledger.can_be_about(refusal, context.tokens_after, model):
            refusal = Refusal(refusal.provider)
        likely_tokens = tokens
        if not state.ledger.last_bill(model):
            likely_tokens = conservative(context.tokens_after)
        budget = memory.pipeline.budget_for(state, model)
        notice = learn_window(refusal, state, budget, model, likely_tokens)
        if notice:
            memory.journal.notices.add(notice)

        trigger = memory.pipeline.budget_for(state, model).trigger
        is_explained = refusal.has_numbers or refusal.has_code
        if likely_tokens < FAR_BELOW * trigger and not is_explained:
            return False
        last_tokens = memory.refused_tokens
        if last_tokens is not None and abs(tokens - last_tokens) < LEAST_DIFFERENCE * trigger:
            return False

        memory.refused_tokens = tokens
        if refusal.tokens is not None:
            state.ledger.observe(
                {"input_tokens": refusal.tokens},
                context.messages,
                overhead=state.overhead.tokens,
                model=model,
                is_certain=True,
            )
        return True
