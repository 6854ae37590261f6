"""Reading tools for the model: what was offloaded, page by page or by search."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from .errors import CtxpipeError, SettingsError, StorageError
from .messages import field
from .names import session_folder
from .settings import is_size
from .storage import LocalStorage

if TYPE_CHECKING:
    import regex
    from anthropic.types import ToolParam, ToolResultBlockParam

    from .messages import Block

__all__ = ["Tool", "ToolInputError", "answer", "offload_tools"]

_LINE_CHARS = 400
_PATTERN_CHARS = 1000
_SEARCH_SECONDS = 2.0


class ToolInputError(CtxpipeError, ValueError):
    """The model gave a tool an argument that makes no sense; the text tells it what would."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A plain Anthropic tool definition with its async handler, which answers with text."""

    definition: ToolParam
    handler: Callable[[Mapping[str, object]], Awaitable[str]]

    @property
    def name(self) -> str:
        """The name under which the model calls it."""
        return self.definition["name"]

    async def __call__(self, arguments: Mapping[str, object], /) -> str:
        """The tool's answer. Raises ToolInputError and StorageError, with a text that the model can act on."""
        return await self.handler(arguments)


async def answer(block: Block, tools: Iterable[Tool]) -> ToolResultBlockParam | None:
    """The tool_result for the tool_use *block*, an error result where it fails; None when no tool of ours is meant."""
    tool = next((tool for tool in tools if tool.name == field(block, "name")), None)
    if tool is None:
        return None
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": field(block, "id")}
    arguments = field(block, "input")
    try:
        result["content"] = await tool(arguments if isinstance(arguments, Mapping) else {})
    except (ToolInputError, StorageError) as error:
        result |= {"content": str(error), "is_error": True}
    return result  # type: ignore[return-value]  # a dict with exactly its keys


def offload_tools(storage: LocalStorage, *, session_id: str | None = None, max_chars: int = 20_000) -> list[Tool]:
    """`read_offloaded` and `search_offloaded` over the files of *storage*.

    They accept every form of path that a placeholder prints and read nothing outside the storage's root; with
    *session_id* nothing of another session. One answer has at most *max_chars* characters of file text. Their results
    are never offloaded again. Raises SettingsError when *max_chars* is no number above 0.
    """
    if not is_size(max_chars) or not max_chars:
        raise SettingsError(f"max_chars is {max_chars!r}; give a whole number, 1 or more")
    reading = _Reading(storage, session_id, max_chars)
    return [Tool(_reading_tool(max_chars), reading.read), Tool(_SEARCH, reading.search)]


_PATH = {"type": "string", "description": "The path exactly as the placeholder gives it."}


def _reading_tool(max_chars: int) -> ToolParam:
    limit = {"type": "integer", "description": f"How many characters, at most {max_chars}.", "default": max_chars}
    return {
        "name": "read_offloaded",
        "description": (
            "Read a tool result that was offloaded to a file, from the path in its placeholder. Gives a page of "
            "characters and says where the next one begins."
        ),
        "input_schema": {
            "type": "object",
            "properties": {
                "path": _PATH,
                "offset": {"type": "integer", "description": "The character to begin at, from 0.", "default": 0},
                "limit": limit,
            },
            "required": ["path"],
        },
    }


_SEARCH: ToolParam = {
    "name": "search_offloaded",
    "description": (
        "Search a tool result that was offloaded to a file. Gives the lines that match, long ones in part, with line "
        "number and the character offset to read on from."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "path": _PATH,
            "pattern": {"type": "string", "description": "The text to look for, literally."},
            "limit": {"type": "integer", "description": "How many matches at most.", "default": 20},
            "regex": {"type": "boolean", "description": "Take the pattern as a regular expression.", "default": False},
        },
        "required": ["path", "pattern"],
    },
}


@dataclass(frozen=True, slots=True)
class _Reading:
    storage: LocalStorage
    session_id: str | None
    max_chars: int

    async def read(self, arguments: Mapping[str, object]) -> str:
        offset = _whole(arguments, "offset", 0)
        limit = min(_whole(arguments, "limit", self.max_chars, least=1), self.max_chars)
        page = await self.storage.read(await self._key(arguments), offset, limit)
        if offset and offset >= page.total:
            raise ToolInputError(f"offset is {offset}, but the file has only {page.total} characters")
        if page.next_offset is None:
            return page.text or "[The file is empty.]"
        end = page.next_offset
        return f"{page.text}\n[Characters {offset} to {end} of {page.total}. Read on with offset={end}.]"

    async def search(self, arguments: Mapping[str, object]) -> str:
        pattern = _text(arguments, "pattern")
        limit = _whole(arguments, "limit", 20, least=1)
        compiled = _compiled(pattern, literal=arguments.get("regex") is not True)
        page = await self.storage.read(await self._key(arguments))
        try:
            lines = await to_thread.run_sync(_matching, compiled, page.text, limit, abandon_on_cancel=True)
        except TimeoutError:
            raise ToolInputError(f"the search took longer than {_SEARCH_SECONDS:g} s; use a simpler pattern") from None
        if not lines:
            return f"[No line matches {pattern!r}.]"
        more = "" if len(lines) <= limit else f"\n[Only the first {limit} matches are shown.]"
        return _cut("\n".join(lines[:limit]), self.max_chars) + more

    async def _key(self, arguments: Mapping[str, object]) -> str:
        path = _text(arguments, "path")
        # The same words whatever is wrong: other sessions and the folders of this machine stay out of sight.
        unknown = ToolInputError(f"there is no offloaded text {path!r}; give the path as the placeholder has it")
        try:
            key = await to_thread.run_sync(self.storage.key, path)
        except StorageError:
            raise unknown from None
        if self.session_id is not None and not key.startswith(f"{session_folder(self.session_id)}/"):
            raise unknown
        return key


def _matching(pattern: regex.Pattern[str], text: str, limit: int) -> list[str]:
    """The matches with what stands around them, one more than *limit* if there are more. Raises TimeoutError."""
    found: list[str] = []
    deadline = monotonic() + _SEARCH_SECONDS
    for number, start, line in _lines(text):
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        shown = 0
        for match in pattern.finditer(line, timeout=left, concurrent=True):
            if match.start() < shown:
                continue
            begin = max(0, match.start() - _LINE_CHARS // 2) if len(line) > _LINE_CHARS else 0
            shown = begin + _LINE_CHARS
            found.append(f"line {number}, offset {start + begin}: {line[begin:shown]}")
            if len(found) > limit:
                return found
    return found


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Number, offset and text of each line."""
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        yield number, start, line
        start += len(line) + 1


def _compiled(pattern: str, *, literal: bool) -> regex.Pattern[str]:
    import regex

    if len(pattern) > _PATTERN_CHARS:
        raise ToolInputError(f"pattern has {len(pattern)} characters; give at most {_PATTERN_CHARS}")
    try:
        return regex.compile(regex.escape(pattern) if literal else pattern)
    except (regex.error, RecursionError) as error:
        raise ToolInputError(f"pattern is no regular expression: {error}") from error


def _text(arguments: Mapping[str, object], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise ToolInputError(f"{name} is missing; give a text")
    return value


def _whole(arguments: Mapping[str, object], name: str, default: int, least: int = 0) -> int:
    value = arguments.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ToolInputError(f"{name} is {value!r}; give a whole number of {least} or more")
    return value


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[Cut at {limit} characters.]"
