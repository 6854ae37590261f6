"""The one retry layer: what is tried again, how long it waits, and when it gives up."""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
import tenacity
from histories import assistant, chat, conversation, step, user

from ctxpipe import Budget, Compact, ContextPipeline, LocalStorage
from ctxpipe.errors import InvalidHistory, SettingsError, SummaryFailed
from ctxpipe.messages import Message, pending_calls, tool_results
from ctxpipe.placeholders.summaries import ACKNOWLEDGED, SUMMARY, own_words, summary_body
from ctxpipe.summarizers import (
    ExtractiveSummarizer,
    FinishedParts,
    PromptSummarizer,
    PromptTooLong,
    Retry,
    Summarizer,
    Summary,
    SummaryRefused,
    summarize_with_retry,
)

HISTORY = chat(6)


@dataclass
class Time:
    """A clock that only sleeping moves."""

    now: float = 0.0
    waits: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float):
        self.waits.append(seconds)
        self.now += seconds

    def retry(self, **settings: float) -> Retry:
        return Retry(sleep=self.sleep, clock=lambda: self.now, **settings)  # type: ignore[arg-type]


@dataclass
class Scripted:
    """A summarizer that returns or raises the values of a script, and then repeats the last."""

    script: list[object]
    seen: list[list[Message]] = field(default_factory=list)

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        self.seen.append(list(messages))
        reply = self.script[min(len(self.seen), len(self.script)) - 1]
        if isinstance(reply, BaseException):
            raise reply
        return reply if isinstance(reply, Summary) else Summary(str(reply))


class ApiError(Exception):
    def __init__(self, status: int, text: str = "no", headers: dict[str, str] | None = None):
        super().__init__(text)
        self.status_code = status
        self.response = type("Response", (), {"headers": headers or {}})()


async def failure_of(
    summarize: Summarizer, retry: Retry, messages: Sequence[Message] = HISTORY
) -> SummaryFailed:
    with pytest.raises(SummaryFailed) as caught:
        await summarize_with_retry(summarize, messages, retry)
    return caught.value


async def test_the_first_answer_is_taken_without_waiting():
    clock, summarize = Time(), Scripted(["all"])

    assert await summarize_with_retry(summarize, HISTORY, clock.retry()) == Summary(
        "all", attempts=1
    )
    assert summarize.seen == [HISTORY]
    assert clock.waits == []


@pytest.mark.parametrize(
    "failure",
    [
        *(ApiError(status) for status in (408, 409, 429, 500, 502, 529)),
        *(
            ConnectionResetError("gone"),
            TimeoutError(),
            RuntimeError("odd"),
            SummaryFailed("refused"),
        ),
        *("", "  \n "),
    ],
    ids=repr,
)
async def test_every_failure_and_every_blank_answer_is_retried(failure: object):
    clock, summarize = Time(), Scripted([failure, failure, "late"])

    summary = await summarize_with_retry(summarize, HISTORY, clock.retry())

    assert (summary.text, summary.attempts) == ("late", 3)
    assert len(clock.waits) == 2


async def test_after_the_last_attempt_the_last_failure_is_the_cause():
    failures = [RuntimeError("1"), RuntimeError("2"), RuntimeError("3")]
    summarize = Scripted([*failures])

    error = await failure_of(summarize, Time().retry())

    assert error.__cause__ is failures[-1]
    assert str(error).startswith("no summary after 3 attempts: RuntimeError (")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            lambda: "so far",
            "the summarizer returned str, which cannot be awaited; write it as `async def`",
        ),
        (lambda: asyncio.sleep(0, "so far"), "the summarizer returned str; return a Summary"),
        (lambda: asyncio.sleep(0), "the summarizer returned NoneType; return a Summary"),
    ],
)
async def test_a_result_that_is_not_a_summary_is_refused_at_once(answer: Callable[[], Any], words):
    with pytest.raises(SummaryFailed, match=f"no summary after 1 attempt: {words}"):
        await summarize_with_retry(lambda _messages: answer(), HISTORY, Time().retry())


