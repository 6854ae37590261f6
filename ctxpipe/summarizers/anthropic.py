"""A Claude model writes the summary."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from anyio import to_thread

from .._logs import logger
from .._text import short_repr
from ..errors import SettingsError, SummaryFailed
from ..providers.refusals import as_refusal
from ..settings import (
    COUNT,
    MAPPING,
    SUMMARY_MAX_WORDS,
    SUMMARY_MODEL,
    TEXT,
    Requirement,
    check_client,
    check_settings,
    instance_of,
    one_of,
    setting,
)
from ..tokens import Counting
from ..tokens.counter import COUNTING
from .extractive import ExtractiveSummarizer
from .prompt import answer_tokens, instructions, transcript_prompt
from .protocol import PromptTooLong, Summary, SummaryRefused, with_price

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import Message as Reply
    from anthropic.types import TextBlockParam, ToolUnionParam

    from ..messages import Message

WITHOUT_MODEL = (
    "no model writes the summaries: none was named, and ctxpipe does not know the one that the"
    " agent uses; they are collected from the messages: give Compact(AnthropicSummarizer(client),"
    " …) or Compact(PromptSummarizer(ask), …), or choose ExtractiveSummarizer()"
)
"""The warning where a summary is due and no model is known that may write it."""

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
COMMON_OUTPUT_LIMIT = 8192  # tokens that any model in use may answer with
_COMPLETE = frozenset({"end_turn", "stop_sequence"})


@dataclass(frozen=True, slots=True, repr=False)
class AnthropicSummarizer:
    """Asks a Claude model through Anthropic's SDK, with the *client* that it is given.

    With mode "transcript" a cheap separate *model* (default: SUMMARY_MODEL) reads the history as a
    text that is marked as data. Where that exceeds the model's *window* (tokens), the middle of
    long blocks is left out, and what is longer still is summarized in parts.
    With mode "inline" the request is appended to the conversation as the agent sends it, so that
    the agent's own prompt cache is read: give the agent's *model*, *system*, *tools* and, in
    *request_options*, whatever else its requests hold, such as ``thinking``. An inline request that
    is too long is sent again as a transcript.

    *max_tokens* limits the answer (default: what *max_words* need). An answer that does not fit is
    requested once more, shorter and with twice the limit. *focus* is what the summary should attend
    to. The SDK's own retries are off: the retry layer is the only one. No credentials are kept.
    Without a client, in an agent on Anthropic's API, `Compact` has it use the agent's own client
    and, unless *model* or SUMMARY_MODEL is set, the agent's own model. In an agent on another API
    `ExtractiveSummarizer` writes instead, with a warning: credentials from the environment are
    never used for a vendor that the agent does not talk to. Where nothing is known of the agent,
    and outside of a pipeline, a client is made from ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN;
    without these, too, `ExtractiveSummarizer` writes, and the summary names it as its writer.

    Raises SettingsError for mode "inline" without a model.
    """

    client: anthropic.AsyncAnthropic | None = None
    model: str | None = None
    mode: Literal["transcript", "inline"] = "transcript"
    max_words: int = setting(SUMMARY_MAX_WORDS)
    focus: str = ""
    system: str | Sequence[TextBlockParam] | None = field(default=None, repr=False)
    tools: Sequence[ToolUnionParam] = ()
    request_options: Mapping[str, object] = field(default_factory=dict)
    window: int = 200_000
    counter: Counting | None = None
    max_tokens: int | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.client is not None:
            check_client(self.client)
        check_settings(
            self,
            model=TEXT.optional,
            mode=one_of("transcript", "inline"),
            max_words=COUNT,
            focus=TEXT,
            system=instance_of(Sequence, "a text, or a list of text blocks").optional,
            tools=_TOOLS,
            request_options=MAPPING,
            window=COUNT,
            counter=COUNTING.optional,
            max_tokens=COUNT.optional,
        )
        if self.mode == "inline" and not self.model:
            raise SettingsError(
                "mode 'inline' reads the agent's prompt cache, so it needs the agent's model"
            )

    @property
    def available(self) -> bool:
        """Return True if there is a client, or the environment holds credentials for one."""
        return self.client is not None or any(os.environ.get(key) for key in _KEYS)

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        if not self.available:
            logger.warning("%s", WITHOUT_MODEL)
            return await ExtractiveSummarizer(self.max_words)(messages)
        ask = self._ask_inline if self.mode == "inline" else self._ask_transcript
        reply = await ask(messages)
        model = self.model or SUMMARY_MODEL()
        summary = Summary(self._text(reply), writer=type(self).__name__, model=model)
        return await with_price(summary, reply_usage(reply), reply.model)

    async def _ask_transcript(self, messages: Sequence[Message]) -> Reply:
        prompt = await transcript_prompt(
            messages, self.max_words, self.focus, self.window, self.counter
        )
        return await self._send({"messages": [{"role": "user", "content": prompt}]})

    async def _ask_inline(self, messages: Sequence[Message]) -> Reply:
        # All before the last message is what the agent sent: another system prompt, other tools or
        # another tool_choice would miss its cache.
        body = dict(self.request_options)
        if self.system:
            body["system"] = self.system
        if self.tools:
            body["tools"] = list(self.tools)
        request = {"role": "user", "content": instructions(self.max_words, self.focus)}
        body["messages"] = [*messages, request]
        try:
            return await self._send(body)
        except UnicodeEncodeError:  # a lone surrogate, which the transcript replaces
            return await self._ask_transcript(messages)
        except Exception as error:
            if as_refusal(error) is None:
                raise
            raise PromptTooLong(
                "the conversation does not fit",
                refused=True,
                instead=replace(self, mode="transcript"),
            ) from error

    async def _send(self, body: Mapping[str, Any]) -> Reply:
        request: dict[str, Any] = {
            "model": self.model or SUMMARY_MODEL(),
            "max_tokens": self._answer_tokens,
            **body,
        }
        if self.client is not None:
            return await _reply(self.client, request)
        sdk = await to_thread.run_sync(import_module, "anthropic")  # the import takes seconds
        # In a thread too: a client reads certificates, and the first one imports what sends.
        async with await to_thread.run_sync(sdk.AsyncAnthropic) as client:
            return await _reply(client, request)

    @property
    def _answer_tokens(self) -> int:
        return self.max_tokens or answer_tokens(self.max_words, self.window)

    def _text(self, reply: Reply) -> str:
        """The summary in *reply*.

        Raises SummaryFailed for an answer that is incomplete, refused, a call, or without text.
        """
        match reply.stop_reason:
            case "model_context_window_exceeded":
                raise PromptTooLong(
                    "the answer did not fit into the summary model's window", refused=True
                )
            case "refusal":
                raise SummaryRefused("the model refused to write a summary")
            case "max_tokens":
                raise SummaryRefused(
                    "the summary did not fit into its token limit", instead=self._shorter()
                )
            case reason if reason not in _COMPLETE:
                raise SummaryFailed(f"the model stopped with {reason!r} instead of a whole summary")
        text = "".join([block.text for block in reply.content if block.type == "text"]).strip()
        if not text:
            raise SummaryFailed("the model answered without text")
        return text

    def _shorter(self) -> AnthropicSummarizer:
        """Asks for half the words, with twice the tokens as far as any model may answer so many."""
        doubled = min(2 * self._answer_tokens, COMMON_OUTPUT_LIMIT, self.window // 2)
        max_tokens = max(self._answer_tokens, doubled)
        return replace(self, max_words=max(1, self.max_words // 2), max_tokens=max_tokens)


_TOOLS = Requirement(
    lambda value: isinstance(value, Sequence) and not isinstance(value, str), "a list of tools"
)


async def _reply(client: anthropic.AsyncAnthropic, request: dict[str, Any]) -> Reply:
    reply: Reply = await without_retries(client).messages.create(**request)
    return reply


def without_retries(client: Any) -> Any:
    """Return *client*, of Anthropic's SDK or alike, without retries of its own."""
    with_options = getattr(client, "with_options", None)
    return client if with_options is None else with_options(max_retries=0)


def reply_usage(reply: Any) -> dict[str, int]:
    """Return the usage of *reply*, a message of Anthropic's SDK, as plain numbers."""
    names = (
        *("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
        "output_tokens",
    )
    return {name: getattr(reply.usage, name, None) or 0 for name in names}
