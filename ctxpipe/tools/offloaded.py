"""Tools for the model: read or search offloaded texts, and request a summary."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from .._text import count_phrase
from .._threads.processes import in_process
from .._threads.threads import in_thread
from ..errors import SettingsError, StorageError
from ..placeholders.locations import is_url, key_of_url, possible_keys
from ..placeholders.names import is_folder_of, session_folder
from ..placeholders.placeholders import MAX_PATH
from ..session.session import Session, conversation_of
from ..settings import COUNT, SESSION_ID, instance_of
from ..stages.media.selection import is_media_file, media_block_of
from ..stages.reading.search import literal_matches, regex_matches
from ..storage import TextReader
from .history import NO_HITS, History
from .index import IS_SUPPORTED
from .tool import Tool, ToolAnswer, ToolInputError

if TYPE_CHECKING:
    from anthropic.types import ToolParam

    from ..session.conversation import Conversation

_MAX_PATTERN_CHARS = 1000
_MAX_SEARCH_CHARS = 100_000_000
_SEARCH_SECONDS = 2.0
_SEARCH_MEMORY_BYTES = 384 * 2**20
_SEARCH_MEMORY_BYTES_PER_CHAR = 16
_MAX_MATCHES = 1000
_MAX_CONTEXT_LINES = 100
_READER = instance_of(TextReader, "a TextReader such as LocalStorage('.ctxpipe')")
# The file name of a text. It excludes hidden files and "..".
_NAME = re.compile(r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?")


def offload_tools(
    storage: TextReader | Session, *, session_id: str | None = None, max_chars: int = 20_000
) -> list[Tool]:
    """Return tools with which the model reads offloaded texts.

    *storage* is any `TextReader`, or a session. The tools:

    - ``read_offloaded`` returns one page of a text, and ``search_offloaded`` the lines that match a
      pattern. Both take the path of an offloaded text as the placeholder in the context shows it. A
      regular expression runs in a separate process for at most two seconds. An image or document is
      returned as its original block.
    - ``search_history`` searches by words in everything that has left the context of one
      conversation: that of *session_id*. Without a *session_id* the model passes the path in any
      placeholder of its context, and the conversation with that text is searched. The tool exists
      if the storage has a method ``contents``, as ctxpipe's own storages have.
    - `compact_context`, with which the model requests a summary before the next turn, exists only
      for a session whose pipeline has a `Compact` stage. It refuses, with the reason, while the
      context is small or if the last summary is only a few turns old.

    The tools read nothing outside of *storage*. With *session_id* they read only that session and
    conversations that an adapter found under the same name, such as sub-agents. Without a
    *session_id* they read any text of the storage. With one, the path that the model passes is read
    in the first of these ways that applies:

    - if the storage has a method ``key(path)``, like LocalStorage, the key that it returns must be
      in the session's folder
    - a URL such as ``ctxpipe://session/name.md`` must name the session
    - a path of a folder and a file must name the session's folder
    - of any other path only the last part is used: the name of a file in the session's folder

    If *storage* is a session, the tools read from the storage of its stages, or else of its
    journal, only the texts of that session, and ``search_history`` omits what the context still
    contains. *session_id* must then be None.

    An answer has at most *max_chars* characters of text. Stages recognize an answer as read back
    from a file, and by default do not offload it again; images and documents may leave again.

    Raises SettingsError if *storage* cannot be read from, if *session_id* is no text, or if
    *max_chars* is not a whole number above 0.
    """
    source: object = storage
    conversation = None
    if isinstance(storage, Session):
        if session_id is not None:
            raise SettingsError(
                "session_id cannot be combined with a session, which has its own id"
            )
        session_id = storage.session_id
        conversation = conversation_of(storage)
        source = conversation.memory.text_reader
        if source is None:
            raise SettingsError(
                "the session has no storage to read from; give a TextReader and session_id= instead"
            )
    _READER.check("storage", source)
    SESSION_ID.optional.check("session_id", session_id)
    COUNT.check("max_chars", max_chars)
    texts = _OffloadedTexts(cast("TextReader", source), session_id, max_chars, conversation)
    tools = [
        Tool(_read_tool(max_chars), texts.read),
        Tool(_DEFINITIONS["search_offloaded"], texts.search),
    ]
    if IS_SUPPORTED and callable(getattr(source, "contents", None)):
        search = partial(texts.search_history, History(source, conversation))
        tools.append(Tool(_history_tool(session_id), search))
    if conversation is not None and conversation.turns.can_compact:
        tools.append(Tool(_DEFINITIONS["compact_context"], _Compaction(conversation).ask))
    return tools


_DEFINITIONS: Mapping[str, ToolParam] = json.loads(
    (files(__package__) / "definitions.json").read_text("utf-8")
)


def _history_tool(session_id: str | None) -> ToolParam:
    """Return the definition of `search_history`, with a path argument if *session_id* is None."""
    definition: Any = deepcopy(_DEFINITIONS["search_history"])
    if session_id is not None:
        schema = definition["input_schema"]
        del schema["properties"]["path"]
        schema["required"] = ["query"]
    tool: ToolParam = definition
    return tool


def _read_tool(max_chars: int) -> ToolParam:
    """Return the definition of `read_offloaded`, with *max_chars* as its limit."""
    definition: Any = deepcopy(_DEFINITIONS["read_offloaded"])
    limit = definition["input_schema"]["properties"]["limit"]
    limit["description"] = limit["description"].format(max_chars=max_chars)
    limit["default"] = max_chars
    tool: ToolParam = definition
    return tool


@dataclass(frozen=True, slots=True)
class _OffloadedTexts:
    """The handlers of the tools that read the texts in *storage*."""

    storage: TextReader
    session_id: str | None
    max_chars: int
    conversation: Conversation | None = None

    async def read(self, arguments: Mapping[str, object]) -> ToolAnswer:
        """Return a page of the text at the argument "path", or its image or document.

        Raises ToolInputError if an argument is invalid or there is no such text.
        """
        offset = _whole_number(arguments, "offset", default=0)
        limit = min(
            _whole_number(arguments, "limit", default=self.max_chars, minimum=1), self.max_chars
        )
        location = await self._location(arguments)
        name = location.rsplit("/", 1)[-1]
        if is_media_file(name):
            media = await self.storage.read(location)
            block = await in_thread(media_block_of, name, media.text)
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
        """Return the lines that match the argument "pattern", with their numbers.

        Raises ToolInputError if an argument is invalid, or the search takes too long.
        """
        pattern = _text(arguments, "pattern")
        if len(pattern) > _MAX_PATTERN_CHARS:
            raise ToolInputError(
                f"pattern has {len(pattern)} characters; give at most {_MAX_PATTERN_CHARS}"
            )
        limit = min(_whole_number(arguments, "limit", default=20, minimum=1), _MAX_MATCHES)
        context = min(_whole_number(arguments, "context", default=0), _MAX_CONTEXT_LINES)
        page = await self.storage.read(await self._location(arguments), 0, _MAX_SEARCH_CHARS)
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
        """Return passages of all texts of the session that match the argument "query"."""
        query = _text(arguments, "query")
        session_id = self.session_id or await self._session_of(await self._location(arguments))
        answers: list[str] = []
        for searched_id in (session_id, *self._ancestors):
            answer = await history.search(searched_id, query[:_MAX_PATTERN_CHARS])
            if not answers or answer != NO_HITS:
                answers.append(answer)
        if len(answers) > 1 and answers[0] == NO_HITS:
            del answers[0]
        return self._cut("\n\n".join(answers))

    @property
    def _ancestors(self) -> Sequence[str]:
        """Ids of the sessions from which the session was forked: the model may read them too."""
        return () if self.conversation is None else self.conversation.memory.timeline.ancestors

    async def _session_of(self, location: str) -> str:
        """Return the id of the session with the text at *location*, or raise ToolInputError."""
        folder = next(possible_keys(location), "").split("/")[0]
        storage: Any = self.storage
        for session_id in await storage.sessions():
            if session_folder(session_id) == folder:
                matching_id: str = session_id
                return matching_id
        raise _no_text(location)

    def _cut(self, text: str) -> str:
        """Return *text*, cut after ``max_chars`` characters with a note about that."""
        if len(text) <= self.max_chars:
            return text
        return f"{text[: self.max_chars]}\n[Cut at {self.max_chars} characters.]"

    async def _location(self, arguments: Mapping[str, object]) -> str:
        """Return the storage location of the argument "path".

        Raises ToolInputError if the model may not read it.
        """
        path = _text(arguments, "path")
        location = None
        if len(path) <= MAX_PATH:
            with suppress(StorageError, ValueError):
                location = await in_thread(self._resolve, path)
        if location is None:
            raise _no_text(path)
        return location

    def _resolve(self, path: str) -> str | None:
        """Return the storage location for *path*, None if the model may not read it."""
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
        if parents and self._is_ancestors(parents[-1]):
            folder = parents[-1]
        key = f"{folder}/{name}"
        if not self._may_read(key) or ".." in parents or not _NAME.fullmatch(name):
            return None
        return key

    def _may_read(self, key: str) -> bool:
        """Return True if *key* belongs to the session, or to a conversation of the same name."""
        folder, separator, _ = key.partition("/")
        if self.session_id is None:
            return True
        is_readable = is_folder_of(self.session_id, folder) or self._is_ancestors(folder)
        return separator != "" and is_readable

    def _is_ancestors(self, folder: str) -> bool:
        """Return True if *folder* is that of a session from which this one was forked."""
        return any(session_folder(ancestor) == folder for ancestor in self._ancestors)


def _no_text(path: str) -> ToolInputError:
    """Return the error for a *path* that is no offloaded text."""
    # One text for every cause, so that it reveals no other session and no folder of this machine.
    return ToolInputError(
        f"there is no offloaded text {_quote(path)}; give the path as the placeholder has it"
    )


async def _find_literal(pattern: str, text: str, limit: int, context: int) -> list[str]:
    return await in_thread(literal_matches, pattern, text, limit, context, abandon_on_cancel=True)


async def _find_regex(pattern: str, text: str, limit: int, context: int) -> list[str]:
    """Return the lines of *text* that match the regular expression *pattern*, up to *limit*.

    Raises ToolInputError, with a text for the model, if the search fails or takes too long.
    """
    # In a separate process: compiling and matching can take unlimited time and memory, and nothing
    # in this process can stop them.
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
    """Return the argument *name*. Raises ToolInputError if it is missing, empty or no text."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise ToolInputError(f"{name} is missing; give a text")
    return value


