"""The surroundings of a replayed agent, held in memory: its storage, its files and its clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..agent_tools import COMMON_READING_TOOLS
from ..edits.views import viewed_path
from ..errors import StorageError
from ..messages import Message, ToolResult, result_text, tool_calls, tool_results
from ..names import content_hash, safe_name, session_folder, with_suffix
from ..storage import Page
from ..storage.files import FileText
from ..storage.records import Record, encode_line, encode_record

__all__ = ["Clock", "MemoryStorage", "SeenFiles", "Workbench"]

ROOT = "/ctxpipe"


class MemoryStorage:
    """Keeps texts and records in memory, under the names of `LocalStorage` without the times."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def location(self, key: str, /) -> str:
        return f"{ROOT}/{key}"

    async def write(self, texts: Sequence[tuple[str, str]], /) -> Sequence[str]:
        paths = []
        for key, text in texts:
            path = self.location(key)
            paths.append(self._write(path, text))
        return paths

    def _write(self, path: str, text: str) -> str:
        if self.texts.setdefault(path, text) != text:
            path = with_suffix(path, content_hash(text))
            self.texts[path] = text
        return path

    async def read(
        self,
        location: str,
        /,
        offset: int = 0,
        limit: int | None = None,
    ) -> Page:
        path = location
        if not location.startswith(f"{ROOT}/"):
            path = self.location(location.removeprefix("./"))
        text = self.texts.get(path)
        if text is None:
            raise StorageError(f"there is no text at {location}")
        end = None if limit is None else offset + limit
        return Page(text[offset:end], offset, len(text))

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        folder = self.location(session_folder(session_id))
        prefix = f"{folder}/{stem}-"
        count = sum(path.startswith(prefix) for path in self.texts)
        path = f"{prefix}{count + 1}.json"
        self.texts[path] = "".join(encode_record(record))
        return path

    async def append(self, session_id: str, name: str, entry: Mapping[str, object], /) -> str:
        folder = session_folder(session_id)
        path = self.location(f"{folder}/{safe_name(name)}")
        before = self.texts.get(path, "")
        self.texts[path] = before + encode_line(entry)
        return path

    async def records(self, session_id: str, /) -> Sequence[str]:
        prefix = f"{self.location(session_folder(session_id))}/"
        own = [path for path in self.texts if path.startswith(prefix)]
        return [path for path in own if path.endswith((".json", ".jsonl"))]


class SeenFiles:
    """The agent's files as far as its conversation has shown them.

    Each as a view printed it or a call wrote it last, by the order of the results.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._views: dict[str, str] = {}  # path by the id of the call
        self._writes: dict[str, tuple[str, str]] = {}  # path and text by the id of the call

    def learn(self, messages: Sequence[Message]) -> None:
        """Take in *messages*, which follow those known so far."""
        for call in tool_calls(messages):
            viewed = viewed_path(call, COMMON_READING_TOOLS, True)
            if viewed is not None:
                self._views[call.id] = viewed
                continue
            arguments = call.input
            path = arguments.get("file_path") or arguments.get("path")
            text = arguments.get("content")
            if isinstance(path, str) and isinstance(text, str):
                self._writes[call.id] = path, text
        for result in tool_results(messages):
            self._learn_result(result)

    def _learn_result(self, result: ToolResult) -> None:
        # A call that failed, or was never run, has shown and written nothing.
        if result.is_error:
            return
        path = self._views.get(result.tool_use_id)
        if path is not None:
            self._texts[path] = result_text(result)
        elif result.tool_use_id in self._writes:
            path, text = self._writes[result.tool_use_id]
            self._texts[path] = text

    async def read(self, path: str, /, max_bytes: int) -> FileText:
        text = self._texts.get(path)
        if text is None:
            raise StorageError(f"the conversation has not shown {path}")
        if len(text.encode()) > max_bytes:
            raise StorageError(f"{path} is larger than {max_bytes} bytes")
        return FileText(path, text, is_view=True)


@dataclass(slots=True)
class Clock:
    """The time of the recorded conversation."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Workbench:
    """What a pipeline may need besides the messages; a new one for each replay."""

    storage: MemoryStorage = field(default_factory=MemoryStorage)
    files: SeenFiles = field(default_factory=SeenFiles)
    clock: Clock = field(default_factory=Clock)
