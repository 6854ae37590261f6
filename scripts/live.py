"""Hold a conversation of thirty turns with the real API of each provider, through ctxpipe.

    make live                              # every API whose key is in the environment
    make live APIS="anthropic gemini" DOLLARS=0.5

The keys are in ANTHROPIC_API_KEY, OPENAI_API_KEY and GEMINI_API_KEY. In each turn the model calls a
tool once and gets a page of text. Old pages leave the context; near the end of a small window the
conversation is compacted, without a model. Prints for each API the turns, the requests that were
refused, the tokens that were read from the prompt cache, the tokens that ctxpipe has estimated
beside those that were billed, and the dollars.

Stops before a request that could exceed the budget, a dollar by default. Exits with 1 if a request
was refused or the budget was reached, and with 2 without a key.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio.to_thread
import httpx2

from ctxpipe import Budget, ContextPipeline, LocalStorage, Turn, presets
from ctxpipe.providers.prices import Prices, prices_of
from ctxpipe.providers.refusals import read_refusal
from ctxpipe.settings import SUMMARY_MODEL
from ctxpipe.stages.reports import StageReport
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.wire import CHAT, MESSAGES, RESPONSES, Adapter, Format, Gemini

TURNS = 30
DOLLARS = 0.9
WINDOW = 12_000  # of the budget: small, so that a compaction happens and a run costs cents
PAGE_CHARS = 2_400
ANSWER_TOKENS = 1_000
MARGIN = 1.3  # of the estimate before a request, for the tokens that it may cost
SYSTEM = "You read a book for the user. In each reply call the tool read_page once."
TOOL = "read_page"
SCHEMA = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}

JsonDict = dict[str, Any]


class BudgetReached(Exception):
    """Raised before a request that could exceed the budget."""


class Refused(Exception):
    """Raised if an API refuses a request; the text has its answer."""


@dataclass
class Purse:
    """The *dollars* that may be spent in all, and those that are *spent*."""

    dollars: float
    spent: float = 0.0


@dataclass
class Outcome:
    """The sums of a conversation; *tokens* are those of prompts."""

    turns: int = 0
    refused: int = 0
    estimated_tokens: int = 0
    billed_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    compactions: int = 0
    dollars: float = 0.0
    end: str = ""


class Api(ABC):
    """The form of one API: its requests, its replies, and the calls of the tool in them."""

    name: ClassVar[str]
    key_variable: ClassVar[str]
    url_variable: ClassVar[str]
    url: ClassVar[str]
    """Address of the provider, used if the variable is not set."""
    path: ClassVar[str]
    model: ClassVar[str]
    format: ClassVar[Format]
    key_header: ClassVar[str] = "authorization"

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of a request."""
        return {self.key_header: f"Bearer {key}"}

    @abstractmethod
    def values(self) -> JsonDict:
        """Return the fields of a request, without the conversation."""

    @abstractmethod
    def words(self, text: str) -> JsonDict:
        """Return an item with words of the user."""

    @abstractmethod
    def items(self, reply: JsonDict) -> list[JsonDict]:
        """Return the items of *reply*, to be sent back."""

    @abstractmethod
    def results(self, reply: JsonDict) -> list[JsonDict]:
        """Return the items that answer the calls in *reply*; none if it calls nothing."""


class Anthropic(Api):
    """Anthropic's Messages API."""

    name = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"
    url = "https://api.anthropic.com"
    path = "/v1/messages"
    model = SUMMARY_MODEL.default
    format = MESSAGES

    def headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}

    def values(self) -> JsonDict:
        return {
            "model": self.model,
            "max_tokens": ANSWER_TOKENS,
            "system": SYSTEM,
            "tools": [{"name": TOOL, "input_schema": SCHEMA}],
            "cache_control": {"type": "ephemeral"},
        }

    def words(self, text: str) -> JsonDict:
        return {"role": "user", "content": text}

    def items(self, reply: JsonDict) -> list[JsonDict]:
        return [{"role": "assistant", "content": reply["content"]}]

    def results(self, reply: JsonDict) -> list[JsonDict]:
        blocks = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": page(block["input"])}
            for block in reply["content"]
            if block["type"] == "tool_use"
        ]
        return [{"role": "user", "content": blocks}] if blocks else []