def _whole_number(
    arguments: Mapping[str, object], name: str, default: int, minimum: int = 0
) -> int:
    """Return the argument *name*, or *default* if it is missing.

    Raises ToolInputError if it is not a whole number of *minimum* or more.
    """
    value = arguments.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value < 2**63:
        raise ToolInputError(f"{name} is {_quote(value)}; give a whole number of {minimum} or more")
    return value


def _quote(value: object) -> str:
    """Return *value* for an error text, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return "too large a number"
    if not isinstance(value, str):
        return reprlib.repr(value)
    if len(value) > 200:
        return f"{value[:200]!r}…"
    return repr(value)


MIN_TURNS_BETWEEN = 10
"""Minimum turns between two summaries that the model requests: each loses detail and has a cost."""
MIN_FILL = 0.2
"""Minimum share of the budget's trigger that the context fills: below it a summary saves little."""
MAX_FOCUS_CHARS = 2_000


@dataclass(slots=True)
class _Compaction:
    """The handler of `compact_context`."""

    conversation: Conversation
    last_request_turn: int | None = None

    async def ask(self, arguments: Mapping[str, object]) -> str:
        """Request a compaction before the next turn; return the answer for the model.

        Raises ToolInputError if the argument "focus" is invalid, or a summary is not useful now.
        """
        focus = arguments.get("focus")
        if not isinstance(focus, str):
            raise ToolInputError("focus is missing; give a text")
        if len(focus) > MAX_FOCUS_CHARS:
            raise ToolInputError(
                f"focus has {len(focus)} characters; give at most {MAX_FOCUS_CHARS}"
            )
        refusal = self._refusal()
        if refusal:
            raise ToolInputError(f"the context is not compacted: {refusal}")
        self.conversation.turns.compact_next(focus.strip())
        self.last_request_turn = self.conversation.turns.count
        return "The conversation so far will be replaced by a summary before your next turn."

    def _refusal(self) -> str:
        """Return the reason why the context cannot be compacted now, "" if it can."""
        conversation = self.conversation
        if conversation.turns.is_compaction_due:
            return "a summary is due before the next turn already"
        if self.last_request_turn is not None:
            wait = self.last_request_turn + MIN_TURNS_BETWEEN - conversation.turns.count
            if wait > 0:
                turns = count_phrase(wait, "turn")
                return f"the last summary is not long ago; ask again in {turns}"
        if conversation.usage.fill < MIN_FILL:
            return (
                f"it fills {conversation.usage.fill:.0%} of its budget, and below {MIN_FILL:.0%} a"
                " summary would save little"
            )
        return ""
