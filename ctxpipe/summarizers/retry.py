"""Retries of the summarizer, with tenacity. Nothing else in ctxpipe is retried.

Any error leads to another attempt, and so does a blank answer. Exceptions are a request that can
never succeed, a refusal, a programming error, and the cancellation of the task, which is raised at
once.
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
from ..errors import CtxpipeError, SettingsError, SummaryFailed, safe_text
from ..messages import Message, deep_copy, has_results, is_blank, without_surrogates
from ..messages.identity import digest
from ..placeholders.summaries import assemble, safe_summary
from ..providers.refusals import as_refusal, status_of
from ..settings import (
    COMPACT_MAX_RETRIES,
    FUNCTION,
    POSITIVE,
    SIZE,
    SLEEP,
    check_settings,
    is_retried,
    setting,
)
from .prompt import MAX_BLOCK_CHARS, render
from .protocol import PromptTooLong, Summarizer, Summary, SummaryRefused

if TYPE_CHECKING:
    from tenacity import RetryCallState, RetryError


# HTTP statuses of requests that fail again when they are repeated.
_FINAL = frozenset({400, 401, 402, 403, 404, 405, 410, 422})
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
_MIN_WAIT_SECONDS = 0.5  # even if the server asks for less
_MAX_WAIT_SECONDS = 20.0
_MAX_REFUSALS = 4  # requests refused as too long; each time the history is cut in half


@dataclass(frozen=True, slots=True)
class Retry:
    """Number and duration of the attempts to get a summary.

    Set it with ``Compact(…, breaker=Breaker(retry=Retry(…)))``.

    After a failure the summary is requested again, up to *max_retries* times. An attempt that takes
    longer than *attempt_seconds* is cancelled, and all attempts together take at most
    *total_seconds*, including the waits between them. A large model needs half a minute for a long
    history. The waits grow exponentially from one second, with jitter; a time that the server asks
    for is respected. If the summarizer retries by itself, set ``max_retries=0``, because otherwise
    its retries multiply with these. *sleep* and *clock* replace those of the process in tests.

    Raises SettingsError for a negative number of retries, or a time that is not positive.
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
    """Error of an attempt that took longer than the settings allow; the text names the setting."""


@dataclass(slots=True)
class FinishedParts:
    """Summary of the first part of a history that is too long for one request.

    `summarize_with_retry` fills this object when it fails or is cancelled, so that the next call
    does not pay for the same part again. *summary* describes the first *count* messages, whose
    digest is *digest*. *summarizer* is the one that the caller configured. *writer* is the one that
    writes the remaining parts: the same one, unless an error named another
    (``PromptTooLong.instead``).
    """

    summarizer: Summarizer | None = None
    writer: Summarizer | None = None
    count: int = 0
    digest: bytes = b""
    summary: Summary | None = None

    def find(self, summarizer: Summarizer, messages: Sequence[Message]) -> Summary | None:
        """Return the summary if it describes the beginning of *messages*, but not all of them.

        Returns None if it belongs to another history or to another *summarizer*.
        """
        if self.summarizer != summarizer or self.count >= len(messages):
            return None
        if digest_of(messages[: self.count]) != self.digest:
            return None
        return self.summary


class FinishedSummary(FinishedParts):
    """Complete summary of a turn, stored until its end because the turn may be cancelled."""


def digest_of(messages: Sequence[Message]) -> bytes:
    """Return a digest of *messages* that does not depend on cache marks."""
    return sha256(b"".join([digest(message) for message in messages])).digest()


async def summarize_with_retry(
    summarize: Summarizer,
    messages: Sequence[Message],
    retry: Retry,
    finished_parts: FinishedParts | None = None,
) -> Summary:
    """Summarize *messages*, and repeat failed requests as *retry* defines.

    If the messages are too long for one request, they are cut into parts; each part is summarized
    together with the summary of the parts before it. A part that *finished_parts* contains is not
    requested again. If this call fails or is cancelled, the parts it summarized are stored there.

    The result has the tokens, attempts and price of all requests. Raises SummaryFailed with the
    last error as its cause. Cancellation is raised at once.
    """
    deadline = retry.clock() + retry.total_seconds
    configured_summarizer = summarize
    done = 0
    finished_parts = finished_parts or FinishedParts()
    earlier_summary = await in_thread(finished_parts.find, configured_summarizer, messages)
    if earlier_summary is not None:
        summarize = finished_parts.writer or configured_summarizer
        done = finished_parts.count
    before = earlier_summary or Summary("", attempts=0)
    total = before
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
                parts[:1] = await _parts_to_retry(part, error, refused_prompts)
                summarize = error.instead or summarize
                continue
            total = _add_cost(summary, total)
            del parts[0]
            done += len(part)
    except (Exception, anyio.get_cancelled_exc_class()):
        if total is not before:
            with anyio.CancelScope(shield=True):
                finished_parts.digest = await in_thread(digest_of, messages[:done])
            finished_parts.count = done
            finished_parts.summary = total
            finished_parts.summarizer = configured_summarizer
            finished_parts.writer = summarize
        raise
    return replace(total, attempts=total.attempts + refused_summaries)


