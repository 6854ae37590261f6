"""Retries: tenacity around the summarizer, and nowhere else.

Every error is worth another attempt, a blank answer too; but not a request that can never succeed,
a refusal, or a programming error, and not cancellation of the task, which passes at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from inspect import isawaitable
from itertools import accumulate
from typing import TYPE_CHECKING

import anyio

from .._logs import logger
from .._text import count_phrase
from .._threads.threads import in_thread
from ..edits.compact import assemble
from ..errors import (
    CtxpipeError,
    SettingsError,
    SummaryFailed,
    safe_text,
)
from ..messages import Message, deep_copy, has_results, is_blank, without_surrogates
from ..messages.identity import digest
from ..placeholders.summaries import safe_summary
from ..providers.refusals import as_refusal, status_of
from ..settings import COMPACT_MAX_RETRIES, FUNCTION, POSITIVE, SIZE, SLEEP, check_settings, setting
from .prompt import MAX_BLOCK_CHARS, render
from .protocol import PromptTooLong, Summarizer, Summary, SummaryRefused

if TYPE_CHECKING:
    from tenacity import RetryCallState


_FINAL = frozenset({400, 401, 402, 403, 404, 405, 410, 422})  # asking again cannot help
_PROGRAM_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    UnicodeError,
)
"""Errors that the same call raises again."""
_LEAST_WAIT, _MAX_WAIT = 0.5, 20.0  # seconds; the least however little the server asks for
_MAX_REFUSALS = 4  # of a history that the API found too long, each time cut in half


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and for how many seconds, a summary is tried.

    An attempt that takes longer than *attempt_seconds* is cancelled, and all attempts together take
    at most *total_seconds*, waits included. A large model needs half a minute for a long history.
    Waits grow exponentially from one second, with jitter. For a summarizer that retries by itself
    give ``max_retries=0``, or its retries multiply with these.

    Raises SettingsError for a negative number of retries, or no time at all.
    """

    max_retries: int = setting(COMPACT_MAX_RETRIES)
    attempt_seconds: float = 60.0
    total_seconds: float = 120.0
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        check_settings(
            self,
            max_retries=SIZE,
            attempt_seconds=POSITIVE,
            total_seconds=POSITIVE,
            sleep=SLEEP,
            clock=FUNCTION,
        )


class AttemptTimeout(SummaryFailed, TimeoutError):
    """An attempt took longer than the settings allow; the text names the setting."""


@dataclass(slots=True)
class FinishedParts:
    """The part of a history too long for one request that is summarized already.

    It is not paid for again. One summary is kept, with a digest of the leading messages that it
    replaces and with the summarizer that was asked for it.
    """

    asked: Summarizer | None = None
    writer: Summarizer | None = None
    count: int = 0
    digest: bytes = b""
    summary: Summary | None = None

    def find(self, asked: Summarizer, messages: Sequence[Message]) -> Summary | None:
        """The summary, if it is of the first `count` *messages*, not of all, and for *asked*."""
        if self.asked != asked or self.count >= len(messages):
            return None
        return self.summary if digest_of(messages[: self.count]) == self.digest else None


class FinishedSummary(FinishedParts):
    """The whole summary of a turn, until that turn has ended: it may be cancelled after it came."""


def digest_of(messages: Sequence[Message]) -> bytes:
    """The digest of *messages*, whatever cache marks they have."""
    return sha256(b"".join(map(digest, messages))).digest()


