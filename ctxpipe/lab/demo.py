"""The command ``ctxpipe demo``: an agent without a model reads files of this machine.

In each turn the agent reads one file. No model is called and nothing leaves the machine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from .. import presets
from ..errors import SettingsError
from ..messages import Message, check, tool_results
from ..pipeline import ContextPipeline
from ..session import Session
from ..stages.reports import Offloaded
from ..storage import LocalStorage
from ..summarizers import ExtractiveSummarizer
from ..tools import answer, offload_tools
from ..wire.values import result_block, use_block

PACKAGE = Path(__file__).parents[1]
SUFFIXES = (".c", ".go", ".java", ".js", ".md", ".php", ".py", ".rb", ".rs", ".sh", ".ts", ".txt")
MAX_FILES = 120
MAX_FILE_BYTES = 200_000
TABLE_ROWS = 8
EXCERPT_LINES = 3


def demo(
    folder: Annotated[
        Path, typer.Argument(help="Default: ctxpipe's own source.", show_default=False)
    ] = PACKAGE,
    storage: Annotated[
        Path | None, typer.Option(help="Keep the texts that leave the context in this folder.")
    ] = None,
) -> None:
    """Show, without an API key, how ctxpipe shapes the context of an agent that reads files."""
    files = list(islice(text_files(folder), MAX_FILES))
    if not files:
        raise SettingsError(f"there is no folder {folder}, or no text file in it")
    if storage:
        try:  # an error here; the stages would only skip
            storage.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"--storage: the folder {storage} cannot be created: {error.strerror}"
            ) from error
    with tempfile.TemporaryDirectory(prefix="ctxpipe-") as temporary:
        anyio.run(show, files, LocalStorage(storage or temporary))
    if storage:
        print(f"\nThe files are in {storage}.")
    print("\nTo try it on a conversation of your own: ctxpipe replay FILE")


def text_files(folder: Path) -> Iterator[str]:
    """Yield the paths of source and text files below *folder*, in the order of their names."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.endswith(SUFFIXES) and 0 < os.path.getsize(path) < MAX_FILE_BYTES:
                yield path


async def show(files: Sequence[str], storage: LocalStorage) -> None:
    """Print a table of the tokens that an agent's requests have with ctxpipe and without.

    The agent reads one of *files* in each turn; no model is called.
    """
    stages = presets.coding_agent(storage, work_dir=None, summarize=ExtractiveSummarizer())
    pipeline = ContextPipeline(stages)
    session = pipeline.session("demo", journal=storage)
    history: list[Message] = [{"role": "user", "content": "Read the files."}]
    print(f"An agent reads {len(files)} files, one in each turn. The tokens of its requests:\n")
    print(f"{'turn':>8} {'with ctxpipe':>14} {'without':>14}")
    every = -(-len(files) // TABLE_ROWS)  # rounded up
    shaped_tokens = 0
    original_tokens = 0
    invalid_requests = 0
    file = ""  # the first file that a result was moved to
    placeholder = ""  # the text in its place, which the model sees
    for turn, path in enumerate(files, 1):
        history += await messages_of(turn, path)
        context = await session.run(history)
        whole = await pipeline.counter.count(history)
        shaped_tokens += context.tokens_after
        original_tokens += whole
        invalid_requests += bool(check(context.messages))
        detail = context.reports[0].detail
        if not file and isinstance(detail, Offloaded):
            [file] = detail.files
            [result] = tool_results(context.messages[-1:])
            placeholder = str(result.content)
        if turn % every == 0 or turn == len(files):
            print(f"{turn:>8} {context.tokens_after:>14,} {whole:>14,}")
    print(f"{'in all':>8} {shaped_tokens:>14,} {original_tokens:>14,}\n")
    print(f"requests that break a rule of the API: {invalid_requests}")
    print(f"the complete history can be read back: {await session.history() == history}")
    if file:
        await show_read_back(session, file, placeholder)


async def messages_of(turn: int, path: str) -> list[Message]:
    """Return the agent's call to read *path*, and the result with the text of the file."""
    text = await anyio.Path(path).read_text("utf-8", errors="replace")
    call: Any = use_block(f"t{turn}", "read_file", {"path": path})
    result: Any = result_block(f"t{turn}", text)
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


async def show_read_back(session: Session, file: str, placeholder: str) -> None:
    """Print the *placeholder* of a text that was moved to *file*, and a search in that file."""
    print("\nIn place of the first result that was moved to a file, the model sees\n")
    print(*placeholder.splitlines()[:EXCERPT_LINES], sep="\n")
    arguments = {"path": file, "pattern": "def ", "limit": EXCERPT_LINES}
    call: Any = use_block("search", "search_offloaded", arguments)
    result = await answer(call, offload_tools(session))
    print("\nand a call of search_offloaded for 'def ' in that file returns\n")
    print(result["content"])
