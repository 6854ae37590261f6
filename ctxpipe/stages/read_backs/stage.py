"""Shorten long tool results that the model has read back from offloaded files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath

from ..._text import short_repr
from ..._threads.threads import in_thread
from ...errors import StorageError, safe_text, storage_errors
from ...messages import ToolResult, rewrite
from ...placeholders.names import session_folder
from ...placeholders.placeholders import DIRECT, Preview, placeholder
from ...providers.agent_tools import READ_BACK_TOOLS
from ...settings import COUNT, check_settings
from ...storage import TextReader, TextWriter
from ..moves import Act, Move, Moving, Place, move_texts, recall_rules, worthwhile_moves
from ..protocol import Change, Skip, Turn
from ..reading.candidates import OffloadCandidate, OffloadRules
from ..reading.results import text_of, with_placeholder
from ..reading.unanswered import index_after_last_reply
from ..reports import Offloaded
from .selection import MOST_COMPARED, ReadBack, contains_excerpt, long_read_backs


@dataclass(frozen=True, slots=True, repr=False)
class TrimReadBacks(Moving):
    """Cut a new tool result that was read back from an offloaded file to its head and tail.

    `DirectOffload`, and `BatchOffload` by default, do not offload such a result again, so a long
    one would stay whole. If it has more than *max_chars* characters, it is replaced by a pointer to
    the file that was read, followed by its head (three quarters of *max_chars*) and its tail. If
    the text itself is in no file yet, such as the output of ``grep`` over one, it is first moved to
    a file of its own. A result for a program on the server stays whole.

    Put it after `DirectOffload`, with the same *storage*. Like that stage it acts before the model
    has seen the result, so nothing that the provider has cached changes.

    Raises SettingsError if a setting is invalid.
    """

    storage: TextWriter
    max_chars: int = 100_000

    __repr__ = short_repr

    def __post_init__(self) -> None:
        self._pointers.check()
        # With a limit of 0 the model would never see anything of what it reads back.
        check_settings(self, max_chars=COUNT)

    @property
    def _preview(self) -> Preview:
        return Preview(head=max(1, self.max_chars * 3 // 4), tail=self.max_chars // 4)

    def _rules(self, session_id: str) -> OffloadRules:
        """Return the rules by which results read back are recognized as too long."""
        return OffloadRules(
            self.max_chars, {}, READ_BACK_TOOLS, self._pointers.own_paths(session_id)
        )

    async def _propose(self, turn: Turn, act: Act) -> Change | Skip:
        """Cut the results that read files back, and move others to files with *act*.

        Returns Skip if none is too long. If nothing can be written but a result was cut, the
        failure is only in the report; otherwise StorageError is raised.
        """
        moves, cuts = await self._decide(turn)
        if not moves and not cuts:
            return Skip(f"nothing of more than {self.max_chars:,} characters was read back")
        change = Change(list(turn.messages))
        if moves:
            try:
                change = await move_texts(turn, moves, act)
            except StorageError as error:
                if not cuts:
                    raise
                change = replace(change, detail=Offloaded(failed=(safe_text(error),)))
        return _apply_cuts(change, cuts)

    async def _decide(self, turn: Turn) -> tuple[list[Move], list[tuple[ToolResult, str]]]:
        """Return the moves into files, and the cut texts for results that are in a file already."""
        start = index_after_last_reply(turn.messages)
        if (await turn.fact_sums()).result_chars(start) <= self.max_chars:
            return [], []
        rules = recall_rules(turn, self.storage, self._rules)
        read_backs = await turn.call_from(
            max(0, start - 1), long_read_backs, turn.messages, start, rules
        )
        moves: list[Move] = []
        cuts: list[tuple[ToolResult, str]] = []
        for read_back in read_backs:
            result = read_back.result
            cut_text = await self._shorten(turn, read_back)
            # Counted now, in a worker thread: later the counter only looks these texts up.
            await turn.counter.texts([text_of(result.content), cut_text or ""])
            if cut_text is not None:
                cuts.append((result, cut_text))
            elif read_back.call.name not in rules.exempt_tools:
                # The pointers were checked without a preview: this one may be longer than allowed
                # in other stages.
                pointers = replace(self._pointers, preview=self._preview)
                candidate = OffloadCandidate(result, read_back.chars)
                moves += await worthwhile_moves(pointers, turn, [candidate], rules)
        return moves, cuts

    async def _shorten(self, turn: Turn, read_back: ReadBack) -> str | None:
        """Return the head and tail of a result, after a pointer to the file that was read.

        Returns None if the file does not contain the text between them.
        """
        text = text_of(read_back.result.content)
        preview = self._preview
        end = len(text) - preview.tail
        limit = MOST_COMPARED
        if not isinstance(self.storage, TextReader) or len(text) > limit:
            return None
        in_session = f"{session_folder(turn.session_id)}/{PurePath(read_back.path).name}"
        for location in (read_back.path, in_session):
            with suppress(StorageError), storage_errors():
                page = await self.storage.read(location, 0, limit + 1)
                if await in_thread(contains_excerpt, page.text, text, preview.head, end):
                    return placeholder(DIRECT, read_back.path, text, preview)
        return None


def _apply_cuts(change: Change, cuts: Sequence[tuple[ToolResult, str]]) -> Change:
    """Return *change* with each result in *cuts* replaced by the text that follows it."""
    contents: dict[Place, object] = {}
    detail = change.detail if isinstance(change.detail, Offloaded) else Offloaded()
    saved = detail.saved_chars
    for result, text in cuts:
        contents[result.place] = with_placeholder(result.content, text)
        saved += len(text_of(result.content)) - len(text)
    messages = rewrite(change.messages, contents)
    return replace(change, messages=messages, detail=replace(detail, saved_chars=saved))
