"""The cases' operations, each mapped to the package in a line or two.

A case names an operation; the function of that name in `OPERATIONS` gets the case's input and
options, and the hooks: the counter, the scripted model, the clock and the failing writer that the
case prescribes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate
from typing import Any, TypeAlias, cast

from ctxpipe import (
    BatchOffload,
    Budget,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Result,
    Stage,
    StorageError,
)
from ctxpipe.folding.definitions import Definition
from ctxpipe.folding.fold import Section, drop_count, fold_files, format_sections, merge_functions
from ctxpipe.functions import (
    compact_messages,
    offload_tool_result,
    offload_tool_results,
    restore_files,
    smart_truncate,
    truncate_conversation,
)
from ctxpipe.functions.offload import offloadable, scan_of
from ctxpipe.messages import split_system
from ctxpipe.placeholders.summaries import assemble
from ctxpipe.settings import COMPACT_MAX_RETRIES, OFFLOAD_CHAR_THRESHOLD
from ctxpipe.stages.compact.stage import Breaker, Compact, Restore
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.reading.user_commands import extract_commands
from ctxpipe.stages.reports import Offloaded
from ctxpipe.stages.truncate.selection import MIDDLE_END, MIDDLE_START, middle_range
from ctxpipe.storage import TextWriter
from ctxpipe.summarizers import PromptSummarizer, Retry
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
    min_chars = OFFLOAD_CHAR_THRESHOLD(args.get("options", {}).get("min_chars"))
    scan = scan_of(args["messages"], offloadable(args["messages"], min_chars))
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
    writer = failing(LocalStorage(directory, on_conflict="number"), hooks)
    result = await offload_tool_results(
        messages, output_dir=directory, writer=writer, **args.get("options", {})
    )
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
    writer = failing(LocalStorage(directory, on_conflict="overwrite"), hooks)
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
        options["per_tool"] = dict.fromkeys(options.pop("exempt_tools"))
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

    def __init__(self, storage: LocalStorage, fail_at: int, message: str):
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


async def _middle_range(args: dict[str, Any], _hooks: Any) -> dict[str, Any]:
    found = middle_range([0, *accumulate(args["tokens"])], MIDDLE_START, MIDDLE_END)
    return {"start": found.start, "end": found.stop}


async def _smart_truncate(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    result = await smart_truncate(args["messages"], counter=hooks.count_text, **args["options"])
    counts = {
        name: getattr(result.detail, name)
        for name in ("deleted", "folded", "filtered", "still_over")
    }
    return {"messages": result.messages, **counts}


async def _truncate_conversation(args: dict[str, Any], _hooks: Any) -> dict[str, Any]:
    messages = truncate_conversation(args["messages"], args["fraction"])
    return {"messages": messages, "messages_removed": len(args["messages"]) - len(messages)}


async def _partition(args: dict[str, Any], _hooks: Any) -> dict[str, Any]:
    head, rest = split_system(args["messages"])
    return {"head": head, "rest": rest}


async def _assemble(args: dict[str, Any], _hooks: Any) -> dict[str, Any]:
    return {"messages": assemble(args["head"], args["summary"], args["restored"])}


async def _extract_commands(args: dict[str, Any], _hooks: Any) -> dict[str, Any]:
    return {"text": "\n".join(extract_commands([args["message"]]))}


async def _restore_files(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    with logged(hooks):
        found = await restore_files(args["messages"], counter=hooks.count_text, **args["options"])
    return {"messages": found.messages, "total_tokens": found.total_tokens}


async def _compact(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    return await _compacted(args["messages"], args, hooks)


async def _compact_twice(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    first = await _compacted(args["messages"], args, hooks)
    second = await _compacted([*first["messages"], *args["then"]], args, hooks)
    return {"first": first, "second": second}


async def _compacted(messages: Any, args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    with logged(hooks):
        result = await compact_messages(
            messages,
            summarize=PromptSummarizer(hooks.llm, counter=hooks.count_text),
            counter=hooks.count_text,
            sleep=hooks.sleep,
            **args["options"],
        )
    return {
        "messages": result.messages,
        "compacted": result.compacted,
        "stats": asdict(result.stats) if result.stats else None,
        "original_messages_path": result.original_messages_path,
    }


async def _compact_stage(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    options = dict(args["options"])
    budget = Budget(
        options.pop("context_token_limit", None), options.pop("compact_threshold_ratio", None)
    )
    session_id = options.pop("session_id", "default")
    retry = Retry(
        max_retries=COMPACT_MAX_RETRIES(options.pop("max_retries", None)), sleep=hooks.sleep
    )
    limits = {
        "max_files": "files",
        "max_tokens_per_file": "tokens_per_file",
        "max_tokens_total": "tokens_total",
    }
    limits = {
        name: options.pop(f"max_restore_{old}")
        for name, old in limits.items()
        if f"max_restore_{old}" in options
    }
    work_dir = options.pop("work_dir", None)
    if work_dir is not None:
        os.makedirs(work_dir, exist_ok=True)
    stage = Compact(
        PromptSummarizer(hooks.llm, counter=hooks.count_text),
        archive=LocalStorage(options.pop("output_dir")),
        restore=Restore(work_dir, **cast("Any", limits)) if work_dir else None,
        **options,
        breaker=Breaker(retry=retry),
    )
    pipeline = ContextPipeline([stage], budget=budget, counter=hooks.count_text)
    # The cases' numbers are raw tokens; an API that bills just these is what the session learns
    # first.
    reported = {"input_tokens": count_tokens(args["messages"], counter=hooks.count_text)}
    pipeline.observe(reported, args["messages"], session_id=session_id)
    with logged(hooks):
        result = await pipeline.run(args["messages"], session_id=session_id)
    detail = result.reports[0].detail if result.changed else None
    return {
        "messages": result.messages,
        "compacted": result.changed,
        "stats": asdict(detail) if detail else None,
        "original_messages_path": getattr(detail, "archive", None),
    }


async def _merge_functions(args: dict[str, Any], _hooks: Any) -> dict[str, Any]:
    found = [Definition(each["type"], each["name"], each["line"]) for each in args["definitions"]]
    options = dict(args.get("options", {}))
    merge = options.pop("merge_functions", True)
    return {
        "sections": [_as_row(section) for section in merge_functions(found, merge=merge, **options)]
    }


async def _format_sections(args: dict[str, Any], _hooks: Any) -> dict[str, Any]:
    rows = args["sections"]
    return {
        "text": format_sections(
            Section(row["type"], tuple(row["names"]), row["start_line"]) for row in rows
        )
    }


async def _drop_count(args: dict[str, Any], _hooks: Any) -> dict[str, Any]:
    return {"n": drop_count(args["tokens"], args["budget"], args["sections"])}


async def _fold_files(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    files = [(path, source) for path, source in args["files"]]
    folded = fold_files(files, count=hooks.count_text, **args.get("options", {}))
    return {
        "content": folded.content,
        "sections": list(folded.sections),
        "files_processed": folded.files_processed,
        "files_skipped": folded.files_skipped,
        "sections_dropped": folded.sections_dropped,
    }


async def _fold_files_twice(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    return {"first": await _fold_files(args, hooks), "second": await _fold_files(args, hooks)}


def _as_row(section: Section) -> dict[str, Any]:
    return {"type": section.type, "names": list(section.names), "start_line": section.start_line}


@contextmanager
def logged(hooks: Any) -> Iterator[None]:
    """Hands what the package logs to the case."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord):
            hooks.log(record.levelname.lower(), record.getMessage())

    logger, handler = logging.getLogger("ctxpipe"), Handler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


OPERATIONS: dict[str, Operation] = {
    "assemble": _assemble,
    "compact": _compact,
    "compact_stage": _compact_stage,
    "compact_twice": _compact_twice,
    "extract_commands": _extract_commands,
    "partition": _partition,
    "restore_files": _restore_files,
    "batch_offload": _batch_offload,
    "batch_offload_twice": _batch_offload_twice,
    "batch_stage": _batch_stage,
    "direct_offload": _direct_offload,
    "direct_stage": _direct_stage,
    "prescan": _prescan,
    "drop_count": _drop_count,
    "fold_files": _fold_files,
    "fold_files_twice": _fold_files_twice,
    "format_sections": _format_sections,
    "merge_functions": _merge_functions,
    "middle_range": _middle_range,
    "smart_truncate": _smart_truncate,
    "truncate_conversation": _truncate_conversation,
    "conservative": _conservative,
    "count_tokens": _count_tokens,
    "should_compact": _should_compact,
}
