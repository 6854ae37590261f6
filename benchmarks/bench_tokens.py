"""Time of counting tokens, and the error of the estimates.

Loading, the first count, a turn, a session, the event loop, the memory.

    python benchmarks/bench_tokens.py

Texts come from the transcripts beside the project, or from the standard library's sources where
they are missing. Each line ends with a ratio to a baseline measured in the same run; stock tiktoken
reads the same ranks from its own cache.
"""

from __future__ import annotations

import asyncio
import base64
import bisect
import functools
import hashlib
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from benchmarks.figures import add_printed, recording
from ctxpipe.messages import Message
from ctxpipe.tokens import Ledger, TokenCounter, parts, vocabulary

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "transcripts"
NAMES = ("cl100k_base", "o200k_base")
SESSION_TOKENS = 200_000
TURNS = 200
STAGES = 3
PAUSE = 0.001

Row: TypeAlias = tuple[str, str, str]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TIKTOKEN_CACHE_DIR"] = folder  # for the baseline only, in child processes
        for name in NAMES:
            fill_cache(Path(folder), name)
        table("loading an encoding, in a process of its own (best of 5)", loading())
        table(f"the first count of {SESSION_TOKENS:,} tokens, loading included (best of 5)", cold())
    table("a turn on 2,000 known messages (best of 300)", asyncio.run(turns()))
    table(
        f"{TURNS} turns, {SESSION_TOKENS:,} tokens, {STAGES} stages asking each turn",
        asyncio.run(session()),
    )
    table("questions that need no full count, on 1 MB of text (best of 5)", questions())
    table("the event loop's longest stall", asyncio.run(stalls()))
    table("the estimate of the next bill, on all conversations", asyncio.run(calibrations()))
    table("100 MB of distinct text through one counter", memory())


def table(title: str, rows: list[Row]) -> None:
    print(f"\n{title}")
    for what, figure, against in rows:
        print(f"  {what:<52} {figure:>18}   {against}")
        add_printed(f"{title.partition(' (')[0]}: {what}", figure)


def row(what: str, mine: float, baseline: float, unit: str = "ms", scale: float = 1e3) -> Row:
    return (
        what,
        f"{mine * scale:,.1f} {unit}",
        f"{baseline / mine:,.1f} x faster than {baseline * scale:,.1f} {unit}",
    )


def best(work: Callable[[], object], runs: int) -> float:
    def timed() -> float:
        begun = perf_counter()
        work()
        return perf_counter() - begun

    return min(timed() for _ in range(runs))


# In processes of their own ------------------------------------------------------------------------

CHILD = """
import json, sys
from time import perf_counter
texts = json.load(sys.stdin)
start = perf_counter()
{imports}
begun = perf_counter()
{load}
loaded = perf_counter()
tokens = sum(count(text) for text in texts)
done = perf_counter()
with open("/proc/self/status") as status:
    megabytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024
print(json.dumps([begun - start, loaded - begun, done - begun, megabytes, tokens]))
"""
OURS = """
counter = TokenCounter({name!r})
counter.text("load")
count = counter.text
"""
OURS_IMPORTS = "import tiktoken; from ctxpipe.tokens import TokenCounter"
STOCK_IMPORTS = "import tiktoken"
STOCK = """
encoding = tiktoken.get_encoding({name!r})
count = lambda text: len(encoding.encode(text, disallowed_special=()))
"""
NOTHING = "count = len"


@dataclass(frozen=True, slots=True)
class Measured:
    """The best of several processes, in seconds and megabytes.

    *counted* includes loading, not the imports.
    """

    imported: float
    loaded: float
    counted: float
    megabytes: float
    tokens: int


def child(imports: str, load: str, texts: Sequence[str] = (), runs: int = 5) -> Measured:
    script = CHILD.format(imports=imports, load=load)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(runs)
    ]
    return Measured(
        *(
            min(column)
            for column in zip(*(json.loads(done.stdout) for done in outputs), strict=True)
        )
    )


