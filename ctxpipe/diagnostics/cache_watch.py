"""The observer that passes a session's requests and usage to the audit of the prompt cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .._logs import logger
from .._threads.threads import in_thread
from ..messages import Message
from ..providers.prices import Prices, find_prices
from .cache_audit import CacheAudit
from .misses import CacheMiss, Cause, Tally, cache_usage, most_tokens_first
from .observers import Observer, ShapedContext
from .prompts import SentRequest

MOST_MISSES = 200


class CacheWatch(Observer):
    """Records the cache misses of one session: the newest ones, and totals by cause.

    Costs use the prices of the pipeline, or else the listed prices of the model.
    """

    def __post_init__(self) -> None:
        self.misses: deque[CacheMiss] = deque(maxlen=MOST_MISSES)
        self._audit = CacheAudit(self.counter)
        self._listed_prices: dict[str | None, Prices | None] = {}
        self._tallies: dict[Cause, Tally] = {}
        self._unreported_misses: list[CacheMiss] = []

    # Events ---------------------------------------------------------------------------------------

    async def shaped(self, context: ShapedContext) -> list[str]:
        """Remember the request; return a sentence for each new and avoidable cause of misses."""
        result = context.result
        sent = SentRequest(
            messages=result.messages,
            seconds=self.clock(),
            system=context.system,
            tools=context.tools,
            options={**context.options, **result.request_options},
            rewritten_from=context.rewritten_from,
            edited_from=context.edited_from,
            are_marks_known=False,
            is_amended=bool(result.request_options),
        )
        self._audit.send(sent, result.messages)
        return await self._new_sentences()

    def sent(self, messages: Sequence[Message], body: Mapping[str, object]) -> None:
        """Record that the request is sent in *body*, with all its marks."""
        self._audit.send_as(messages, body, self.clock())

    def refused(self, messages: Sequence[Message]) -> None:
        """Forget the request: a refused one writes nothing to the cache."""
        self._audit.forget(messages)

    def billed(self, usage: object, messages: Sequence[Message] | None, model: str | None) -> None:
        """Compare the *usage* with the tokens that the request should have read from the cache."""
        try:
            misses = self._audit.observe(
                cache_usage(usage), messages, messages=messages, model=model
            )
        except Exception as error:  # a failed audit must not cost a turn
            logger.debug("the audit of the prompt cache failed and starts again", exc_info=error)
            self._audit = CacheAudit(self.counter)
            return
        self.misses += misses
        self._unreported_misses += misses

    # Findings -------------------------------------------------------------------------------------

    async def _new_sentences(self) -> list[str]:
        """Return a sentence for each new, avoidable cause; log the new ones that are not."""
        if not self._unreported_misses:
            return []
        for model in {miss.model for miss in self._unreported_misses}:
            if self.prices is None and model not in self._listed_prices:
                self._listed_prices[model] = await in_thread(find_prices, model)
        misses = self._unreported_misses
        self._unreported_misses = []
        sentences = []
        for miss in misses:
            is_new = miss.cause not in self._tallies
            prices = self._add_to(self._tallies, miss)
            sentence = f"prompt cache: {miss.sentence(prices)}"
            if is_new and miss.cause.is_avoidable:
                sentences.append(sentence)
            elif is_new:
                logger.info("%s", sentence)
        return sentences

    def _add_to(self, tallies: dict[Cause, Tally], miss: CacheMiss) -> Prices | None:
        """Add *miss* to *tallies* and return the prices that were used."""
        prices = self.prices or self._listed_prices.get(miss.model)
        tallies.setdefault(miss.cause, Tally(miss.cause)).add(miss, prices)
        return prices

    def findings(self) -> Mapping[str, object]:
        """Return the last cache misses, and their sums by cause with the most tokens first.

        A miss that is not reported yet counts in the sums.
        """
        tallies = {cause: replace(tally) for cause, tally in self._tallies.items()}
        for miss in self._unreported_misses:
            self._add_to(tallies, miss)
        tally = most_tokens_first(tallies.values())
        return {"cache_misses": tuple(self.misses), "cache_tally": tally}
