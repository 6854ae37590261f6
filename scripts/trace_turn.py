"""Measure how far a reader has to follow one turn through the package.

    python scripts/trace_turn.py [run] [create] [gateway] [--list]
    python scripts/trace_turn.py --write

The script runs a real turn in which a tool result is moved to a file, in three ways: through
`ContextPipeline.run`, through `Session.create` with the real SDK, and as a request to the gateway.
`ctxpipe.testing.MessagesServer` plays the provider and is not counted. For each way it prints

    files             the files of ctxpipe that the turn enters
    functions, calls  the functions in them, and the calls of these
    deep              the longest chain of callers, in functions of ctxpipe
    to a layer above  the calls from one package to another in a higher layer of the import contract
    turn/             the files of `ctxpipe/turn`, in the order in which the turn first enters them

``--list`` adds the names of the files, of the calls to a layer above, and of the longest chain.
``--write`` writes the figures into ARCHITECTURE.md, which quotes them.

Each call of a coroutine or a generator counts once. Comprehensions and the bodies of classes and
modules do not count, so that all versions of Python give the same figures. Only the thread of the
event loop is followed: the storage reads and writes its files in worker threads.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import logging
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

# `benchmarks` is not installed with the wheel.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import ctxpipe
from benchmarks.figures import Figures, with_figures
from ctxpipe import (
    BatchOffload,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SmartTruncate,
)
from ctxpipe.messages import Message
from ctxpipe.settings import EXAMPLE_MODEL

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
PAGE = ROOT / "ARCHITECTURE.md"
BENCHMARK = "trace_turn"  # the name under which the page quotes the figures
PACKAGE_PREFIX = str(Path(ctxpipe.__file__).parent) + "/"
NOT_COUNTED = "testing/"  # plays the provider
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
RESULT_LINES = 2_000  # long enough for DirectOffload, short enough to need no worker thread

Heights = Mapping[str, int]


# The layers ---------------------------------------------------------------------------------------


def import_layers(project: Path = PROJECT) -> list[list[str]]:
    """Return the layers of the import contract, highest first, as names of packages in ctxpipe."""
    contracts = tomllib.loads(project.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    # The contract of the whole package, not that of the modules inside one of its packages.
    [layers] = [
        contract["layers"]
        for contract in contracts
        if contract["type"] == "layers" and "containers" not in contract
    ]
    return [
        [name.strip().removeprefix("ctxpipe.") for name in layer.split("|")] for layer in layers
    ]


def layer_heights(layers: Sequence[Sequence[str]]) -> Heights:
    """Return the height of each package by name: 0 for those in the lowest layer."""
    height_by_name = {}
    for height, names in enumerate(reversed(layers)):
        for name in names:
            height_by_name[name] = height
    return height_by_name


def is_upward(caller: str, callee: str, heights: Heights) -> bool:
    """Return True if the file *callee* is in a higher layer than the file *caller*.

    Both are paths below ctxpipe, such as "turn/align.py".
    """
    return _height(callee, heights) > _height(caller, heights)


def _height(file: str, heights: Heights) -> int:
    """Return the height of the package or module that contains *file*.

    ``ctxpipe/__init__.py``, which is in no layer, is above all of them.
    """
    return heights.get(file.removesuffix(".py").split("/")[0], len(heights))


# The trace ----------------------------------------------------------------------------------------


@dataclass
class Trace:
    """A record of the calls between ``with trace:`` and its end, in this thread.

    A file is a path below ctxpipe, such as "turn/align.py". *call_counts* has the files in the
    order in which they were first entered. *upward_counts* is by the file that calls and the
    function that is called.
    """

    heights: Heights
    call_counts: Counter[str] = field(default_factory=Counter)
    functions: set[str] = field(default_factory=set)
    upward_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    longest_chain: list[str] = field(default_factory=list)
    _seen_frames: set[FrameType] = field(default_factory=set)

    def __enter__(self) -> None:
        sys.setprofile(self._record)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sys.setprofile(None)
        self._seen_frames.clear()

    @property
    def figures(self) -> dict[str, int]:
        """The figures by name."""
        return {
            "files": len(self.call_counts),
            "functions": len(self.functions),
            "calls": self.call_counts.total(),
            "deep": len(self.longest_chain),
            "to a layer above": self.upward_counts.total(),
        }

    @property
    def turn_files(self) -> list[str]:
        """The files of `ctxpipe/turn`, in the order in which they were first entered."""
        return [file for file in self.call_counts if file.startswith("turn/")]

    def _record(self, frame: FrameType, event: str, _value: object) -> None:
        """Record the call of *frame*; a profile function."""
        file = counted_file(frame)
        # A coroutine that continues is "called" again, with the frame of its first call.
        if event != "call" or file is None or frame in self._seen_frames:
            return
        self._seen_frames.add(frame)
        chain = [f"{file}: {frame.f_code.co_qualname}"]
        caller_file = None
        caller = frame.f_back
        while caller is not None:
            file_of_caller = counted_file(caller)
            if file_of_caller is not None:
                caller_file = caller_file or file_of_caller
                chain.append(f"{file_of_caller}: {caller.f_code.co_qualname}")
            caller = caller.f_back
        self.call_counts[file] += 1
        self.functions.add(chain[0])
        if len(chain) > len(self.longest_chain):
            self.longest_chain = chain[::-1]
        if caller_file is not None and is_upward(caller_file, file, self.heights):
            self.upward_counts[caller_file, chain[0]] += 1


def counted_file(frame: FrameType) -> str | None:
    """Return the file of the function in *frame*, as a path below ctxpipe; None if not counted."""
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE_PREFIX):
        return None
    # The bodies of modules and classes are not optimized; they run when a module is imported.
    if code.co_name in COMPREHENSIONS or not code.co_flags & inspect.CO_OPTIMIZED:
        return None
    file = code.co_filename.removeprefix(PACKAGE_PREFIX)
    return None if file.startswith(NOT_COUNTED) else file


# The turns ----------------------------------------------------------------------------------------


def tool_exchange(number: int) -> list[Message]:
    """Return a tool call and its long result."""
    text = f"line {number}\n" * RESULT_LINES
    messages: Any = [
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": f"t{number}", "name": "bash", "input": {"command": "ls"}}
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": f"t{number}", "content": text}],
        },
    ]
    return messages  # type: ignore[no-any-return]


def readme_pipeline(storage: LocalStorage) -> ContextPipeline:
    """Return the pipeline of the README, with a summarizer that calls no model."""
    return ContextPipeline(
        [
            DirectOffload(storage),
            BatchOffload(storage),
            Compact(archive=storage),
            SmartTruncate(archive=storage),
        ]
    )


async def trace_run(trace: Trace, folder: Path) -> None:
    """Trace the second turn of a caller who continues with the returned context."""
    pipeline = readme_pipeline(LocalStorage(folder))
    first: list[Message] = [{"role": "user", "content": "hi"}, *tool_exchange(0)]
    result = await pipeline.run(first, session_id="s")
    messages = [*result.messages, *tool_exchange(1)]
    with trace:
        await pipeline.run(messages, session_id="s")


async def trace_create(trace: Trace, folder: Path) -> None:
    """Trace the second request of a session that owns its history and has a journal."""
    from anthropic import AsyncAnthropic  # noqa: PLC0415

    from ctxpipe.testing import MessagesServer  # noqa: PLC0415

    storage = LocalStorage(folder)
    async with (
        MessagesServer(["ok", "ok"]) as server,
        AsyncAnthropic(api_key="k", base_url=server.url, max_retries=0) as client,
        readme_pipeline(storage).session("s", journal=storage) as session,
    ):
        session.append({"role": "user", "content": "hi"}, *tool_exchange(0))
        await session.create(client, model=EXAMPLE_MODEL, max_tokens=100)
        session.append({"role": "user", "content": "go"}, *tool_exchange(1))
        with trace:
            await session.create(client, model=EXAMPLE_MODEL, max_tokens=100)


async def trace_gateway(trace: Trace, folder: Path) -> None:
    """Trace the second request of a conversation through a gateway in this process."""
    import httpx2  # noqa: PLC0415

    from ctxpipe.gateway.app import Gateway  # noqa: PLC0415
    from ctxpipe.gateway.settings import GatewaySettings  # noqa: PLC0415
    from ctxpipe.testing import MessagesServer  # noqa: PLC0415

    headers = {"x-api-key": "x", "anthropic-version": "2023-06-01"}
    tools = [{"name": "bash", "input_schema": {"type": "object"}}]
    history: list[Message] = [{"role": "user", "content": "hi"}, *tool_exchange(0)]
    async with MessagesServer(["ok", "ok"]) as server:
        app = Gateway(GatewaySettings({"": server.url}, root=folder)).app
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1"
            ) as client,
        ):

            async def send() -> None:
                request = {
                    "model": EXAMPLE_MODEL,
                    "max_tokens": 100,
                    "messages": history,
                    "tools": tools,
                }
                reply = await client.post("/v1/messages", json=request, headers=headers)
                reply.raise_for_status()

            await send()
            history += [
                {"role": "assistant", "content": [{"type": "text", "text": "ok"}]},
                {"role": "user", "content": "go"},
                *tool_exchange(1),
            ]
            with trace:
                await send()


MODES: Mapping[str, Callable[[Trace, Path], Coroutine[Any, Any, None]]] = {
    "run": trace_run,
    "create": trace_create,
    "gateway": trace_gateway,
}


def traced(mode: str) -> Trace:
    """Run the turn of *mode*, a key of `MODES`, and return its trace."""
    trace = Trace(layer_heights(import_layers()))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(MODES[mode](trace, Path(folder)))
    return trace


# The output ---------------------------------------------------------------------------------------


def lines_of(mode: str, trace: Trace, *, with_names: bool) -> list[str]:
    """Return the figures of *trace* as lines; *with_names* adds what they count."""
    figures = trace.figures
    turn_files = [file.removeprefix("turn/") for file in trace.turn_files]
    lines = [f"{mode}: {', '.join(f'{count:,} {name}' for name, count in figures.items())}"]
    lines.append(f"  turn/: {', '.join(turn_files)}")
    if not with_names:
        return lines
    lines += [f"  {count:5,} calls in {file}" for file, count in trace.call_counts.items()]
    for (caller, callee), count in trace.upward_counts.most_common():
        lines.append(f"  upward, {count} times: {caller} calls {callee}")
    lines.append("  the longest chain:")
    lines += [f"    {function}" for function in trace.longest_chain]
    return lines


def quotable_figures(traces: Mapping[str, Trace]) -> Figures:
    """Return the figures of *traces*, which are by mode, in the form in which pages quote them."""
    figures: Figures = {BENCHMARK: {}}
    for mode, trace in traces.items():
        for name, value in trace.figures.items():
            figures[BENCHMARK][f"{mode}: {name}"] = {"value": value, "unit": ""}
    return figures


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modes", nargs="*", metavar="MODE", help=", ".join(MODES))
    parser.add_argument("--list", action="store_true", help="name the files, calls and functions")
    parser.add_argument("--write", action="store_true", help="write the figures to the page")
    options = parser.parse_args()
    logging.getLogger("ctxpipe").setLevel(logging.CRITICAL)  # warnings about the setup of the turn
    unknown = [mode for mode in options.modes if mode not in MODES]
    if unknown:
        parser.error(f"unknown mode {unknown[0]!r}: choose from {', '.join(MODES)}")
    if options.write and options.modes:
        parser.error("--write needs the figures of all modes: name none")
    traces = {}
    for mode in options.modes or MODES:
        traces[mode] = traced(mode)
        print("\n".join(lines_of(mode, traces[mode], with_names=options.list)))
    if options.write:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(with_figures(page, quotable_figures(traces)), "utf-8")


if __name__ == "__main__":
    main()
