"""Tool results to be offloaded, storages that fail, and what a stage makes of them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from histories import conversation, step, user

from ctxpipe import ContextPipeline, LocalStorage, Result, Stage, StorageError
from ctxpipe.messages import Message, tool_results
from ctxpipe.stages.reports import Offloaded

LOG = "\n".join(
    f"2026-11-20T17:{n // 60:02}:{n % 60:02}Z worker-{n % 7} finished job {n * 7919}"
    for n in range(60)
)


def new(
    content: Any = LOG,
    id: str = "a",  # noqa: A002
    name: str = "bash",
    given: dict[str, Any] | None = None,
) -> list[Message]:
    """A history whose last message is the result that has just come."""
    return conversation(user("go"), step(id, name, given, content))


async def run(stage: Stage, history: list[Message], session: str = "s", **options: Any) -> Result:
    return await ContextPipeline([stage], **options).run(history, session_id=session)


def contents(messages: Sequence[Message]) -> list[Any]:
    return [result.content for result in tool_results(messages)]


def files_below(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("[!.]*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def detail(result: Result) -> Offloaded:
    [report] = result.reports
    assert isinstance(report.detail, Offloaded)
    return report.detail


class Failing(LocalStorage):
    """A storage on a disk that is full for the texts of some keys."""

    broken: tuple[str, ...] = ()

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        if any(part in key for key, _ in texts for part in self.broken):
            raise StorageError(errno.ENOSPC, "cannot write: No space left on device")
        return await super().write(texts)


def failing(root: Path, *broken: str) -> Failing:
    storage = Failing(root)
    object.__setattr__(storage, "broken", broken)
    return storage


class WriteOnly:
    """A storage that can be written but not read."""

    def __init__(self, storage: LocalStorage):
        self._storage = storage

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        return await self._storage.write(texts)

    def location(self, key: str, /) -> str:
        return self._storage.location(key)
