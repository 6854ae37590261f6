"""The replay of a recorded conversation through a pipeline, as an agent would run it.

For each recorded reply: append the new messages, run the pipeline, simulate the request. The replay
calls no model; the recorded reply takes its place.

To measure whether a pipeline removes too much, a replay looks for the *atoms* of each reply: its
lines, paths, file names, identifiers, numbers and hashes. If an atom occurs in an earlier message,
the reply *uses* it. A use has a weight: 1 for a line or a hash, 0.5 for the others. *Recall* is the
share of these weights whose atoms were still in the context. To *read back* is to fetch a text that
has left the context, by one more tool call.

    transcript = read_transcript("session.jsonl")
    result = await replay(transcript, Policy("coding"))
    cost = bill(result.requests, Prices.relative()).total  # in input tokens
    share = result.use.recall  # of what the replies used, what the contexts showed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from .._lazy import import_on_use
from .._text import short_repr
from .._threads.threads import in_thread
from .._values import JsonObject
from ..diagnostics.prompt_cache import CacheUse
from ..diagnostics.prompts import has_image
from ..messages import Message, blocks, strings, tool_calls, tool_results
from ..pipeline import ContextPipeline
from ..placeholders.placeholders import any_reference
from ..providers.cache_rules import ANTHROPIC, CacheRules
from ..session.session import Session, conversation_of
from ..stages.reading.atoms import Atom, AtomIndex
from ..stages.reports import Collapsed, Compacted, Outcome, StageReport
from ..tokens import Ledger, TokenCounter
from ..wire.values import result_block, use_block
from .costs import PromptCache, Purpose, ReplayRequest
from .orders import Look
from .prefix import PREFIX_TOKENS, Prefix, read_prefix
from .references import Context, Past, SourceBlock, Store, Use, sources_to_fetch, use_of
from .transcripts import Transcript
from .workbench import Clock, SeenFiles, Workbench

_RENAMED = {
    "Replay": "ctxpipe.lab.replay.ReplayResult",
    "Settings": "ctxpipe.lab.replay.ReplaySettings",
    "Step": "ctxpipe.lab.replay.ReplayStep",
}
__getattr__: Callable[[str], object] = import_on_use(__name__, {}, renamed=_RENAMED)

PipelineMaker: TypeAlias = Callable[[Workbench], ContextPipeline]
"""Function that makes the pipeline of a replay.

Its argument has a storage in memory and a simulated clock, for use in place of real ones.
"""

Watch: TypeAlias = "Callable[[Moment], object]"
"""Function that gets each run of a pipeline, after the model's reply."""

LAPSES_EVERY = 33
"""Realistic value of ``ReplaySettings.rest_every`` for sessions in which a person takes part.

In real coding sessions 3.0 % of the pauses are longer than the five minutes of the cache: about one
pause in 33.
"""

NO_PREFIX = Prefix(0.0, "recording")
"""Prefix of a replay result that is created by hand."""

SESSION_ID = "7f9c24e8-3b12-4fef-91e0-56a2d5a8f0c1"
"""Id of the session of every replay, so that the figures do not depend on where a recording is.

The paths in placeholders contain it. It has the form of a UUID, as many frameworks use.
"""

MIN_REFETCH_WEIGHT = 1.0
"""Smallest total weight of a reply's missing atoms for which the agent reads them back."""

