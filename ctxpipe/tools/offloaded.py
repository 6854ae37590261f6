"""Tools for the model: they read what was offloaded, by page or by search, or ask for a summary."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from .._text import count_phrase
from .._threads.processes import in_process
from .._threads.threads import in_thread
from ..edits.media import block_of, is_media_file
from ..edits.search import literal_matches, regex_matches
from ..errors import SettingsError, StorageError
from ..placeholders.locations import is_url, key_of_url, possible_keys
from ..placeholders.names import is_folder_of, session_folder
from ..placeholders.placeholders import MAX_PATH
from ..session.session import Session, conversation_of
from ..settings import COUNT, SESSION_ID, instance_of
from ..storage import TextReader
from .history import History
from .index import IS_SUPPORTED
from .tool import Tool, ToolAnswer, ToolInputError

if TYPE_CHECKING:
    from anthropic.types import ToolParam

    from ..conversation.conversation import Conversation

_PATTERN_CHARS = 1000
_SEARCH_CHARS = 100_000_000
_SEARCH_SECONDS = 2.0
_SEARCH_MEMORY_BYTES = 384 * 2**20
_SEARCH_MEMORY_BYTES_PER_CHAR = 16
_MOST_MATCHES = 1000
_MOST_CONTEXT = 100  # lines
_READER = instance_of(TextReader, "a TextReader such as LocalStorage('.ctxpipe')")
# The name of a text: never hidden, never "..".
_NAME = re.compile(r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?")


def offload_tools(
    storage: TextReader | Session, *, session_id: str | None = None, max_chars: int = 20_000
) -> list[Tool]:
    """Tools that read what *storage*, any `TextReader`, or a session has of offloaded texts.

    `read_offloaded` and `search_offloaded` accept every form of path that a placeholder prints, and
    read nothing outside the storage. With *session_id* they read nothing of another session, but of
    conversations that an adapter has found under the same name, such as sub-agents: where the
    storage has a method ``key(path)``, as LocalStorage has, the key that it gives must be in the
    session's folder; a URL such as ``ctxpipe://session/name.md`` must name the session; of any
    other path only the last name counts, and is looked up in that folder. A regular expression may
    take two seconds, in a process of its own. An image or document is answered as the block that it
    was.

    `search_history` finds by words what has left the context of one conversation: that of
    *session_id*, else the one that a path of its placeholders leads to. It is there where the
    storage has a method ``contents``, as ctxpipe's own have.

    One answer has at most *max_chars* characters of text. None is ever offloaded again, but for
    images and documents.

    Given a session instead, they read the texts of that session alone, from the storage of its
    stages or of its journal, and what is in sight is not found. Where its pipeline has a `Compact`
    stage there is one more, `compact_context`: the model asks for a summary before the next turn.
    It is told why not where the context is small yet, or a summary was made a few turns ago.

    Raises SettingsError when *storage* cannot be read from, *session_id* is no text or *max_chars*
    no number above 0.
    """
    source: object = storage
    conversation = None
    if isinstance(storage, Session):
        if session_id is not None:
            raise SettingsError("session_id is given beside a session, which has its own")
        session_id = storage.session_id
        conversation = conversation_of(storage)
        source = conversation.text_reader
        if source is None:
            raise SettingsError(
                "the session has no storage to read from; give a TextReader and session_id= instead"
            )
    _READER.check("storage", source)
    SESSION_ID.optional.check("session_id", session_id)
    COUNT.check("max_chars", max_chars)
    texts = _Reader(cast("TextReader", source), session_id, max_chars)
    tools = [
        Tool(_read_tool(max_chars), texts.read),
        Tool(_DEFINITIONS["search_offloaded"], texts.search),
    ]
    if IS_SUPPORTED and callable(getattr(source, "contents", None)):
        search = partial(texts.search_history, History(source, conversation))
        tools.append(Tool(_history_tool(session_id), search))
    if conversation is not None and conversation.can_compact:
        tools.append(Tool(_DEFINITIONS["compact_context"], _Compaction(conversation).ask))
    return tools


_DEFINITIONS: Mapping[str, ToolParam] = json.loads(
    (files(__package__) / "definitions.json").read_text("utf-8")
)


def _history_tool(session_id: str | None) -> ToolParam:
    """The definition of the searching tool, with a path where it has to find the session."""
    definition: Any = deepcopy(_DEFINITIONS["search_history"])
    if session_id is not None:
        schema = definition["input_schema"]
        del schema["properties"]["path"]
        schema["required"] = ["query"]
    tool: ToolParam = definition
    return tool


def _read_tool(max_chars: int) -> ToolParam:
    """The definition of the reading tool, with its own limit."""
    definition: Any = deepcopy(_DEFINITIONS["read_offloaded"])
    limit = definition["input_schema"]["properties"]["limit"]
    limit["description"] = limit["description"].format(max_chars=max_chars)
    limit["default"] = max_chars
    tool: ToolParam = definition
    return tool


@dataclass(frozen=True, slots=True)
class _Reader:
    storage: TextReader
    session_id: str | None
    max_chars: int

    async def read(self, arguments: Mapping[str, object]) -> ToolAnswer:
        offset = _whole(arguments, "offset", 0)
        limit = min(_whole(arguments, "limit", self.max_chars, least=1), self.max_chars)
        location = await self._location(arguments)
        name = location.rsplit("/", 1)[-1]
        if is_media_file(name):
            whole = await self.storage.read(location)
            block = await in_thread(block_of, name, whole.text)
            if block is not None:
                return [block]
        page = await self.storage.read(location, offset, limit)
        if offset and offset >= page.total:
            raise ToolInputError(
                f"offset is {offset}, but the file has only {page.total} characters"
            )
        text = page.text[:limit]
        end = offset + len(text)
        if end >= page.total:
            return text or "[The file is empty.]"
        return f"{text}\n[Characters {offset} to {end} of {page.total}. Read on with offset={end}.]"

    async def search(self, arguments: Mapping[str, object]) -> str:
        pattern = _text(arguments, "pattern")
        if len(pattern) > _PATTERN_CHARS:
            raise ToolInputError(
                f"pattern has {len(pattern)} characters; give at most {_PATTERN_CHARS}"
            )
        limit = min(_whole(arguments, "limit", 20, least=1), _MOST_MATCHES)
        context = min(_whole(arguments, "context", 0), _MOST_CONTEXT)
        page = await self.storage.read(await self._location(arguments), 0, _SEARCH_CHARS)
        find = _find_regex if arguments.get("regex") is True else _find_literal
        lines = await find(pattern, page.text, limit + 1, context)
        remarks = ""
        if len(lines) > limit:
            remarks = f"\n[Only the first {limit} matches are shown.]"
        if page.next_offset is not None:
            remarks += (
                f"\n[Only the first {page.next_offset} of {page.total} characters were searched.]"
            )
        if not lines:
            return f"[No line matches {pattern!r}.]{remarks}"
        return self._cut("\n".join(lines[:limit])) + remarks

    async def search_history(self, history: History, arguments: Mapping[str, object]) -> str:
        query = _text(arguments, "query")
        session_id = self.session_id or await self._session_of(await self._location(arguments))
        return self._cut(await history.search(session_id, query[:_PATTERN_CHARS]))

    async def _session_of(self, location: str) -> str:
        """The session with the text at *location*. Raises ToolInputError where there is none."""
        folder = next(possible_keys(location), "").split("/")[0]
        storage: Any = self.storage
        for session_id in await storage.sessions():
            if session_folder(session_id) == folder:
                found: str = session_id
                return found
        raise _no_text(location)

    def _cut(self, text: str) -> str:
        if len(text) <= self.max_chars:
            return text
        return f"{text[: self.max_chars]}\n[Cut at {self.max_chars} characters.]"

    async def _location(self, arguments: Mapping[str, object]) -> str:
        path = _text(arguments, "path")
        location = None
        if len(path) <= MAX_PATH:
            with suppress(StorageError, ValueError):
                location = await in_thread(self._resolve, path)
        if location is None:
            raise _no_text(path)
        return location

    def _resolve(self, path: str) -> str | None:
        """What to read for *path*; None where the model may not read it."""
        find_key = getattr(self.storage, "key", None)
        if callable(find_key):
            key: str = find_key(path)
            return key if self._may_read(key) and ".." not in key.split("/") else None
        path = path.removeprefix("./")
        if self.session_id is None:
            return path
        if is_url(path):
            path = key_of_url(path) or ""
            if not self._may_read(path):
                return None
        *parents, name = path.split("/")
        folder = parents[0] if len(parents) == 1 else session_folder(self.session_id)
        key = f"{folder}/{name}"
        if not self._may_read(key) or ".." in parents or not _NAME.fullmatch(name):
            return None
        return key

    def _may_read(self, key: str) -> bool:
        """Whether *key* is a text of the session, or of another conversation of its name."""
        folder, separator, _ = key.partition("/")
        if self.session_id is None:
            return True
        return separator != "" and is_folder_of(self.session_id, folder)


def _no_text(path: str) -> ToolInputError:
    # The same words for every fault: other sessions and the folders of this machine stay hidden.
    return ToolInputError(
        f"there is no offloaded text {_quote(path)}; give the path as the placeholder has it"
    )


async def _find_literal(pattern: str, text: str, limit: int, context: int) -> list[str]:
    return await in_thread(literal_matches, pattern, text, limit, context, abandon_on_cancel=True)


async def _find_regex(pattern: str, text: str, limit: int, context: int) -> list[str]:
    # In a process of its own: compiling and matching may take for ever and all memory, and nothing
    # in this process could stop them.
    memory = _SEARCH_MEMORY_BYTES + _SEARCH_MEMORY_BYTES_PER_CHAR * len(text)
    texts = [pattern, str(limit), str(context), text]
    answers = await in_process(regex_matches, texts, seconds=_SEARCH_SECONDS, memory_bytes=memory)
    match answers.end:
        case "done":
            lines = answers.items
            if lines and isinstance(lines[0], dict):
                raise ToolInputError(f"pattern is no regular expression: {lines[0]['error']}")
            return lines
        case "late":
            raise ToolInputError(
                f"the search took longer than {_SEARCH_SECONDS:g} s; use a simpler pattern"
            )
        case "failed":
            raise ToolInputError("the search failed or took too much memory; use a simpler pattern")
        case "unavailable":
            raise ToolInputError(
                "regular expressions do not work here; search for a literal text, without regex"
            )


def _text(arguments: Mapping[str, object], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise ToolInputError(f"{name} is missing; give a text")
    return value


def _whole(arguments: Mapping[str, object], name: str, default: int, least: int = 0) -> int:
    value = arguments.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise ToolInputError(f"{name} is {_quote(value)}; give a whole number of {least} or more")
    return value


def _quote(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 2**63:
        return "too large a number"
    if not isinstance(value, str):
        return reprlib.repr(value)
    if len(value) > 200:
        return f"{value[:200]!r}…"
    return repr(value)


LEAST_TURNS = 10
"""Between two summaries that the model asks for: each loses detail, and is paid for."""
LEAST_FILL = 0.2
"""Of the budget's trigger: a summary of less saves little."""
FOCUS_CHARS = 2_000