def _add_cost(summary: Summary, earlier: Summary) -> Summary:
    """Return *summary* with the tokens, attempts and dollars of *earlier* added."""
    return replace(
        summary,
        input_tokens=earlier.input_tokens + summary.input_tokens,
        cached_tokens=earlier.cached_tokens + summary.cached_tokens,
        output_tokens=earlier.output_tokens + summary.output_tokens,
        attempts=earlier.attempts + summary.attempts,
        dollars=_add_dollars(earlier, summary),
    )


def _add_dollars(earlier: Summary, summary: Summary) -> float | None:
    """Return the price of both; None if the price of a summary that was requested is unknown."""
    if not earlier.text:
        return summary.dollars
    if earlier.dollars is None or summary.dollars is None:
        return None
    return earlier.dollars + summary.dollars


async def _parts_to_retry(
    part: list[Message], error: PromptTooLong, refusals: int
) -> list[list[Message]]:
    """Return the parts to request after *error*: the halves of *part*.

    It is not cut if the *error* names another summarizer. Raises SummaryFailed if it cannot be cut,
    or was refused too often.
    """
    parts = [part] if error.instead else await in_thread(_halves, part)
    if not parts or refusals > _MAX_REFUSALS:
        raise SummaryFailed(
            f"the history cannot be cut into parts that fit: {safe_text(error)}"
        ) from error
    return parts


def _halves(part: list[Message]) -> list[list[Message]]:
    """Return two halves of *part* of about the same size; an empty list if it cannot be cut.

    A call and its results stay together if possible.
    """
    text_lengths = [len(text) for text in render(part, MAX_BLOCK_CHARS)]
    sizes = list(accumulate(text_lengths))  # characters up to the end of each message
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
    """Request a summary, with as many attempts as *retry* allows before the *deadline*.

    The deadline is a time of ``retry.clock``. Raises PromptTooLong and SummaryRefused at once, and
    SummaryFailed after the last attempt or an error that cannot be retried.
    """
    import tenacity

    async def attempt() -> Summary:
        """Ask the summarizer once; return the summary.

        Raises AttemptTimeout after the limit of Retry for an attempt or for all attempts, and
        SummaryFailed after retries of the summarizer itself; other errors are raised unchanged.
        """
        left = deadline - retry.clock()
        try:
            with anyio.fail_after(min(retry.attempt_seconds, left)) as scope:
                return await _summarize_once(summarize, messages)
        except TimeoutError as error:
            if not scope.cancelled_caught:  # a timeout of the summarizer
                raise
            raise AttemptTimeout(_timeout_text(summarize, retry, left)) from error
        except tenacity.RetryError as error:
            raise _error_behind(error) from error

    def wait(state: RetryCallState) -> float:
        return _retry_after(_failure(state)) or backoff(state)

    def is_over(state: RetryCallState) -> bool:
        """Return True if no further attempt is made after *state*: by time, number or error."""
        if retry.clock() + state.upcoming_sleep >= deadline:
            return True
        return state.attempt_number > retry.max_retries or _is_final(_failure(state))

    backoff = tenacity.wait_exponential_jitter(max=_MAX_WAIT_SECONDS)
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


async def _summarize_once(summarize: Summarizer, messages: Sequence[Message]) -> Summary:
    """Call *summarize* with copies of *messages*, and check its result.

    Returns the summary without lone surrogates in its text.

    Raises SettingsError if *summarize* is not async or does not return a Summary, and SummaryFailed
    if the summary is blank. Each Exception of *summarize* is raised unchanged. So are
    KeyboardInterrupt, SystemExit, GeneratorExit and the cancellation of the current task. Any other
    BaseException, such as a panic in an extension module, becomes SummaryFailed.
    """
    # A summarizer may modify its messages, and these belong to the caller.
    copies = await in_thread(deep_copy, list(messages))
    try:
        summary = await _call(summarize, copies)
    except Exception:
        raise
    except BaseException as error:
        if _passes_through(error):
            raise
        # For example a panic in an extension module, which must end only this attempt.
        raise SummaryFailed(f"the summarizer raised {type(error).__name__}") from error
    if not isinstance(summary, Summary):
        raise SettingsError(f"the summarizer returned {type(summary).__name__}; return a Summary")
    if is_blank(summary.text):
        raise SummaryFailed("the summary is blank")
    # Programs that count UTF-16 may cut an emoji in half; the API would refuse such a text.
    return replace(summary, text=without_surrogates(summary.text))