def fill_cache(folder: Path, name: str) -> None:
    packed = Path(vocabulary.__file__).parent / "vocab" / f"{name}.bin"
    ranks = vocabulary.unpack(packed.read_bytes())
    official = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
    (folder / hashlib.sha1(url.encode()).hexdigest()).write_bytes(official)  # noqa: S324


def loading() -> list[Row]:
    bare, rows = child("", NOTHING), list[Row]()
    for name in NAMES:
        ours, stock = (
            child(OURS_IMPORTS, OURS.format(name=name)),
            child(STOCK_IMPORTS, STOCK.format(name=name)),
        )
        sizes = f"stock tiktoken {stock.megabytes:.0f} MB, bare Python {bare.megabytes:.0f} MB"
        rows.append(row(f"{name}: load", ours.loaded, stock.loaded))
        rows.append((f"{name}: resident memory", f"{ours.megabytes:.0f} MB", sizes))
        rows.append(
            (
                f"{name}: imports before",
                f"{ours.imported * 1e3:,.1f} ms",
                f"tiktoken {stock.imported * 1e3:,.1f} ms",
            )
        )
    return rows


def cold() -> list[Row]:
    rows = []
    for name in NAMES:
        texts = corpus(name, SESSION_TOKENS)
        ours, stock = (
            child(OURS_IMPORTS, OURS.format(name=name), texts),
            child(STOCK_IMPORTS, STOCK.format(name=name), texts),
        )
        if ours.tokens != stock.tokens:
            raise SystemExit(f"{name}: {ours.tokens} tokens, stock tiktoken {stock.tokens}")
        rows.append(
            row(
                f"{name}: {ours.tokens:,} tokens in {len(texts):,} texts",
                ours.counted,
                stock.counted,
            )
        )
    return rows


# Texts and conversations --------------------------------------------------------------------------


def conversations() -> Iterator[list[Message]]:
    """The transcripts; without them, the standard library read file by file."""
    files = sorted(SHARED.glob("*.jsonl"))
    for file in files:
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        yield [line for line in lines if line.get("role")]
    if not files:
        sources = sorted(Path(os.__file__).parent.glob("*.py"))
        yield [message for number, source in enumerate(sources) for message in view(number, source)]


def view(number: int, source: Path) -> list[Message]:
    call = {
        "type": "tool_use",
        "id": f"t{number}",
        "name": "read_file",
        "input": {"path": source.name},
    }
    text = source.read_text(encoding="utf-8", errors="replace")
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": text[:8_000]}
    messages: list[Any] = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    return messages


def texts_of(messages: list[Message]) -> Iterator[str]:
    """Return the texts that a counter reads."""
    for message in messages:
        for part in parts.content_parts(message["content"]):
            if isinstance(part, str):
                yield part


def corpus(name: str, tokens: int) -> list[str]:
    """Distinct texts of *tokens* tokens in all, from all conversations."""
    counter, chosen = TokenCounter(name), list[str]()
    texts = sorted(set(itertools.chain.from_iterable(map(texts_of, conversations()))))
    random.Random(0).shuffle(texts)
    for text in texts:
        size = counter.text(text)
        if size <= tokens:
            chosen.append(text)
            tokens -= size
    return chosen


def one_session() -> list[Message]:
    """A conversation of some `SESSION_TOKENS` tokens and at least `TURNS` messages."""
    counter = TokenCounter()
    for conversation in conversations():
        sums = list(itertools.accumulate(map(counter.message, conversation)))
        if len(conversation) >= TURNS and sums[-1] >= SESSION_TOKENS:
            fitting = conversation[: max(TURNS, bisect.bisect(sums, SESSION_TOKENS))]
            if counter.total(fitting) <= 1.1 * SESSION_TOKENS:
                return fitting
    raise SystemExit("no conversation is long enough")


# In this process ----------------------------------------------------------------------------------


