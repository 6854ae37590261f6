"""``ctxpipe demo``: what ctxpipe does with a context, on files of this machine.

No model is asked and nothing is sent: in each turn the agent reads one file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from .. import presets
from ..messages import Message, check, tool_results
from ..pipeline import ContextPipeline
from ..session import Session
from ..stages.reports import Offloaded, Result
from ..storage import LocalStorage
from ..summarizers import ExtractiveSummarizer
from ..tools import answer, offload_tools

if TYPE_CHECKING:
    from anthropic.types import ToolResultBlockParam, ToolUseBlockParam

PACKAGE = os.path.dirname(os.path.abspath(__file__))
ENDINGS = (".c", ".go", ".java", ".js", ".md", ".php", ".py", ".rb", ".rs", ".sh", ".ts", ".txt")
MAX_FILES = 120
MAX_FILE_BYTES = 200_000
ROWS = 8
LINES = 3


@dataclass(slots=True)
class Tally:
    """What the turns add up to.

    *sent* are the raw tokens of all requests, *sent_without* what they would be without ctxpipe;
    *file* is the first that a result has left the context for, *visible* what the model sees of it.
    """

    sent: int = 0
    sent_without: int = 0
    refused: int = 0
    file: str = ""
    visible: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """An agent reads the files of a folder, one in each turn; see what its context becomes."""
    parser = argparse.ArgumentParser(prog="ctxpipe demo", description=main.__doc__)
    parser.add_argument("folder", nargs="?", default=PACKAGE, help="default: ctxpipe's own source")
    options = parser.parse_args(arguments)
    files = list(islice(text_files(options.folder), MAX_FILES))
    if not files:
        parser.error(f"there are no text files in {options.folder}")
    anyio.run(show, files)
    return 0


def text_files(folder: str) -> Iterator[str]:
    """The files of source and text below *folder*, in order."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.endswith(ENDINGS) and 0 < os.path.getsize(path) < MAX_FILE_BYTES:
                yield path


async def show(files: Sequence[str]) -> None:
    """Play the agent's turns, and print what becomes of its context."""
    storage = LocalStorage(await anyio.to_thread.run_sync(tempfile.mkdtemp, None, "ctxpipe-"))
    stages = presets.coding_agent(storage, work_dir=None, summarize=ExtractiveSummarizer())
    pipeline = ContextPipeline(stages)
    session = pipeline.session("demo", journal=storage)
    tally = Tally()
    history: list[Message] = [{"role": "user", "content": "Read the files."}]
    print(f"An agent reads {len(files)} files, one in each turn. The tokens of its requests:\n")
    print(f"{'turn':>8} {'with ctxpipe':>14} {'without':>14}")
    every = -(-len(files) // ROWS)
    for turn, path in enumerate(files, 1):
        history += await messages_of(turn, path)
        context = await session.run(history)
        whole = await pipeline.counter.count(history)
        add_turn(tally, context, whole)
        if turn % every == 0 or turn == len(files):
            print(f"{turn:>8} {context.tokens_after:>14,} {whole:>14,}")
    print(f"{'in all':>8} {tally.sent:>14,} {tally.sent_without:>14,}\n")
    print(f"requests that the API's rules refuse: {tally.refused}")
    print(f"the history can be read back whole: {await session.history() == history}")
    if tally.file:
        await show_read_back(session, tally)
    print(f"\nThe files are in {storage.root}. What would it do for conversations of yours?")
    print("pip install 'ctxpipe[cli]', then: ctxpipe replay FILE")


async def messages_of(turn: int, path: str) -> list[Message]:
    """The agent's call to read *path*, and its result."""
    text = await anyio.Path(path).read_text("utf-8", errors="replace")
    call: ToolUseBlockParam = {
        "type": "tool_use",
        "id": f"t{turn}",
        "name": "read_file",
        "input": {"path": path},
    }
    result: ToolResultBlockParam = {
        "type": "tool_result",
        "tool_use_id": f"t{turn}",
        "content": text,
    }
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def add_turn(tally: Tally, context: Result, whole: int) -> None:
    """Count a turn that was sent as *context*, of a history of *whole* tokens."""
    tally.sent += context.tokens_after
    tally.sent_without += whole
    tally.refused += bool(check(context.messages))
    detail = context.reports[0].detail
    if not tally.file and isinstance(detail, Offloaded):
        [tally.file] = detail.files
        [result] = tool_results(context.messages[-1:])
        tally.visible = str(result.content)


async def show_read_back(session: Session, tally: Tally) -> None:
    """Print what the model sees of a text that left, and what it gets when it searches that."""
    print("\nWhat the model sees of the first result that has left its context begins with\n")
    print(*tally.visible.splitlines()[:LINES], sep="\n")
    call: ToolUseBlockParam = {
        "type": "tool_use",
        "id": "search",
        "name": "search_offloaded",
        "input": {"path": tally.file, "pattern": "def ", "limit": LINES},
    }
    found = await answer(call, offload_tools(session))
    print("\nand when it calls search_offloaded with the pattern 'def ' it gets\n")
    print(found["content"])
