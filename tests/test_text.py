"""Numbers, texts and objects as a reader is shown them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from anthropic import AsyncAnthropic
from histories import user
from obstore.store import MemoryStore

from ctxpipe import (
    BatchOffload,
    Collapse,
    Compact,
    DirectOffload,
    LocalStorage,
    MemoryStorage,
    ObjectStorage,
    SmartTruncate,
    TrimReadBacks,
)
from ctxpipe._text import as_dollars, as_percent, as_ratio, count_phrase, one_line, short_repr
from ctxpipe.functions import CompactResult, OffloadedMessage, OffloadResult, Truncation
from ctxpipe.lab.batch import FileReplay
from ctxpipe.lab.replay import ReplayResult
from ctxpipe.lab.report import Figures, PageTurn, PolicyRun, Replaced, Report
from ctxpipe.lab.transcripts import Transcript
from ctxpipe.stages.compact.stage import Restore
from ctxpipe.stages.offload.gates import RentOrBuyGate
from ctxpipe.stages.reports import Truncated
from ctxpipe.summarizers import AnthropicSummarizer, ExtractiveSummarizer, PromptSummarizer


def test_one_of_a_kind_is_told_in_the_singular():
    words = [count_phrase(number, "fault") for number in (0, 1, 1200)]
    assert words == ["0 faults", "1 fault", "1,200 faults"]


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "$0.00"), (1, "$1.00"), (0.5, "$0.500"), (0.0123456, "$0.0123"), (-0.25, "-$0.250")],
)
def test_below_a_dollar_three_digits_are_shown(amount, shown):
    assert as_dollars(amount) == shown


def test_a_share_is_in_percent_and_a_ratio_has_three_decimals():
    assert (as_percent(0.8206), as_ratio(0.7642)) == ("82.1%", "0.764")


def test_a_text_begins_in_one_line_of_so_many_characters():
    assert one_line("a\n\n  b") == "a b"
    assert one_line("word " * 99, 12) == "word word w…"


# Objects ------------------------------------------------------------------------------------------

CANARY = "sk-ant-secret"
LONG = f"{CANARY} " * 200


async def ask(prompt: str, model: str | None) -> str:
    return f"{model}: {prompt}"


STORAGE = LocalStorage("/srv/app/.ctxpipe")
FIGURES = Figures("coding", 9, 4.0, 1.0, 1.0, 0.9, 9.0, 0, 1.0, 1.0, 1.0, 1.0)
SHOWN: list[object] = [
    STORAGE,
    MemoryStorage(redact=str.upper),
    ObjectStorage(MemoryStore()),
    DirectOffload(STORAGE, min_chars=1, per_tool={CANARY: 1}),
    TrimReadBacks(STORAGE),
    BatchOffload(STORAGE, gate=RentOrBuyGate(min_calls=1), per_tool={CANARY: None}),
    Collapse(STORAGE),
    Compact(PromptSummarizer(ask), STORAGE, Restore(work_dir="/")),
    SmartTruncate(STORAGE),
    ExtractiveSummarizer(),
    AnthropicSummarizer(
        AsyncAnthropic(api_key=CANARY),
        system=LONG,
        tools=[{"name": CANARY, "input_schema": {"type": "object"}}],
        request_options={"extra_headers": {"x-api-key": CANARY}},
    ),
    OffloadedMessage(user(LONG)),
    OffloadResult([user(LONG)] * 300, files=("/srv/app/a.md",) * 300),
    CompactResult([user(LONG)]),
    Truncation([user(LONG)], Truncated(9, 5)),
    Transcript("talk.jsonl", [user(LONG)] * 300, "Anthropic messages", system=LONG[: len(CANARY)]),
    FileReplay("talk.jsonl", {CANARY: ReplayResult("talk.jsonl", ())}),
    Report("talk.jsonl", (PolicyRun(FIGURES, (PageTurn({"user": 9.0}),)),)),
    Replaced("a result", original=LONG, placeholder=LONG),
]


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: type(shown).__name__)
def test_an_object_is_shown_in_one_line_without_a_text_or_a_key(shown: object):
    line = repr(shown)
    assert line.startswith(f"{type(shown).__name__}(")
    assert len(line) <= 200
    assert line.isprintable()
    assert CANARY not in line


def test_a_setting_is_shown_where_it_differs_from_its_default():
    assert repr(DirectOffload(STORAGE, min_chars=4000)) == (
        "DirectOffload(storage=LocalStorage(root='/srv/app/.ctxpipe'), min_chars=4000)"
    )


def test_a_default_that_the_environment_spoils_is_no_reason_to_raise(
    monkeypatch,
):
    stage = DirectOffload(STORAGE, min_chars=4000)
    monkeypatch.setenv("DIRECT_OFFLOAD_CHAR_THRESHOLD", "many")
    assert "min_chars=4000" in repr(stage)


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    value: object
    hidden: str = field(default="", repr=False)

    __repr__ = short_repr


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (1.5, "1.5"),
        ("a\nb", "'a b'"),
        ({"key": "x"}, "<1 item>"),
        (["x", "y"], "<2 items>"),
        (ask, "<ask>"),
        (object(), "<object>"),
    ],
)
def test_a_value_is_short_and_a_collection_only_counted(value: object, shown):
    assert repr(Shown(value, hidden="text")) == f"Shown(value={shown})"
