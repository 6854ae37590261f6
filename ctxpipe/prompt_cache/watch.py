"""What a session sent and was billed for, told to the cache diagnostics, and what these found."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .._logs import logger
from .._threads.threads import in_thread
from ..messages import Message
from ..observers import Observer, Shaped
from ..providers.prices import Prices, find_prices
from .diagnostics import CacheDiagnostics
from .misses import CacheMiss, Cause, Tally, as_bill, most_tokens_first
from .prompts import Sent

MOST_MISSES = 200


class CacheWatch(Observer):
    """The misses of one session, the newest *misses* and a tally of all by cause.

    *prices* are those of the pipeline; without any, those that are listed for the model count.
    """

    def __post_init__(self) -> None:
        self.misses: deque[CacheMiss] = deque(maxlen=MOST_MISSES)
        self._diagnostics = CacheDiagnostics(self.settings.counter)
        self._listed: dict[str | None, Prices | None] = {}
        self._tallies: dict[Cause, Tally] = {}
        self._unreported: list[CacheMiss] = []

    # What happens ---------------------------------------------------------------------------------

    async def shaped(self, context: Shaped) -> list[str]:
        """Remember the request; a sentence for each cause of misses that is new and avoidable."""
        step, asked, result = context.step, context.request, context.result
        sent = Sent(
            result.messages,
            self.clock(),
            asked.system,
            asked.tools,
            {**asked.options, **result.request_options},
            context.rewritten_from,
            step.kept if step.agreement.has_diverged else None,
            are_marks_known=False,
            is_amended=bool(result.request_options),
        )
        self._diagnostics.send(sent, result.messages)
        return await self._news()

    def sent(self, messages: Sequence[Message], body: Mapping[str, object]) -> None:
        """The request goes out in *body*, with all the marks that it will have."""
        self._diagnostics.send_as(messages, body, self.clock())

    def refused(self, messages: Sequence[Message]) -> None:
        """The request has written nothing to the cache."""
        self._diagnostics.forget(messages)

    def billed(self, usage: object, messages: Sequence[Message] | None, model: str | None) -> None:
        """Compare the *usage* with what the request should have read from the cache."""
        try:
            found = self._diagnostics.observe(
                as_bill(usage), messages, messages=messages, model=model
            )
        except Exception as error:  # no diagnosis is worth a turn
            logger.debug("the cache diagnostics failed, and begin anew", exc_info=error)
            self._diagnostics = CacheDiagnostics(self.settings.counter)
            return
        self.misses += found
        self._unreported += found

    # What was found -------------------------------------------------------------------------------

    async def _news(self) -> list[str]:
        if not self._unreported:
            return []
        for model in {miss.model for miss in self._unreported}:
            if self.settings.prices is None and model not in self._listed:
                self._listed[model] = await in_thread(find_prices, model)
        sentences = []
        misses, self._unreported = self._unreported, []
        for miss in misses:
            is_new = miss.cause not in self._tallies
            sentence = f"prompt cache: {miss.sentence(self._count(miss, self._tallies))}"
            if is_new and miss.cause.is_avoidable:
                sentences.append(sentence)
            elif is_new:
                logger.info("%s", sentence)
        return sentences

    def _count(self, miss: CacheMiss, tallies: dict[Cause, Tally]) -> Prices | None:
        """Add *miss* to *tallies*; the prices that it is counted by."""
        prices = self.settings.prices or self._listed.get(miss.model)
        tallies.setdefault(miss.cause, Tally(miss.cause)).add(miss, prices)
        return prices

    def findings(self) -> Mapping[str, object]:
        tallies = {cause: replace(tally) for cause, tally in self._tallies.items()}
        for miss in self._unreported:
            self._count(miss, tallies)
        tally = most_tokens_first(tallies.values())
        return {"cache_misses": tuple(self.misses), "cache_tally": tally}