SUMMARY_PROMPT_TOKENS = 400
SUMMARY_TOKENS = 2000
"""Output tokens of a summary, if its summarizer reports no usage because it asks no model."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Settings of a replay.

    - *refetch*: before a reply that uses atoms which the context no longer shows, the agent reads
      them back, as a real agent would have to. This costs one more request and puts the whole block
      with the atoms into the context again, or only the text that *page* returns for the block's
      text and the missing atoms.
    - *tokens_per_raw*: number of tokens that the API counts for one raw token (of the pipeline's
      counter).
    - *prefix_tokens*: size of the system prompt and the tools, in tokens as reported, for a
      transcript that shows it neither by its content nor by its usage (see `read_prefix`).
    - *rules*: the rules of the prompt cache.
    - *rest_every*: for a transcript without times, the simulated cache expires before every Nth
      call of the model. With 0, the default, it never expires; `LAPSES_EVERY` is a realistic value.
    - *by_settings*: if True, the cached messages are also lost in two cases in which a request
      differs from the last one outside of its messages: when the first image is added, and when the
      request option to ignore outdated thinking (``Result.request_options``) is added or removed.
    """

    refetch: bool = True
    tokens_per_raw: float = 1.25
    prefix_tokens: float = PREFIX_TOKENS
    rules: CacheRules = ANTHROPIC
    rest_every: int = 0
    by_settings: bool = False
    page: Callable[[str, AbstractSet[Atom]], str] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ReplayStep:
    """The part of a replay for one recorded reply.

    *call* is the number of the reply, counted from 0. *requests* are all requests that were sent
    for it; the reply answers the last of them. *use* sums up the weights of the atoms that the
    reply uses. It has one sum for each place where the agent could find an atom (see `Use`).
    """

    call: int
    requests: tuple[ReplayRequest, ...]
    use: Use

    __repr__ = short_repr

    @property
    def prompt_tokens(self) -> float:
        """The number of tokens of the prompt that the reply answers."""
        return self.requests[-1].use.prompt


@dataclass(slots=True)
class Moment:
    """A run of the pipeline for the recorded *call*, with the requests that followed it.

    The run changed the context from *before* to *after*. *requests* are those for summaries, then
    the one that sends *after*; *reply* is its answer.
    """

    call: int
    before: Sequence[Message]
    after: Sequence[Message]
    reports: Sequence[StageReport]
    requests: list[ReplayRequest] = field(default_factory=list)
    reply: Sequence[Message] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ReplayResult:
    """Result of a replay: the *steps*, one for each recorded reply of the *transcript*.

    *transcript* is its name. *tokens_per_raw* is the value in the `ReplaySettings` of the replay
    (1.25 by default; the default here is only for results that are created by hand). *looks* say
    where the texts were that the agent must have in its context, if they were looked for. *prefix*
    is the system prompt and the tools that every request began with.
    """

    transcript: str
    steps: tuple[ReplayStep, ...]
    tokens_per_raw: float = 1.0
    looks: tuple[Look, ...] = ()
    prefix: Prefix = NO_PREFIX

    __repr__ = short_repr

    @property
    def requests(self) -> tuple[ReplayRequest, ...]:
        """All requests, in their order."""
        return tuple(request for step in self.steps for request in step.requests)

    @property
    def use(self) -> Use:
        """The use by all replies together, from which the recall is computed."""
        return sum((step.use for step in self.steps), Use())


async def replay(
    transcript: Transcript,
    make: PipelineMaker,
    settings: ReplaySettings | None = None,
    watch: Watch | None = None,
) -> ReplayResult:
    """Replay *transcript* through the pipeline that *make* returns.

    *watch* is called with each run of the pipeline, after the model's reply. See `replay_all`.
    """
    watches = {} if watch is None else {"": watch}
    return (await replay_all(transcript, {"": make}, settings, watches))[""]


