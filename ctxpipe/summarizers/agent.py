"""The model that the agent itself uses writes the summary."""

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
    "no model writes the summaries: AnthropicSummarizer has no client, the agent talks to another"
    " API, and credentials from the environment are not used for a vendor that the agent does not"
    " use; they are collected from the messages: give Compact(AnthropicSummarizer(client), …), or"
    " leave the summarizer out, and the agent's own model writes"
)
"""The warning for an `AnthropicSummarizer` without a client in an agent of another API."""

# Why a model stopped, as the APIs and frameworks name it, in small letters. Another reason, or
# none, is an answer that is complete.
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
    """What a model has answered.

    *reason* is why it stopped, by the name that its API has for it. *usage* has the form of the
    Messages API; None where it is not known. *model* is the one that answered, as it is reported.
    """

    text: str = field(repr=False)
    reason: str | None = None
    usage: Mapping[str, int] | None = None
    model: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentModel(ABC):
    """The model that an agent itself uses, lent by an adapter to write a summary.

    *name* is the model that the agent asks. *summary_model* is the one that the adapter was told to
    have the summaries written by; None where it was not told. *api* is whose API the agent talks
    to, such as "anthropic"; "" where that is not known.

    An adapter writes `ask` with the objects of its framework. So a question goes where the agent's
    own requests go, with the same credentials.
    """

    name: str | None = None
    summary_model: str | None = None
    api: str = ""

    @property
    def anthropic_client(self) -> object:
        """The agent's asynchronous client of Anthropic's SDK; None where it has none."""
        return None

    @abstractmethod
    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Ask *model*, by default the agent's own, for the answer to *prompt*.

        *max_tokens* is the room that the answer needs; an API that requires no limit needs not be
        given it. Raises what the framework raises.
        """


@dataclass(frozen=True, slots=True, repr=False)
class AgentSummarizer:
    """Asks the model that the agent itself uses, through the agent's own client.

    An adapter or a session lends it; `Compact` does so by default. *model* names another model of
    the same provider: by default the one that the adapter was given as ``summary_model=``, else
    SUMMARY_MODEL where the environment sets it, else the agent's own. Where nothing is lent, as in
    `ContextPipeline.run`, `ExtractiveSummarizer` writes instead, and a warning says so. No
    credentials are ever taken from the environment.

    *window* is the context window of the model in tokens, by default the listed one, else
    *default_window*. A history that does not fit is shortened as by `AnthropicSummarizer`. An
    answer that is cut off is requested once more, with half the words and twice *max_tokens*.
    *focus* is what the summary should attend to.

    Raises SettingsError for settings that are invalid.
    """

    model: str | None = None
    max_words: int = setting(SUMMARY_MAX_WORDS)
    focus: str = ""
    window: int | None = None
    counter: Counting | None = None
    max_tokens: int | None = None
    default_window: int = 200_000
    # Not compared: each request lends a new one, and finished parts of a summary stay valid.
    lent: AgentModel | None = field(default=None, repr=False, compare=False)

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
            lent=instance_of(AgentModel, "an AgentModel").optional,
        )

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        lent = self.lent
        if lent is None:
            logger.warning("%s", WITHOUT_MODEL)
            return await ExtractiveSummarizer(self.max_words)(messages)
        model = self.model or lent.summary_model or SUMMARY_MODEL.in_environment() or lent.name
        window = self.window or self.default_window
        if self.window is None and model:
            window = await in_thread(_find_window, model, window)
        prompt = await transcript_prompt(messages, self.max_words, self.focus, window, self.counter)
        max_tokens = self.max_tokens or answer_tokens(self.max_words, window)
        answer = await lent.ask(prompt, model=model, max_tokens=max_tokens)
        text = self._complete_text(answer, max_tokens, window)
        summary = Summary(text, writer=type(self).__name__, model=model or answer.model)
        return await with_price(summary, answer.usage, answer.model)

    def _complete_text(self, answer: AgentAnswer, max_tokens: int, window: int) -> str:
        """Return the text of *answer*.

        Raises SummaryFailed for an answer that is cut off, refused, a call, or without text.
        """
        reason = (answer.reason or "").lower()
        if reason in _CUT_OFF:
            doubled = min(2 * max_tokens, COMMON_OUTPUT_LIMIT, window // 2)
            shorter = replace(
                self,
                max_words=max(1, self.max_words // 2),
                max_tokens=max(max_tokens, doubled),
            )
            raise SummaryRefused("the summary did not fit into its token limit", instead=shorter)
        if reason in _REFUSED:
            raise SummaryRefused("the model refused to write a summary")
        if reason in _UNFINISHED:
            raise SummaryFailed(f"the model stopped with {reason!r} instead of a whole summary")
        text = answer.text.strip()
        if not text:
            raise SummaryFailed("the model answered without text")
        return text


def _find_window(model: str, otherwise: int) -> int:
    return context_window(model) or otherwise


def lend(writer: Summarizer, agent_model: AgentModel | None, window: int) -> Summarizer:
    """Return *writer*, which asks *agent_model* if it has neither a client nor a model of its own.

    *window* is what the agent's context may hold, in tokens. An `ExtractiveSummarizer` replaces a
    *writer* that has nobody to ask. An `AnthropicSummarizer` without a client, which the caller has
    chosen, may use the environment's credentials only where no adapter says that the agent talks to
    somebody else.
    """
    if isinstance(writer, AgentSummarizer):
        agent_model = writer.lent or agent_model
        if agent_model is None:
            return ExtractiveSummarizer(writer.max_words)
        return replace(writer, lent=agent_model, default_window=window)
    if not isinstance(writer, AnthropicSummarizer) or writer.client is not None:
        return writer
    if agent_model is None and writer.available:
        return writer
    if agent_model is None or agent_model.api != "anthropic":
        return ExtractiveSummarizer(writer.max_words)
    return _lend_to_anthropic(writer, agent_model)


def _lend_to_anthropic(writer: AnthropicSummarizer, agent_model: AgentModel) -> Summarizer:
    """Return *writer* with the client of *agent_model*, or who asks that in its own way."""
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
        lent=agent_model,
    )


def missing_model(writer: Summarizer | None, agent_model: AgentModel | None) -> str:
    """Return the warning for a *writer* for which `lend` found nobody to ask."""
    is_anthropic = isinstance(writer, AnthropicSummarizer)
    return OTHER_API if is_anthropic and agent_model is not None else WITHOUT_MODEL
