"""Print the packages through which the messages of a turn pass, from `Session.create` to the SDK.

python scripts/walk_messages.py [--calls]

The script traces a real turn: the second turn of a session with a journal and the four stages of
the README. In it `DirectOffload` moves a tool result to a file. The real SDK sends the request, and
`ctxpipe.testing.MessagesServer` answers it.

A function *handles* the messages if it receives them as an argument and passes them on: it returns
messages, stores other messages in an argument, or gives them to the client. The argument is the
list itself or a value that contains it, such as a `Step`, a `Turn` or a `Result`. A function that
receives messages and returns something else, such as a number, only reads them: it, and the
functions that it calls, are not part of the walk.

A *stay* is a series of such calls in one package. A *climb* is a stay in a package that is in a
higher layer of the import contract than the stay before it. ``--calls`` prints the functions of
each stay.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from dataclasses import dataclass, fields, is_dataclass
from itertools import groupby, pairwise
from pathlib import Path
from types import CodeType, FrameType

import anthropic
import anyio
from anthropic.types import ToolResultBlockParam, ToolUseBlockParam

import ctxpipe
from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SmartTruncate,
)
from ctxpipe.messages import Message
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import MessagesServer, answer

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
PACKAGE = Path(ctxpipe.__file__).parent
LONG_RESULT = "a line of a log\n" * 2_000


def import_layers(project: Path = PROJECT) -> list[list[str]]:
    """Return the layers of the import contract, highest first, as names of packages in ctxpipe."""
    contracts = tomllib.loads(project.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [
        [name.strip().removeprefix("ctxpipe.") for name in layer.split("|")] for layer in layers
    ]


def heights(layers: list[list[str]]) -> dict[str, int]:
    """Return the height of each package: 0 for the lowest layer."""
    height_by_name = {}
    for height, names in enumerate(reversed(layers)):
        for name in names:
            height_by_name[name] = height
    return height_by_name


def is_climb(package: str, following: str, height: dict[str, int]) -> bool:
    """Return True if *following* is in a higher layer than *package*."""
    return height[following] > height[package]


def climb_count(packages: list[str], height: dict[str, int]) -> int:
    """Return the number of climbs in a walk through *packages*."""
    return sum(is_climb(one, following, height) for one, following in pairwise(packages))


# Recognizing messages -----------------------------------------------------------------------------


def is_message(value: object) -> bool:
    """Return True if *value* looks like a message of the Messages API."""
    return isinstance(value, dict) and "role" in value and "content" in value


def is_messages(value: object) -> bool:
    """Return True if *value* is a list of messages. An empty list does not count."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(is_message(item) for item in value)


def carries_messages(value: object) -> bool:
    """Return True if *value* is a list of messages, or a tuple or dataclass that contains one."""
    if is_messages(value):
        return True
    if isinstance(value, tuple):
        return any(is_messages(part) or has_messages(part) for part in value)
    return has_messages(value)


def has_messages(value: object) -> bool:
    """Return True if *value* is a dataclass of ctxpipe with a field that is a list of messages."""
    return any(is_messages(field_value) for field_value in field_values(value).values())


def field_values(value: object) -> dict[str, object]:
    """Return the fields of *value* by name; none if it is not a dataclass of ctxpipe."""
    if not is_dataclass(value) or not type(value).__module__.startswith("ctxpipe."):
        return {}
    return {field.name: getattr(value, field.name, None) for field in fields(value)}


# The trace ----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Call:
    """A call that received messages as an argument.

    *arguments* are its arguments, each with its fields before the call. *passes_on* is True if the
    call has passed messages on.
    """

    package: str
    function: str
    caller: Call | None
    arguments: list[tuple[object, dict[str, object]]]
    passes_on: bool = False

    def has_stored_messages(self) -> bool:
        """Return True if a field of an argument has become another list of messages."""
        for argument, fields_before in self.arguments:
            for name, value in field_values(argument).items():
                if value is not fields_before.get(name) and is_messages(value):
                    return True
        return False

    @property
    def is_handling(self) -> bool:
        """True if the call, and each of its callers, passes the messages on."""
        if not self.passes_on:
            return False
        return self.caller is None or self.caller.is_handling