def is_own_cancellation() -> bool:
    """Return True if a CancelledError cancels the current task.

    Return False if it comes from something that the task waits for, such as a request shared with
    other tasks. That is an ordinary failure.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _passes_through(error: BaseException) -> bool:
    """Return True if *error*, which is not an Exception, must end the whole task.

    A cancellation of something else, for which the summarizer waited, must not.
    """
    kinds: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, GeneratorExit)
    if is_own_cancellation():
        kinds = (*kinds, asyncio.CancelledError)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds) is not None
    return isinstance(error, kinds)


async def _call(summarize: Summarizer, messages: Sequence[Message]) -> object:
    """Call and await *summarize*; return its answer, of any type.

    Raises SettingsError if it is not async; its own errors are raised unchanged.
    """
    answer: object = summarize(messages)  # object: the annotation may be wrong
    if not isawaitable(answer):
        raise SettingsError(
            f"the summarizer returned {type(answer).__name__}, which cannot be awaited; "
            "write it as `async def`"
        )
    return await answer


def _description(error: BaseException | None) -> str:
    """Return the text of *error*, with its HTTP status if it has one."""
    if error is None:
        return "no answer"
    status = status_of(error)
    if status is None:
        return safe_text(error)
    return f"{safe_text(error)}, status {status}"


def _failure(state: RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


def _timeout_text(summarize: Summarizer, retry: Retry, left: float) -> str:
    """Return the text of the error of an attempt for which *left* seconds were left."""
    limit = f"attempt_seconds={retry.attempt_seconds:g}"
    if left < retry.attempt_seconds:
        limit = f"total_seconds={retry.total_seconds:g}"
    advice = ""
    if is_retried(getattr(summarize, "ask", summarize)):
        advice = "; the summarizer retries by itself: give Retry(max_retries=0)"
    return f"no answer within {limit} of Retry{advice}"


def _error_behind(error: RetryError) -> BaseException:
    """Return the error to raise in place of *error*, with which tenacity gives up in a summarizer.

    That is the error of the last attempt if repeating the request cannot help.
    """
    last_error = error.last_attempt.exception()
    if last_error is not None and _is_final(last_error):
        return last_error
    count = count_phrase(error.last_attempt.attempt_number, "attempt")
    return SummaryFailed(
        f"{_description(last_error)}, after {count} of the summarizer itself: give "
        "Retry(max_retries=0), otherwise the retries multiply"
    )


def _is_final(error: BaseException | None) -> bool:
    """Return True if repeating the request cannot help."""
    if isinstance(error, PromptTooLong | SummaryRefused):
        return True
    is_program_error = isinstance(error, (CtxpipeError, *_PROGRAM_ERRORS))
    if is_program_error and not isinstance(error, SummaryFailed):
        return True
    return as_refusal(error) is not None or status_of(error) in _FINAL


def _retry_after(error: BaseException | None) -> float | None:
    """Return the seconds to wait that the server asks for; None if it names no future time.

    The headers may name milliseconds, seconds or a date. The first that is in the future counts.
    """
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    milliseconds = _number(headers.get("retry-after-ms"))
    header = headers.get("retry-after")
    for seconds in (milliseconds / 1000, _number(header), _seconds_until(header)):
        if seconds > 0:
            return max(_MIN_WAIT_SECONDS, seconds)
    return None


def _number(text: object) -> float:
    """Return the number in *text*, or 0 if it is not a finite number."""
    try:
        number = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0
    return number if math.isfinite(number) else 0


def _seconds_until(date: object) -> float:
    """Return the seconds until *date*, or 0 if it is not a valid date."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(str(date)).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0


def _warn(state: RetryCallState) -> None:
    """Log a failed attempt before the wait for the next one."""
    logger.warning(
        "summary attempt %d failed (%s); next try in %.1f s",
        state.attempt_number,
        _description(_failure(state)),
        state.upcoming_sleep,
    )
