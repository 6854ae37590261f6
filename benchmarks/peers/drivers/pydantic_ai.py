"""pydantic-ai with pydantic-ai-harness: its compaction capabilities.

They are called as the agent's graph calls them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_model
import httpx2
from anthropic import APIStatusError, omit
from driving import blocks, files_in, read_back, versions
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.anthropic._thinking_binding import (
    ANTHROPIC_THINKING_BINDING_BETA,
    drop_stale_thinking_blocks,
    is_stale_thinking_block_error,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.usage import RequestUsage, RunUsage
from pydantic_ai_harness.compaction import ClearToolResults, SummarizingCompaction, TieredCompaction
from pydantic_ai_harness.tool_output_limits import Band, LocalFileStore, Spill, ToolOutputLimits

COUNTER = "characters / 4, anchored on the last bill"
WAYS = {
    "default": (
        "ToolOutputLimits(); TieredCompaction(clear, keep 3; then summarize, keep 20) at 0.85 of "
        "the window"
    ),
    "compact": "SummarizingCompaction alone, given trigger and tokens to keep",
    "free": "ClearToolResults alone, given trigger, keep 5",
    "offload": "ToolOutputLimits(Spill to files) above the given number of characters",
    "both": "TieredCompaction(clear keep 5, then summarize keep 20) at the given trigger",
}
ORIGINALS = {"compact": "nowhere", "free": "nowhere", "offload": "files"}
BINDING_MODEL = "claude-sonnet-5-5"
"""One of those that bind thinking: its adapter knows them by their names."""
STATE = ("messages", "names")  # as the application keeps `result.all_messages()`


def VERSIONS() -> dict[str, str]:  # noqa: N802
    return versions("pydantic-ai-slim", "pydantic-ai-harness")


def answer(messages: list[ModelMessage], _info: Any) -> ModelResponse:
    prompt = "\n".join(
        str(part.content)
        for message in messages
        for part in message.parts
        if hasattr(part, "content")
    )
    return ModelResponse(parts=[TextPart(fake_model.summary(prompt))])


class Peer:
    def __init__(
        self,
        way: str,
        folder: str,
        window: int = 200_000,
        trigger: int = 100_000,
        keep_tokens: int = 20_000,
        min_chars: int = 0,
        system: Any = None,
        tools: Any = None,
        **_: Any,
    ) -> None:
        self.instructions = "\n".join(block["text"] for block in system or ()) or None
        self.parameters = ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=tool["name"],
                    description=tool["description"],
                    parameters_json_schema=tool["input_schema"],
                )
                for tool in tools or ()
            ]
        )
        self.folder = Path(folder)
        self.model = FunctionModel(answer)
        self.wire_model = AnthropicModel(
            "claude-sonnet-5", provider=AnthropicProvider(api_key="none")
        )
        self.messages: list[ModelMessage] = []
        self.names: dict[str, str] = {}
        self.usage = RunUsage()
        self.limits: Any = None
        self.compaction: Any = None
        store = LocalFileStore(self.folder)
        if way in ("default", "quiet"):
            self.limits = ToolOutputLimits(store=store)
            self.compaction = self._tiered(target_tokens=int(0.85 * window), keep_pairs=3)
        elif way == "compact":
            self.compaction = SummarizingCompaction(max_tokens=trigger, keep_tokens=keep_tokens)
        elif way == "free":
            self.compaction = ClearToolResults(max_tokens=trigger, keep_pairs=5)
        elif way == "both":
            self.compaction = self._tiered(target_tokens=trigger, keep_pairs=5)
        else:
            self.limits = ToolOutputLimits(
                bands=[Band(over=min_chars, action=Spill())], store=store
            )
            self.compaction = self._tiered(target_tokens=int(0.85 * window), keep_pairs=3)

    @staticmethod
    def _tiered(target_tokens: int, keep_pairs: int) -> Any:
        tiers = [
            ClearToolResults(max_tokens=1, keep_pairs=keep_pairs),
            SummarizingCompaction(max_tokens=1, keep_messages=20),
        ]
        return TieredCompaction(tiers=tiers, target_tokens=target_tokens)

    def convert(self, new: list[dict[str, Any]]) -> list[ModelMessage]:
        return [made for message in new for made in self._converted(message)]

    def _converted(self, message: dict[str, Any]) -> list[ModelMessage]:
        if message["role"] == "system":
            return [
                ModelRequest(parts=[SystemPromptPart(block["text"]) for block in blocks(message)])
            ]
        if message["role"] == "assistant":
            usage = message.get("usage") or {}
            parts = [part for block in blocks(message) for part in self._answered(block)]
            return [
                ModelResponse(
                    parts=parts,
                    usage=RequestUsage(**usage),
                    model_name="claude-sonnet-5",
                    provider_name="anthropic",
                )
            ]
        return [
            ModelRequest(
                parts=[part for block in blocks(message) for part in self._asked(block)],
                instructions=self.instructions,
            )
        ]

    def _answered(self, block: dict[str, Any]) -> list[Any]:
        match block["type"]:
            case "text":
                return [TextPart(block["text"])]
            case "thinking":
                return [
                    ThinkingPart(
                        block["thinking"], signature=block["signature"], provider_name="anthropic"
                    )
                ]
            case "redacted_thinking":
                return [
                    ThinkingPart(
                        "",
                        id="redacted_thinking",
                        signature=block["data"],
                        provider_name="anthropic",
                    )
                ]
            case "tool_use":
                self.names[block["id"]] = block["name"]
                return [ToolCallPart(block["name"], block["input"], tool_call_id=block["id"])]
        return []

    def _asked(self, block: dict[str, Any]) -> list[Any]:
        match block["type"]:
            case "text":
                return [UserPromptPart(block["text"])]
            case "image":
                return [UserPromptPart([_image(block)])]
            case "tool_result":
                name = self.names.get(block["tool_use_id"], "unknown")
                told = block.get("content", "")
                if not isinstance(told, str):
                    told = [b["text"] if b["type"] == "text" else _image(b) for b in told]
                    told = told[0] if len(told) == 1 else told
                outcome = "failed" if block.get("is_error") else "success"
                return [
                    ToolReturnPart(name, told, tool_call_id=block["tool_use_id"], outcome=outcome)
                ]
        return []

    async def arrive(self, native: list[ModelMessage]) -> None:
        if self.limits is None:
            return
        for message in native:
            if isinstance(message, ModelRequest):
                for part in message.parts:
                    if isinstance(part, ToolReturnPart) and not read_back(part.tool_call_id):
                        await self._limited(part)

    async def _limited(self, part: ToolReturnPart) -> None:
        call = ToolCallPart(part.tool_name, {}, tool_call_id=part.tool_call_id)
        tool = ToolDefinition(name=part.tool_name)
        context = self._context()
        context.tool_call_id = part.tool_call_id
        result = await self.limits.after_tool_execute(
            context, call=call, tool_def=tool, args={}, result=part.content
        )
        part.content = getattr(result, "return_value", result)

    def append(self, native: list[ModelMessage]) -> None:
        self.messages += native

    def _context(self) -> RunContext[Any]:
        return RunContext(
            deps=None, model=self.model, usage=self.usage, messages=self.messages, run_id="run"
        )

    async def shape(self) -> list[ModelMessage]:
        request = ModelRequestContext(
            model=self.model,
            messages=list(self.messages),
            model_settings=None,
            model_request_parameters=self.parameters,
        )
        context = self._context()
        done = await self.compaction.before_model_request(context, request)
        self.messages = list(context.messages)
        return done.messages

    async def wire(self, shaped: list[ModelMessage]) -> list[dict[str, Any]]:
        system, messages = await self.wire_model._map_message(shaped, ModelRequestParameters(), {})
        return [*([{"role": "system", "content": system}] if system else []), *messages]

    async def chat(self, shaped: list[ModelMessage]) -> list[dict[str, Any]]:
        model = OpenAIChatModel("gpt-4.1", provider=OpenAIProvider(api_key="none"))
        return await model._map_messages(shaped, ModelRequestParameters())

    def again(self, refusal: str) -> dict[str, Any]:
        """The same request once more, with stale thinking dropped, as its adapter's `request`."""
        answer = httpx2.Response(400, request=httpx2.Request("POST", "http://localhost"))
        body = {"type": "error", "error": {"type": "invalid_request_error", "message": refusal}}
        profile = AnthropicModel(BINDING_MODEL, provider=AnthropicProvider(api_key="none")).profile
        if not is_stale_thinking_block_error(
            profile, omit, APIStatusError(refusal, response=answer, body=body)
        ):
            return {}
        return {
            "extra_body": {"thinking": drop_stale_thinking_blocks(omit)},
            "betas": [ANTHROPIC_THINKING_BINDING_BETA],
        }

    def kept(self) -> tuple[dict[str, str], list[str]]:
        return files_in(self.folder), [
            str(part) for message in self.messages for part in message.parts
        ]


def _image(block: dict[str, Any]) -> BinaryContent:
    import base64

    return BinaryContent(
        base64.b64decode(block["source"]["data"]), media_type=block["source"]["media_type"]
    )
