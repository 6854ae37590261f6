"""How much of the files and the evidence follows a summary: as much as the target allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from .._logs import logger
from .._threads.threads import in_thread
from ..edits.compact import Replacement, evidence_block
from ..edits.offload import newest
from ..errors import StorageError, safe_text, storage_errors
from ..messages import Message, split_system
from ..messages.rules import closes_turn
from ..placeholders.names import session_folder
from ..providers.refusals import FAR_BELOW
from ..settings import instance_of
from ..storage import Archive, TextWriter
from ..tokens import TokenCounter, conservative
from .protocol import Turn
from .restore import RestoredFile, RestoredFiles

PATHS_INDEX = "compact-paths.txt"


@runtime_checkable
class FileFolder(Protocol):
    async def fold(self, files: Sequence[tuple[str, str]], /) -> Sequence[str | None]:
        """What each (path, source text) is reduced to, as a text that follows a summary.

        None where a file cannot be reduced.
        """
        ...


FOLDER = instance_of(FileFolder, "something that can fold, such as a Folder")


async def fold_files(
    folder: FileFolder | None, files: Sequence[tuple[str, str]], counter: TokenCounter
) -> Sequence[str | None]:
    """What *folder* makes of *files*; by default it keeps the names which they define."""
    if folder is None:
        folder = await in_thread(_new_folder, counter)
    return await folder.fold(files)


def _new_folder(counter: TokenCounter) -> FileFolder:
    from ..folding.folder import Folder  # here, and in a thread: it brings the parser, in 200 ms

    return Folder(counter=counter)


async def fold_texts(files: Sequence[RestoredFile], counter: TokenCounter) -> dict[str, str]:
    """What the files that exceed the budget are reduced to, by path."""
    if not files:
        return {}
    texts = await fold_files(None, [(file.path, file.text) for file in files], counter)
    return {file.path: text for file, text in zip(files, texts, strict=True) if text}


@dataclass(frozen=True, slots=True)
class Layout:
    """A context to propose.

    *files* are in it whole, *folded* reduced, and the evidence may take *evidence_tokens*.
    *left_out* are the paths that exceed the budget of the evidence.
    """

    files: Sequence[RestoredFile]
    folded: Mapping[str, str]
    evidence_tokens: int
    messages: list[Message] = field(default_factory=list)
    left_out: Sequence[str] = ()


async def choose_layout(
    turn: Turn, replacements: Sequence[Replacement], restored: RestoredFiles, evidence_tokens: int
) -> tuple[Replacement, Layout]:
    """The first of *replacements*, in its richest layout, that is smaller and meets the target.

    Files and evidence give way before the next one is tried, which cuts the newest message: that is
    not done as long as the leanest layout of the first one fits. When none meets the
    target, it is the leanest layout of the last one.
    """
    before = await turn.raw_tokens() - turn.overhead
    tried: list[Layout] = []
    replacement, layout = replacements[0], Layout((), {}, 0)
    async for plan in _from_rich_to_lean(restored, evidence_tokens, turn.counter):
        tried.append(plan)
        layout = await _lay_out(turn, replacement, plan)
        if await _fits(turn, layout, before):
            return replacement, layout
    if await _fits_whole(turn, layout):
        return replacement, layout
    for replacement in replacements[1:]:
        for plan in tried:
            layout = await _lay_out(turn, replacement, plan)
            if await _fits(turn, layout, before):
                return replacement, layout
    return replacement, layout


async def _fits(turn: Turn, layout: Layout, before: int) -> bool:
    """Whether *layout* is smaller than *before*, in raw tokens, and within the target."""
    raw = await turn.counter.count(layout.messages)
    if raw >= before:
        return False
    return turn.ledger.estimate(raw + turn.overhead) <= turn.budget.target


async def _fits_whole(turn: Turn, layout: Layout) -> bool:
    """Whether *layout*, above the target as it may be, is one that the model will take.

    By force is how a refused context is shortened: that one counts as the window at least,
    whatever its estimate says. One that is far too short to have been refused for its length keeps
    what the user has said last.
    """
    raw = await turn.counter.count(layout.messages) + turn.overhead
    if not turn.force:
        return window_holds(turn, raw)
    raw_before, before = await turn.raw_tokens(), max(1, await turn.tokens())
    is_short = max(before, conservative(raw_before)) < FAR_BELOW * turn.budget.trigger
    if is_short and any(map(closes_turn, turn.messages[newest(turn.messages) :])):
        return True
    likely = turn.ledger.estimate(raw) * max(before, turn.budget.window) // before
    return raw < raw_before and not turn.budget.reached(likely)


def window_holds(turn: Turn, raw: int) -> bool:
    """Whether the window holds *raw* tokens beside a reply, as far as it was measured."""
    reserve = turn.budget.reserve_output or 0
    return turn.ledger.measured_estimate(raw) <= turn.budget.window - reserve


async def can_keep(turn: Turn, messages: Sequence[Message]) -> bool:
    """Whether *messages* may follow a summary as they are, with the target in sight."""
    head, _ = split_system(turn.messages)
    raw = turn.overhead + await turn.counter.count([*head, *messages])
    return not turn.protected and turn.ledger.estimate(raw) <= turn.budget.target


async def _from_rich_to_lean(
    restored: RestoredFiles, evidence_tokens: int, counter: TokenCounter
) -> AsyncIterator[Layout]:
    """Restored files give way first, the one read longest ago first of all, then the evidence."""
    folded = await fold_texts(restored.unfit, counter)
    for number in range(len(restored.files), -1, -1):
        files = restored.files[:number]
        if number == len(restored.files) - 1:
            folded = await fold_texts([*restored.files, *restored.unfit], counter)
        whole = {file.path for file in files}
        others = {path: text for path, text in folded.items() if path not in whole}
        yield Layout(files, others, evidence_tokens)
    for tokens in (evidence_tokens, evidence_tokens // 4, 0):
        yield Layout((), {}, tokens)


async def _lay_out(turn: Turn, replacement: Replacement, layout: Layout) -> Layout:
    """*layout* with its messages."""
    block, left_out = await in_thread(
        evidence_block, replacement.evidence, layout.evidence_tokens, turn.counter.text
    )
    files = [file.message for file in layout.files]
    messages = replacement.messages(block, files, list(layout.folded.values()))
    return replace(layout, messages=messages, left_out=left_out)


async def list_paths(
    turn: Turn,
    replacement: Replacement,
    layout: Layout,
    archive: Archive | None,
    shown: Callable[[str], str],
) -> tuple[Layout, str]:
    """List the paths left out of *layout* in a file, and return a layout that names the file.

    The text beside it is what went wrong, or "". *shown* gives the path as the model sees it.
    """
    number = len(layout.left_out)
    if number == 0 or archive is None:
        return layout, ""
    if not isinstance(archive, TextWriter):
        return layout, f"{number} paths are not listed: the archive stores no texts"
    key = f"{session_folder(turn.session_id)}/{PATHS_INDEX}"
    # One path a line: a name with a line break would add one of its own choosing.
    text = "".join(f"{path}\n" for path in layout.left_out if path.isprintable())
    try:
        with storage_errors():
            [index] = await archive.write([(key, text)])
    except StorageError as error:
        reason = f"{number} paths are not listed: {safe_text(error)}"
        logger.warning("%s", reason)
        return layout, reason
    evidence = replace(replacement.evidence, index=shown(index))
    return await _lay_out(turn, replace(replacement, evidence=evidence), layout), ""


async def token_breakdown(turn: Turn, replacement: Replacement, layout: Layout) -> str:
    """What the context is made of, the largest part first."""
    count = turn.counter.count
    summary = layout.messages[len(replacement.head)]
    parts = {
        "system prompt and tools": turn.overhead,
        "system messages": await count([*replacement.head, *replacement.systems]),
        "summary and evidence": await count([summary]),
        "restored files": await count(file.message for file in layout.files),
        "pinned messages": await count(replacement.kept),
        "the request at the end": await count(replacement.closing),
    }
    largest = Counter(parts).most_common()
    return ", ".join(f"{name} {tokens}" for name, tokens in largest if tokens)
