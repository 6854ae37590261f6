"""Summaries by the model that the agent itself uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._logs import logger
from .._text import short_repr
from .._threads.threads import in_thread
from ..errors import SummaryFailed
from ..messages import Message
from ..providers.prices import context_window
from ..settings import (
    COUNT,
    SUMMARY_MAX_WORDS,
    SUMMARY_MODEL,
    TEXT,
    check_settings,
    instance_of,
    setting,
)
from ..tokens import Counting
from ..tokens.counter import COUNTING
from .anthropic import COMMON_OUTPUT_LIMIT, WITHOUT_MODEL, AnthropicSummarizer
from .extractive import ExtractiveSummarizer
from .prompt import answer_tokens, transcript_prompt
from .protocol import Summarizer, Summary, SummaryRefused, with_price

OTHER_API = (
    "no model writes the summaries: AnthropicSummarizer has no client, and the agent uses another"
    " API; credentials from the environment are never used for a provider that the agent does not"
    " use; the summaries are extracted from the messages instead; give"
    " Compact(AnthropicSummarizer(client), …), or give no summarizer to use the agent's own model"
)
"""Warning for an `AnthropicSummarizer` without a client in an agent that uses another API."""

# Reasons why a model stopped, as the APIs and frameworks name them, in lower case. With any other
# reason, or none, the answer is complete.
_CUT_OFF = frozenset({"length", "max_output_tokens", "max_tokens"})
_REFUSED = frozenset(
    {
        *("blocklist", "content_filter", "prohibited_content", "recitation", "refusal", "safety"),
        *("spii", "content-filter"),
    }
)
_UNFINISHED = frozenset(
    {
        *("failed", "cancelled", "function_call", "pause_turn", "tool_call", "tool_calls"),
        *("tool_use", "malformed_function_call", "unexpected_tool_call"),
    }
)


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """Answer of a model to the prompt of a summary.

    *reason* is the reason why the model stopped, as its API names it, such as "end_turn"; None if
    unknown. *usage* has the tokens under the names of the Messages API ("input_tokens", …); None if
    unknown. *model* is the model that the reply names, "" if it names none.
    """

    text: str = field(repr=False)
    reason: str | None = None
    usage: Mapping[str, int] | None = None
    model: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentModel(ABC):
    """Access to the model that an agent itself uses, so that it can write the summaries.

    Each adapter has its own subclass and creates the object; implement one only for an adapter of
    your own. *name* is the name of the agent's model, None if unknown. *summary_model* is the
    adapter's argument of that name, None by default. *api* is the API that the agent uses, such as
    "anthropic"; "" if unknown.

    A subclass implements `ask` with the client of the agent. So the prompt is sent to the same host
    as the agent's own requests, with the same credentials.
    """

    name: str | None = None
    summary_model: str | None = None
    api: str = ""

    @property
    def anthropic_client(self) -> object:
        """The agent's async client of Anthropic's SDK; None if it has none."""
        return None

    @abstractmethod
    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Send *prompt* to *model*, by default the agent's own, and return the answer.

        *max_tokens* is the number of output tokens that is sufficient for the answer. Send it as
        the output limit of the request; an API that does not require a limit may be called without
        one. Raises the errors of the framework.
        """