class Tracer:
    """A profile function that records the calls that receive messages, until these are sent."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._by_frame: dict[FrameType, Call] = {}
        self._is_sent = False

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        if self._is_sent:
            return
        if event == "call":
            self._record_call(frame)
        elif event == "return" and frame in self._by_frame:
            # A coroutine also "returns" when it waits; the value is then not a list of messages.
            call = self._by_frame[frame]
            if carries_messages(value) or call.has_stored_messages():
                call.passes_on = True

    def _record_call(self, frame: FrameType) -> None:
        if frame in self._by_frame:
            return  # a coroutine that continues
        if is_request(frame.f_code):
            self._record_request(frame)
            return
        package = package_of(frame.f_code)
        arguments = arguments_of(frame)
        if package is None or not any(carries_messages(argument) for argument in arguments):
            return
        arguments_with_fields = [(argument, field_values(argument)) for argument in arguments]
        function = frame.f_code.co_qualname
        call = Call(package, function, self._caller_of(frame), arguments_with_fields)
        self.calls.append(call)
        self._by_frame[frame] = call

    def _record_request(self, frame: FrameType) -> None:
        """Record that all callers of *frame*, the request of the client, passed messages on."""
        caller = self._caller_of(frame)
        while caller is not None:
            caller.passes_on = True
            caller = caller.caller
        self._is_sent = True

    def _caller_of(self, frame: FrameType) -> Call | None:
        """Return the nearest recorded call among the callers of *frame*."""
        back = frame.f_back
        while back is not None:
            if back in self._by_frame:
                return self._by_frame[back]
            back = back.f_back
        return None


def package_of(code: CodeType) -> str | None:
    """Return the package or module of ctxpipe that contains *code*; None for other code."""
    path = Path(code.co_filename)
    if code.co_name.startswith("<") or not path.is_relative_to(PACKAGE):
        return None
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def arguments_of(frame: FrameType) -> list[object]:
    """Return the arguments of the function of *frame*, without ``self``."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals.get(name) for name in names if name != "self"]


def is_request(code: CodeType) -> bool:
    """Return True if *code* is ``messages.create`` of the SDK."""
    path = Path(code.co_filename)
    return code.co_name == "create" and path.parts[-3:-1] == ("resources", "messages")


# The turn -----------------------------------------------------------------------------------------


async def traced_turn() -> list[Call]:
    """Run the turn, and return its calls that received messages, in order.

    The history is short, so that no worker thread is used.
    """
    history: list[Message] = [{"role": "user", "content": "Why does the build fail?"}]
    call: ToolUseBlockParam = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "bash",
        "input": {"command": "make"},
    }
    result: ToolResultBlockParam = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": LONG_RESULT,
    }
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder)
        pipeline = ContextPipeline(
            [
                DirectOffload(storage),
                BatchOffload(storage),
                Compact(ExtractiveSummarizer(), archive=storage),
                SmartTruncate(archive=storage),
            ],
            budget=Budget(window=200_000),
        )
        async with (
            MessagesServer([answer("I will look."), answer("Done.")]) as server,
            anthropic.AsyncAnthropic(api_key="none", base_url=server.url, max_retries=0) as client,
        ):
            session = pipeline.session("walk", journal=storage)
            await session.create(client, messages=history, model=EXAMPLE_MODEL, max_tokens=100)
            history.append({"role": "assistant", "content": [call]})
            history.append({"role": "user", "content": [result]})
            tracer = Tracer()
            sys.setprofile(tracer)
            try:
                await session.create(client, messages=history, model=EXAMPLE_MODEL, max_tokens=100)
            finally:
                sys.setprofile(None)
    return tracer.calls


def walk_lines(calls: list[Call], height: dict[str, int], *, with_calls: bool) -> list[str]:
    """Return a line for each stay, with a mark if it climbs, and the number of climbs."""
    lines: list[str] = []
    packages: list[str] = []
    for package, stay in groupby(calls, key=lambda call: call.package):
        climbs = bool(packages) and is_climb(packages[-1], package, height)
        lines.append(f"{package:<9} climbs" if climbs else package)
        packages.append(package)
        if with_calls:
            lines.extend(f"    {call.function}" for call in stay)
    lines.append("the wire")
    lines.append("")
    lines.append(f"climbs: {climb_count(packages, height)}")
    return lines


def main() -> None:
    """Trace the turn and print its walk."""
    calls = anyio.run(traced_turn)
    handling = [call for call in calls if call.is_handling]
    height = heights(import_layers())
    print("\n".join(walk_lines(handling, height, with_calls="--calls" in sys.argv[1:])))


if __name__ == "__main__":
    main()