async def replay_all(
    transcript: Transcript,
    makers: Mapping[str, PipelineMaker],
    settings: ReplaySettings | None = None,
    watches: Mapping[str, Watch] | None = None,
) -> dict[str, ReplayResult]:
    """Replay *transcript* through several pipelines at the same time, call by call.

    *makers* has a function for each name that makes a pipeline; the results have the same names.
    Files that the pipelines write stay in memory. The replay itself calls no API, and gives the
    same results for the same input. A maker may give its pipeline a summarizer that calls an API;
    then the results depend on its answers. The function in *watches* of the same name is called
    with each run of the pipeline, after the model's reply. Raises the errors of the pipelines.
    """
    settings = settings or ReplaySettings()
    # The recorded messages, the agent's files and the time are the same for all pipelines. They
    # share them, so that each text is read once.
    past = Past(AtomIndex())
    clock = Clock()
    files = SeenFiles()
    counter = TokenCounter()
    prefix = await in_thread(
        read_prefix, transcript, counter, settings.prefix_tokens, settings.tokens_per_raw
    )
    loops = {}
    for name, make in makers.items():
        bench = Workbench(clock, files, counter)
        watch = (watches or {}).get(name)
        loops[name] = _AgentLoop(transcript, prefix, make(bench), settings, bench, past, watch)
    steps: dict[str, list[ReplayStep]] = {name: [] for name in loops}
    start = 0
    for call, reply_index in enumerate(transcript.replies):
        new_messages = transcript.messages[start:reply_index]
        past.learn(new_messages)
        files.learn(new_messages)
        times = [transcript.seconds.get(index, 0.0) for index in range(start, reply_index + 1)]
        clock.now = max([clock.now, *times])
        every = settings.rest_every
        if every and call and call % every == 0 and not transcript.seconds:
            clock.now += settings.rules.lifetime_seconds + 1
        reply = transcript.messages[reply_index]
        atoms = past.uses_of(reply)
        for name, loop in loops.items():
            steps[name].append(await loop.play_call(call, new_messages, reply, atoms))
        past.learn([reply])
        files.learn([reply])
        start = reply_index + 1
    return {
        name: ReplayResult(
            transcript.name, tuple(replay_steps), settings.tokens_per_raw, prefix=prefix
        )
        for name, replay_steps in steps.items()
    }


