"""Share of cache misses whose cause the doctor names, on recorded sessions with faults.

    python benchmarks/bench_cache_doctor.py FOLDER [--seed 1] [--share 0.2] [--files 46]
    python benchmarks/bench_cache_doctor.py --times

FOLDER holds transcripts of any kind that `ctxpipe.lab.transcripts` reads. Each is driven turn by
turn by the real SDK against `ctxpipe.testing.MessagesServer`, which bills by its own implementation
of the cache's rules. Before a share of the turns, drawn from the printed seed, something happens:
the system prompt, the tools, the model, the betas or the tool choice change, the caller edits a
message, or pauses. A second meter bills the same turns as if nothing had happened; what the two
bills differ by is the truth that the doctor's finding is compared with. With --times: what the
doctor costs a turn.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import anthropic
import anyio
import anyio.to_thread

from benchmarks.figures import add_figure, recording
from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.diagnostics.cache_audit import CacheAudit
from ctxpipe.diagnostics.misses import CacheMiss, CacheUsage, Cause
from ctxpipe.diagnostics.prompts import SentRequest
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.messages import Message, split_system
from ctxpipe.providers.prices import Prices
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.offload.stage import BatchOffload
from ctxpipe.testing import MessagesServer, Model
from ctxpipe.testing.billing import Meter, Usage
from ctxpipe.tokens import TokenCounter

MODELS = ("claude-sonnet-5", EXAMPLE_MODEL)
BETA = "interleaved-thinking-2025-05-14"
PAUSE_SECONDS, TURN_SECONDS = 400.0, 7.0
MARK = {"type": "ephemeral"}
LOOKBACK_BLOCKS = 20
LEAST_MISSED, TOLERANCE = 500, 0.02
"""A smaller difference between the bills is no miss that has to be found."""

Request: TypeAlias = dict[str, Any]


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


# What may happen before a turn --------------------------------------------------------------------


def first_request() -> Request:
    """A request of an agent: a system prompt, twelve tools, everything marked to be cached."""
    rules = [f"Rule {number}: check the result of step {number} twice." for number in range(80)]
    text = "Session of 2026-11-23T07:00:00Z.\n" + "\n".join(rules)
    return {
        "model": MODELS[0],
        "max_tokens": 64,
        "system": [{"type": "text", "text": text, "cache_control": MARK}],
        "tools": [tool(number) for number in range(12)],
        "cache_control": MARK,
    }


def tool(number: int) -> dict[str, Any]:
    """The definition of a tool."""
    description = f"Does thing number {number} to a file, and says what has become of it."
    properties = {"path": {"type": "string", "description": "Which file."}}
    schema = {"type": "object", "properties": properties}
    return {"name": f"tool_{number}", "description": description, "input_schema": schema}


def change_system(request: Request, random: random.Random) -> None:
    """The clock in the system prompt goes on."""
    block = request["system"][0]
    minute, second = random.randrange(60), random.randrange(60)
    _, _, rest = block["text"].partition("\n")
    text = f"Session of 2026-11-23T{random.randrange(8, 20):02}:{minute:02}:{second:02}Z.\n{rest}"
    request["system"] = [{**block, "text": text}]


def change_tools(request: Request, random: random.Random) -> None:
    """Tools are shuffled, described otherwise, or exchanged for others."""
    tools = list(request["tools"])
    match random.randrange(3):
        case 0:
            tools = [*tools[1:], tools[0]]
        case 1:
            place = random.randrange(len(tools))
            number = random.randrange(10**6)
            tools[place] = {**tools[place], "description": f"Edition {number}. A tool for files."}
        case _:
            tools[random.randrange(len(tools))] = tool(random.randrange(100, 10**6))
    request["tools"] = tools


def change_model(request: Request, random: random.Random) -> None:
    """Another model goes on."""
    request["model"] = random.choice([name for name in MODELS if name != request["model"]])


def change_betas(request: Request, random: random.Random) -> None:  # noqa: ARG001
    """A beta is switched on, or off."""
    headers = {"anthropic-beta": BETA}
    request["extra_headers"] = {} if request.get("extra_headers") else headers


def change_tool_choice(request: Request, random: random.Random) -> None:
    """The model must call a tool, or another one."""
    name = random.choice(request["tools"])["name"]
    choices = [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": name}]
    now = request.get("tool_choice")
    request["tool_choice"] = random.choice([choice for choice in choices if choice != now])


CHANGES: Mapping[Cause, Callable[[Request, random.Random], None]] = {
    Cause.SYSTEM: change_system,
    Cause.TOOLS: change_tools,
    Cause.MODEL: change_model,
    Cause.BETAS: change_betas,
    Cause.TOOL_CHOICE: change_tool_choice,
}
FAULTS = (*CHANGES, Cause.LIFETIME, Cause.MESSAGE)


def edit_message(history: list[Message], random: random.Random) -> list[Message]:
    """*history* with other words in one of its earlier messages."""
    places = [index for index, message in enumerate(history[:-1]) if message["role"] == "user"]
    if not places:
        return history
    index = random.choice(places)
    message: Any = history[index]
    note = {"type": "text", "text": f"(note {random.randrange(10**6)})"}
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    edited: Any = {**message, "content": [*content, note]}
    return [*history[:index], edited, *history[index + 1 :]]


# One session --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """Faults before a turn, its reported usage, and the findings of the doctor.

    *missed* are the tokens that would have been read if nothing had happened; *unharmed* is the
    bill of that case, None where the pipeline has rewritten the context.
    """

    faults: frozenset[Cause]
    usage: Usage
    missed: int
    unharmed: Usage | None
    found: Sequence[CacheMiss]

    @property
    def has_missed(self) -> bool:
        """True if so much was missed that the doctor has to report it."""
        return self.missed > max(LEAST_MISSED, TOLERANCE * self.usage.total)

    @property
    def is_named_right(self) -> bool:
        """True if the cause of most of the tokens is one of those that happened."""
        main = max(self.found, key=lambda miss: miss.tokens, default=None)
        return main is not None and main.cause in self.faults

    @property
    def is_wrong(self) -> bool:
        """True if the doctor has named another cause, or reported a miss where the cache hit."""
        if self.has_missed:
            return not self.is_named_right
        return bool(self.claimed) and self.missed <= 0

    @property
    def claimed(self) -> int:
        """The tokens that the doctor says were missed."""
        return sum(miss.tokens for miss in self.found)

    @property
    def unexplained(self) -> int:
        """Missed tokens for which the doctor has no cause."""
        return sum(miss.tokens for miss in self.found if miss.cause is Cause.UNEXPLAINED)

    @property
    def loss(self) -> float:
        """Cost of the faults: the difference of the two usages, in input tokens."""
        return 0.0 if self.unharmed is None else _price(self.usage) - _price(self.unharmed)

    @property
    def found_loss(self) -> float:
        """The same by the doctor's reckoning."""
        return sum(miss.cost(PRICES) for miss in self.found)


