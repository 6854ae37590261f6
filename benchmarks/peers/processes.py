"""The peers as processes, each in an environment of its own, and what is said to them.

Time limits are of the processor, because other work may run on the machine at the same time.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self

from ctxpipe.messages import Message

__all__ = ["OURS", "PEERS", "Peer", "PeerFailed", "python_of"]

HERE = Path(__file__).resolve().parent
OURS = "ctxpipe"
PEERS = (
    OURS,
    "langchain",
    "deepagents",
    "agent_framework",
    "pydantic_ai",
    "llama_index",
    "strands",
    "openhands",
    "headroom",
    "langmem",
)


MAIN = "main"
"""The name of a conversation that is the only one."""

START_SECONDS = 100.0
"""Limit of processor time in which a peer must be imported."""

ANSWER_SECONDS = 60.0
"""Limit of processor time for one turn behind up to 20,000 messages."""

CLOCK_FACTOR = 20
"""Factor by which the limits are longer by the clock, because the machine has other work."""


class PeerFailed(Exception):
    """A peer did not install, import or answer; the text is the reason."""


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment; ctxpipe runs in the runner's."""
    return Path(sys.executable) if name == OURS else HERE / ".venvs" / name / "bin" / "python"


class Peer:
    """Process of one peer; it is ended if an answer takes more than *seconds* of the processor.

    A *driver* of its own is run by this interpreter. Raises PeerFailed when the process cannot
    start.
    """

    def __init__(
        self,
        name: str,
        *,
        folder: str | None = None,
        seconds: float = ANSWER_SECONDS,
        driver: Path | None = None,
    ) -> None:
        self.name = name
        self.given = driver
        self.driver = driver or HERE / "drivers" / f"{name}.py"
        self.python = python_of(name) if driver is None else Path(sys.executable)
        self.folder = folder
        self.seconds = seconds
        if not self.python.exists():
            raise PeerFailed("its environment could not be made: see `make bench-peers`")
        self._start()

    def _start(self) -> None:
        quiet = {
            "HF_HUB_OFFLINE": "1",
            "LANGSMITH_TRACING": "false",
            "DO_NOT_TRACK": "1",
            "PYTHONHASHSEED": "0",
        }
        self._process = subprocess.Popen(
            [str(self.python), str(HERE / "host.py"), str(self.driver)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("PEERS_DEBUG") else subprocess.DEVNULL,
            text=True,
            env={**os.environ, **quiet},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._contexts: dict[str, list[Any]] = {}
        try:
            self._answer(START_SECONDS)  # it says so when it cannot be imported
            self.about = self._ask(op="about")
        except PeerFailed:
            self.close()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None  # noqa: S101
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerFailed("its process ended") from error
        return self._answer(self.seconds)

    def processor_seconds(self) -> float:
        """The processor time of the process so far, or the time by the clock without ``/proc``."""
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return monotonic()
        # The name of the command, in brackets, may contain blanks.
        fields = text.rpartition(")")[2].split()
        user, system = fields[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _next_line(self, seconds: float) -> str:
        """The next line of the process. Raises queue.Empty after *seconds* of its processor time.

        A process that only waits has as many times longer by the clock as `CLOCK_FACTOR` says.
        """
        processor_end = self.processor_seconds() + seconds
        clock_end = monotonic() + CLOCK_FACTOR * seconds
        while True:
            try:
                return self._lines.get(timeout=min(1.0, seconds))
            except queue.Empty:
                if self.processor_seconds() > processor_end or monotonic() > clock_end:
                    raise

    def _answer(self, seconds: float) -> Any:
        try:
            line = self._next_line(seconds)
        except queue.Empty as error:
            self.close()
            raise PeerFailed(f"no answer within {seconds:g} s of processor time") from error
        if not line:
            self.close()
            raise PeerFailed("its process ended")
        try:
            told = json.loads(line)
        except ValueError as error:
            self.close()
            raise PeerFailed(f"it answered {line[:80]!r}") from error
        if "error" in told:
            raise PeerFailed(told["error"])
        return told

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    @property
    def ways(self) -> dict[str, str]:
        """Ways to run the peer, by name, each with a description."""
        ways: dict[str, str] = self.about["ways"]
        return ways

    @property
    def originals(self) -> dict[str, str]:
        """Place of the content that has left the context, by way.

        "files", "memory" or "nowhere", of the ways worth timing.
        """
        originals: dict[str, str] = self.about["originals"]
        return originals

    def open(
        self,
        way: str,
        *,
        name: str = MAIN,
        of: str | None = None,
        shared: str | None = None,
        **settings: Any,
    ) -> None:
        """Begin a conversation that is treated in this *way*; all others end.

        As a sub-agent *of* another it begins beside that one, in the same folder. In the *shared*
        folder it may be one that another process has begun. It begins in a new process where the
        last one was given up.
        """
        if self.ended:  # an earlier conversation took too long
            self._start()
        if of is None:
            self._contexts = {}
        self._contexts[name] = []
        asked = {"name": name, "of": of, "shared": shared, "folder": self.folder}
        self._ask(op="open", way=way, settings=settings, **asked)

    def turn(
        self,
        new: Sequence[Message],
        *,
        wire: bool = True,
        name: str = MAIN,
        chat: bool = False,
    ) -> dict[str, Any]:
        """Hear *new* and shape the context of the next call.

        Returns its seconds, without the model's and with them ("waited"), the summarizer's prompts,
        how often it was asked in this conversation and, with *wire*, the messages that would be
        sent and the options of their request; with *chat* those of chat completions.
        """
        told: dict[str, Any] = self._ask(op="turn", new=list(new), wire=wire, name=name, chat=chat)
        if wire:
            context = self._contexts.get(name, [])
            self._contexts[name] = [*context[: told.pop("keep")], *told["messages"]]
            told["messages"] = self._contexts[name]
        return told

    def save(self, file: Path) -> None:
        """Write to *file* what its framework's own store keeps of the conversation."""
        self._ask(op="save", file=str(file), name=MAIN)

    def load(self, file: Path) -> None:
        """Have the conversation go on from what was saved."""
        self._ask(op="load", file=str(file), name=MAIN)

    def kill_in_turn(self, new: Sequence[Message], seconds: float) -> None:
        """Begin a turn, and end the process with SIGKILL so many *seconds* later."""
        asked = {"op": "turn", "new": list(new), "wire": True, "name": MAIN}
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        sleep(seconds)
        self.close()

    def refused(self, told: str) -> dict[str, Any]:
        """The options with which its own adapter sends a refused request once more.

        Empty where it does not.
        """
        options: dict[str, Any] = self._ask(op="refused", told=told, name=MAIN)["options"]
        return options

    def kept(self, name: str = MAIN) -> tuple[dict[str, str], list[str]]:
        """The files that it wrote, by the path shown to the model, and every text still held."""
        told = self._ask(op="kept", name=name)
        return told["files"], told["state"]

    def search(self, query: str) -> str:
        """Return what the peer's own tool finds of the content that has left the context."""
        found: str = self._ask(op="search", query=query, name=MAIN)["text"]
        return found

    def forget(self) -> None:
        """Delete the conversation, as its framework does."""
        self._ask(op="forget", name=MAIN)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
