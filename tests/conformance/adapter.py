"""The cases' operations, each mapped to the package in a line or two.

A case names an operation; the function of that name in `OPERATIONS` gets the case's input and options, and the hooks:
the counter, the scripted model, the clock and the failing writer that the case prescribes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from ctxpipe import (
    BatchOffload,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Offloaded,
    RatioGate,
    Result,
    Stage,
    StorageError,
    TextWriter,
    offload_tool_result,
    offload_tool_results,
)
from ctxpipe.edits.offload import prescan
from ctxpipe.settings import OFFLOAD_CHAR_THRESHOLD
from ctxpipe.tokens import conservative, count_tokens, should_compact

Operation: TypeAlias = Callable[[dict[str, Any], Any], Awaitable[dict[str, Any]]]


async def call(op: str, args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    """The result of *op*; NotImplementedError for one that is not mapped."""
    operation = OPERATIONS.get(op)
    if operation is None:
        raise NotImplementedError(op)
    return await operation(args, hooks)


async def _count_tokens(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    return {"tokens": count_tokens(args["messages"], counter=hooks.count_text)}


async def _conservative(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    return {"tokens": conservative(args["tokens"])}


async def _should_compact(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    value = should_compact(args["messages"], counter=hooks.count_text, **args["options"])
    return {"value": value}


async def _prescan(args: dict[str, Any], _hooks: Any) -> dict[str, Any]:
    scan = prescan(args["messages"], OFFLOAD_CHAR_THRESHOLD(args.get("options", {}).get("min_chars")))
    return {"total_chars": scan.total_chars, "offloadable_chars": scan.offloadable_chars}


async def _batch_offload(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    return await _batch(args["messages"], args, hooks)


async def _batch_offload_twice(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    first = await _batch(args["messages"], args, hooks)
    again = args.get("messages2", first["messages"])
    second = await _batch(again, args, hooks)
    return {"first": first, "second": second, "second_same_object": second["messages"] is again}


async def _batch(messages: Any, args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    directory = args["output_dir"]
    writer = failing(LocalStorage(directory, taken="number"), hooks)
    result = await offload_tool_results(messages, output_dir=directory, writer=writer, **args.get("options", {}))
    return {
        "messages": result.messages,
        "offloaded_count": result.offloaded_count,
        "freed_chars": result.freed_chars,
        "files": list(result.files),
    }


async def _batch_stage(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    options = dict(args.get("options", {}))
    gate = RatioGate(options.pop("ratio")) if "ratio" in options else RatioGate()
    storage = failing(LocalStorage(args["output_dir"]), hooks)
    result = await piped(BatchOffload(storage, gate, **options), args, hooks)
    detail = result.reports[0].detail
    moved = detail if isinstance(detail, Offloaded) else Offloaded()
    return {
        "messages": result.messages,
        "offloaded_count": moved.results,
        "freed_chars": moved.chars,
        "files": list(moved.files),
    }


async def _direct_offload(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    directory = args["output_dir"]
    writer = failing(LocalStorage(directory, taken="overwrite"), hooks)
    result = await offload_tool_result(
        args["message"], session_id=args["session_id"], output_dir=directory, writer=writer
    )
    return {
        "message": result.message,
        "freed_chars": result.freed_chars,
        "file": result.file,
        "files": list(result.files),
    }


async def _direct_stage(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    options = dict(args.get("options", {}))
    if "threshold" in options:
        options["min_chars"] = options.pop("threshold")
    if "exempt_tools" in options:
        options["exempt_tools"] = frozenset(options["exempt_tools"])
    stage = DirectOffload(failing(LocalStorage(args["output_dir"]), hooks), **options)
    return {"messages": (await piped(stage, args, hooks)).messages}


async def piped(stage: Stage, args: dict[str, Any], hooks: Any) -> Result:
    """The stage alone in a pipeline, on the case's messages."""
    pipeline = ContextPipeline([stage], counter=hooks.count_text)
    return await pipeline.run(args["messages"], session_id=args.get("session_id", "default"))


def failing(storage: LocalStorage, hooks: Any) -> TextWriter:
    """*storage*, or where the case wants a write to fail, one that raises at that write."""
    failure = hooks.fail_write()
    return FailingWriter(storage, failure["fail_at"], failure["message"]) if failure else storage


class FailingWriter:
    """A storage whose n-th text cannot be written."""

    def __init__(self, storage: LocalStorage, fail_at: int, message: str) -> None:
        self._storage = storage
        self._left = fail_at
        self._message = message

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        locations: list[str] = []
        for text in texts:
            if self._left == 0:
                raise StorageError(self._message)
            self._left -= 1
            locations += await self._storage.write([text])
        return locations

    def location(self, key: str, /) -> str:
        return self._storage.location(key)


OPERATIONS: dict[str, Operation] = {
    "batch_offload": _batch_offload,
    "batch_offload_twice": _batch_offload_twice,
    "batch_stage": _batch_stage,
    "direct_offload": _direct_offload,
    "direct_stage": _direct_stage,
    "prescan": _prescan,
    "conservative": _conservative,
    "count_tokens": _count_tokens,
    "should_compact": _should_compact,
}