PRICES = Prices.relative()


def _price(usage: Usage) -> float:
    return (
        usage.input_tokens * PRICES.input
        + usage.cache_creation_input_tokens * PRICES.write
        + usage.cache_read_input_tokens * PRICES.read
    )


@dataclass(slots=True)
class Driver:
    """Drives one recorded conversation, with a fault before a *share* of its turns."""

    server: MessagesServer
    client: anthropic.AsyncAnthropic
    clock: Clock
    random: random.Random
    share: float
    counter: TokenCounter

    async def drive(
        self, recorded: Sequence[Message], pipeline: ContextPipeline, faults: Sequence[Cause]
    ) -> list[Turn]:
        """The turns of *recorded*, through a session of *pipeline*, with some of *faults*."""
        session = pipeline.session("s", clock=self.clock)
        unharmed = Meter(self.server.model, self.counter, lambda: 0.0)
        request, plain = first_request(), first_request()
        history = list(recorded)
        is_edited = has_image = False
        sent: list[Any] = []
        turns: list[Turn] = []
        known = 0
        for index in range(1, len(history)):
            if history[index]["role"] != "assistant":
                continue
            happened = set()
            if sent and self.random.random() < self.share:
                happened.add(self.random.choice(faults))
            if Cause.MESSAGE in happened:
                history = [*edit_message(history[:index], self.random), *history[index:]]
                is_edited = True
            self._let_happen(happened, request)
            await session.create(self.client, messages=history[:index], **request)
            received = self.server.requests.pop()
            assert received.usage is not None  # noqa: S101
            messages = list(received.body["messages"])
            bill = None
            had_image, has_image = has_image, _has_image(received.raw)
            # What may happen in the recorded conversation itself.
            harms = set()
            if sent and had_image != has_image:
                harms.add(Cause.IMAGES)
            if sent and _block_count(messages) - _block_count(sent) >= LOOKBACK_BLOCKS:
                harms.add(Cause.LOOKBACK)
            happened |= harms
            is_continued = _is_continued(sent, messages) or Cause.MESSAGE in happened
            if is_continued and not harms:
                pristine = recorded[:index] if is_edited else messages
                bill = charge(unharmed, {**plain, "messages": pristine})
                missed = bill.cache_read_input_tokens - received.usage.cache_read_input_tokens
            else:
                if not is_continued:
                    happened.add(Cause.REWRITE)
                charge(unharmed, {**plain, "messages": messages})
                missed = self._known_tokens(sent, received.body) - (
                    received.usage.cache_read_input_tokens
                )
            found = session.diagnostics.cache_misses
            new = [miss for miss in found if miss.request > known]
            known = max((miss.request for miss in found), default=known)
            turns.append(Turn(frozenset(happened), received.usage, missed, bill, new))
            sent = messages
        return turns

    def _let_happen(self, faults: set[Cause], request: Request) -> None:
        self.clock.seconds += TURN_SECONDS
        if Cause.LIFETIME in faults:
            self.clock.seconds += PAUSE_SECONDS
        for fault in faults & CHANGES.keys():
            CHANGES[fault](request, self.random)

    def _known_tokens(self, sent: Sequence[Any], body: Mapping[str, Any]) -> int:
        """The billed tokens of *body* up to its last message that was *sent* before."""
        before = {json.dumps(message) for message in sent}
        last = 0
        for index, message in enumerate(body["messages"], 1):
            if json.dumps(message) in before:
                last = index
        overhead = {"system": body["system"], "tools": body["tools"]}
        return self.counter.total(body["messages"][:last], **overhead)