async def summarize_with_retry(
    summarize: Summarizer,
    messages: Sequence[Message],
    retry: Retry,
    finished: FinishedParts | None = None,
) -> Summary:
    """The summary of *messages*, in parts where they are too long for one request.

    Each part is summarized together with the summary before it. What the parts *finished* earlier
    hold is not asked for again, and what is finished now is kept there.

    Raises SummaryFailed, with the last failure as its cause. Cancellation passes through at once.
    """
    deadline = retry.clock() + retry.total_seconds
    asked = summarize
    done = 0
    finished = finished or FinishedParts()
    known = await in_thread(finished.find, asked, messages)
    if known is not None:
        summarize = finished.writer or asked
        done = finished.count
    total = before = known or Summary("", attempts=0)
    refused_summaries = 0
    refused_prompts = 0
    parts = [list(messages[done:])]
    try:
        while parts:
            part = parts[0]
            earlier = assemble([], safe_summary(total.text), []) if total.text else []
            try:
                summary = await _attempt(summarize, [*earlier, *part], retry, deadline)
            except SummaryRefused as error:
                refused_summaries += 1
                if error.instead is None or refused_summaries > 1:
                    raise SummaryFailed(f"no summary: {safe_text(error)}") from error
                summarize = error.instead
                continue
            except PromptTooLong as error:
                refused_prompts += error.refused
                parts[:1] = await _smaller(part, error, refused_prompts)
                summarize = error.instead or summarize
                continue
            total = _add_cost(summary, total)
            del parts[0]
            done += len(part)
    except (Exception, anyio.get_cancelled_exc_class()):
        if total is not before:
            with anyio.CancelScope(shield=True):
                finished.digest = await in_thread(digest_of, messages[:done])
            finished.count, finished.summary = done, total
            finished.asked, finished.writer = asked, summarize
        raise
    return replace(total, attempts=total.attempts + refused_summaries)


def _add_cost(summary: Summary, earlier: Summary) -> Summary:
    """*summary*, with what the *earlier* one cost."""
    return replace(
        summary,
        input_tokens=earlier.input_tokens + summary.input_tokens,
        cached_tokens=earlier.cached_tokens + summary.cached_tokens,
        output_tokens=earlier.output_tokens + summary.output_tokens,
        attempts=earlier.attempts + summary.attempts,
        dollars=_add_dollars(earlier, summary),
    )


def _add_dollars(earlier: Summary, summary: Summary) -> float | None:
    """The price of both; None where one of them is not known, and was paid for."""
    if not earlier.text:
        return summary.dollars
    if earlier.dollars is None or summary.dollars is None:
        return None
    return earlier.dollars + summary.dollars


async def _smaller(part: list[Message], error: PromptTooLong, refusals: int) -> list[list[Message]]:
    """*part* in halves; as it is where the *error* names another summarizer."""
    parts = [part] if error.instead else await in_thread(_halves, part)
    if not parts or refusals > _MAX_REFUSALS:
        raise SummaryFailed(
            f"the history cannot be cut into parts that fit: {safe_text(error)}"
        ) from error
    return parts


def _halves(part: list[Message]) -> list[list[Message]]:
    """*part* in two halves of about the same size; none when it cannot be cut.

    A call and its results stay together where that is possible.
    """
    sizes = list(accumulate(map(len, render(part, MAX_BLOCK_CHARS))))
    all_cuts = range(1, len(part))
    cuts = [index for index in all_cuts if not has_results(part[index])] or all_cuts
    if not cuts:
        return []
    half = sizes[-1] / 2
    cut = min(cuts, key=lambda index: abs(sizes[index - 1] - half))
    return [part[:cut], part[cut:]]


async def _attempt(
    summarize: Summarizer, messages: Sequence[Message], retry: Retry, deadline: float
) -> Summary:
    """The summary, after as many attempts as *retry* allows before the *deadline*."""
    import tenacity

    async def attempt() -> Summary:
        left = deadline - retry.clock()
        try:
            with anyio.fail_after(min(retry.attempt_seconds, left)) as scope:
                return await _ask(summarize, messages)
        except TimeoutError as error:
            if not scope.cancelled_caught:  # the summarizer's own
                raise
            limit = f"attempt_seconds={retry.attempt_seconds:g}"
            if left < retry.attempt_seconds:
                limit = f"total_seconds={retry.total_seconds:g}"
            raise AttemptTimeout(f"no answer within {limit} of Retry") from error

    def wait(state: RetryCallState) -> float:
        return _retry_after(_failure(state)) or backoff(state)

    def is_over(state: RetryCallState) -> bool:
        if retry.clock() + state.upcoming_sleep >= deadline:
            return True
        return state.attempt_number > retry.max_retries or _is_final(_failure(state))

    backoff = tenacity.wait_exponential_jitter(max=_MAX_WAIT)
    retrying = tenacity.AsyncRetrying(
        sleep=retry.sleep, wait=wait, stop=is_over, before_sleep=_warn, reraise=True
    )
    try:
        summary: Summary = await retrying(attempt)
    except (PromptTooLong, SummaryRefused):
        raise
    except Exception as error:
        description = _description(error)
        if as_refusal(error) is not None:
            raise PromptTooLong(description, refused=True) from error
        attempts = count_phrase(retrying.statistics["attempt_number"], "attempt")
        raise SummaryFailed(f"no summary after {attempts}: {description}") from error
    return replace(summary, attempts=retrying.statistics["attempt_number"])


