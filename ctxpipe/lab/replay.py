"""A recorded conversation, turn by turn through a pipeline, as in life: append, run, call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from ..messages import Message, strings, tool_calls, tool_results
from ..pipeline import ContextPipeline
from ..reports import Compacted, Outcome, StageReport
from ..session import Session
from ..tokens import Ledger
from .atoms import Atom, AtomIndex
from .costs import CacheRules, CacheUse, PromptCache, Purpose, Request
from .references import Context, Past, Source, Store, Use, needed, stored_at, use_of
from .story import Moment
from .transcripts import Transcript
from .workbench import ROOT, Workbench

__all__ = ["LAPSES_EVERY", "PipelineMaker", "Replay", "Settings", "Step", "replay"]

PipelineMaker: TypeAlias = Callable[[Workbench], ContextPipeline]
"""Makes the pipeline of one replay on the workbench that stands in for the agent's disk and clock."""

LAPSES_EVERY = 33
"""Of the pauses in real coding sessions 3.0 % outlast the five minutes of the cache.

Source: economics, 3.1.
"""

SUMMARY_PROMPT_TOKENS, SUMMARY_TOKENS = 400, 2000
"""What asking for a summary and writing it takes, where the summariser was no model and tells no
bill.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a conversation is replayed.

    With *refetch* the agent reads back what a reply uses and the context no longer shows: one more
    request, and the whole block again in the context, as soon as what is missing weighs
    *refetch_weight*. *tokens_per_raw* is what the API bills for a token of the pipeline's counter.
    Where a transcript tells no times, the cache never lapses, or before each *rest_every*-th call:
    `LAPSES_EVERY` is what real sessions show.
    """

    refetch: bool = True
    refetch_weight: float = 1.0
    tokens_per_raw: float = 1.25
    rest_every: int = 0
    cache: CacheRules = field(default_factory=CacheRules)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a replay: what was sent, what the pipeline did before it, and what the reply
    used.
    """

    call: int
    prompt_tokens: float
    messages: int
    requests: tuple[Request, ...]
    reports: tuple[StageReport, ...]
    use: Use


@dataclass(frozen=True, slots=True)
class Replay:
    """A conversation's way through a pipeline."""

    transcript: str
    steps: tuple[Step, ...]

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request, in order."""
        return tuple(request for step in self.steps for request in step.requests)

    @property
    def use(self) -> Use:
        """What all replies used, and where it stood when they did: the online recall."""
        return sum((step.use for step in self.steps), Use())


async def replay(
    transcript: Transcript,
    make: PipelineMaker,
    settings: Settings | None = None,
    index: AtomIndex | None = None,
    watch: Callable[[Moment], object] | None = None,
) -> Replay:
    """Replay *transcript* through the pipeline that *make* makes. Deterministic: the same input,
    the same replay.

    Sharing *index* between replays of one transcript saves reading its texts again. What the
    pipeline writes stays in memory. *watch* is shown the context before and after each run of the
    pipeline. Raises what the pipeline raises.
    """
    run = _Run(transcript, make, settings or Settings(), index or AtomIndex(), watch)
    return Replay(
        transcript.name,
        tuple([await run.step(call, at) for call, at in enumerate(transcript.replies)]),
    )


class _Run:
    """The agent's loop, with the recorded messages in place of a model and its tools."""

    def __init__(
        self,
        transcript: Transcript,
        make: PipelineMaker,
        settings: Settings,
        index: AtomIndex,
        watch: Callable[[Moment], object] | None,
    ) -> None:
        self.transcript = transcript
        self.settings = settings
        self.watch = watch
        self.bench = Workbench()
        pipeline = make(self.bench)
        self.session: Session = pipeline.session(
            transcript.name, cache_seconds=settings.cache.ttl_seconds, clock=self.bench.clock
        )
        self.ledger = Ledger(pipeline.counter)
        self.cache = PromptCache(settings.cache)
        self.past = Past(index)
        self.visible = Context(index, transcript.name)
        self.store = Store(index, pipeline.counter, f"{ROOT}/")
        self.context: list[Message] = []
        self.position = 0
        self.fetched = 0
        self.overhead: int | None = None

    async def step(self, call: int, at: int) -> Step:
        """The call whose reply is message *at* of the transcript."""
        reply = self.transcript.messages[at]
        self._hear(at)
        self._rest(call)
        requests: list[Request] = []
        reports = await self._shape(call, requests)
        use, missing = self._look(reply)
        if self.settings.refetch and sum(missing.values()) >= self.settings.refetch_weight:
            ask, answer = self._fetch(needed(missing, self.past))
            await self._send(call, "refetch", ask, requests)
            self.context = [*self.context, ask, answer]
            reports += await self._shape(call, requests)
        await self._send(call, "reply", reply, requests)
        self.context = [*self.context, reply]
        self.past.learn(reply)
        self.bench.files.learn([reply])
        return Step(
            call,
            requests[-1].use.prompt,
            len(self.context) - 1,
            tuple(requests),
            tuple(reports),
            use,
        )

    def _hear(self, at: int) -> None:
        """What was said since the last reply reaches the agent."""
        new = self.transcript.messages[self.position : at]
        self.position = at + 1
        self.context = [*self.context, *new]
        for message in new:
            self.past.learn(message)
        self.bench.files.learn(new)
        times = [
            self.transcript.seconds[i]
            for i in range(at - len(new), at + 1)
            if i in self.transcript.seconds
        ]
        self.bench.clock.now = max([self.bench.clock.now, *times])

    @property
    def _seconds(self) -> float | None:
        return self.bench.clock.now if self.transcript.seconds or self.settings.rest_every else None

    def _rest(self, call: int) -> None:
        every = self.settings.rest_every
        if every and call and call % every == 0 and not self.transcript.seconds:
            self.bench.clock.now += self.settings.cache.ttl_seconds + 1

    async def _shape(self, call: int, requests: list[Request]) -> list[StageReport]:
        """Run the pipeline; a summary that it had written is a request too."""
        before = self.context
        result = await self.session.run(
            before, system=self.transcript.system, tools=self.transcript.tools
        )
        self.context = result.messages
        if self.watch is not None:
            self.watch(Moment(call, before, self.context, result.reports))
        details = [report.detail for report in result.reports if report.outcome is Outcome.CHANGED]
        requests += [
            await self._summary(call, before, told)
            for told in details
            if isinstance(told, Compacted)
        ]
        return [report for report in result.reports if report.outcome is not Outcome.SKIPPED]

    async def _summary(self, call: int, before: Sequence[Message], told: Compacted) -> Request:
        """The request for a summary: as the summariser tells it, else with the conversation's
        prefix in the cache.
        """
        if told.input_tokens:
            use = CacheUse(told.cached_tokens, 0, told.input_tokens - told.cached_tokens)
            return Request(call, "summary", use, told.output_tokens, self._seconds)
        use = self.cache.peek(before, await self._sums(before), self._seconds)
        use = CacheUse(
            use.read, 0, use.written + use.fresh + SUMMARY_PROMPT_TOKENS
        )  # nobody reads it twice
        return Request(call, "summary", use, SUMMARY_TOKENS, self._seconds)

    async def _sums(self, context: Sequence[Message]) -> list[float]:
        if self.overhead is None:
            self.overhead = await self.ledger.counter.count(
                [], system=self.transcript.system, tools=self.transcript.tools
            )
        factor, overhead = self.settings.tokens_per_raw, self.overhead
        return [factor * (tokens + overhead) for tokens in await self.ledger.prefix_sums(context)]

    def _look(self, reply: Message) -> tuple[Use, dict[Atom, float]]:
        """What *reply* uses, and what of it the agent cannot see."""
        self.visible.update(self.context)
        self.store.learn(self.bench.storage.texts)
        return use_of(self.past.used_by(reply), self.past, self.visible, self.store)

    async def _send(
        self, call: int, purpose: Purpose, output: Message, requests: list[Request]
    ) -> None:
        """Call the model, which answers *output*, and let the session read the bill."""
        use = self.cache.request(self.context, await self._sums(self.context), self._seconds)
        tokens = self.settings.tokens_per_raw * await self.ledger.counter.count([output])
        requests.append(Request(call, purpose, use, tokens, self._seconds))
        self.session.observe(
            {
                "input_tokens": round(use.fresh),
                "cache_read_input_tokens": round(use.read),
                "cache_creation_input_tokens": round(use.written),
            }
        )

    # Reading back ---------------------------------------------------------------------------------

    def _fetch(self, sources: Sequence[Source]) -> tuple[Message, Message]:
        """A call for each of *sources*, and the results: what the agent does that misses something."""
        pointers = dict(_pointers(self.context))
        asked, answered = [], []
        for source in sources:
            self.fetched += 1
            call_id = f"refetch-{self.fetched}"
            name, given = self._call(source, pointers.get(source.call_id))
            asked.append({"type": "tool_use", "id": call_id, "name": name, "input": given})
            answered.append({"type": "tool_result", "tool_use_id": call_id, "content": source.text})
        return (
            cast("Message", {"role": "assistant", "content": asked}),
            cast("Message", {"role": "user", "content": answered}),
        )

    def _call(self, source: Source, pointer: str | None) -> tuple[str, Mapping[str, object]]:
        """Read the file that the placeholder names, else make the same call again, else ask for the
        message.
        """
        if pointer is not None:
            return "read_offloaded", {"path": pointer}
        message = self.transcript.messages[max(0, source.message - 1)]
        if source.role == "user" and source.call_id:
            made = next((call for call in tool_calls([message]) if call.id == source.call_id), None)
            if made is not None:
                return made.name, made.input
        return "read_history", {"message": source.message}


def _pointers(context: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """For each call whose result or input was offloaded: its id, and where that lies."""
    for call in tool_calls(context):
        for text in strings(call.input):
            where = stored_at(text)
            if where is not None:
                yield call.id, where
    for result in tool_results(context):
        where = stored_at(result.content)
        if where is not None:
            yield result.tool_use_id, where
