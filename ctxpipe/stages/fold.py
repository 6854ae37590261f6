"""Fold files without holding up the event loop: small ones at once, the rest in a process of their own."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import anyio
from anyio import to_process
from anyio.lowlevel import checkpoint

from ..edits import fold
from ..edits.definitions import Definition, attempts
from ..edits.fold import MAX_LINE_SPAN, MAX_TOKENS, Folded, Outline
from ..edits.languages import language_of
from ..tokens import Counting, as_counter
from ..tokens.memo import Memo
from .fold_worker import READY

__all__ = ["Folded", "Folder", "fold_files"]

logger = logging.getLogger("ctxpipe")

Files: TypeAlias = Sequence[tuple[str, str]]
Definitions: TypeAlias = tuple[Definition, ...]
Key: TypeAlias = tuple[str, bytes]

INLINE_CHARS = 30_000  # broken C++, the slowest of all, takes 20 ms for as much
PATIENCE_SECONDS = 30  # source is read at megabytes per second; what takes longer is no source
MEMO_BYTES = 16 * 2**20
_DEFINITION_BYTES = 250


def fold_files(
    files: Iterable[tuple[str, str]],
    *,
    max_tokens: int | None = MAX_TOKENS,
    merge_functions: bool = True,
    max_line_span: int = MAX_LINE_SPAN,
    count: Callable[[str], int] | None = None,
    rng: random.Random | None = None,
) -> Folded:
    """Fold *files*, pairs of path and text, to the names they define, each in a ``<system-reminder>`` block of its own.

    A file in an unknown language, and one that defines nothing, is skipped. The blocks together may have *max_tokens*
    tokens by *count*, by default tiktoken's (None: no limit). Above that, one pass drops as many sections as the
    excess is worth, chosen by *rng*, by default one seeded with the content: the same files fold to the same text.
    What is left is not counted again. It parses where it is called; on an event loop use `Folder`.
    """
    return fold.fold_files(
        files,
        max_tokens=max_tokens,
        merge_functions=merge_functions,
        max_line_span=max_line_span,
        count=count or as_counter(None).text,
        rng=rng,
    )


@dataclass(frozen=True, slots=True)
class Folder:
    """Folds files for the stages. Each distinct text is parsed once per process, whatever the settings (FF-1 to FF-18).

    The parser holds the interpreter: up to *inline_chars* of new text are read on the event loop, which waits for one
    parse at a time; more goes to a worker process in one batch. Where none can be started, all is read on the loop.
    """

    max_tokens: int | None = MAX_TOKENS
    merge_functions: bool = True
    max_line_span: int = MAX_LINE_SPAN
    counter: Counting | None = None
    inline_chars: int = INLINE_CHARS

    async def fold(self, files: Files, /, count: Counting | None = None) -> list[str | None]:
        """The folded text of each file, a pair of path and text; None where that would be no shorter, or cannot be.

        The budget of tokens is for all of them together, by *count*, else the counter of this folder.
        """
        found = await self._definitions(files)
        outlines = [
            (path, await self._outline(path, text, each)) for (path, text), each in zip(files, found, strict=True)
        ]
        whole = fold.fold_outlines(outlines, max_tokens=None, count=len)
        if self.max_tokens is None or not whole.content:
            return list(whole.folded)
        (tokens,) = await as_counter(count or self.counter).texts([whole.content])
        return list(fold.fold_outlines(outlines, max_tokens=self.max_tokens, count=lambda _: tokens).folded)

    async def _outline(self, path: str, text: str, found: Definitions) -> Outline:
        await checkpoint()  # a thousand files are no reason to stall either
        outline = fold.merge_functions(found, self.max_line_span, merge=self.merge_functions)
        return outline if len(fold.format_file(path, outline)) < len(text) else ()

    async def _definitions(self, files: Files) -> list[Definitions]:
        keys = [await _key(path, text) for path, text in files]
        known = {key: _memo().get(key) for key in keys if key is not None}
        new = {key: file for key, file in zip(keys, files, strict=True) if key is not None and known[key] is None}
        few = sum(len(text) for _, text in new.values()) <= self.inline_chars
        found = await (_read_here if few else _read_apart)(list(new.values()))
        for key, each in zip(new, found, strict=False):  # a worker that fails leaves the last ones for another time
            known[key] = each
            _memo().put(key, each, _DEFINITION_BYTES * (1 + len(each)))
        return [(known[key] or ()) if key is not None else () for key in keys]


@cache
def _memo() -> Memo[Key, Definitions]:
    """What each text defines. One for the process: it is the same for everyone, and the stages make folders freely."""
    return Memo(MEMO_BYTES)


async def _key(path: str, text: str) -> Key | None:
    language = language_of(path)
    if language is None:
        return None
    await checkpoint()
    return language.name, hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


async def _read_here(files: Files) -> list[Definitions]:
    found: list[Definitions] = []
    for path, text in files:
        best: Definitions = ()
        for best in attempts(path, text):  # noqa: B007 - the last one is the answer
            await checkpoint()
        found.append(best)
    return found


# The worker process -----------------------------------------------------------------------------------------------

_WORKER = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer);"
    "from ctxpipe.stages.fold_worker import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
)


async def _read_apart(files: Files) -> list[Definitions]:
    """What *files* define, read in a process of its own; nothing, for one on which the parser fails or hangs.

    Not by `anyio.to_process`: its workers import the caller's main module, so that a script without a guard runs a
    second time, model calls and all, and they look for modules in the current folder, which may be any repository.
    """
    try:
        async with to_process.current_default_process_limiter():
            answer = await _asked(files)
    except (OSError, anyio.BrokenResourceError, NotImplementedError) as error:  # the last from a loop on Windows
        return await _read_without_worker(files, error)
    ready, *lines = answer.splitlines(keepends=True) or [b""]
    if ready != READY:
        return await _read_without_worker(files, "it gave no answer")
    found = [await _decoded(line) for line in lines if line.endswith(b"\n")]
    if len(found) < len(files):
        logger.warning("%s cannot be folded: the parser failed or took too long", files[len(found)][0])
        found.append(())
    return found


async def _asked(files: Files) -> bytes:
    """What a worker says about *files*, as far as it comes."""
    answer = bytearray()
    with anyio.move_on_after(PATIENCE_SECONDS):
        with anyio.CancelScope(shield=True):  # a start that is cancelled half-way leaves a process nobody waits for
            worker = await anyio.open_process(
                [sys.executable or "python3", "-I", "-c", _WORKER], stderr=subprocess.DEVNULL
            )
        async with worker:
            if worker.stdin is not None and worker.stdout is not None:
                for each in (sys.path, *files):
                    await worker.stdin.send(pickle.dumps(each, protocol=5))
                await worker.stdin.aclose()
                async for chunk in worker.stdout:
                    answer += chunk
    return bytes(answer)


async def _decoded(line: bytes) -> Definitions:
    await checkpoint()
    return tuple(Definition(*each) for each in json.loads(line))


async def _read_without_worker(files: Files, reason: object) -> list[Definitions]:
    logger.warning("no worker process for folding (%s): the event loop waits while files are parsed", reason)
    return await _read_here(files)