class OpenAIChat(Api):
    """OpenAI's chat completions."""

    name = "openai-chat"
    key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"
    url = "https://api.openai.com/v1"
    path = "/chat/completions"
    model = "gpt-5-mini"
    format = CHAT

    def values(self) -> JsonDict:
        function = {"name": TOOL, "parameters": SCHEMA}
        return {
            "model": self.model,
            "max_completion_tokens": ANSWER_TOKENS,
            "reasoning_effort": "minimal",
            "tools": [{"type": "function", "function": function}],
        }

    def words(self, text: str) -> JsonDict:
        return {"role": "user", "content": text}

    def items(self, reply: JsonDict) -> list[JsonDict]:
        message = reply["choices"][0]["message"]
        kept = {
            name: message[name] for name in ("role", "content", "tool_calls") if name in message
        }
        return [kept]

    def results(self, reply: JsonDict) -> list[JsonDict]:
        return [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": page(json.loads(call["function"]["arguments"])),
            }
            for call in reply["choices"][0]["message"].get("tool_calls") or ()
        ]


class OpenAIResponses(OpenAIChat):
    """OpenAI's responses, of which the server stores nothing."""

    name = "openai-responses"
    path = "/responses"
    format = RESPONSES

    def values(self) -> JsonDict:
        return {
            "model": self.model,
            "max_output_tokens": ANSWER_TOKENS,
            "reasoning": {"effort": "minimal"},
            "instructions": SYSTEM,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "tools": [{"type": "function", "name": TOOL, "parameters": SCHEMA, "strict": False}],
        }

    def items(self, reply: JsonDict) -> list[JsonDict]:
        output: list[JsonDict] = reply["output"]
        return output

    def results(self, reply: JsonDict) -> list[JsonDict]:
        return [
            {
                "type": "function_call_output",
                "call_id": item["call_id"],
                "output": page(json.loads(item["arguments"])),
            }
            for item in reply["output"]
            if item["type"] == "function_call"
        ]


class GeminiApi(Api):
    """Gemini's ``generateContent``."""

    name = "gemini"
    key_variable = "GEMINI_API_KEY"
    url_variable = "GOOGLE_GEMINI_BASE_URL"
    url = "https://generativelanguage.googleapis.com"
    model = "gemini-2.5-flash-lite"
    path = f"/v1beta/models/{model}:generateContent"
    format = Gemini(model)

    def headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def values(self) -> JsonDict:
        return {
            "systemInstruction": {"parts": [{"text": SYSTEM}]},
            "generationConfig": {"maxOutputTokens": ANSWER_TOKENS},
            "tools": [{"functionDeclarations": [{"name": TOOL, "parameters": SCHEMA}]}],
        }

    def words(self, text: str) -> JsonDict:
        return {"role": "user", "parts": [{"text": text}]}

    def items(self, reply: JsonDict) -> list[JsonDict]:
        return [{"role": "model", "parts": reply["candidates"][0]["content"]["parts"]}]

    def results(self, reply: JsonDict) -> list[JsonDict]:
        parts = []
        for part in reply["candidates"][0]["content"]["parts"]:
            if "functionCall" not in part:
                continue
            call = part["functionCall"]
            answer = {"name": call["name"], "response": {"output": page(call.get("args"))}}
            if "id" in call:
                answer["id"] = call["id"]
            parts.append({"functionResponse": answer})
        return [{"role": "user", "parts": parts}] if parts else []


APIS: Mapping[str, Api] = {
    api.name: api for api in (Anthropic(), OpenAIChat(), OpenAIResponses(), GeminiApi())
}


