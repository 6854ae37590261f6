"""What a session sent and was billed for, told to the cache diagnostics, and what these found."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from .._logs import logger
from .._threads.threads import in_thread
from ..errors import SettingsError
from ..messages import Message
from ..prompt_cache import CacheDiagnostics, CacheMiss, Cause, Sent, Tally, as_bill
from ..prompt_cache.misses import most_tokens_first
from ..providers.prices import Prices, prices_of
from ..stages.reports import Result
from ..tokens import TokenCounter
from .state import Request
from .timeline import Step

MOST_MISSES = 200


class CacheWatch:
    """The misses of one session, the newest *misses* and a tally of all by cause.

    *prices* are those of the pipeline; without any, those that are listed for the model count.
    """

    def __init__(
        self, counter: TokenCounter, prices: Prices | None, clock: Callable[[], float]
    ) -> None:
        self.misses: deque[CacheMiss] = deque(maxlen=MOST_MISSES)
        self._counter = counter
        self._diagnostics = CacheDiagnostics(counter)
        self._clock = clock
        self._prices = prices
        self._listed: dict[str | None, Prices | None] = {}
        self._tallies: dict[Cause, Tally] = {}
        self._unreported: list[CacheMiss] = []
        self._rewritten_from: int | None = None
        self._edited_from: int | None = None

    # What happens ---------------------------------------------------------------------------------

    def note(self, step: Step, first_changed: int | None) -> None:
        """Note from where on a turn has changed the context, and from where on its caller has."""
        self._rewritten_from = _first(self._rewritten_from, first_changed)
        if step.agreement.has_diverged:
            self._edited_from = _first(self._edited_from, step.kept)

    def send(self, result: Result, asked: Request) -> None:
        """The context of *result* is about to be sent, as far as the session knows."""
        sent = Sent(
            result.messages,
            self._clock(),
            asked.system,
            asked.tools,
            {**asked.options, **result.request_options},
            self._rewritten_from,
            self._edited_from,
            are_marks_known=False,
            is_amended=bool(result.request_options),
        )
        self._rewritten_from = self._edited_from = None
        self._diagnostics.send(sent, result.messages)

    def send_as(self, result: Result, body: Mapping[str, object]) -> None:
        """The context of *result* goes out in *body*, with all the marks that it will have."""
        self._diagnostics.send_as(result.messages, body, self._clock())

    def forget(self, messages: Sequence[Message]) -> None:
        """The request with *messages* was refused."""
        self._diagnostics.forget(messages)

    def observe(self, usage: object, sent: Sequence[Message] | None, model: str | None) -> None:
        """The bill of the request with the messages *sent*, by default of the last one."""
        try:
            found = self._diagnostics.observe(as_bill(usage), sent, messages=sent, model=model)
        except Exception as error:  # no diagnosis is worth a turn
            logger.debug("the cache diagnostics failed, and begin anew", exc_info=error)
            self._diagnostics = CacheDiagnostics(self._counter)
            return
        self.misses += found
        self._unreported += found

    # What was found -------------------------------------------------------------------------------

    async def news(self) -> list[str]:
        """A sentence for each cause that is new and that the caller can do something about."""
        if not self._unreported:
            return []
        for model in {miss.model for miss in self._unreported}:
            if self._prices is None and model not in self._listed:
                self._listed[model] = await in_thread(_find_prices, model)
        return self._report()

    def _report(self) -> list[str]:
        sentences = []
        misses, self._unreported = self._unreported, []
        for miss in misses:
            is_new = miss.cause not in self._tallies
            prices = self._prices_for(miss)
            tally = self._tallies.setdefault(miss.cause, Tally(miss.cause))
            tally.add(miss, None if prices is None else miss.cost(prices))
            if is_new and miss.cause.is_avoidable:
                sentences.append(f"prompt cache: {miss.sentence(prices)}")
            elif is_new:
                logger.info("prompt cache: %s", miss.sentence(prices))
        return sentences

    def _prices_for(self, miss: CacheMiss) -> Prices | None:
        if self._prices is not None:
            return self._prices
        return self._listed.get(miss.model)

    def tallies(self) -> list[Tally]:
        """All misses by cause, those of most tokens first."""
        tallies = {
            cause: Tally(cause, tally.misses, tally.tokens, tally.cost, tally.detail)
            for cause, tally in self._tallies.items()
        }
        for miss in self._unreported:
            prices = self._prices_for(miss)
            tally = tallies.setdefault(miss.cause, Tally(miss.cause))
            tally.add(miss, None if prices is None else miss.cost(prices))
        return most_tokens_first(tallies.values())


def _first(one: int | None, other: int | None) -> int | None:
    return min([place for place in (one, other) if place is not None], default=None)


def _find_prices(model: str | None) -> Prices | None:
    if model is None:
        return None
    try:
        return prices_of(model)
    except SettingsError:
        return None
