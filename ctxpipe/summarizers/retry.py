"""The one place where something is tried again: tenacity around the summariser.

Every error counts as a failure worth another try, a blank answer too; but not a request that can never succeed, and
not cancellation, which passes at once. Source: A-39, UP-11, R6.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import anyio

from ..compacted import ACKNOWLEDGED, SUMMARY, safe_summary
from ..errors import CtxpipeError, SettingsError, SummaryFailed
from ..messages import is_blank, tool_results
from ..refusals import as_refusal
from ..settings import COMPACT_MAX_RETRIES, check_numbers, check_sizes, setting
from ..threads import in_thread
from .prompt import transcript
from .protocol import PromptTooLong, Summarizer, Summary

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from ..messages import Message

__all__ = ["Retry", "summarised"]

logger = logging.getLogger("ctxpipe")

_FINAL = frozenset({400, 401, 403, 404})  # asking again cannot help


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and how long, a summary is tried for; seconds. Waits grow exponentially, with jitter.

    *max_refusals* bounds how often a history is cut in half because the API found it too long.

    Raises SettingsError for a negative number of retries, or no time at all.
    """

    max_retries: int = setting(COMPACT_MAX_RETRIES)
    attempt_seconds: float = 30.0
    total_seconds: float = 120.0
    first_wait_seconds: float = 1.0
    max_wait_seconds: float = 20.0
    max_refusals: int = 4
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        check_sizes(max_retries=self.max_retries)
        check_numbers(attempt_seconds=self.attempt_seconds, total_seconds=self.total_seconds)
        if self.attempt_seconds <= 0 or self.total_seconds <= 0:
            raise SettingsError("attempt_seconds and total_seconds of a Retry must be more than 0")


async def summarised(summarize: Summarizer, messages: Sequence[Message], retry: Retry) -> Summary:
    """The summary of *messages*, in parts where they are too long for one request: each part folds the last summary in.

    Raises SummaryFailed, with the last failure as its cause. Cancellation passes through at once.
    """
    ends = retry.clock() + retry.total_seconds
    parts, refusals, written = [list(messages)], 0, list[Summary]()
    while parts:
        part = parts.pop(0)
        try:
            written.append(await _tried(summarize, [*_earlier(written), *part], retry, ends))
        except PromptTooLong as error:
            refusals += error.refused
            if error.instead is not None:
                summarize, halves = error.instead, [part]
            else:
                halves = await in_thread(_halves, part)
            if not halves or refusals > retry.max_refusals:
                raise SummaryFailed(f"the history cannot be cut into parts that fit: {error}") from error
            parts[:0] = halves
    return _total(written)


def _earlier(written: Sequence[Summary]) -> list[Message]:
    if not written:
        return []
    text = SUMMARY + safe_summary(written[-1].text)
    return [{"role": "user", "content": text}, {"role": "assistant", "content": ACKNOWLEDGED}]


def _total(written: Sequence[Summary]) -> Summary:
    return replace(
        written[-1],
        input_tokens=sum(summary.input_tokens for summary in written),
        cached_tokens=sum(summary.cached_tokens for summary in written),
        output_tokens=sum(summary.output_tokens for summary in written),
        attempts=sum(summary.attempts for summary in written),
    )


def _halves(part: Sequence[Message]) -> list[list[Message]]:
    """*part* in two of about the same size, a call and its results together; nothing when it cannot be cut."""
    sizes = list(accumulate(len(transcript([message], 4000)) for message in part))
    cuts = [i for i in range(1, len(part)) if not any(tool_results([part[i]]))] or list(range(1, len(part)))
    if not cuts:
        return []
    cut = min(cuts, key=lambda i: abs(sizes[i - 1] - sizes[-1] / 2))
    return [list(part[:cut]), list(part[cut:])]


async def _tried(summarize: Summarizer, messages: Sequence[Message], retry: Retry, ends: float) -> Summary:
    import tenacity

    async def attempt() -> Summary:
        with anyio.fail_after(min(retry.attempt_seconds, ends - retry.clock())):
            summary = await summarize(messages)
        if is_blank(summary.text):
            raise SummaryFailed("the summary is blank")
        return summary

    def wait(state: RetryCallState) -> float:
        asked = _retry_after(_failure(state))
        return backoff(state) if asked is None else asked

    def is_over(state: RetryCallState) -> bool:
        too_late = retry.clock() + state.upcoming_sleep >= ends
        return too_late or state.attempt_number > retry.max_retries or _is_final(_failure(state))

    backoff = tenacity.wait_exponential_jitter(initial=retry.first_wait_seconds, max=retry.max_wait_seconds)
    retrying = tenacity.AsyncRetrying(sleep=retry.sleep, wait=wait, stop=is_over, before_sleep=_warn)
    try:
        summary: Summary = await retrying(attempt)
    except tenacity.RetryError as error:
        attempts, cause = error.last_attempt.attempt_number, error.last_attempt.exception()
        if isinstance(cause, PromptTooLong):
            raise cause from None
        if as_refusal(cause) is not None:
            raise PromptTooLong(str(cause), refused=True) from cause
        raise SummaryFailed(f"no summary after {_times(attempts)}: {_described(cause)}") from cause
    return replace(summary, attempts=retrying.statistics["attempt_number"])


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _described(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _failure(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _is_final(error: BaseException | None) -> bool:
    if isinstance(error, CtxpipeError) and not isinstance(error, SummaryFailed):
        return True  # a setting or a history that makes no sense
    if isinstance(error, PromptTooLong) or as_refusal(error) is not None:
        return True
    return getattr(error, "status_code", None) in _FINAL


def _retry_after(error: BaseException | None) -> float | None:
    """The seconds that the server asked to wait, in any of the forms in which it may say so."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        if "retry-after" not in headers:
            return None
        return max(0.0, float(headers["retry-after"]))
    except ValueError:
        return _seconds_until(headers.get("retry-after", ""))


def _seconds_until(date: str) -> float | None:
    from email.utils import mktime_tz, parsedate_tz

    try:
        parsed = parsedate_tz(date)
        return max(0.0, mktime_tz(parsed) - time.time()) if parsed else None
    except (ValueError, OverflowError):  # a date that no calendar has
        return None


def _warn(state: RetryCallState) -> None:
    logger.warning(
        "summary attempt %d failed (%s); next try in %.1f s",
        state.attempt_number,
        _described(_failure(state)),
        state.upcoming_sleep,
    )
