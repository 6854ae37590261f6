"""deepagents: the stack that `create_deep_agent` builds around a model call, without the graph.

A new tool result passes FilesystemMiddleware (large ones go to a file), the call itself
FilesystemMiddleware, the summarization middleware and PatchToolCalls, in the order of
deepagents.graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.patch_tool_calls import PatchToolCallsMiddleware
from deepagents.middleware.summarization import (
    SummarizationMiddleware,
    create_summarization_middleware,
)
from driving import files_in, read_back, versions
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_messages import FakeChat, chatted, converted, head, held, wired

COUNTER = "characters / 3.3, scaled by the last bill"
WAYS = {
    "default": (
        "results above 20,000 tokens to files; summarize at 0.85 of the window, keep 0.10 of it"
    ),
    "compact": "the same, given trigger and tokens to keep",
    "offload": "the same, results above the given number of characters to files",
}
ORIGINALS = {"compact": "files", "offload": "files"}
STATE = ("state",)  # as LangGraph's checkpointer keeps it


def VERSIONS() -> dict[str, str]:  # noqa: N802
    return versions("deepagents", "langchain", "langchain-core")


class Peer:
    def __init__(
        self,
        way: str,
        folder: str,
        window: int = 200_000,
        trigger: int = 170_000,
        keep_tokens: int = 20_000,
        min_chars: int = 80_000,
        system: Any = None,
        tools: Any = None,
        **_: Any,
    ) -> None:
        self.head = head(system, tools)
        self.folder = Path(folder)
        self.backend = backend = FilesystemBackend(root_dir=folder, virtual_mode=True)
        self.model = FakeChat(profile={"max_input_tokens": window})
        self.files = FilesystemMiddleware(
            backend=backend, tool_token_limit_before_evict=min_chars // 4
        )
        if way == "compact":
            self.summarize: Any = SummarizationMiddleware(
                model=self.model,
                backend=backend,
                trigger=("tokens", trigger),
                keep=("tokens", keep_tokens),
                trim_tokens_to_summarize=None,
                truncate_args_settings={
                    "trigger": ("tokens", trigger),
                    "keep": ("tokens", keep_tokens),
                },
            )
        else:
            self.summarize = create_summarization_middleware(self.model, backend)
        self.patch = PatchToolCallsMiddleware()
        self.state: dict[str, Any] = {"messages": []}

    def convert(self, new: list[dict[str, Any]]) -> list[BaseMessage]:
        return converted(new)

    async def arrive(self, native: list[BaseMessage]) -> None:
        for place, message in enumerate(native):
            if isinstance(message, ToolMessage) and not read_back(message.tool_call_id):
                native[place] = await self.files._aintercept_large_tool_result(message)

    def append(self, native: list[BaseMessage]) -> None:
        self.state["messages"] += native

    async def shape(self) -> list[BaseMessage]:
        patched = self.patch.before_agent(self.state, None)
        if patched is not None:
            self.state["messages"] = [
                m for m in patched["messages"] if not isinstance(m, RemoveMessage)
            ]
        sent: list[BaseMessage] = []

        async def model(request: Any) -> ModelResponse:
            sent[:] = request.messages
            return ModelResponse(result=[AIMessage("ok")])

        async def summarized(request: Any) -> Any:
            answer = await self.summarize.awrap_model_call(request, model)
            if isinstance(answer, ExtendedModelResponse) and answer.command is not None:
                self._update(answer.command.update)
                return answer.model_response
            return answer

        request = ModelRequest(
            model=self.model,
            messages=self.state["messages"],
            state=self.state,
            runtime=None,
            **self.head,
        )
        answer = await self.files.awrap_model_call(request, summarized)
        if isinstance(answer, ExtendedModelResponse) and answer.command is not None:
            self._update(answer.command.update)
        return sent

    def _update(self, update: dict[str, Any]) -> None:
        """Take in what a middleware adds to the state; a message replaces the one with its id."""
        for name, value in update.items():
            if name != "messages":
                self.state[name] = value
        replaced = {message.id: message for message in update.get("messages", [])}
        self.state["messages"] = [
            replaced.get(m.id, m) if m.id else m for m in self.state["messages"]
        ]

    def wire(self, shaped: list[BaseMessage]) -> list[dict[str, Any]]:
        return wired(shaped)

    def chat(self, shaped: list[BaseMessage]) -> list[dict[str, Any]]:
        return chatted(shaped)

    def search(self, query: str) -> str:
        """Search with its grep, which takes a literal text: an agent would look for the name."""
        return str(self.backend.grep(query.rsplit(maxsplit=1)[-1]))

    def kept(self) -> tuple[dict[str, str], list[str]]:
        files = {f"/{path}": text for path, text in files_in(self.folder).items()}
        return files, held(self.state["messages"])