async def test_neither_log_nor_failure_quotes_the_text_of_a_foreign_error(
    caplog,
):
    caplog.set_level("DEBUG")
    failures = [
        RuntimeError("canary"),
        ApiError(503, "canary"),
        ApiError(400, "prompt is too long: canary"),
    ]
    for failure in (
        *failures,
        SummaryFailed("canary"),
        SummaryRefused("canary"),
        PromptTooLong("canary"),
    ):
        error = await failure_of(Scripted([failure]), Time().retry(), chat(2))
        assert "canary" not in str(error)

    told = [record.getMessage() for record in caplog.records if record.name == "ctxpipe"]
    assert any("ApiError (" in line and "status 503" in line for line in told)
    assert not any("canary" in line for line in told)
    assert all(record.exc_info is None for record in caplog.records if record.name == "ctxpipe")


@pytest.mark.parametrize(("retries", "calls"), [(0, 1), (1, 2), (5, 6)])
async def test_the_number_of_retries_is_a_setting(retries, calls):
    summarize = Scripted([RuntimeError()])

    await failure_of(summarize, Time().retry(max_retries=retries))

    assert len(summarize.seen) == calls


async def test_the_environment_sets_the_retries(monkeypatch):
    monkeypatch.setenv("COMPACT_MAX_RETRIES", "4")

    assert Retry().max_retries == 4


async def test_waits_grow_exponentially_up_to_a_limit_with_jitter():
    clock = Time()

    await failure_of(Scripted([RuntimeError()]), clock.retry(max_retries=7, total_seconds=1e6))

    assert len(clock.waits) == 7
    for attempt, wait in enumerate(clock.waits):
        assert min(20.0, 2.0**attempt) <= wait <= min(20.0, 2.0**attempt + 1)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "3"}, 3.0),
        ({"retry-after-ms": "nan", "retry-after": "3"}, 3.0),
        ({"retry-after-ms": "-1", "retry-after": "3"}, 3.0),
        ({"retry-after-ms": "1"}, 0.5),
        ({"retry-after": "0.01"}, 0.5),
    ],
)
async def test_the_wait_is_that_of_the_servers_retry_after(headers: dict[str, str], wait):
    clock = Time()

    await summarize_with_retry(
        Scripted([ApiError(429, headers=headers), "ok"]), HISTORY, clock.retry()
    )

    assert clock.waits == [wait]


async def test_a_retry_after_may_be_a_date():
    clock = Time()
    soon = email.utils.formatdate(time.time() + 60, usegmt=True)

    await summarize_with_retry(
        Scripted([ApiError(503, headers={"retry-after": soon}), "ok"]), HISTORY, clock.retry()
    )

    assert 50 < clock.waits[0] <= 60


@pytest.mark.parametrize(
    "date",
    [
        *("Fri, 31 Dec 99999 00:00:00 GMT", "Fri, 31 Dec 99999999999999999999 00:00:00 GMT"),
        "soon",
        *("Thu, 01 Jan 1970 00:00:00 GMT", "0", "-5", "nan", "inf", "-inf", "", "1e999"),
    ],
)
async def test_an_invalid_retry_after_is_ignored(date):
    clock = Time()

    await summarize_with_retry(
        Scripted([ApiError(503, headers={"retry-after": date}), "ok"]), HISTORY, clock.retry()
    )

    assert 1 <= clock.waits[0] <= 2


async def test_a_retry_after_beyond_the_deadline_fails_at_once():
    clock, summarize = Time(), Scripted([ApiError(429, headers={"retry-after": "121"}), "never"])

    await failure_of(summarize, clock.retry())

    assert len(summarize.seen) == 1
    assert clock.waits == []


async def test_all_attempts_together_have_a_deadline():
    clock, summarize = Time(), Scripted([ApiError(429, headers={"retry-after": "50"})])

    await failure_of(summarize, clock.retry(max_retries=99))

    assert len(summarize.seen) == 3  # at 0, 50 and 100 seconds; the next would begin at 150
    assert sum(clock.waits) <= 120


async def test_an_attempt_that_hangs_is_cancelled_and_counts_as_a_failure():
    calls = []

    async def hang(_messages: Sequence[Message], /) -> Summary:
        calls.append(1)
        if len(calls) < 3:
            await anyio.sleep_forever()
        return Summary("third time")

    summary = await summarize_with_retry(hang, HISTORY, Time().retry(attempt_seconds=0.02))

    assert (summary.text, summary.attempts) == ("third time", 3)


async def test_an_attempt_never_lasts_beyond_the_common_deadline():
    clock = Time()

    async def hang(_messages: Sequence[Message], /) -> Summary:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(20):
        error = await failure_of(
            hang, clock.retry(attempt_seconds=30, total_seconds=0.02, max_retries=0)
        )

    assert isinstance(error.__cause__, TimeoutError)
    assert "no answer within total_seconds=0.02 of Retry" in str(error)


