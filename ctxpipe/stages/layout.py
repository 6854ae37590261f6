"""How much of the files and of the evidence stands behind a summary: as much as the target allows."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..edits.compact import Draft, Room, evidence_block
from ..errors import SettingsError, StorageError, safe_text
from ..names import session_folder
from ..settings import excerpt
from ..storage import TextWriter
from ..threads import in_thread

if TYPE_CHECKING:
    from ..messages import Message
    from ..stage import Turn
    from ..storage import Archive
    from ..tokens import TokenCounter
    from .restore import RestoredFile, RestoredFiles

__all__ = [
    "FileFolder",
    "Layout",
    "check_folder",
    "fitted",
    "folded_texts",
    "folder_or_default",
    "indexed",
    "what_holds",
]

logger = logging.getLogger("ctxpipe")

PATHS_INDEX = "compact-paths.txt"

Fold: TypeAlias = "Callable[[Sequence[RestoredFile]], Awaitable[Mapping[str, str]]]"
"""From files to what they come down to, by path."""


class FileFolder(Protocol):
    async def fold(self, files: Sequence[tuple[str, str]], /) -> Sequence[str | None]:
        """What each (path, source text) comes down to, as a text to stand behind a summary.

        None where nothing can.
        """
        ...


def check_folder(folder: object) -> None:
    """Raise SettingsError unless *folder* is a `FileFolder`, or None."""
    if folder is not None and (
        isinstance(folder, type) or not callable(getattr(folder, "fold", None))
    ):
        raise SettingsError(
            f"folder is {excerpt(folder)}; give something that can fold, such as a Folder, or None"
        )


def folder_or_default(folder: FileFolder | None, counter: TokenCounter) -> FileFolder:
    """*folder*, by default one that keeps the names which the files define (A-48)."""
    if folder is not None:
        return folder
    from .fold import Folder  # here: it brings the parser

    return Folder(counter=counter)


async def folded_texts(
    files: Sequence[RestoredFile], counter: TokenCounter, folder: FileFolder | None = None
) -> dict[str, str]:
    """What the files that found no room come down to, by path."""
    if not files:
        return {}
    texts = await folder_or_default(folder, counter).fold(
        [(file.path, file.text) for file in files]
    )
    return {file.path: text for file, text in zip(files, texts, strict=True) if text}


@dataclass(frozen=True, slots=True)
class Layout:
    """A context to propose: which *files* stand in it whole, which *folded*, how many tokens the
    evidence may take.

    *left_out* are the paths for which the evidence has no room.
    """

    files: Sequence[RestoredFile]
    folded: Mapping[str, str]
    evidence_tokens: int
    messages: list[Message] = field(default_factory=list)
    left_out: Sequence[str] = ()


async def fitted(
    turn: Turn,
    drafts: Sequence[Draft],
    restored: RestoredFiles,
    evidence_tokens: int,
    fold: Fold | None,
) -> tuple[Draft, Layout]:
    """The first of *drafts*, in its richest layout, that is smaller and meets the target; else the
    leanest of the last.

    Files and evidence give way before the next draft is tried.
    """
    before = await turn.raw_tokens() - turn.overhead
    plans = _from_rich_to_lean(restored, evidence_tokens, fold)
    tried: list[Layout] = []
    draft, layout = drafts[0], Layout((), {}, 0)
    async for plan in plans:
        tried.append(plan)
        layout = await laid_out(turn, draft, plan)
        if await _fits(turn, layout, before):
            return draft, layout
    for draft in drafts[1:]:
        for plan in tried:
            layout = await laid_out(turn, draft, plan)
            if await _fits(turn, layout, before):
                return draft, layout
    return draft, layout


async def _fits(turn: Turn, layout: Layout, before: int) -> bool:
    """Whether *layout* is smaller than *before*, in raw tokens, and within the target."""
    raw = await turn.counter.count(layout.messages)
    return (
        raw < before
        and turn.ledger.estimate(raw + turn.overhead, layout.messages) <= turn.budget.target
    )


async def _from_rich_to_lean(
    restored: RestoredFiles, evidence_tokens: int, fold: Fold | None
) -> AsyncIterator[Layout]:
    """Restored files give way first, the one read longest ago before the others, then the evidence."""
    folded = await fold(restored.unfit) if fold else {}
    for number in range(len(restored.files), -1, -1):
        files = restored.files[:number]
        if fold and number == len(restored.files) - 1:
            folded = await fold([*restored.files, *restored.unfit])
        whole = {file.path for file in files}
        yield Layout(
            files,
            {path: text for path, text in folded.items() if path not in whole},
            evidence_tokens,
        )
    for tokens in (evidence_tokens, evidence_tokens // 4, 0):
        yield Layout((), {}, tokens)


async def laid_out(turn: Turn, draft: Draft, layout: Layout) -> Layout:
    """*layout* with its messages."""
    room = Room.of(layout.evidence_tokens)
    block, left_out = await in_thread(evidence_block, draft.evidence, room, turn.counter.text)
    files = [file.message for file in layout.files]
    return replace(
        layout,
        messages=draft.messages(block, files, list(layout.folded.values())),
        left_out=left_out,
    )


async def indexed(
    turn: Turn,
    draft: Draft,
    layout: Layout,
    archive: Archive | None,
    shown: Callable[[str], str] = str,
) -> tuple[Layout, str]:
    """*layout* with the place named where the paths are listed that found no room in it; and what
    went wrong.

    *shown* gives the path as the model sees it.
    """
    if not layout.left_out or archive is None:
        return layout, ""
    if not isinstance(archive, TextWriter):
        return layout, f"{len(layout.left_out)} paths are not listed: the archive stores no texts"
    # One path a line: a name with a line break would add one of its own choosing.
    text = "".join(f"{path}\n" for path in layout.left_out if path.isprintable())
    try:
        [index] = await archive.write([(f"{session_folder(turn.session_id)}/{PATHS_INDEX}", text)])
    except StorageError as error:
        reason = f"{len(layout.left_out)} paths are not listed: {safe_text(error)}"
        logger.warning("%s", reason)
        return layout, reason
    return await laid_out(
        turn, replace(draft, evidence=replace(draft.evidence, index=shown(index))), layout
    ), ""


async def what_holds(turn: Turn, draft: Draft, layout: Layout) -> str:
    """What the context is made of, the largest part first."""
    summary = layout.messages[len(draft.head)]
    parts = {
        "system prompt and tools": turn.overhead,
        "system messages": await turn.counter.count([*draft.head, *draft.systems]),
        "summary and evidence": await turn.counter.count([summary]),
        "restored files": await turn.counter.count(file.message for file in layout.files),
        "pinned messages": await turn.counter.count(draft.kept),
        "the request at the end": await turn.counter.count(draft.closing),
    }
    largest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {tokens}" for name, tokens in largest if tokens)
