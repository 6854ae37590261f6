"""A recorded conversation, turn by turn through a pipeline, as in an agent: append, run, call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias, cast

from .._text import short_repr
from .._values import JsonObject
from ..edits.atoms import Atom, AtomIndex
from ..messages import Message, blocks, strings, tool_calls, tool_results
from ..pipeline import ContextPipeline
from ..placeholders.placeholders import any_reference
from ..prompt_cache.prompts import has_image
from ..providers.prices import FIVE_MINUTES
from ..session.session import Session, conversation_of
from ..stages.reports import Collapsed, Compacted, Outcome, StageReport
from ..tokens import Ledger, TokenCounter
from ..wire.values import result_block, use_block
from .costs import CacheUse, PromptCache, Purpose, Request
from .references import Context, Past, SourceBlock, Store, Use, sources_to_fetch, use_of
from .transcripts import Transcript
from .workbench import Clock, SeenFiles, Workbench

PipelineMaker: TypeAlias = Callable[[Workbench], ContextPipeline]
"""Makes the pipeline of one replay, on a workbench in place of the agent's disk and clock."""

Watch: TypeAlias = "Callable[[Moment], object]"
"""Is shown each run of a pipeline, once the model has replied."""

LAPSES_EVERY = 33
"""In real coding sessions 3.0 % of the pauses are longer than the five minutes of the cache."""

REFETCH_WEIGHT = 1.0
"""The weight from which on missing atoms are read back."""

SUMMARY_PROMPT_TOKENS = 400
SUMMARY_TOKENS = 2000
"""The tokens of a summary's request and reply, where the summarizer reports no usage."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a conversation is replayed.

    With *refetch* the agent reads back what a reply uses and the context no longer shows: one more
    request, and the whole block again in the context, or what *page* returns of its text for the
    atoms that are missing. *tokens_per_raw* is what the API bills for a token of the pipeline's
    counter. Where a transcript has no times, the cache never expires, or before every
    *rest_every*-th call: `LAPSES_EVERY` is what real sessions show. With *by_settings* the cache of
    the messages also ends where the first image comes, or stale thinking has to be controlled.

    Lines that a stage has chosen to keep are chosen by what the measure looks for. So a second
    yardstick takes none of them for seen; with *strict* the agent also reads back what that
    yardstick does not count.
    """

    refetch: bool = True
    tokens_per_raw: float = 1.25
    rest_every: int = 0
    by_settings: bool = False
    strict: bool = False
    page: Callable[[str, AbstractSet[Atom]], str] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """One *call* of a replay: its *requests*, the call itself last, and the *use* by the reply."""

    call: int
    requests: tuple[Request, ...]
    use: Use

    __repr__ = short_repr

    @property
    def prompt_tokens(self) -> float:
        """The tokens of the prompt that the reply answers."""
        return self.requests[-1].use.prompt