async def test_an_attempt_that_takes_too_long_names_the_setting():
    async def hang(_messages: Sequence[Message], /) -> Summary:
        await anyio.sleep_forever()
        raise AssertionError

    error = await failure_of(hang, Time().retry(attempt_seconds=0.02, max_retries=0))

    assert "no answer within attempt_seconds=0.02 of Retry" in str(error)


async def test_a_timeout_inside_the_summarizer_is_reported_as_such():
    error = await failure_of(Scripted([TimeoutError()]), Time().retry(max_retries=0))

    assert "TimeoutError" in str(error)
    assert "attempt_seconds" not in str(error)


@pytest.mark.parametrize("when", ["attempt", "wait"])
async def test_cancellation_is_raised_at_once(when):
    attempts = 0
    began = anyio.Event()

    async def summarize(_messages: Sequence[Message], /) -> Summary:
        nonlocal attempts
        attempts += 1
        if when == "wait":
            raise RuntimeError
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def sleep(_seconds: float):
        began.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(summarize_with_retry, summarize, HISTORY, Retry(sleep=sleep))
        await began.wait()
        group.cancel_scope.cancel()

    assert attempts == 1


PROGRAM_ERRORS = [
    TypeError("ask() takes 1"),
    AttributeError("x"),
    KeyError("x"),
    NameError("x"),
    ZeroDivisionError(),
]


@pytest.mark.parametrize(
    "failure",
    [
        *(ApiError(status) for status in (400, 401, 402, 403, 404, 422)),
        *(InvalidHistory("message 3"), SettingsError("model"), SummaryRefused("no")),
        *PROGRAM_ERRORS,
    ],
    ids=repr,
)
async def test_a_request_that_can_never_succeed_is_sent_once(failure: Exception):
    clock, summarize = Time(), Scripted([failure])

    error = await failure_of(summarize, clock.retry())

    assert error is failure or error.__cause__ is failure
    assert len(summarize.seen) == 1
    assert clock.waits == []


async def test_a_refusal_may_name_another_summarizer_which_is_tried_once_and_at_once():
    clock, other = Time(), Scripted([SummaryRefused("again", instead=Scripted(["never"]))])
    first = Scripted([SummaryRefused("cut off", instead=other)])

    await failure_of(first, clock.retry())

    assert (len(first.seen), len(other.seen)) == (1, 1)
    assert clock.waits == []


async def test_the_attempt_that_was_refused_is_counted():
    first = Scripted([SummaryRefused("cut off", instead=Scripted(["shorter"]))])

    assert await summarize_with_retry(first, HISTORY, Time().retry()) == Summary(
        "shorter", attempts=2
    )


# Finished parts -----------------------------------------------------------------------------------


@dataclass
class Breaking:
    """Takes five messages at once, and fails for ever at those that hold *breaks*."""

    breaks: str
    failure: BaseException = field(default_factory=lambda: ApiError(500))
    seen: list[list[Message]] = field(default_factory=list)

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        if not at_most(5)(messages):
            raise PromptTooLong("too many")
        if self.breaks and self.breaks in str(messages):
            raise self.failure
        self.seen.append(list(messages))
        return Summary(f"part {len(self.seen)}", input_tokens=10)


def paid_twice(summarize: Breaking) -> list[str]:
    words = [text for part in summarize.seen for text in map(own_words, part) if text]
    return [text for text in words if words.count(text) > 1]


@pytest.mark.parametrize("breaks", [0, 1, 2, 3, 7, 11, 15])
@pytest.mark.parametrize(
    "failure", [ApiError(500), TimeoutError(), SummaryRefused("no"), TypeError("no")], ids=repr
)
async def test_finished_parts_are_not_requested_again(breaks, failure: Exception):
    history = [user(f"words {n:02}") for n in range(16)]
    summarize, finished = Breaking(f"words {breaks:02}", failure), FinishedParts()

    for _ in range(3):
        with pytest.raises(SummaryFailed):
            await summarize_with_retry(summarize, history, Time().retry(), finished)
        history.append(user(f"words {len(history):02}"))
    summarize.breaks = ""
    summary = await summarize_with_retry(summarize, history, Time().retry(), finished)

    assert paid_twice(summarize) == []
    assert {text for part in summarize.seen for text in map(own_words, part) if text} == {
        m["content"] for m in history
    }
    assert summary.input_tokens == 10 * len(summarize.seen)


