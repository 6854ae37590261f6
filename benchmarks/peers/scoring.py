"""The judges, the same for everybody.

The API's rules, the laboratory's recall, its refetches and its bills.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from anyio import to_thread

from benchmarks.recall import Cut, one_hop
from ctxpipe.lab.costs import Bill, bill
from ctxpipe.lab.replay import ReplaySettings, Watch, replay
from ctxpipe.lab.transcripts import Transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.reading.atoms import AtomIndex
from ctxpipe.stages.reports import Compacted, Outcome, Result, StageReport
from ctxpipe.testing import Model, problems
from ctxpipe.testing.signatures import as_blocks, bare, sign, verify
from ctxpipe.tokens import TokenCounter, as_counter

from .processes import Peer, PeerFailed

__all__ = [
    "Found",
    "PeerPipeline",
    "continues",
    "cost",
    "found",
    "refused",
    "seen",
    "signed",
    "unbound",
]

BINDING = Model(thinking="bound")

BILLED_PER_RAW = 1.25
"""What the API bills for a token of our counter, as in the laboratory."""


# Validity -----------------------------------------------------------------------------------------


def refused(wire: Sequence[Any]) -> list[str]:
    """Return what the Messages API would refuse in a request of these messages."""
    return problems(_body(wire), Model())


def unbound(wire: Sequence[Any], options: Mapping[str, Any]) -> list[str]:
    """Return what a model of late 2026 would refuse too: thinking bound to another conversation.

    *options* are the arguments of `messages.create` beside the messages. The rule is that of the
    platform's pages on preserved thinking ("fix bound to a different conversation"), which Amazon's
    for Bedrock repeat and the Anthropic SDK's type BetaThinkingBlockBindingParam describes: each
    thinking block is bound to the system prompt, the tools and all messages before it; a request
    that has changed them is answered with 400, unless it asks for such blocks to be dropped, for
    which it needs a beta header. So accounts made since 2026-08-31 are treated; for older ones a
    mismatch is only recorded. `ctxpipe.testing.signatures` is that rule, and the server of our own
    tests.
    """
    body = {**_body(wire), **options.get("extra_body", {})}
    if "thinking" in options:
        body["thinking"] = options["thinking"]
    betas = [*options.get("betas", ()), *options.get("extra_headers", {}).values()]
    return list(verify(body, BINDING, ",".join(betas)).problems)


def continues(before: Sequence[Any], wire: Sequence[Any]) -> bool:
    """Return True if a request begins with the one *before* it; cache marks are no difference."""
    return _bare(wire[: len(before)]) == _bare(before)


def _bare(wire: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    return [
        (message["role"], [bare(block) for block in as_blocks(message["content"])])
        for message in wire
    ]


def signed(wire: Sequence[Any], reply: Message) -> Message:
    """*reply* as the API sends it in answer to *wire*.

    Its thinking is bound to what was sent, as it was sent.
    """
    content = cast("list[Mapping[str, Any]]", reply["content"])
    return cast("Message", {**reply, "content": sign(_body(wire), content)})


def _body(wire: Sequence[Any]) -> dict[str, Any]:
    system: list[Any] = []
    messages = list(wire)
    while messages and messages[0]["role"] == "system":
        system.append(messages.pop(0)["content"])
    body: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": messages}
    return {**body, "system": system[0]} if system else body


# What the summarizer sees -------------------------------------------------------------------------


def seen(planted: Sequence[str], prompts: Sequence[str], wire: Sequence[Any]) -> float | None:
    """Return the share of the facts that left the context which the summarizer was shown.

    None when nothing left.
    """
    sent, asked = str(wire), "\n".join(prompts)
    left = [fact for fact in planted if fact not in sent]
    return sum(fact in asked for fact in left) / len(left) if left else None


# Recall -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """After a compaction: tokens left (a share), and the shares of what is used later.

    These shares are of what stands in the context; there or in a file whose path stands there; or
    in anything that is still held anywhere.
    """

    tokens: float
    visible: float
    pointer: float
    raw: float


def found(
    cut: Cut, wire: Sequence[Message], files: Mapping[str, str], state: Sequence[str]
) -> Found:
    """Return where the facts that the agent used later are, if *wire* is all that it is sent."""
    visible = set().union(*map(cut.index.message, wire)) if wire else set()
    sent = str(wire)
    shown = [text for path, text in files.items() if path in sent]
    pointed = _atoms(cut.index, shown) - visible
    anywhere = _atoms(cut.index, [*files.values(), *state]) - visible
    return Found(
        tokens=cut.counter.total(list(wire)) / cut.tokens,
        visible=cut.use(visible).recall,
        pointer=one_hop(cut.use(visible, pointed)),
        raw=one_hop(cut.use(visible, anywhere)),
    )


def _atoms(index: AtomIndex, texts: Iterable[str]) -> set[str]:
    held: set[str] = set()
    for text in texts:
        held |= index.text(text.replace("\\n", "\n"))  # a state is told as Python or JSON writes it
    return held


# Dollars ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PeerPipeline:
    """A peer in the place of a pipeline, for the laboratory's replay.

    It is given up when its process has taken *seconds* of processor time for the session.
    """

    peer: Peer
    way: str
    settings: Mapping[str, Any]
    seconds: float = math.inf
    counter: TokenCounter = field(default_factory=lambda: as_counter(None))

    def __call__(self, _bench: Workbench) -> Any:
        return self

    def session(self, session_id: str, **_: Any) -> _PeerSession:
        """A conversation of the peer's."""
        return _PeerSession(self, session_id)