@dataclass(slots=True)
class Moment:
    """A run of the pipeline before the model's *call*, and the requests that followed.

    They are those for summaries, then the one with the context *after*, which *reply* answers.
    """

    call: int
    before: Sequence[Message]
    after: Sequence[Message]
    reports: Sequence[StageReport]
    requests: list[Request] = field(default_factory=list)
    reply: Sequence[Message] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Replay:
    """A conversation's way through a pipeline."""

    transcript: str
    steps: tuple[Step, ...]
    tokens_per_raw: float = 1.0

    __repr__ = short_repr

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request, in order."""
        return tuple(request for step in self.steps for request in step.requests)

    @property
    def use(self) -> Use:
        """The use by all replies together: the online recall."""
        return sum((step.use for step in self.steps), Use())


async def replay(
    transcript: Transcript,
    make: PipelineMaker,
    settings: Settings | None = None,
    watch: Watch | None = None,
) -> Replay:
    """Replay *transcript* through the pipeline that *make* makes, as `replay_all` does."""
    watches = {} if watch is None else {"": watch}
    return (await replay_all(transcript, {"": make}, settings, watches))[""]


async def replay_all(
    transcript: Transcript,
    makers: Mapping[str, PipelineMaker],
    settings: Settings | None = None,
    watches: Mapping[str, Watch] | None = None,
) -> dict[str, Replay]:
    """Replay *transcript* through the pipeline of each of *makers*, all of them call by call.

    Deterministic: the same input, the same replay. What the pipelines write stays in memory. Of
    *watches*, the one by the name of a maker is shown the context before and after each run of its
    pipeline. Raises what a pipeline raises.
    """
    settings = settings or Settings()
    # What was said, the agent's files and the time are the same, whatever the pipeline: so the
    # texts of a conversation are read once.
    past = Past(AtomIndex())
    clock, files, counter = Clock(), SeenFiles(), TokenCounter()
    runs = {}
    for name, make in makers.items():
        bench = Workbench(clock, files, counter)
        watch = (watches or {}).get(name)
        runs[name] = _Run(transcript, make(bench), settings, bench, past, watch)
    steps: dict[str, list[Step]] = {name: [] for name in runs}
    start = 0
    for call, at in enumerate(transcript.replies):
        new = transcript.messages[start:at]
        past.learn(new)
        files.learn(new)
        times = [transcript.seconds.get(place, 0.0) for place in range(start, at + 1)]
        clock.now = max([clock.now, *times])
        every = settings.rest_every
        if every and call and call % every == 0 and not transcript.seconds:
            clock.now += FIVE_MINUTES + 1
        reply = transcript.messages[at]
        used = past.uses_of(reply)
        for name, run in runs.items():
            steps[name].append(await run.step(call, new, reply, used))
        past.learn([reply])
        files.learn([reply])
        start = at + 1
    ratio = settings.tokens_per_raw
    return {name: Replay(transcript.name, tuple(done), ratio) for name, done in steps.items()}


@dataclass
class _Run:
    """The agent's loop, with the recorded messages in place of a model and its tools."""

    transcript: Transcript
    pipeline: ContextPipeline
    settings: Settings
    bench: Workbench
    past: Past
    watch: Watch | None
    context: list[Message] = field(default_factory=list)
    is_controlled: bool = False  # the context holds stale thinking
    fetched: int = 0
    steps: dict[str, str] = field(default_factory=dict)  # by a call's id: the file with all of it
    overhead: int | None = None

    def __post_init__(self) -> None:
        name = self.transcript.name
        self.session: Session = self.pipeline.session(
            name, cache_seconds=FIVE_MINUTES, clock=self.bench.clock
        )
        if isinstance(self.session, Session):  # not where a benchmark replays a peer's
            # A replay has figures of its own, and nothing prints what they would find.
            conversation_of(self.session).observers.clear()
        self.ledger = Ledger(self.pipeline.counter)
        self.cache = PromptCache()
        self.visible = Context(self.past.index, name)
        self.store = Store(self.past.index, self.bench.storage.stored)

    async def step(
        self, call: int, new: Sequence[Message], reply: Message, used: Sequence[Atom]
    ) -> Step:
        """The *call* with *new* messages; its *reply* has *used* these atoms of the past."""
        self.context = [*self.context, *new]
        moments = [await self._run_pipeline(call)]
        self.visible.update(self.context)
        use, missing = use_of(
            used, self.past, self.visible, self.store, strict=self.settings.strict
        )
        if self.settings.refetch and sum(missing.values()) >= REFETCH_WEIGHT:
            ask, answer = self._refetch(missing)
            await self._send(moments[0], "refetch", ask)
            self.context = [*self.context, ask, answer]
            moments.append(await self._run_pipeline(call))
        await self._send(moments[-1], "reply", reply)
        self.context = [*self.context, reply]
        requests = [request for moment in moments for request in moment.requests]
        return Step(call, tuple(requests), use)

    async def _run_pipeline(self, call: int) -> Moment:
        """Run the pipeline; a summary that it had written is a request too."""
        before = self.context
        result = await self.session.run(
            before, system=self.transcript.system, tools=self.transcript.tools
        )
        self.context = result.messages
        self.is_controlled = bool(result.request_options)
        moment = Moment(call, before, self.context, result.reports)
        for report in result.reports:
            detail = report.detail
            if report.outcome is not Outcome.CHANGED:
                continue
            if isinstance(detail, Collapsed):
                files = zip(detail.calls, detail.files, strict=True)
                self.steps.update((call_id, file) for call_id, file in files if call_id)
            if isinstance(detail, Compacted):
                moment.requests.append(await self._summary_request(moment, detail))
        return moment

    async def _summary_request(self, moment: Moment, compacted: Compacted) -> Request:
        """The request for a summary.

        As the summarizer reports it, else with the conversation's prefix in the cache.
        """
        if compacted.input_tokens:
            cached = compacted.cached_tokens
            use = CacheUse(cached, 0, compacted.input_tokens - cached)
            return Request(moment.call, "summary", use, compacted.output_tokens)
        sums = await self._sums(moment.before)
        uses = self.cache.request(moment.before, sums, self.bench.clock.now, is_sent=False)
        # Nothing is written to the cache: no request reads it twice.
        use, *others = [
            CacheUse(prefix.read, 0, prefix.written + prefix.fresh + SUMMARY_PROMPT_TOKENS)
            for prefix in uses
        ]
        return Request(moment.call, "summary", use, SUMMARY_TOKENS, *others)

    async def _sums(self, context: Sequence[Message]) -> list[float]:
        if self.overhead is None:
            self.overhead = await self.ledger.counter.count(
                [], system=self.transcript.system, tools=self.transcript.tools
            )
        sums = await self.ledger.prefix_sums(context)
        return [self.settings.tokens_per_raw * (tokens + self.overhead) for tokens in sums]

    async def _send(self, moment: Moment, purpose: Purpose, output: Message) -> None:
        """Call the model, which answers *output*, and let the session read the usage."""
        sums = await self._sums(self.context)
        settings = None
        if self.settings.by_settings:
            content = chain.from_iterable(map(blocks, self.context))
            settings = self.is_controlled, any(map(has_image, content))
        use, *others = self.cache.request(self.context, sums, self.bench.clock.now, settings)
        [raw] = await self.ledger.counter.counts([output])
        tokens = self.settings.tokens_per_raw * raw
        moment.requests.append(Request(moment.call, purpose, use, tokens, *others))
        moment.reply = [output]
        if self.watch is not None:
            self.watch(moment)
        self.session.observe(
            {
                "input_tokens": round(use.fresh),
                "cache_read_input_tokens": round(use.read),
                "cache_creation_input_tokens": round(use.written),
            }
        )

    # Reading back ---------------------------------------------------------------------------------

    def _refetch(self, missing: Mapping[Atom, float]) -> tuple[Message, Message]:
        """Calls for what is *missing*, and the results, as an agent would read them back."""
        page = self.settings.page
        pointers = self.steps | dict(_pointers(self.context))
        calls = []
        results = []
        for source in sources_to_fetch(missing, self.past):
            self.fetched += 1
            call_id = f"refetch-{self.fetched}"
            calls.append(use_block(call_id, *self._call(source, pointers.get(source.call_id))))
            text = source.text if page is None else page(source.text, missing.keys())
            results.append(result_block(call_id, text))
        ask = {"role": "assistant", "content": calls}
        answer = {"role": "user", "content": results}
        return cast("Message", ask), cast("Message", answer)

    def _call(self, source: SourceBlock, pointer: str | None) -> tuple[str, JsonObject]:
        """The tool and the arguments that bring *source* back.

        Read the file that the placeholder or the note names, else repeat the call, else ask for the
        message.
        """
        if pointer is not None:
            return "read_offloaded", {"path": pointer}
        if source.role == "user" and source.call_id:
            before = self.transcript.messages[max(0, source.message - 1)]
            for call in tool_calls([before]):
                if call.id == source.call_id:
                    return call.name, call.input
        return "read_history", {"message": source.message}


def _pointers(context: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """The id of each call whose result or input was offloaded, and the location of that."""
    contents: list[tuple[str, object]] = []
    contents += [(call.id, text) for call in tool_calls(context) for text in strings(call.input)]
    contents += [(result.tool_use_id, result.content) for result in tool_results(context)]
    for call_id, content in contents:
        where = any_reference(content)
        if where is not None:
            yield call_id, where