async def test_a_cancelled_attempt_stores_its_finished_parts():
    history, finished, reached = (
        [user(f"words {n:02}") for n in range(16)],
        FinishedParts(),
        anyio.Event(),
    )
    summarize = Breaking("")

    async def hang(messages: Sequence[Message], /) -> Summary:
        if "words 09" in str(messages) and at_most(5)(messages) and not reached.is_set():
            reached.set()
            await anyio.sleep_forever()
        return await summarize(messages)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(summarize_with_retry, hang, history, Time().retry(), finished)
        await reached.wait()
        tasks.cancel_scope.cancel()
    await summarize_with_retry(hang, history, Time().retry(), finished)

    assert paid_twice(summarize) == []


CHANGES: dict[str, Callable[[list[Message]], list[Message]]] = {
    "another history": lambda history: [user("new"), *history],
    "a message changed": lambda history: [user("new"), *history[1:]],
    "shorter": lambda history: history[:3],
    "nothing more": lambda history: history[:4],
    "another summarizer": lambda history: history,
}


@pytest.mark.parametrize("change", CHANGES)
async def test_parts_finished_for_another_history_or_summarizer_are_not_used(change: str):
    history, finished = [user(f"words {n:02}") for n in range(8)], FinishedParts()
    summarize = Breaking("words 07")
    with pytest.raises(SummaryFailed):
        await summarize_with_retry(summarize, history, Time().retry(), finished)
    assert finished.count == 4
    if change == "another summarizer":
        summarize = Breaking("", ApiError(501))
    summarize.breaks = ""
    summarize.seen.clear()

    asked = CHANGES[change](history)
    await summarize_with_retry(summarize, asked, Time().retry(), finished)

    texts = [text for part in summarize.seen for text in map(own_words, part) if text]
    assert texts == [m["content"] for m in asked]


async def test_a_summary_of_the_whole_history_is_not_stored_as_a_part():
    finished = FinishedParts()

    await summarize_with_retry(Scripted(["all"]), HISTORY, Time().retry(), finished)

    assert finished == FinishedParts()


# Too long -----------------------------------------------------------------------------------------


def at_most(limit: int) -> Callable[[Sequence[Message]], bool]:
    return lambda messages: sum(1 for message in messages if summary_body(message) is None) <= limit


@dataclass
class Narrow:
    """Takes only so many messages; says which it has seen."""

    fits: Callable[[Sequence[Message]], bool]
    refusal: Exception
    seen: list[list[Message]] = field(default_factory=list)

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        if not self.fits(messages):
            raise self.refusal
        self.seen.append(list(messages))
        return Summary(f"summary {len(self.seen)}", input_tokens=10, output_tokens=1)


async def test_a_history_that_is_too_long_is_summarized_in_parts_that_include_the_last_summary():
    history, summarize = chat(16), Narrow(at_most(5), PromptTooLong("16 messages"))

    summary = await summarize_with_retry(summarize, history, Time().retry())

    assert len(summarize.seen) == 4
    assert summary == Summary("summary 4", input_tokens=40, output_tokens=4, attempts=4)
    found = [words for part in summarize.seen for words in map(own_words, part) if words]
    assert found == [message["content"] for message in history if message["role"] == "user"]
    for number, part in enumerate(summarize.seen[1:], 1):
        assert part[0]["content"] == f"{SUMMARY}summary {number}"
        assert part[1]["content"] == ACKNOWLEDGED


async def test_a_call_and_its_results_stay_in_one_part():
    history = conversation(
        user("go"), *(step(f"t{n}", "bash", {"command": "x" * n}, "y" * 50 * n) for n in range(12))
    )
    summarize = Narrow(at_most(7), PromptTooLong("too many"))

    await summarize_with_retry(summarize, history, Time().retry())

    assert len(summarize.seen) > 2
    assert not any(map(pending_calls, summarize.seen))
    for part in summarize.seen[1:]:
        # behind the earlier summary and its acknowledgement
        assert not any(tool_results(part[2:3]))