def page(arguments: object) -> str:
    """Return the result of the tool: a page of a book, whatever the model gives."""
    number = arguments.get("page") if isinstance(arguments, Mapping) else None
    line = f"On page {number} the ship sails on, past islands {number}a and {number}b.\n"
    return (line * (PAGE_CHARS // len(line) + 1))[:PAGE_CHARS]


class Conversation:
    """A conversation with one *api*, that pays from *purse*."""

    def __init__(self, api: Api, key: str, prices: Prices, purse: Purse, root: str) -> None:
        self.api = api
        self.prices = prices
        self.purse = purse
        self.outcome = Outcome()
        self.estimate = 0
        storage = LocalStorage(root)
        stages = presets.coding_agent(storage, work_dir=None, summarize=ExtractiveSummarizer())
        budget = Budget(window=WINDOW)
        stages.append(self._note_estimate)
        pipeline = ContextPipeline(stages, budget=budget, on_report=self._note_compaction)
        self.adapter = Adapter(pipeline, f"live-{api.name}", storage)
        url = os.environ.get(api.url_variable) or api.url
        self.url = url.rstrip("/") + api.path
        self.headers = api.headers(key)

    async def _note_estimate(self, turn: Turn) -> None:
        """Note the tokens that the API will charge, as a last stage that changes nothing."""
        self.estimate = await turn.tokens()

    def _note_compaction(self, report: StageReport) -> None:
        if report.stage == "Compact" and report.tokens_saved > 0:
            self.outcome.compactions += 1

    async def hold(self, turns: int) -> Outcome:
        """Hold the conversation for *turns*, or until a refusal or the budget ends it."""
        api = self.api
        items = [api.words("Read the book from page 1 on.")]
        if api.format is CHAT:
            items.insert(0, {"role": "system", "content": SYSTEM})
        async with httpx2.AsyncClient(headers=self.headers, timeout=120) as client:
            for turn in range(turns):
                try:
                    reply = await self._ask(client, items)
                except (Refused, BudgetReached, httpx2.TransportError) as error:
                    self.outcome.end = str(error) or type(error).__name__
                    break
                self.outcome.turns += 1
                items += api.items(reply)
                items += api.results(reply) or [api.words(f"Go on with page {turn + 2}.")]
        return self.outcome

    async def _ask(self, client: httpx2.AsyncClient, items: Sequence[JsonDict]) -> JsonDict:
        """Send the conversation as ctxpipe shapes it, once more if it is too long."""
        api = self.api
        values = api.values()
        arguments = api.format.arguments(values)
        exchange = await self.adapter.begin(api.format.codec, list(items), arguments)
        if exchange is None:
            raise Refused("ctxpipe could not shape the request; see the log")
        while True:
            self._ensure_affordable()
            body = {**values, api.format.key: exchange.items}
            response = await client.post(self.url, json=body)
            if response.status_code == 200:
                break
            self.outcome.refused += 1
            refusal = read_refusal(response.status_code, response.text)
            if self.outcome.refused > 1 or not await exchange.shorten(refusal):
                raise Refused(f"status {response.status_code}: {response.text[:300]}")
        reply: JsonDict = response.json()
        self._count(api.format.usage_in(reply) or {})
        exchange.calibrate(api.format.reply_in(reply))
        return reply

    def _ensure_affordable(self) -> None:
        """Raise BudgetReached if the next request could exceed the budget."""
        most = MARGIN * self.estimate * max(self.prices.input, self.prices.write)
        most += ANSWER_TOKENS * self.prices.output
        if self.purse.spent + most > self.purse.dollars:
            raise BudgetReached(
                f"the budget of ${self.purse.dollars:.2f} could be exceeded: "
                f"${self.purse.spent:.4f} is spent"
            )

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Add the usage of a reply, in the form of the Messages API."""
        fresh = usage.get("input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        cached = usage.get("cache_read_input_tokens") or 0
        output = usage.get("output_tokens") or 0
        prices = self.prices
        dollars = fresh * prices.input + written * prices.write + cached * prices.read
        dollars += output * prices.output
        self.outcome.estimated_tokens += self.estimate
        self.outcome.billed_tokens += fresh + written + cached
        self.outcome.cached_tokens += cached
        self.outcome.output_tokens += output
        self.outcome.dollars += dollars
        self.purse.spent += dollars


async def main(names: Sequence[str], turns: int, dollars: float) -> int:
    """Hold all conversations, and print a table. Returns the exit status."""
    selected = [APIS[name] for name in names or APIS]
    keys = {api.name: os.environ.get(api.key_variable, "") for api in selected}
    if not any(keys.values()):
        variables = ", ".join(dict.fromkeys(api.key_variable for api in selected))
        print(f"there is no key in the environment; set one of {variables}", file=sys.stderr)
        return 2
    purse = Purse(dollars)
    has_failed = False
    print(
        f"{'API':<18}{'turns':>6}{'refused':>9}{'compacted':>11}{'estimated':>11}{'billed':>9}"
        f"{'from cache':>12}{'dollars':>9}"
    )
    for api in selected:
        if not keys[api.name]:
            print(f"{api.name:<18}left out: {api.key_variable} is not set")
            continue
        prices = await anyio.to_thread.run_sync(prices_of, api.model)  # reads a file
        with tempfile.TemporaryDirectory() as root:
            outcome = await Conversation(api, keys[api.name], prices, purse, root).hold(turns)
        print(
            f"{api.name:<18}{outcome.turns:>6}{outcome.refused:>9}{outcome.compactions:>11}"
            f"{outcome.estimated_tokens:>11,}{outcome.billed_tokens:>9,}"
            f"{outcome.cached_tokens:>12,}{outcome.dollars:>9.4f}",
            flush=True,
        )
        if outcome.end:
            print(f"{api.name} ended early: {outcome.end}")
        has_failed = has_failed or bool(outcome.end or outcome.refused)
    print(f"spent ${purse.spent:.4f} of ${purse.dollars:.2f}")
    return int(has_failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("apis", nargs="*", metavar="API", help=", ".join(APIS))
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--dollars", type=float, default=DOLLARS)
    options = parser.parse_args()
    for each in options.apis:
        if each not in APIS:
            parser.error(f"there is no API {each}; choose from {', '.join(APIS)}")
    sys.exit(asyncio.run(main(options.apis, options.turns, options.dollars)))
