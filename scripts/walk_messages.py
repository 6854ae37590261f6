"""Print the walk of `messages` through the packages, from `Session.create` to the wire.

python scripts/walk_messages.py [--calls]

A real turn is traced: the second one of a session with a journal, through the four stages of the
README, in which `DirectOffload` moves a tool result into a file. The reply comes from
`ctxpipe.testing.MessagesServer`, and the request is sent by the real SDK.

A function *handles* the messages when it takes them as an argument and hands them on: it returns
them, puts other ones into an argument, or gives them to the client. They may be the list itself or
part of a value that carries it, such as a `Step`, a `Turn` or a `Result`. A function that takes
them and answers anything else, such as a number, problems or nothing, asks a question or takes a
note: the messages stay with its caller, and neither it nor what it calls is part of the walk.

A *stay* is a run of such calls in one package. A *climb* is a stay in a package that is in a higher
layer of the import contract than the stay before it. To return to a caller that only returns
further is no stay.
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
    """The layers of the import contract, highest first, as names of packages below ctxpipe."""
    contracts = tomllib.loads(project.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [
        [name.strip().removeprefix("ctxpipe.") for name in layer.split("|")] for layer in layers
    ]


def heights(layers: list[list[str]]) -> dict[str, int]:
    """How high each package is: the lowest layer is 0."""
    found = {}
    for height, names in enumerate(reversed(layers)):
        for name in names:
            found[name] = height
    return found


def is_climb(package: str, following: str, height: dict[str, int]) -> bool:
    """Whether *following* is in a higher layer than *package*."""
    return height[following] > height[package]


def climb_count(packages: list[str], height: dict[str, int]) -> int:
    """How often the walk through *packages* climbs."""
    return sum(is_climb(one, following, height) for one, following in pairwise(packages))


# Whether messages are handed over -----------------------------------------------------------------


def is_message(value: object) -> bool:
    """Whether *value* looks like a message of the Messages API."""
    return isinstance(value, dict) and "role" in value and "content" in value


def is_messages(value: object) -> bool:
    """Whether *value* is a list of messages. An empty list may be one of anything."""
    return isinstance(value, list | tuple) and bool(value) and all(map(is_message, value))


def carries_messages(value: object) -> bool:
    """Whether *value* is a list of messages, a tuple with one, or a dataclass of ours with one."""
    if is_messages(value):
        return True
    if isinstance(value, tuple):
        return any(is_messages(part) or has_messages(part) for part in value)
    return has_messages(value)


def has_messages(value: object) -> bool:
    """Whether *value* is a dataclass of ours, and a field of it is a list of messages."""
    return any(map(is_messages, field_values(value).values()))


def field_values(value: object) -> dict[str, object]:
    """The fields of *value* by name, if it is a dataclass of ours."""
    if not is_dataclass(value) or not type(value).__module__.startswith("ctxpipe."):
        return {}
    return {field.name: getattr(value, field.name, None) for field in fields(value)}


# The trace ----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Call:
    """A call that took messages as an argument, and whether it has handed them on."""

    package: str
    function: str
    caller: Call | None
    before: list[tuple[object, dict[str, object]]]  # its arguments, and what their fields were
    hands_on: bool = False

    def has_put_messages(self) -> bool:
        """Whether a field of an argument has become another list of messages."""
        for argument, before in self.before:
            for name, value in field_values(argument).items():
                if value is not before.get(name) and is_messages(value):
                    return True
        return False

    @property
    def is_handling(self) -> bool:
        """Whether it, and each of its callers, hands the messages on."""
        if not self.hands_on:
            return False
        return self.caller is None or self.caller.is_handling


class Tracer:
    """A profile function that notes the calls which take messages, until these are sent."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._by_frame: dict[FrameType, Call] = {}
        self._is_sent = False

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        if self._is_sent:
            return
        if event == "call":
            self._note_call(frame)
        elif event == "return" and frame in self._by_frame:
            # A coroutine also "returns" when it waits. What it waits with carries no messages.
            call = self._by_frame[frame]
            call.hands_on = call.hands_on or carries_messages(value) or call.has_put_messages()

    def _note_call(self, frame: FrameType) -> None:
        if frame in self._by_frame:
            return  # a coroutine that goes on
        if is_request(frame.f_code):
            self._note_request(frame)
            return
        package = package_of(frame.f_code)
        given = arguments(frame)
        if package is None or not any(map(carries_messages, given)):
            return
        before = [(argument, field_values(argument)) for argument in given]
        call = Call(package, frame.f_code.co_qualname, self._caller_of(frame), before)
        self.calls.append(call)
        self._by_frame[frame] = call

    def _note_request(self, frame: FrameType) -> None:
        """The messages are at the client: whoever called it has handed them on."""
        caller = self._caller_of(frame)
        while caller is not None:
            caller.hands_on = True
            caller = caller.caller
        self._is_sent = True

    def _caller_of(self, frame: FrameType) -> Call | None:
        """The nearest call that is noted, from *frame* upwards."""
        back = frame.f_back
        while back is not None:
            if back in self._by_frame:
                return self._by_frame[back]
            back = back.f_back
        return None


def package_of(code: CodeType) -> str | None:
    """The package below ctxpipe, or the module there, that *code* is in. None for other code."""
    path = Path(code.co_filename)
    if code.co_name.startswith("<") or not path.is_relative_to(PACKAGE):
        return None
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def arguments(frame: FrameType) -> list[object]:
    """What the function of *frame* was called with, without its own object."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals.get(name) for name in names if name != "self"]


def is_request(code: CodeType) -> bool:
    """Whether *code* is the SDK's ``messages.create``."""
    path = Path(code.co_filename)
    return code.co_name == "create" and path.parts[-3:-1] == ("resources", "messages")


# The turn -----------------------------------------------------------------------------------------


async def traced_turn() -> list[Call]:
    """The calls of the turn that took messages, in order.

    Its history is short, so that no worker thread takes part.
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
    """The walk as text: a line for each stay, with a word where it climbs, and the count."""
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