@dataclass(slots=True)
class _Compaction:
    conversation: Conversation
    asked_at: int | None = None  # the turn before the last summary that was asked for

    async def ask(self, arguments: Mapping[str, object]) -> str:
        focus = arguments.get("focus")
        if not isinstance(focus, str):
            raise ToolInputError("focus is missing; give a text")
        if len(focus) > FOCUS_CHARS:
            raise ToolInputError(f"focus has {len(focus)} characters; give at most {FOCUS_CHARS}")
        refusal = self._refusal()
        if refusal:
            raise ToolInputError(f"the context is not compacted: {refusal}")
        self.conversation.compact_next(focus.strip())
        self.asked_at = self.conversation.turns
        return "The conversation so far will be replaced by a summary before your next turn."

    def _refusal(self) -> str:
        """Why not now; "" where nothing is against it."""
        conversation = self.conversation
        if conversation.is_compaction_due:
            return "a summary is due before the next turn already"
        if self.asked_at is not None:
            wait = self.asked_at + LEAST_TURNS - conversation.turns
            if wait > 0:
                turns = count_phrase(wait, "turn")
                return f"the last summary is not long ago; ask again in {turns}"
        if conversation.fill < LEAST_FILL:
            return (
                f"it fills {conversation.fill:.0%} of its budget, and below {LEAST_FILL:.0%} a"
                " summary would save little"
            )
        return ""