def recount(messages: list[Message]) -> int:
    """Count all messages again, as a counter without memory does in each turn."""
    encode = vocabulary.load("cl100k_base").encode
    return sum(len(encode(text, disallowed_special=())) for text in texts_of(messages))


async def best_turn(turn: Callable[[], Awaitable[object]], runs: int = 300) -> float:
    shortest = float("inf")
    for _ in range(runs):
        begun = perf_counter()
        await turn()
        shortest = min(shortest, perf_counter() - begun)
    return shortest


async def turns() -> list[Row]:
    history = list(
        itertools.islice(itertools.cycle(itertools.chain.from_iterable(conversations())), 2_000)
    )
    counter = TokenCounter()
    ledger = Ledger(counter)
    await ledger.total(history)
    again = best(lambda: recount(history), 1)
    number = itertools.count()

    async def appended() -> None:
        history.append({"role": "user", "content": f"short message {next(number)}"})
        await ledger.total(history)

    async def replaced() -> None:
        history[1_000] = {"role": "user", "content": f"short message {next(number)}"}
        await ledger.total(history)

    rebuilt = itertools.cycle([json.loads(written := json.dumps(history)), json.loads(written)])

    def us(what: str, seconds: float) -> Row:
        return row(what, seconds, again, "µs", 1e6)

    return [
        us("nothing new", await best_turn(lambda: ledger.total(history))),
        us("nothing new, the list copied", await best_turn(lambda: ledger.total(list(history)))),
        us(
            "nothing new, the caller vouches",
            await best_turn(lambda: ledger.total(history, unchanged_count=2_000)),
        ),
        us("one message appended", await best_turn(appended)),
        us("a message in the middle replaced", await best_turn(replaced)),
        us("rebuilt from JSON, equal", await best_turn(lambda: ledger.total(next(rebuilt)), 20)),
        us("no ledger, every text looked up", best(lambda: counter.total(history), 20)),
        ("recounting it all", f"{again * 1e6:,.0f} µs", "the baseline"),
    ]


