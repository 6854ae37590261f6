"""The in-memory surroundings of a replayed agent: storage, files, clock and counter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import StorageError
from ..messages import Message, result_text, tool_calls, tool_results
from ..providers.agent_tools import COMMON_READING_TOOLS
from ..stages.reading.views import viewed_path
from ..storage.files import FileText
from ..storage.memory import MemoryStorage
from ..tokens import TokenCounter

REFERENCE = "/ctxpipe/{key}"
"""Form of the paths by which a context names files, as with a `LocalStorage`."""


class SeenFiles:
    """The agent's files, as far as its conversation contains their texts.

    The text of a file is the one that the newest result of a call viewed or wrote.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._views: dict[str, str] = {}  # path by the id of the call
        self._writes: dict[str, tuple[str, str]] = {}  # path and text by the id of the call

    def learn(self, messages: Sequence[Message]) -> None:
        """Add the files in *messages*, which follow the messages of the previous call."""
        for call in tool_calls(messages):
            view_path = viewed_path(call, COMMON_READING_TOOLS, True)
            if view_path is not None:
                self._views[call.id] = view_path
                continue
            arguments = call.input
            path = arguments.get("file_path") or arguments.get("path")
            text = arguments.get("content")
            if isinstance(path, str) and isinstance(text, str):
                self._writes[call.id] = (path, text)
        for result in tool_results(messages):
            call_id = result.tool_use_id
            if result.is_error:
                continue  # a call that failed, or did not run, neither viewed nor wrote the file
            if call_id in self._views:
                self._texts[self._views[call_id]] = result_text(result)
            elif call_id in self._writes:
                path, text = self._writes[call_id]
                self._texts[path] = text

    async def read(self, path: str, /, max_bytes: int) -> FileText:
        """Return the text of the file at *path*.

        Raises StorageError if the conversation does not contain it, or it is larger than
        *max_bytes*.
        """
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
    """The objects that a policy gives to the stages of one replay.

    *clock* returns the time of the recorded conversation in seconds. *files* reads the agent's
    files, as far as the conversation contains their texts. *counter* counts tokens. Replays of the
    same conversation may share these three. *storage* is a `MemoryStorage` for this replay alone.
    """

    clock: Clock = field(default_factory=Clock)
    files: SeenFiles = field(default_factory=SeenFiles)
    counter: TokenCounter = field(default_factory=TokenCounter)
    storage: MemoryStorage = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "storage", MemoryStorage(clock=self.clock, reference=REFERENCE))