@dataclass
class _AgentLoop:
    """An agent's loop in which the recorded messages replace the model and its tools."""

    transcript: Transcript
    prefix: Prefix
    pipeline: ContextPipeline
    settings: ReplaySettings
    bench: Workbench
    past: Past
    watch: Watch | None
    context: list[Message] = field(default_factory=list)
    has_request_options: bool = False  # the last run set options that control stale thinking
    refetch_count: int = 0
    archive_files: dict[str, str] = field(default_factory=dict)  # of shortened calls, by id

    def __post_init__(self) -> None:
        self.session: Session = self.pipeline.session(
            SESSION_ID, cache_seconds=self.settings.rules.lifetime_seconds, clock=self.bench.clock
        )
        if isinstance(self.session, Session):  # a benchmark replays sessions of other libraries
            # A replay computes its own figures; nothing would print the findings of observers.
            conversation_of(self.session).usage.observers.clear()
        self.ledger = Ledger(self.pipeline.counter)
        self.cache = PromptCache(self.settings.rules)
        self.visible = Context(self.past.index, SESSION_ID)
        self.store = Store(self.past.index, self.bench.storage.stored)

    async def play_call(
        self, call: int, new_messages: Sequence[Message], reply: Message, atoms: Sequence[Atom]
    ) -> ReplayStep:
        """Append *new_messages*, run the pipeline and play the recorded *reply*.

        *atoms* are those of earlier messages that the reply uses.
        """
        self.context = [*self.context, *new_messages]
        moments = [await self._run_pipeline(call)]
        self.visible.update(self.context)
        use, missing = use_of(atoms, self.past, self.visible, self.store)
        if self.settings.refetch and sum(missing.values()) >= MIN_REFETCH_WEIGHT:
            ask, answer = self._refetch(missing)
            await self._send(moments[0], "refetch", ask)
            self.context = [*self.context, ask, answer]
            moments.append(await self._run_pipeline(call))
        await self._send(moments[-1], "reply", reply)
        self.context = [*self.context, reply]
        requests = [request for moment in moments for request in moment.requests]
        return ReplayStep(call, tuple(requests), use)

    async def _run_pipeline(self, call: int) -> Moment:
        """Run the pipeline on the context; add a request for each summary that was written."""
        before = self.context
        result = await self.session.run(
            before, system=self.prefix.system, tools=self.transcript.tools
        )
        self.context = result.messages
        self.has_request_options = bool(result.request_options)
        moment = Moment(call, before, self.context, result.reports)
        for report in result.reports:
            detail = report.detail
            if report.outcome is not Outcome.CHANGED:
                continue
            if isinstance(detail, Collapsed):
                for call_id, file in zip(detail.calls, detail.files, strict=True):
                    if call_id:
                        self.archive_files[call_id] = file
            if isinstance(detail, Compacted):
                moment.requests.append(await self._summary_request(moment, detail))
        return moment

    async def _summary_request(self, moment: Moment, compaction: Compacted) -> ReplayRequest:
        """Return the request for a summary.

        Its tokens are those that the summarizer reports. Without such a report, the request is
        taken to be the context before the compaction and a prompt, read from the conversation's
        cache as far as possible.
        """
        if compaction.input_tokens:
            cached_tokens = compaction.cached_tokens
            fresh_tokens = compaction.input_tokens - cached_tokens
            use = CacheUse(read=cached_tokens, written=0, fresh=fresh_tokens)
            return ReplayRequest(moment.call, "summary", use, compaction.output_tokens)
        sums = await self._sums(moment.before)
        uses = self.cache.request(moment.before, sums, self.bench.clock.now, is_sent=False)
        # Nothing is written to the cache, because no later request would read it.
        use, *others = [
            CacheUse(
                read=prefix.read,
                written=0,
                fresh=prefix.written + prefix.fresh + SUMMARY_PROMPT_TOKENS,
            )
            for prefix in uses
        ]
        return ReplayRequest(moment.call, "summary", use, SUMMARY_TOKENS, *others)

    async def _sums(self, context: Sequence[Message]) -> list[float]:
        """Return the tokens of the first 0, 1, 2 … messages, with the system prompt and tools."""
        sums = await self.ledger.prefix_sums(context)
        return [self.prefix.tokens + self.settings.tokens_per_raw * tokens for tokens in sums]

    async def _send(self, moment: Moment, purpose: Purpose, output: Message) -> None:
        """Simulate a request with the context, to which the model answers *output*.

        The request, with its cache use, is added to *moment*. Then the watch is called, and the
        usage is reported to the session. *purpose* is the purpose of the request.
        """
        sums = await self._sums(self.context)
        settings = None
        if self.settings.by_settings:
            has_images = any(
                has_image(block) for message in self.context for block in blocks(message)
            )
            settings = (self.has_request_options, has_images)
        use, *others = self.cache.request(self.context, sums, self.bench.clock.now, settings)
        [raw_tokens] = await self.ledger.counter.counts([output])
        tokens = self.settings.tokens_per_raw * raw_tokens
        moment.requests.append(ReplayRequest(moment.call, purpose, use, tokens, *others))
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
        """Return a message that calls for the *missing* atoms, and a message with the results."""
        page = self.settings.page
        pointers = self.archive_files | dict(_pointers(self.context))
        calls = []
        results = []
        for source in sources_to_fetch(missing, self.past):
            self.refetch_count += 1
            call_id = f"refetch-{self.refetch_count}"
            name, arguments = self._call(source, pointers.get(source.call_id))
            calls.append(use_block(call_id, name, arguments))
            text = source.text if page is None else page(source.text, missing.keys())
            results.append(result_block(call_id, text))
        ask = {"role": "assistant", "content": calls}
        answer = {"role": "user", "content": results}
        return cast("Message", ask), cast("Message", answer)

    def _call(self, source: SourceBlock, pointer: str | None) -> tuple[str, JsonObject]:
        """Return the name and the arguments of a tool call that brings *source* back.

        The call reads the file *pointer* that a placeholder or a note names. Without a pointer it
        repeats the recorded call; a source without a call is read from the history.
        """
        if pointer is not None:
            return "read_offloaded", {"path": pointer}
        if source.role == "user" and source.call_id:
            previous = self.transcript.messages[max(0, source.message - 1)]
            for call in tool_calls([previous]):
                if call.id == source.call_id:
                    return call.name, call.input
        return "read_history", {"message": source.message}


def _pointers(context: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield the id of each call with an offloaded result or input, and the file it is in."""
    contents: list[tuple[str, object]] = []
    contents += [(call.id, text) for call in tool_calls(context) for text in strings(call.input)]
    contents += [(result.tool_use_id, result.content) for result in tool_results(context)]
    for call_id, content in contents:
        reference = any_reference(content)
        if reference is not None:
            yield call_id, reference
