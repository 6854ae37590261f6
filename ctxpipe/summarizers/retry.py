"""The one place where something is tried again: tenacity around the summariser.

Every error counts as a failure worth another try, a blank answer too; but not a request that can
never succeed, a refusal, or a mistake of the program, and not cancellation, which passes at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from inspect import isawaitable
from itertools import accumulate
from typing import TYPE_CHECKING

import anyio

from ..compacted import ACKNOWLEDGED, SUMMARY, safe_summary
from ..errors import CtxpipeError, SettingsError, SummaryFailed, safe_text
from ..messages import compact_json, is_blank, tool_results
from ..refusals import as_refusal, status_of
from ..settings import (
    COMPACT_MAX_RETRIES,
    FUNCTION,
    NUMBER,
    POSITIVE,
    SIZE,
    SLEEP,
    check_settings,
    setting,
)
from ..threads import in_thread
from .prompt import transcript
from .protocol import PromptTooLong, Summarizer, Summary, SummaryRefused

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from ..messages import Message

__all__ = ["FinishedParts", "Retry", "summarised"]

logger = logging.getLogger("ctxpipe")

_FINAL = frozenset({400, 401, 402, 403, 404, 405, 410, 422})  # asking again cannot help
_MISTAKES = (
    *(TypeError, NameError, AttributeError, LookupError, ImportError, SyntaxError, ArithmeticError),
    *(AssertionError, NotImplementedError, RecursionError, UnicodeError, MemoryError),
)
"""Errors of a program, which it makes again."""
_LEAST_WAIT = 0.5  # seconds, however little the server asks for


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and how long, a summary is tried for; seconds. Waits grow exponentially, with
    jitter.

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
        check_settings(
            self,
            max_retries=SIZE,
            attempt_seconds=POSITIVE,
            total_seconds=POSITIVE,
            first_wait_seconds=NUMBER,
            max_wait_seconds=NUMBER,
            max_refusals=SIZE,
            sleep=SLEEP,
            clock=FUNCTION,
        )


@dataclass(slots=True)
class FinishedParts:
    """What of a history too long for one request is summarised already: it is not paid for again.

    One summary is kept, with a digest of the leading messages that it stands for and of who was
    asked for it.
    """

    asked: Summarizer | None = None
    writer: Summarizer | None = None
    count: int = 0
    digest: bytes = b""
    summary: Summary | None = None

    def find(self, asked: Summarizer, messages: Sequence[Message]) -> bool:
        """Whether the summary is that of the first `count` *messages*, not of all, written for who
        asks the same.
        """
        if self.summary is None or self.asked != asked or self.count >= len(messages):
            return False
        return digest_of(messages[: self.count]) == self.digest

    def keep(
        self, asked: Summarizer, writer: Summarizer, messages: Sequence[Message], summary: Summary
    ) -> None:
        """*messages* are summarised: *writer* wrote the *summary* that *asked* was asked for."""
        self.asked, self.writer, self.summary = asked, writer, summary
        self.count, self.digest = len(messages), digest_of(messages)


def digest_of(messages: Sequence[Message]) -> bytes:
    """What tells *messages* from others."""
    whole = sha256()
    for message in messages:
        whole.update(compact_json(message).encode("utf-8", "surrogatepass"))
        whole.update(b"\n")
    return whole.digest()


async def summarised(
    summarize: Summarizer,
    messages: Sequence[Message],
    retry: Retry,
    finished: FinishedParts | None = None,
) -> Summary:
    """The summary of *messages*, in parts where they are too long for one request: each part folds
    the last summary in.

    What the parts *finished* earlier hold is not asked for again, and what is finished now is kept
    there.

    Raises SummaryFailed, with the last failure as its cause. Cancellation passes through at once.
    """
    ends = retry.clock() + retry.total_seconds
    asked, done, refusals, refused, written = summarize, 0, 0, 0, list[Summary]()
    if finished is not None and await in_thread(finished.find, asked, messages):
        summarize, done = finished.writer or asked, finished.count
        written += [finished.summary] if finished.summary else []
    parts = [list(messages[done:])]
    while parts:
        part = parts.pop(0)
        try:
            written.append(await _tried(summarize, [*_earlier(written), *part], retry, ends))
        except SummaryRefused as error:
            refused += 1
            if error.instead is None or refused > 1:
                raise SummaryFailed(f"no summary: {safe_text(error)}") from error
            summarize, parts[:0] = error.instead, [part]
            continue
        except PromptTooLong as error:
            refusals += error.refused
            if error.instead is not None:
                summarize, halves = error.instead, [part]
            else:
                halves = await in_thread(_halves, part)
            if not halves or refusals > retry.max_refusals:
                raise SummaryFailed(
                    f"the history cannot be cut into parts that fit: {safe_text(error)}"
                ) from error
            parts[:0] = halves
            continue
        done += len(part)
        if finished is not None and parts:
            await in_thread(finished.keep, asked, summarize, messages[:done], _total(written))
    total = _total(written)
    return replace(total, attempts=total.attempts + refused)


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
    """*part* in two of about the same size, a call and its results together.

    Nothing when it cannot be cut.
    """
    sizes = list(accumulate(len(transcript([message], 4000)) for message in part))
    cuts = [i for i in range(1, len(part)) if not any(tool_results([part[i]]))] or list(
        range(1, len(part))
    )
    if not cuts:
        return []
    cut = min(cuts, key=lambda i: abs(sizes[i - 1] - sizes[-1] / 2))
    return [list(part[:cut]), list(part[cut:])]


async def _tried(
    summarize: Summarizer, messages: Sequence[Message], retry: Retry, ends: float
) -> Summary:
    import tenacity

    async def attempt() -> Summary:
        with anyio.fail_after(min(retry.attempt_seconds, ends - retry.clock())):
            answer: object = summarize(messages)  # whatever its type says
            if not isawaitable(answer):
                name = type(answer).__name__
                raise SettingsError(
                    f"the summarizer's answer, {name}, cannot be awaited; write it as `async def`"
                )
            written: object = await answer
        if not isinstance(written, Summary):
            raise SettingsError(
                f"the summarizer answered with {type(written).__name__}; return a Summary"
            )
        if is_blank(written.text):
            raise SummaryFailed("the summary is blank")
        return written

    def wait(state: RetryCallState) -> float:
        asked = _retry_after(_failure(state))
        return backoff(state) if asked is None else asked

    def is_over(state: RetryCallState) -> bool:
        too_late = retry.clock() + state.upcoming_sleep >= ends
        return too_late or state.attempt_number > retry.max_retries or _is_final(_failure(state))

    backoff = tenacity.wait_exponential_jitter(
        initial=retry.first_wait_seconds, max=retry.max_wait_seconds
    )
    retrying = tenacity.AsyncRetrying(
        sleep=retry.sleep, wait=wait, stop=is_over, before_sleep=_warn
    )
    try:
        summary: Summary = await retrying(attempt)
    except tenacity.RetryError as error:
        attempts, cause = error.last_attempt.attempt_number, error.last_attempt.exception()
        if isinstance(cause, PromptTooLong | SummaryRefused):
            raise cause from None
        if as_refusal(cause) is not None:
            raise PromptTooLong(_described(cause), refused=True) from cause
        raise SummaryFailed(f"no summary after {_times(attempts)}: {_described(cause)}") from cause
    return replace(summary, attempts=retrying.statistics["attempt_number"])


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _described(error: BaseException | None) -> str:
    if error is None:
        return "no answer"
    status = status_of(error)
    return safe_text(error) if status is None else f"{safe_text(error)}, status {status}"


def _failure(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _is_final(error: BaseException | None) -> bool:
    """Whether asking the same again cannot help."""
    if isinstance(error, CtxpipeError):
        return isinstance(error, PromptTooLong | SummaryRefused) or not isinstance(
            error, SummaryFailed
        )
    if isinstance(error, _MISTAKES) or as_refusal(error) is not None:
        return True
    return status_of(error) in _FINAL


def _retry_after(error: BaseException | None) -> float | None:
    """The seconds that the server asked to wait, in the first of its ways to say so that names a
    time to come.
    """
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    in_ms, given = headers.get("retry-after-ms"), headers.get("retry-after")
    milliseconds = _number(in_ms)
    ways = (milliseconds / 1000 if milliseconds else None, _number(given), _seconds_until(given))
    asked = next((seconds for seconds in ways if seconds and seconds > 0), None)
    return None if asked is None else max(_LEAST_WAIT, asked)


def _number(text: object) -> float | None:
    try:
        number = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _seconds_until(date: object) -> float | None:
    from email.utils import mktime_tz, parsedate_tz

    if not isinstance(date, str):
        return None
    try:
        parsed = parsedate_tz(date)
        return mktime_tz(parsed) - time.time() if parsed else None
    except (ValueError, OverflowError):  # a date that no calendar has
        return None


def _warn(state: RetryCallState) -> None:
    logger.warning(
        "summary attempt %d failed (%s); next try in %.1f s",
        state.attempt_number,
        _described(_failure(state)),
        state.upcoming_sleep,
    )