@dataclass(frozen=True, slots=True, repr=False)
class AgentSummarizer:
    """Summarizer that asks the agent's own model, through the agent's own client.

    `Compact` uses it by default. *agent_model* is how the agent's model is reached. Leave it None:
    the adapter or the session of the agent sets it when a summary is due. Where nothing sets it, as
    in ``ContextPipeline.run``, `ExtractiveSummarizer` writes the summary without a model, and a
    warning is logged. Credentials are never taken from the environment.

    *model* is the name of another model of the same provider. By default it is the adapter's
    ``summary_model=``, or else SUMMARY_MODEL if the environment sets it, or else the agent's model.

    *max_words* is the largest number of words that the prompt asks for. *focus* is a subject to
    which the summary should pay special attention. *window* is the context window of the
    summarizing model in tokens. By default it is the window that the package genai-prices lists for
    the model, or *default_window* if it lists none; in a pipeline that is the window of its budget.
    If the history does not fit, the middle of long blocks is left out, and a history that is still
    too long is summarized in parts.

    *max_tokens* is the output limit of the request, by default 512 + 3 x *max_words*, at most half
    of the window. A summary that exceeds it is requested once more, with half the words and up to
    twice the *max_tokens*. *counter* counts the tokens of the prompt.

    Raises SettingsError for an invalid setting.
    """

    model: str | None = None
    max_words: int = setting(SUMMARY_MAX_WORDS)
    focus: str = ""
    window: int | None = None
    counter: Counting | None = None
    max_tokens: int | None = None
    default_window: int = 200_000
    # Not compared: each request provides a new one, and finished parts of a summary stay valid.
    agent_model: AgentModel | None = field(default=None, repr=False, compare=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_settings(
            self,
            model=TEXT.optional,
            max_words=COUNT,
            focus=TEXT,
            window=COUNT.optional,
            counter=COUNTING.optional,
            max_tokens=COUNT.optional,
            default_window=COUNT,
            agent_model=instance_of(AgentModel, "an AgentModel").optional,
        )

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        """Return the summary of *messages* that the agent's own model writes.

        Outside an agent a warning is logged, and the summary is an extract that needs no model.
        Errors of the model are raised.
        """
        agent_model = self.agent_model
        if agent_model is None:
            logger.warning("%s", WITHOUT_MODEL)
            return await ExtractiveSummarizer(self.max_words)(messages)
        environment_model = SUMMARY_MODEL.in_environment()
        model = self.model or agent_model.summary_model or environment_model or agent_model.name
        window = self.window or self.default_window
        if self.window is None and model:
            window = await in_thread(_find_window, model, window)
        prompt = await transcript_prompt(messages, self.max_words, self.focus, window, self.counter)
        max_tokens = self.max_tokens or answer_tokens(self.max_words, window)
        answer = await agent_model.ask(prompt, model=model, max_tokens=max_tokens)
        text = self._complete_text(answer, max_tokens, window)
        summary = Summary(text, writer=type(self).__name__, model=model or answer.model)
        return await with_price(summary, answer.usage, answer.model)

    def _complete_text(self, answer: AgentAnswer, max_tokens: int, window: int) -> str:
        """Return the text of *answer*, to a request with the limit *max_tokens*.

        *window* is the context window of the model in tokens. Raises SummaryRefused if the model
        refused or if the answer is cut off. For the latter the error names, as *instead*, a
        summarizer that asks for a shorter summary. Raises SummaryFailed if the answer is a tool
        call or without text.
        """
        reason = (answer.reason or "").lower()
        if reason in _CUT_OFF:
            larger_limit = min(2 * max_tokens, COMMON_OUTPUT_LIMIT, window // 2)
            shorter = replace(
                self,
                max_words=max(1, self.max_words // 2),
                max_tokens=max(max_tokens, larger_limit),
            )
            raise SummaryRefused("the summary did not fit into its token limit", instead=shorter)
        if reason in _REFUSED:
            raise SummaryRefused("the model refused to write a summary")
        if reason in _UNFINISHED:
            raise SummaryFailed(
                f"the model stopped with {reason!r} before the summary was complete"
            )
        text = answer.text.strip()
        if not text:
            raise SummaryFailed("the model answered without text")
        return text


def _find_window(model: str, default: int) -> int:
    return context_window(model) or default


def with_agent_model(writer: Summarizer, agent_model: AgentModel | None, window: int) -> Summarizer:
    """Return *writer* with *agent_model*, if it has neither a client nor a model of its own.

    *window* is the context window of the agent, in tokens. A *writer* that has no model to ask is
    replaced by an `ExtractiveSummarizer`. An `AnthropicSummarizer` without a client may use the
    credentials of the environment only if no adapter reports that the agent uses another API.
    """
    if isinstance(writer, AgentSummarizer):
        agent_model = writer.agent_model or agent_model
        if agent_model is None:
            return ExtractiveSummarizer(writer.max_words)
        return replace(writer, agent_model=agent_model, default_window=window)
    if not isinstance(writer, AnthropicSummarizer) or writer.client is not None:
        return writer
    if agent_model is None and writer.available:
        return writer
    if agent_model is None or agent_model.api != "anthropic":
        return ExtractiveSummarizer(writer.max_words)
    return _anthropic_with_agent_model(writer, agent_model)


def _anthropic_with_agent_model(writer: AnthropicSummarizer, agent_model: AgentModel) -> Summarizer:
    """Return *writer* with the client of *agent_model*.

    If that has no client of Anthropic's SDK, return an `AgentSummarizer` for *agent_model* instead,
    with the model, words, focus, window, counter and token limit of *writer*.
    """
    model = writer.model or agent_model.summary_model or SUMMARY_MODEL.in_environment()
    client: Any = agent_model.anthropic_client
    if client is not None:
        return replace(writer, client=client, model=model or agent_model.name)
    return AgentSummarizer(
        model,
        writer.max_words,
        writer.focus,
        writer.window,
        writer.counter,
        writer.max_tokens,
        agent_model=agent_model,
    )


def warning_without_model(writer: Summarizer | None, agent_model: AgentModel | None) -> str:
    """Return the warning for a *writer* that `with_agent_model` replaced for lack of a model."""
    if isinstance(writer, AnthropicSummarizer) and agent_model is not None:
        return OTHER_API
    return WITHOUT_MODEL