class _PeerSession:
    """Session of a peer, as the replay uses it.

    The peer hears each message once, and each reply with its bill.
    """

    def __init__(self, pipeline: PeerPipeline, session_id: str) -> None:
        self.peer = pipeline.peer
        self.begin: Callable[[], None] | None = partial(
            self.peer.open, pipeline.way, **pipeline.settings
        )
        self.counter = pipeline.counter
        self.seconds = pipeline.seconds
        self.end = math.inf
        self.session_id = session_id
        self.known = 0
        self.bill: dict[str, int] | None = None

    async def run(self, context: list[Message], **_: Any) -> Result:
        new = [self._billed(message) for message in context[self.known :]]
        told = await to_thread.run_sync(self._turn, new)
        messages = _unmarked(told["messages"])
        self.known = len(messages)
        return Result(messages, tuple(map(self._report, told["prompts"])))

    def _turn(self, new: Sequence[Message]) -> dict[str, Any]:
        if self.begin is not None:
            self.begin()
            self.begin = None
            self.end = self.peer.processor_seconds() + self.seconds
        if self.peer.processor_seconds() > self.end:
            raise PeerFailed("the session took too long")
        return self.peer.turn(new)

    def _billed(self, message: Message) -> Message:
        if message["role"] != "assistant" or self.bill is None:
            return message
        output = int(BILLED_PER_RAW * self.counter.total([message]))
        usage, self.bill = {**self.bill, "output_tokens": output}, None
        return cast("Message", {**message, "usage": usage})

    def _report(self, prompt: str) -> StageReport:
        """A summary is a request of its own.

        Its prompt, none of it cached, and an answer of a fixed length.
        """
        asked = int(BILLED_PER_RAW * self.counter.text(prompt))
        detail = Compacted(0, 0, 0, input_tokens=asked, output_tokens=2000)
        return StageReport(self.peer.name, self.session_id, Outcome.CHANGED, 0.0, detail=detail)

    def observe(self, usage: Mapping[str, int]) -> None:
        self.bill = {"input_tokens": sum(usage.values())}


def _unmarked(wire: Sequence[Any]) -> list[Message]:
    """*wire* without cache marks.

    Where they wander, they change no prefix, and the bill places its own.
    """
    return [
        cast("Message", {**message, "content": [bare(block) for block in message["content"]]})
        if isinstance(message["content"], list) and "cache_control" in str(message["content"])
        else message
        for message in wire
    ]


async def cost(
    transcript: Transcript,
    make: Callable[[Workbench], Any],
    *,
    read_prices: Sequence[float] = (0.1, 0.05),
    watch: Watch | None = None,
) -> tuple[dict[float, Bill], float]:
    """The bill of *transcript* at each price of reading the cache, all refetches paid.

    And the recall before them. Every request begins with the prefix of the recording, as in
    `ctxpipe replay`. *watch* is called with each run of the pipeline.
    """
    replayed = await replay(transcript, make, ReplaySettings(), watch)
    bills = {read: bill(replayed.requests, Prices.relative(read=read)) for read in read_prices}
    return bills, replayed.use.recall
