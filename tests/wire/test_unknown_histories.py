"""Unknown items and parts anywhere in random histories: they stay, whatever is compacted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from foreign_histories import chats, geminis, responses
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import NIGHTLY
from translations import compacting
from unknown_items import MARKER, check_unknown, with_unknown

from ctxpipe import Budget, Compact, ContextPipeline, LocalStorage, MemoryStorage, SmartTruncate
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing.chat_rules import chat_problems
from ctxpipe.testing.gemini_rules import gemini_problems
from ctxpipe.testing.responses_rules import responses_problems
from ctxpipe.wire import (
    CHAT,
    RESPONSES,
    Adapter,
    ChatCodec,
    Codec,
    Format,
    Gemini,
    GeminiCodec,
    ResponsesCodec,
)


def add_content_part(item: Any, fields: dict[str, Any]) -> Any:
    if item.get("role") != "user" or not isinstance(item["content"], list):
        return item
    return {**item, "content": [*item["content"], {"type": "moon", **fields}]}


def add_gemini_part(item: Any, fields: dict[str, Any]) -> Any:
    if item.get("role") == "model":
        return item
    return {**item, "parts": [{"moonPhase": fields}, *item["parts"]]}


def own_or_parts(key: str) -> Callable[[Any], Sequence[Any]]:
    """Gives the item, if it is unknown as a whole, else the unknown parts under *key*."""

    def parts_of(item: Any) -> Sequence[Any]:
        if MARKER in item:
            return [item]
        parts = item.get(key) if item.get("role") == "user" else ()
        return [part for part in parts or () if isinstance(part, dict) and MARKER in repr(part)]

    return parts_of


@dataclass(frozen=True)
class Form:
    """A form of conversation with unknown items: how they are made, and what its API refuses."""

    codec: Codec
    histories: st.SearchStrategy[list[Any]]
    key: str
    parts_key: str
    problems: Callable[[Any], list[str]]

    def is_known(self, item: Any) -> bool:
        """Whether its API's rules say something of *item*."""
        return item.get("role") != "moon" if self.key == "contents" else MARKER not in repr(item)

    def refused(self, items: Sequence[Any]) -> list[str]:
        return self.problems({"model": "m", self.key: items}) if items else []


FORMS = {
    "chat": Form(
        ChatCodec(),
        with_unknown(chats(5), lambda fields: {"role": "moon", **fields}, add_content_part),
        "messages",
        "content",
        chat_problems,
    ),
    "responses": Form(
        ResponsesCodec(),
        with_unknown(responses(5), lambda fields: {"type": "moon", **fields}, add_content_part),
        "input",
        "content",
        responses_problems,
    ),
    "gemini": Form(
        GeminiCodec(),
        with_unknown(geminis(5), lambda fields: {"role": "moon", **fields}, add_gemini_part),
        "contents",
        "parts",
        gemini_problems,
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@settings(max_examples=(2 if NIGHTLY else 1) * settings().max_examples)
@given(data=st.data())
def test_unknown_items_and_parts_stay_word_for_word_in_their_order(form: Form, data):
    items = data.draw(form.histories)
    forced = data.draw(st.sets(st.integers(1, len(items))))
    session = compacting(MemoryStorage(clock=float)).session("s")
    parts_of = own_or_parts(form.parts_key)

    anyio.run(
        check_unknown, form.codec, session, items, forced, parts_of, form.refused, form.is_known
    )


# More than the window -----------------------------------------------------------------------------

WINDOW = 8_000


def words(seed: int) -> str:
    """Text of some 300 tokens, like no other."""
    digests = [hashlib.sha256(f"{seed}-{number}".encode()).hexdigest()[:8] for number in range(60)]
    return " ".join(digests)


@dataclass(frozen=True)
class Said:
    """What a form calls the items of the user and the model, and of nobody known."""

    form: Format
    unknown: Callable[[int], dict[str, Any]]
    user: Callable[[str], dict[str, Any]]
    model: Callable[[str], dict[str, Any]]


SAID = {
    "chat": Said(
        CHAT,
        lambda number: {"role": "moon", MARKER: number, "text": words(number)},
        lambda text: {"role": "user", "content": text},
        lambda text: {"role": "assistant", "content": text},
    ),
    "responses": Said(
        RESPONSES,
        lambda number: {"type": "moon", MARKER: number, "text": words(number)},
        lambda text: {"type": "message", "role": "user", "content": text},
        lambda text: {"type": "message", "role": "assistant", "content": text},
    ),
    "gemini": Said(
        Gemini("m"),
        lambda number: {"role": "moon", MARKER: number, "text": words(number)},
        lambda text: {"role": "user", "parts": [{"text": text}]},
        lambda text: {"role": "model", "parts": [{"text": text}]},
    ),
}


def history(said: Said, shape: str) -> list[dict[str, Any]]:
    """Unknown items of ten times the window, in one of several shapes."""
    unknown = [said.unknown(number) for number in range(10 * WINDOW // 300)]
    asked, answered = said.user("go"), said.model("ok")
    match shape:
        case "leading":
            return [*unknown, asked, answered, asked]
        case "answered":
            return [asked, *unknown, answered, asked]
        case "unanswered":
            return [asked, answered, *unknown]
        case "alone":
            return unknown
    items = [asked]
    for item in unknown:
        items += [answered, item]
    return items


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize("shape", ["leading", "answered", "unanswered", "alone", "each request"])
async def test_unknown_items_of_ten_times_the_window_fit_and_those_left_out_are_named(
    said: Said, shape: str, tmp_path
):
    storage = LocalStorage(tmp_path)
    compact = Compact(ExtractiveSummarizer(), storage)
    pipeline = ContextPipeline([compact, SmartTruncate(storage)], budget=Budget(WINDOW))
    adapter = Adapter(pipeline, "s")
    items = history(said, shape)

    exchange = await adapter.begin(said.form.codec, items)

    assert exchange is not None
    assert exchange.result.tokens_after < WINDOW
    carried = [item[MARKER] for item in exchange.items if MARKER in item]
    assert carried == sorted(carried)
    assert len(carried) >= 5
    if shape != "alone":  # there, not even what was asked fits
        assert exchange.items[-1] is items[-1]
    texts = repr([item for item in exchange.items if MARKER not in item])
    assert "moon" in texts


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
async def test_a_conversation_in_which_each_request_ends_in_an_unknown_item_is_compacted(
    said: Said, tmp_path
):
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline([Compact(ExtractiveSummarizer(), storage)], budget=Budget(WINDOW))
    adapter = Adapter(pipeline, "s")
    items = [said.user("go")]
    sizes: list[int] = []
    for number in range(60):
        items += [said.model(words(1_000 + number)), said.unknown(number)]
        exchange = await adapter.begin(said.form.codec, list(items))
        assert exchange is not None
        sizes.append(exchange.result.tokens_after)
        assert exchange.items[-1] is items[-1]

    assert max(sizes) < WINDOW