def charge(meter: Meter, body: Mapping[str, Any]) -> Usage:
    """The bill of *body*."""
    prompt = meter.read(body)
    return meter.charge(prompt, meter.find(prompt))


def _is_continued(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return list(after[: len(before)]) == list(before)


def _block_count(messages: Sequence[Any]) -> int:
    contents = (message["content"] for message in messages)
    return sum(1 if isinstance(content, str) else len(content) for content in contents)


def _has_image(raw: bytes) -> bool:
    return b'"type":"image"' in raw or b'"type": "image"' in raw


async def drive_file(path: Path, seed: int, share: float, root: Path) -> list[Turn]:
    """The turns of the transcript at *path*: by itself, and through a pipeline that rewrites it."""
    transcript = await anyio.to_thread.run_sync(read_transcript, path)
    _, recorded = split_system(transcript.messages)
    counter = TokenCounter()
    clock = Clock()
    model = Model(window=10**7, thinking="unchecked")
    storage = LocalStorage(root / path.stem)
    offload = BatchOffload(storage, gate=RatioGate(0.2))
    runs: list[tuple[ContextPipeline, Sequence[Cause]]] = [
        (ContextPipeline([], counter=counter), FAULTS),
        (ContextPipeline([offload], counter=counter), [*CHANGES, Cause.LIFETIME]),
    ]
    turns: list[Turn] = []
    async with (
        MessagesServer(lambda _: "Done.", model=model, counter=counter, clock=clock) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0) as client,
    ):
        for number, (pipeline, faults) in enumerate(runs):
            chance = random.Random(f"{seed} {path.name} {number}")
            driver = Driver(server, client, clock, chance, share, counter)
            clock.seconds += 2 * 3600  # nothing is left of what ran before
            turns += await driver.drive(recorded, pipeline, faults)
    return turns


# All of them --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score:
    """Score of the doctor's findings about *turns*."""

    turns: Sequence[Turn]

    @property
    def missed(self) -> list[Turn]:
        """The turns that have missed the cache."""
        return [turn for turn in self.turns if turn.has_missed]

    @property
    def share_named_right(self) -> float:
        """Share of the turns with a miss whose cause is named."""
        return share(sum(turn.is_named_right for turn in self.missed), len(self.missed))

    @property
    def share_unexplained(self) -> float:
        """Share of the missed tokens without a cause."""
        unexplained = sum(turn.unexplained for turn in self.turns)
        return share(unexplained, sum(turn.missed for turn in self.missed))

    @property
    def false_claims(self) -> int:
        """Turns of which the doctor says that they have missed, and that have not."""
        return sum(1 for turn in self.turns if turn.claimed and turn.missed <= 0)

    @property
    def price_error(self) -> float:
        """Error of the doctor's costs, relative to the difference of the usages."""
        priced = [turn for turn in self.missed if turn.unharmed is not None]
        loss = sum(turn.loss for turn in priced)
        return share(abs(sum(turn.found_loss for turn in priced) - loss), loss)