async def test_the_number_of_parts_refused_as_too_long_is_bounded():
    calls = 0

    async def refuse(_messages: Sequence[Message], /) -> Summary:
        nonlocal calls
        calls += 1
        raise ApiError(400, "prompt is too long")

    error = await failure_of(refuse, Time().retry(), chat(64))

    assert calls == 5
    assert "cannot be cut" in str(error)


async def test_a_single_message_that_does_not_fit_is_a_failure():
    error = await failure_of(Narrow(at_most(0), PromptTooLong("one")), Time().retry(), chat(1))

    assert isinstance(error.__cause__, PromptTooLong)


async def test_a_summarizer_may_name_another_one_for_a_history_that_is_too_long():
    other = Scripted(["by the other"])
    first = Scripted([PromptTooLong("too long for me", refused=True, instead=other)])

    summary = await summarize_with_retry(first, HISTORY, Time().retry())

    assert summary.text == "by the other"
    assert other.seen == [HISTORY]
    assert len(first.seen) == 1


@pytest.mark.parametrize(
    "shape",
    [
        {"code": 403},
        {"status": 400},
        {"response": type("Response", (), {"status_code": 400})()},
        {"response": {"ResponseMetadata": {"HTTPStatusCode": 403}}},
    ],
    ids=["google-genai", "aiohttp", "httpx", "boto3"],
)
async def test_a_final_error_is_recognized_in_the_form_of_every_sdk(shape: dict[str, Any]):
    error = type("Refused", (Exception,), shape)("no")
    scripted = Scripted([error])

    await failure_of(scripted, Time().retry())

    assert len(scripted.seen) == 1


@pytest.mark.parametrize("half", ["\ud83d", "so far \udc00.", "\udc00\ud83d and \ud83d\ude00"])
async def test_half_an_emoji_in_a_summary_is_replaced_before_the_summary_is_checked(half, tmp_path):
    storage, summarize = LocalStorage(tmp_path), Scripted([Summary(f"all {half}")])
    pipeline = ContextPipeline([Compact(summarize, storage)], budget=Budget(window=2000))

    result = await pipeline.session("s", journal=storage).run(
        [user("go"), assistant("words " * 3000), user("on")]
    )

    assert result.changed
    assert "\ufffd" in json.dumps(result.messages, ensure_ascii=False)
    assert json.dumps(result.messages, ensure_ascii=False).encode()
    again = await summarize_with_retry(summarize, HISTORY, Time().retry())
    assert again.text.encode()


async def test_an_extracted_summary_has_no_half_of_an_emoji():
    summary = await summarize_with_retry(
        ExtractiveSummarizer(), [user("do \ud83d this"), assistant("done \udc00")], Time().retry()
    )

    assert summary.text.encode()


async def test_a_timeout_of_a_summarizer_that_tenacity_retries_says_how_to_switch_one_off():
    @tenacity.retry(wait=tenacity.wait_fixed(0.01))
    async def ask(prompt: str) -> str:
        raise ConnectionError

    summarizer = PromptSummarizer(ask)

    error = await failure_of(summarizer, Time().retry(attempt_seconds=0.1, max_retries=0))

    assert "retries by itself: give Retry(max_retries=0)" in str(error)


async def test_after_retries_of_tenacity_the_error_says_what_failed_and_how_often():
    @tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_none())
    async def ask(prompt: str) -> str:
        raise ConnectionError

    error = await failure_of(PromptSummarizer(ask), Time().retry(max_retries=0))

    assert "ConnectionError" in str(error)
    assert "after 3 attempts of the summarizer itself: give Retry(max_retries=0)" in str(error)


async def test_an_error_that_cannot_be_retried_is_found_behind_the_retries_of_tenacity():
    calls = 0

    @tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_none())
    async def ask(prompt: str) -> str:
        nonlocal calls
        calls += 1
        raise TypeError("a mistake in the program")

    error = await failure_of(PromptSummarizer(ask), Time().retry(max_retries=2))

    assert calls == 2
    assert "TypeError" in str(error)


async def test_a_refusal_behind_the_retries_of_tenacity_splits_the_history():
    @tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_none())
    async def ask(prompt: str) -> str:
        if len(prompt) > 20_000:
            raise PromptTooLong("too long", refused=True)
        return "a part"

    history = [user("go " * 4_000), assistant("yes " * 4_000), user("on " * 1_000)]
    summary = await summarize_with_retry(PromptSummarizer(ask), history, Time().retry())

    assert summary.attempts > 1
