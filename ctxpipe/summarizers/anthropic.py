"""Summaries by a Claude model."""

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
    "no model writes the summaries: no model is configured, and ctxpipe does not know the model of"
    " the agent; the summaries are extracted from the messages instead; give"
    " Compact(AnthropicSummarizer(client), …) or Compact(PromptSummarizer(ask), …), or choose"
    " ExtractiveSummarizer()"
)
"""Warning when a summary is due and there is no model to write it."""

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
COMMON_OUTPUT_LIMIT = 8192  # output tokens that every current model supports
_COMPLETE = frozenset({"end_turn", "stop_sequence"})


@dataclass(frozen=True, slots=True, repr=False)
class AnthropicSummarizer:
    """Summarizer that asks a Claude model with the *client*, an ``AsyncAnthropic``.

    With mode "transcript" the history is sent as one text that is marked as data, so a separate,
    inexpensive *model* can read it. If the text exceeds *window*, the context window of that model
    in tokens, the middle of long blocks is left out, and a text that is still too long is
    summarized in parts.

    With mode "inline" the request for the summary is appended as a last message to the agent's own
    conversation, so that it reads the agent's prompt cache. Give the *model*, *system* and *tools*
    of the agent, and in *request_options* the other arguments of its requests, such as
    ``thinking``. An inline request that is too long is sent again as a transcript.

    *max_words* is the largest number of words that the prompt asks for. *max_tokens* is the output
    limit of the request, by default 512 + 3 x *max_words*, at most half of the window. A summary
    that exceeds it is requested once more, with half the words and up to twice the *max_tokens*.
    *focus* is a subject to which the summary should pay special attention. *counter* counts the
    tokens of the prompt. The client's own retries are switched off, because `Retry` repeats
    requests.

    The model is *model* if it is set. With a *client* of your own, or one from the environment, the
    default is SUMMARY_MODEL: an environment variable, or else a small Claude model.

    Without *client*, there are three cases:

    - The adapter or session reports that the agent uses Anthropic's API. Then `Compact` uses the
      agent's own client. The model is *model*, else the adapter's ``summary_model=``, else
      SUMMARY_MODEL if the environment sets it, else the agent's own model.
    - It reports that the agent uses another API. Then `Compact` logs a warning and uses
      `ExtractiveSummarizer`: the history is not sent to a provider that the agent does not use,
      even if the environment has credentials for it.
    - Nothing is known about the agent, as in ``ContextPipeline.run`` or outside of a pipeline. Then
      a client is created from ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN. If neither is set,
      `ExtractiveSummarizer` writes the summary, and ``Summary.writer`` names it.

    Raises SettingsError for an invalid setting, or for mode "inline" without *model*.
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
        """Return the summary of *messages* that the model writes.

        Without a client and without credentials in the environment a warning is logged, and the
        summary is an extract that needs no model. Errors of the API are raised.
        """
        if not self.available:
            logger.warning("%s", WITHOUT_MODEL)
            return await ExtractiveSummarizer(self.max_words)(messages)
        ask = self._ask_inline if self.mode == "inline" else self._ask_transcript
        reply = await ask(messages)
        model = self.model or SUMMARY_MODEL()
        summary = Summary(self._text(reply), writer=type(self).__name__, model=model)
        return await with_price(summary, reply_usage(reply), reply.model)

    async def _ask_transcript(self, messages: Sequence[Message]) -> Reply:
        """Send *messages* as one text with the request for a summary; return the model's reply."""
        prompt = await transcript_prompt(
            messages, self.max_words, self.focus, self.window, self.counter
        )
        return await self._send({"messages": [{"role": "user", "content": prompt}]})

    async def _ask_inline(self, messages: Sequence[Message]) -> Reply:
        """Request the summary at the end of the agent's own conversation.

        Raises PromptTooLong, with a summarizer of mode "transcript", if the API refuses the length.
        """
        # Everything before the last message equals the agent's own request: another system prompt,
        # other tools or another tool_choice would miss its cache.
        body = dict(self.request_options)
        if self.system:
            body["system"] = self.system
        if self.tools:
            body["tools"] = list(self.tools)
        request = {"role": "user", "content": instructions(self.max_words, self.focus)}
        body["messages"] = [*messages, request]
        try:
            return await self._send(body)
        except UnicodeEncodeError:  # a lone surrogate, which a transcript replaces
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
        """Send *body* with the client, or with a new client that is closed afterwards."""
        request: dict[str, Any] = {
            "model": self.model or SUMMARY_MODEL(),
            "max_tokens": self._answer_tokens,
            **body,
        }
        if self.client is not None:
            return await _reply(self.client, request)
        sdk = await to_thread.run_sync(import_module, "anthropic")  # the import takes seconds
        # In a thread too: a client reads certificates, and the first one imports the HTTP library.
        async with await to_thread.run_sync(sdk.AsyncAnthropic) as client:
            return await _reply(client, request)

    @property
    def _answer_tokens(self) -> int:
        return self.max_tokens or answer_tokens(self.max_words, self.window)

    def _text(self, reply: Reply) -> str:
        """Return the summary in *reply*.

        Raises PromptTooLong if the answer did not fit into the context window. Raises
        SummaryRefused if the model refused or if the answer exceeds the output limit. For the
        latter the error names, as *instead*, a summarizer that asks for a shorter summary. Raises
        SummaryFailed if the answer is incomplete for another reason, such as a tool call, or
        without text.
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
                raise SummaryFailed(
                    f"the model stopped with {reason!r} before the summary was complete"
                )
        text = "".join([block.text for block in reply.content if block.type == "text"]).strip()
        if not text:
            raise SummaryFailed("the model answered without text")
        return text

    def _shorter(self) -> AnthropicSummarizer:
        """Return a summarizer that asks for half the words, with up to twice the token limit."""
        larger_limit = min(2 * self._answer_tokens, COMMON_OUTPUT_LIMIT, self.window // 2)
        max_tokens = max(self._answer_tokens, larger_limit)
        return replace(self, max_words=max(1, self.max_words // 2), max_tokens=max_tokens)


_TOOLS = Requirement(
    lambda value: isinstance(value, Sequence) and not isinstance(value, str), "a list of tools"
)


async def _reply(client: anthropic.AsyncAnthropic, request: dict[str, Any]) -> Reply:
    """Send *request* with *client* without the SDK's retries; return the reply."""
    reply: Reply = await without_retries(client).messages.create(**request)
    return reply


def without_retries(client: Any) -> Any:
    """Return *client* without retries of its own, if it can be configured like an SDK client."""
    with_options = getattr(client, "with_options", None)
    if with_options is None:
        return client
    return with_options(max_retries=0)


def reply_usage(reply: Any) -> dict[str, int]:
    """Return the usage of *reply*, a message of Anthropic's SDK, as plain numbers."""
    names = (
        *("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
        "output_tokens",
    )
    return {name: getattr(reply.usage, name, None) or 0 for name in names}