async def _ask(summarize: Summarizer, messages: Sequence[Message]) -> Summary:
    # Copies: the messages are the caller's, and a summarizer may shorten what it is given.
    copies = await in_thread(deep_copy, list(messages))
    try:
        summary = await _answer_of(summarize, copies)
    except Exception:
        raise
    except BaseException as error:
        if _passes_through(error):
            raise
        # Such as a panic in an extension: it ends this attempt, and not the agent.
        raise SummaryFailed(f"the summarizer raised {type(error).__name__}") from error
    if not isinstance(summary, Summary):
        raise SettingsError(
            f"the summarizer answered with {type(summary).__name__}; return a Summary"
        )
    if is_blank(summary.text):
        raise SummaryFailed("the summary is blank")
    # With half an emoji, as programs that count UTF-16 cut texts, it would be paid and refused.
    return replace(summary, text=without_surrogates(summary.text))


def is_own_cancellation() -> bool:
    """Return True if a CancelledError cancels the current task.

    Otherwise something that the task has waited for was cancelled, such as a request that it shares
    with others: a failure like any other.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _passes_through(error: BaseException) -> bool:
    """Return True if *error*, which is no Exception, is meant for the whole task.

    What others have cancelled, and the summarizer has waited for, is not.
    """
    kinds: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, GeneratorExit)
    if is_own_cancellation():
        kinds = (*kinds, asyncio.CancelledError)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds) is not None
    return isinstance(error, kinds)


async def _answer_of(summarize: Summarizer, messages: Sequence[Message]) -> object:
    answer: object = summarize(messages)  # whatever its type says
    if not isawaitable(answer):
        raise SettingsError(
            f"the summarizer's answer, {type(answer).__name__}, cannot be awaited; "
            "write it as `async def`"
        )
    return await answer


def _description(error: BaseException | None) -> str:
    if error is None:
        return "no answer"
    status = status_of(error)
    if status is None:
        return safe_text(error)
    return f"{safe_text(error)}, status {status}"


def _failure(state: RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


def _is_final(error: BaseException | None) -> bool:
    """Return True if asking the same again cannot help."""
    if isinstance(error, PromptTooLong | SummaryRefused):
        return True
    is_program_error = isinstance(error, (CtxpipeError, *_PROGRAM_ERRORS))
    if is_program_error and not isinstance(error, SummaryFailed):
        return True
    return as_refusal(error) is not None or status_of(error) in _FINAL


def _retry_after(error: BaseException | None) -> float | None:
    """The seconds that the server asks to wait; None when it names no time in the future.

    It may give milliseconds, seconds or a date: the first of them in the future counts.
    """
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    milliseconds = _number(headers.get("retry-after-ms"))
    header = headers.get("retry-after")
    for seconds in (milliseconds / 1000, _number(header), _seconds_until(header)):
        if seconds > 0:
            return max(_LEAST_WAIT, seconds)
    return None


def _number(text: object) -> float:
    """The number in *text*; 0 when there is none."""
    try:
        number = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0
    return number if math.isfinite(number) else 0


def _seconds_until(date: object) -> float:
    """The seconds until *date*; 0 when it is no date, or one that does not exist."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(str(date)).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0


def _warn(state: RetryCallState) -> None:
    logger.warning(
        "summary attempt %d failed (%s); next try in %.1f s",
        state.attempt_number,
        _description(_failure(state)),
        state.upcoming_sleep,
    )