def share(part: float, whole: float) -> float:
    """*part* of *whole*, from 0 to 1."""
    return part / whole if whole else 0.0


def print_table(turns: Sequence[Turn]) -> None:
    """A row for each fault, and one for all."""
    by_fault: dict[str, list[Turn]] = {}
    for turn in turns:
        name = " + ".join(sorted(turn.faults)) or "nothing"
        by_fault.setdefault(name, []).append(turn)
    print(
        f"{'what happened':<28}{'turns':>7}{'missed':>8}{'tokens':>13}{'named right':>13}", end=""
    )
    print(f"{'unexplained':>13}{'false':>7}{'price error':>13}")
    rows = sorted(by_fault.items(), key=lambda row: -len(row[1]))
    for name, own in [*rows, ("all", list(turns))]:
        score = Score(own)
        tokens = sum(turn.missed for turn in score.missed)
        print(
            f"{name:<28}{len(own):>7,}{len(score.missed):>8,}{tokens:>13,}"
            f"{score.share_named_right:>13.1%}{score.share_unexplained:>13.1%}"
            f"{score.false_claims:>7}{score.price_error:>13.2%}"
        )
        add_figure(f"{name}: turns", len(own))
        add_figure(f"{name}: named right", 100 * score.share_named_right, "%")


def print_times() -> None:
    """Print the time of a turn with nothing new, and with a call and a result of 2,000 characters.

    The request is noted in `send`; `observe` reads it. Medians of 100 turns.
    """
    print(f"{'messages':>10}{'send, µs':>12}{'idle observe':>14}{'with a step':>14}")
    for count in (100, 1_000, 5_000):
        history: list[Any] = [{"role": "user", "content": "Go."}]
        for number in range(count // 2):
            history += recorded_step(number)
        sent, idle = turn_seconds(history, 0)
        _, busy = turn_seconds(history, 1)
        print(f"{count:>10,}{sent * 1e6:>12.1f}{idle * 1e6:>14.1f}{busy * 1e6:>14.1f}")
        add_figure(f"{count:,} messages: with a step", busy * 1e6, "µs")


def recorded_step(number: int) -> list[Any]:
    """A call and its result."""
    call = {"type": "tool_use", "id": f"t{number}", "name": "bash", "input": {"n": number}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"{number} " * 400}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def turn_seconds(history: Sequence[Any], steps: int) -> tuple[float, float]:
    """The seconds that `send` and `observe` take, with so many new *steps* a turn."""
    counter = TokenCounter()
    request = first_request()
    system, tools = request.pop("system"), request.pop("tools")
    doctor = CacheAudit(counter)
    messages = list(history)
    counter.total(messages)
    sending: list[float] = []
    observing: list[float] = []
    billed = 100_000
    for turn in range(101):
        for number in range(steps):
            messages += recorded_step(10**6 + 10 * turn + number)
            counter.total(messages[-2:])  # as `run` has done
        contents = list(messages)
        sent = SentRequest(contents, float(turn), system, tools, request)
        start = time.perf_counter()
        doctor.send(sent, contents)
        middle = time.perf_counter()
        doctor.observe(CacheUsage(billed if turn else 0, 0 if turn else billed, 0), contents)
        if turn:  # the first one reads everything
            sending.append(middle - start)
            observing.append(time.perf_counter() - middle)
    return median(sending), median(observing)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--times", action="store_true", help="only what the doctor costs a turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.2, help="of the turns that get a fault")
    parser.add_argument("--files", type=int, default=1000, help="at most")
    arguments = parser.parse_args()
    if arguments.times:
        print_times()
        return
    paths = sorted(arguments.folder.glob("*.jsonl"))[: arguments.files]
    print(f"seed {arguments.seed}, {len(paths)} transcripts, faults in {arguments.share:.0%}")
    begun = time.perf_counter()
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            own = await drive_file(path, arguments.seed, arguments.share, Path(folder))
            turns += own
            print(f"{path.name}: {len(turns)} turns so far", file=sys.stderr)
            for number, turn in enumerate(own):
                if turn.is_wrong:
                    print(f"{path.name}, turn {number}: {turn}")
    print_table(turns)
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    with recording(__file__):
        anyio.run(main)