async def session() -> list[Row]:
    history = one_session()
    ends = [len(history) * turn // TURNS for turn in range(1, TURNS + 1)]
    shortest, counter = float("inf"), TokenCounter()
    await counter.warm()
    for _ in range(9):
        counter = TokenCounter()
        await counter.warm()
        ledger, context, begun = Ledger(counter), list[Message](), perf_counter()
        for end in ends:
            context += history[len(context) : end]
            for _ in range(STAGES):
                await ledger.total(context)
        shortest = min(shortest, perf_counter() - begun)
    sampled = ends[9::10]
    begun = perf_counter()
    for end in sampled:
        recount(history[:end])
    again = (perf_counter() - begun) * len(ends) / len(sampled) * STAGES
    distinct = sum(map(len, set(texts_of(history))))
    return [
        row("loaded (best of 9)", shortest, again),
        (
            "recounting for each stage, from every tenth turn",
            f"{again * 1e3:,.0f} ms",
            "the baseline",
        ),
        (
            "characters encoded",
            f"{counter.encoded_chars:,}",
            f"{counter.encoded_chars / distinct:.4f} x the {distinct:,} distinct ones",
        ),
    ]


def questions() -> list[Row]:
    text = ("".join(corpus("cl100k_base", SESSION_TOKENS)) * 3)[:1_000_000]
    counter = TokenCounter(memo_bytes=0)
    full = best(lambda: counter.text(text), 5)
    return [
        row("over(text, 5,000)", best(lambda: counter.over(text, 5_000), 5), full),
        row(
            "over(text, 4,000,000): by its length",
            best(lambda: counter.over(text, 4_000_000), 5),
            full,
        ),
        ("the full count", f"{full * 1e3:,.1f} ms", "the baseline"),
    ]


async def stall(work: Callable[[], Awaitable[object]]) -> float:
    """The longest time during *work* in which the event loop did nothing else."""
    longest, last, over = 0.0, perf_counter(), False

    async def tick() -> None:
        nonlocal longest, last
        while not over:
            await asyncio.sleep(PAUSE)
            now = perf_counter()
            longest, last = max(longest, now - last - PAUSE), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    longest, last = 0.0, perf_counter()
    await work()
    over = True
    await ticking
    return longest


async def stalls() -> list[Row]:
    rows = [loading_stall(name) for name in NAMES]
    lines = "".join(corpus("cl100k_base", SESSION_TOKENS)) * 20
    texts = {
        "10 MB of blanks": " " * 10_000_000,
        "10 MB of transcript text": lines[:10_000_000],
        "10 MB of base64 on one line": base64.b64encode(
            random.Random(0).randbytes(7_500_000)
        ).decode(),
        "2 MB of the letter a": "a" * 2_000_000,
    }
    for what, text in texts.items():
        rows.append(await counting_stall(what, text))
    return rows


def loading_stall(name: str) -> Row:
    """Measure the loading of an encoding in a process of its own: it is loaded once."""
    script = (
        f"import asyncio, bench_tokens as b; from ctxpipe.tokens import TokenCounter;"
        f"print(asyncio.run(b.stall(TokenCounter({name!r}).warm)))"
    )
    run = functools.partial(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    longest = min(float(run(cwd=Path(__file__).parent).stdout) for _ in range(5))
    return (
        f"warm() of {name} (best of 5)",
        f"{longest * 1e3:,.1f} ms",
        "once, before the first turn",
    )


async def counting_stall(what: str, text: str) -> Row:
    counter = TokenCounter()
    await counter.warm()
    begun = perf_counter()
    longest = await stall(lambda: counter.texts([text]))
    seconds = perf_counter() - begun
    inline = best(lambda: TokenCounter().text(text), 1)
    figure = f"{longest * 1e3:,.1f} ms"
    return (
        f"{what}, counted in {seconds:.2f} s",
        figure,
        f"{inline / longest:,.0f} x shorter than on the loop itself",
    )


async def calibration(price: float, hidden: int) -> Row:
    """The error of the estimate of each request, the one before it having been billed.

    And of raw x 1.5.
    """
    counter, errors, guesses = TokenCounter(), list[float](), list[float]()
    for history in conversations():
        ledger = Ledger(counter)
        sums = await ledger.prefix_sums(history)
        bills = [
            (n, sums[n], round(price * sums[n]) + hidden)
            for n, m in enumerate(history)
            if m["role"] == "assistant"
        ]
        for (last, _, billed), (_, raw, due) in itertools.pairwise(
            bill for bill in bills if bill[1] >= 50
        ):
            ledger.observe({"input_tokens": billed}, history[:last])
            errors.append(ledger.estimate(raw) / due - 1)
            guesses.append(1.5 * raw / due - 1)
    within = sum(abs(error) <= 0.03 for error in errors) / len(errors)
    worst, guessed = max(map(abs, errors)), max(map(abs, guesses))
    what = f"billed {price} x tiktoken" + (f" + {hidden} hidden" if hidden else "")
    return (
        what,
        f"{worst:.2%} at worst",
        f"{within:.1%} of {len(errors):,} within 3 %; raw x 1.5 is off by {guessed:.0%}",
    )


async def calibrations() -> list[Row]:
    return [await calibration(price, hidden) for hidden in (0, 500) for price in (1.2, 1.47, 2.1)]


def memory() -> list[Row]:
    counter = TokenCounter(memo_bytes=8 * 2**20)
    counter.text("load")
    before, highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for number in range(25_000):
        counter.text(f"line {number} of a long log\n" * 150)
        highest = max(highest, counter.memo_bytes)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return [
        (
            "memo_bytes=8 MiB: most that was remembered",
            f"{highest / 2**20:.1f} MiB",
            (
                f"{counter.encoded_chars / 2**20:,.0f} MiB encoded, the process grew by "
                f"{grown:.0f} MiB"
            ),
        )
    ]


if __name__ == "__main__":
    with recording(__file__):
        main()
