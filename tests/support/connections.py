"""Record of what a test's programs connect to: every connection and every name looked up."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mounts import result

from ctxpipe import Budget, Compact, ContextPipeline, LocalStorage, presets
from ctxpipe.stages.reports import Compacted, Outcome, StageReport
from ctxpipe.testing import Received, Reply, RequestBody, answer_with, tool_use

KEYS = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY"),
    *("GOOGLE_API_KEY", "AZURE_OPENAI_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY", "CO_API_KEY"),
    *("DEEPSEEK_API_KEY", "OPENROUTER_API_KEY", "XAI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK"),
)
"""The variables of the environment in which vendors' SDKs look for a key."""
LOCAL = ("127.0.0.1", "::1", "localhost")
WINDOW = 3_000
"""Small, so that a dozen short turns are enough for several compactions."""
STAGES = ("stage", "background", "coding", "lean", "chat")
"""What compacts: the stage alone, the same in the background, and the presets."""


@dataclass
class Connections:
    """The names that were looked up, and the addresses that were connected to."""

    names: set[str] = field(default_factory=set)
    addresses: set[tuple[str, int]] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)

    def allow(self, url: str) -> None:
        """Expect connections to the server at *url*, on this machine."""
        self.ports.add(urlsplit(url).port or 0)

    @property
    def foreign(self) -> list[object]:
        """The names and addresses that are not expected."""
        found: list[object] = [name for name in self.names if name not in LOCAL]
        for host, port in self.addresses:
            if host not in LOCAL or port not in self.ports:
                found.append((host, port))
        return found


@contextmanager
def every_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connections]:
    """Meanwhile the environment has a key of every vendor, and all connections are noted."""
    noted = Connections()
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def noting_look_up(host: Any, *arguments: Any, **options: Any) -> Any:
        if host is not None:
            noted.names.add(os.fsdecode(host))
        return look_up(host, *arguments, **options)

    def noting_connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            noted.addresses.add(address[:2])
        return connect(self, address)

    with monkeypatch.context() as patch:
        for name in KEYS:
            patch.setenv(name, f"key-of-{name.lower()}")
        patch.delenv("SUMMARY_MODEL", raising=False)
        patch.setattr(socket, "getaddrinfo", noting_look_up)
        patch.setattr(socket.socket, "connect", noting_connect)
        yield noted


def is_about_a_summary(body: RequestBody) -> bool:
    return "<transcript>" in json.dumps(body)


def summaries(requests: list[Received]) -> list[Any]:
    """Return those of *requests* that ask for a summary."""
    return [request for request in requests if is_about_a_summary(request.body)]


def requested_model(request: Any) -> str:
    """Return the model of *request*, which is in the path for Gemini."""
    model: str = request.body.get("model") or request.path.rpartition("/")[2].partition(":")[0]
    return model


class Agent:
    """The model of an agent that calls a tool in *rounds*, and writes a summary where it is asked.

    It is the script of a server; a reply that is a number calls ``look`` with it. In ten rounds a
    window of `WINDOW` is compacted twice or more, also if the API counts as tiktoken does.
    """

    def __init__(self, rounds: int = 10) -> None:
        self._rounds = rounds
        self._said = 0
        self._summaries = 0

    def __call__(self, body: RequestBody) -> Reply:
        if is_about_a_summary(body):
            self._summaries += 1
            return f"## Task Status\nSummary number {self._summaries}."
        self._said += 1
        if self._said > self._rounds:
            return "Done."
        return answer_with(tool_use("look", {"number": self._said}, id=f"c{self._said}"))


class Compactions:
    """A pipeline that compacts several times in an agent's run, and what it reports of that."""

    def __init__(self, stages: str, folder: Path, window: int = WINDOW, **settings: Any) -> None:
        self.details: list[Compacted] = []
        storage: Any = LocalStorage(folder)
        made: Any
        if stages in ("stage", "background"):
            made = [Compact(archive=storage, background=stages == "background")]
        elif stages == "chat":
            made = presets.chat(storage, **settings)
        else:
            old: Any = "lines" if stages == "lean" else "calls"
            made = presets.coding_agent(storage, work_dir=None, old_exchanges=old, **settings)
        budget = Budget(window)
        self.pipeline = ContextPipeline(made, budget=budget, on_report=self._note)

    def _note(self, report: StageReport):
        if isinstance(report.detail, Compacted) and report.outcome is Outcome.CHANGED:
            self.details.append(report.detail)

    def were_written_by(self, model: str, summarizer: str = "AgentSummarizer") -> bool:
        """Return True if there were several, and *model* has written each."""
        writers = {(detail.summarizer, detail.model) for detail in self.details}
        return len(self.details) > 1 and writers == {(summarizer, model)}


def check_summaries(
    compactions: Compactions, server: Any, model: str, connections: Connections
) -> None:
    """Check that *model* of *server* has written all summaries, and no other server was asked."""
    assert compactions.were_written_by(model)
    assert all(detail.input_tokens for detail in compactions.details)
    assert {requested_model(request) for request in summaries(server.requests)} == {model}
    assert not server.refused
    assert not connections.foreign


def chat_history(turns: int) -> list[Any]:
    """The messages of a chat with *turns* of a user, in the form of every chat API."""
    history: list[Any] = []
    for number in range(turns):
        history.append({"role": "user", "content": f"Turn {number}. {result(number)}"})
        history.append({"role": "assistant", "content": f"Done {number}."})
    return [*history, {"role": "user", "content": "Go on."}]
