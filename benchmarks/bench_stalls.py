"""Time for which unusual inputs block the event loop.

Huge texts, long histories, hostile patterns and sources.

    python benchmarks/bench_stalls.py [--runs 3] [--only WORD] [--large] [--trace SECONDS]

The longest time between two turns of the loop, less the pause between them; the best of some runs,
because other programs on the machine stall it, too. Beside it stands what the same input costs at
once, on the loop: to encode its texts as JSON and count their tokens, or to search or parse them.
*--large* adds inputs beyond what the limit is for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import json
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

from benchmarks.figures import add_figure, recording
from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SmartTruncate,
    TrimReadBacks,
    offload_tools,
)
from ctxpipe.folding import folder
from ctxpipe.folding.definitions import definitions
from ctxpipe.folding.folder import Folder
from ctxpipe.messages import Message
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter
from ctxpipe.tools import answer

LIMIT_MS = 50
PAUSE = 0.002
MB = 2**20

Work: TypeAlias = Callable[[], Awaitable[object]]
Make: TypeAlias = Callable[[], tuple[Work, Callable[[], object]]]


@dataclass(frozen=True, slots=True)
class Case:
    """An ugly input: *make* prepares it and gives the work, and the same at once on the loop."""

    name: str
    make: Make
    is_large: bool = False


# Inputs -------------------------------------------------------------------------------------------


def ascii_lines(size: int) -> str:
    lines = (
        f"{number} INFO request {number * 7919 % 10007} took {number % 331} ms\n"
        for number in range(size // 30)
    )
    return "".join(lines)[:size]


def other_lines(size: int) -> str:
    return ("Größe: 漢字かな交じり文、и ещё 🙂 línea número\n" * (size // 40 + 1))[:size]


TEXTS: dict[str, Callable[[int], str]] = {
    "ASCII lines": ascii_lines,
    "other scripts": other_lines,
    "one letter": lambda size: "a" * size,
    "blanks": lambda size: " " * size,
    "line breaks": lambda size: "\n" * size,
    "one line of JSON": lambda size: json.dumps(
        [{"id": n, "name": f"n{n}"} for n in range(size // 30)]
    )[:size],
    "backslashes": lambda size: "\\" * size,
    "brackets": lambda size: "[Tool result offloaded to file: " * (size // 32),
    "surrogates": lambda size: "\ud800x" * (size // 2),
    "base64": lambda size: "QUJD" * (size // 4),
}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def call(number: int, **given: Any) -> Message:
    block: Any = {"type": "tool_use", "id": f"t{number}", "name": "bash", "input": given}
    return {"role": "assistant", "content": [block]}


def result(number: int, content: Any) -> Message:
    return user([{"type": "tool_result", "tool_use_id": f"t{number}", "content": content}])


def chat(messages: int) -> list[Message]:
    said: list[Message] = []
    for number in range(messages - 1):
        role: Any = "assistant" if number % 2 else "user"
        said.append({"role": role, "content": f"message {number}"})
    said.append(user("go"))
    return said


def work_day(messages: int, chars: int = 60) -> list[Message]:
    history = [user("go")]
    for number in range(messages // 2):
        history += [
            call(number, command=f"ls {number}"),
            result(number, f"{number} " * (chars // 5)),
        ]
    return history


def broken(messages: int) -> list[Message]:
    """Half of the results are missing, texts are empty, roles repeat."""
    return [each for place, each in enumerate(work_day(messages)) if place % 4 != 2] + [user("")]


# Work ---------------------------------------------------------------------------------------------


def storage() -> LocalStorage:
    return LocalStorage(tempfile.mkdtemp())


def pipeline(*stages: Any, window: int = 200_000) -> ContextPipeline:
    return ContextPipeline(stages, budget=Budget(window=window), counter=TokenCounter())


def four(place: LocalStorage, window: int = 200_000) -> ContextPipeline:
    writer = ExtractiveSummarizer()
    return pipeline(
        DirectOffload(place),
        BatchOffload(place),
        Compact(writer, archive=place),
        SmartTruncate(archive=place),
        window=window,
    )


def turn(
    make: Callable[[], list[Message]],
    *,
    journal: bool = False,
    window: int = 200_000,
    stages: Any = four,
) -> Make:
    def prepare() -> tuple[Work, Callable[[], object]]:
        history, place = make(), storage()
        shaping = stages(place, window)

        async def work() -> object:
            given = {"journal": place} if journal else {}
            async with shaping.session("s", **given) as session:
                return await session.run(history)

        def at_once() -> object:
            return len(json.dumps(history)), TokenCounter().total(history)

        return work, at_once

    return prepare


def read_back(show: Callable[[str], str], size: int) -> Make:
    def prepare() -> tuple[Work, Callable[[], object]]:
        text, place = ascii_lines(size), storage()
        [where] = asyncio.run(place.write([("s/t1.md", text)]))
        history = [user("go"), call(2, command=f"cat {where}"), result(2, show(text))]

        async def work() -> object:
            stages = DirectOffload(place), TrimReadBacks(place)
            return await pipeline(*stages).session("s").run(history)

        return work, lambda: show(text) in text or TokenCounter().total(history)

    return prepare


def search(size: int, make: Callable[[int], str], **given: Any) -> Make:
    def prepare() -> tuple[Work, Callable[[], object]]:
        text, place = make(size), storage()
        asyncio.run(place.write([("s/t1.md", text)]))
        tool = offload_tools(place, session_id="s")[1]
        block = {
            "type": "tool_use",
            "id": "t",
            "name": tool.name,
            "input": {"path": "s/t1.md", **given},
        }
        is_bomb = "{" in given["pattern"]

        def at_once() -> object:
            return (
                None
                if is_bomb
                else [line for line in text.split("\n") if re.search(given["pattern"], line)]
            )

        return lambda: answer(block, [tool]), at_once

    return prepare


def folding(extension: str, source: str, *, at_once: bool = True) -> Make:
    def prepare() -> tuple[Work, Callable[[], object]]:
        folder._memo.cache_clear()  # noqa: SLF001 - nothing has been folded yet
        path = f"a.{extension}"
        return lambda: Folder().fold(
            [(path, source)]
        ), lambda: definitions(path, source) if at_once else None

    return prepare


def numbered(text: str) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(text.split("\n"), 1))


def cases() -> Iterator[Case]:
    yield Case("nothing at all", turn(lambda: [user("go")]))
    yield from histories(20_000)
    for name, make in TEXTS.items():
        yield from texts(name, make, 8 * MB)
    yield from blocks(8 * MB)
    yield from tools(8 * MB)
    yield Case("200,000 messages of chat, first turn", turn(lambda: chat(200_000)), is_large=True)
    yield Case(
        "200,000 messages of tools, first turn", turn(lambda: work_day(200_000)), is_large=True
    )
    for name in ("ASCII lines", "other scripts"):
        for case in texts(name, TEXTS[name], 50 * MB):
            yield Case(case.name, case.make, is_large=True)


def histories(messages: int) -> Iterator[Case]:
    yield Case("20,000 messages of chat, first turn", turn(lambda: chat(messages)))
    yield Case(
        "20,000 messages of tools, first turn", turn(lambda: work_day(messages), stages=offloading)
    )
    yield Case("20,000 messages, with a journal", turn(lambda: chat(messages), journal=True))
    yield Case(
        "20,000 messages, truncated",
        turn(lambda: work_day(messages), window=100_000, stages=truncating),
    )
    yield Case(
        "20,000 messages, offloaded in one go",
        turn(lambda: work_day(messages, 400), stages=offloading),
    )
    yield Case("20,000 messages, all broken", turn(lambda: broken(messages), stages=offloading))
    yield Case("20,000 results in one message", turn(lambda: parallel(messages), stages=offloading))


def parallel(messages: int) -> list[Message]:
    day = work_day(2 * messages)
    calls: Any = [block for message in day[1::2] for block in message["content"]]
    results: Any = [block for message in day[2::2] for block in message["content"]]
    return [user("go"), {"role": "assistant", "content": calls}, user(results)]


def offloading(place: LocalStorage, window: int) -> ContextPipeline:
    return pipeline(DirectOffload(place), BatchOffload(place), window=window)


def truncating(place: LocalStorage, window: int) -> ContextPipeline:
    return pipeline(SmartTruncate(archive=place), window=window)


def texts(name: str, make: Callable[[int], str], size: int) -> Iterator[Case]:
    megabytes = f"{size // MB} MB of {name}"
    yield Case(
        f"{megabytes}, a new result", turn(lambda: [user("go"), call(1), result(1, make(size))])
    )
    yield Case(
        f"{megabytes}, the user's", turn(lambda: [user(make(size)), call(1), result(1, "ok")])
    )
    if name in ("ASCII lines", "other scripts"):
        journal = turn(lambda: [user("go"), call(1), result(1, make(size))], journal=True)
        yield Case(f"{megabytes}, with a journal", journal)
        yield Case(f"{megabytes}, newest", turn(lambda: [user("go"), *chat(4), user(make(size))]))


def blocks(size: int) -> Iterator[Case]:
    text = ascii_lines(size)
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR" * (size // 5)},
    }
    unknown = {"type": "future_block", "data": "QUJDabc1" * (size // 8), "more": [{"text": text}]}
    many: Any = {f"key {number}": [number, str(number)] for number in range(200_000)}
    parts = [{"type": "text", "text": line} for line in text[: size // 4].split("\n")]
    yield Case(
        "8 MB in a tool's input", turn(lambda: [user("go"), call(1, text=text), result(1, "ok")])
    )
    yield Case(
        "200,000 keys in a tool's input",
        turn(lambda: [user("go"), call(1, **many), result(1, "ok")]),
    )
    yield Case("8 MB picture", turn(lambda: [user("go"), call(1), result(1, [image])]))
    yield Case(
        "8 MB in an unknown block", turn(lambda: [user([unknown, {"type": "text", "text": "go"}])])
    )
    yield Case("68,000 blocks in one result", turn(lambda: [user("go"), call(1), result(1, parts)]))


def tools(size: int) -> Iterator[Case]:
    yield Case("8 MB read back as they are", read_back(lambda text: text, size))
    yield Case("8 MB read back with numbers", read_back(numbered, size))
    yield Case("8 MB read back, unlike the file", read_back(lambda text: text[::-1], size))
    yield Case(
        "search in 8 MB, literal", search(size, ascii_lines, pattern="took 330 ms", limit=1000)
    )
    yield Case(
        "search in 8 MB, expression",
        search(size, ascii_lines, pattern="took 33. ms", regex=True, limit=1000),
    )
    yield Case(
        "search, bomb of counts",
        search(1000, ascii_lines, pattern="((a{500}){300}){10}", regex=True),
    )
    yield Case("fold 29,900 characters of Lua", folding("lua", ("#if 1\n" * 5000)[:29_900]))
    yield Case("fold 4,000 characters of Swift", folding("swift", "/*" * 2000, at_once=False))
    yield Case(
        "fold 8 MB of Python",
        folding("py", "def f(x):\n    return x\n" * (size // 23), at_once=False),
    )


# Measuring ----------------------------------------------------------------------------------------


async def longest_stall(work: Work, trace: float) -> tuple[float, float]:
    """The longest stall of the loop and how long *work* took, both in seconds."""
    await TokenCounter().warm()
    worst, is_over = 0.0, False

    async def beat() -> None:
        nonlocal worst
        while not is_over:
            if trace:
                faulthandler.dump_traceback_later(trace)
            start = perf_counter()
            await asyncio.sleep(PAUSE)
            worst = max(worst, perf_counter() - start - PAUSE)

    task = asyncio.create_task(beat())
    await asyncio.sleep(0.05)
    worst, start = 0.0, perf_counter()
    await work()
    took = perf_counter() - start
    await asyncio.sleep(2 * PAUSE)
    is_over = True
    await task
    if trace:
        faulthandler.cancel_dump_traceback_later()
    return worst, took


def measure(case: Case, runs: int, trace: float) -> tuple[float, float, float]:
    stalls: list[tuple[float, float]] = []
    for _ in range(runs):
        work, at_once = case.make()
        gc.collect()
        gc.freeze()  # the input is the caller's: what a collection of it costs is not ours
        stalls.append(asyncio.run(longest_stall(work, trace)))
        gc.unfreeze()
        if stalls[-1][0] * 1000 <= LIMIT_MS and runs > 1:
            break
    start = perf_counter()
    with contextlib.suppress(RecursionError):
        at_once()
    baseline = perf_counter() - start
    worst, took = min(stalls)
    return 1000 * worst, 1000 * took, 1000 * baseline


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The longest stall of the event loop for ugly inputs."
    )
    parser.add_argument("--runs", type=int, default=3, help="the best of so many (3)")
    parser.add_argument("--only", default="", help="cases with this word in their name")
    parser.add_argument(
        "--large", action="store_true", help="also inputs beyond 8 MB and 20,000 messages"
    )
    parser.add_argument(
        "--trace", type=float, default=0.0, help="print all stacks when the loop stalls for so long"
    )
    given = parser.parse_args()
    print(f"{'input':<44}{'longest stall':>16}{'waits':>12}{'at once':>12}")
    for case in cases():
        if given.only in case.name and (given.large or not case.is_large):
            worst, took, baseline = measure(case, given.runs, given.trace)
            held = "" if worst <= LIMIT_MS else "  OVER"
            print(
                f"{case.name:<44}{worst:>13,.0f} ms{took:>9,.0f} ms{baseline:>9,.0f} ms{held}",
                flush=True,
            )
            add_figure(case.name, worst, "ms")


if __name__ == "__main__":
    with recording(__file__):
        main()
