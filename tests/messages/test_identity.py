"""What a message says, its plain form, and its cache marks."""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import os
import subprocess
import sys
from collections import OrderedDict, deque
from datetime import UTC, date, datetime
from enum import IntEnum, StrEnum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import anthropic
import pytest
from anthropic.types import TextBlock, ToolUseBlock
from anthropic.types.beta import BetaTextBlock
from api_histories import few, valid_histories
from histories import (
    MARK,
    assistant,
    histories,
    marked,
    step,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT
from pydantic import BaseModel

from ctxpipe.adapters.http_client import library_of
from ctxpipe.errors import InvalidHistory
from ctxpipe.messages import Message, blocks, compact_json, is_equal
from ctxpipe.messages.identity import (
    digest,
    digest_of,
    parse,
    parse_from,
    says_the_same,
    with_marks,
    without_marks,
)

if TYPE_CHECKING:
    import httpx2 as http
else:
    http = library_of(anthropic)

PICTURE = {"type": "image", "source": {"type": "url", "url": "u"}}


def reply(*content: object) -> Message:
    """A reply of the model as the SDK hands it out, appended unchanged."""
    return cast("Message", {"role": "assistant", "content": list(content)})


SAID = TextBlock(type="text", text="a")
WHEN = datetime(2026, 1, 2, tzinfo=UTC)


class Gateway:
    """The anthropic client, and the bytes that it sends."""

    def __init__(self) -> None:
        self.body = b""
        client = http.Client(transport=http.MockTransport(self._answer))
        self.client = anthropic.Anthropic(api_key="k", base_url="http://here", http_client=client)

    def _answer(self, request: http.Request) -> http.Response:
        self.body = request.read()
        usage = {"input_tokens": 1, "output_tokens": 1}
        answer = {"id": "msg", "type": "message", "role": "assistant", "content": [], "model": "m"}
        return http.Response(200, json={**answer, "usage": usage})

    def sent(self, message: Message) -> str:
        """What stands in the request for *message*."""
        self.client.messages.create(model="m", max_tokens=1, messages=[message])
        body = self.body.decode()
        opened = body.index('"messages":[') + len('"messages":[')
        return body[opened : body.index('],"model":"m"', opened)]


@pytest.fixture(scope="module")
def gateway() -> Gateway:
    return Gateway()


# The plain form ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        user("hi"),
        user("hi", "there"),
        marked(user("hi")),
        assistant(thinking(), "look", tool_use("t", given={"nested": {"deep": [1, None]}})),
        user(tool_result("t", [text("a"), PICTURE])),
        cast("Message", {"role": "user", "content": []}),
        cast("Message", {"role": "user", "content": None}),
    ],
)
def test_a_plain_message_is_its_own_plain_form(message: Message):
    assert parse(message) is message


@given(histories(3))
def test_each_message_of_a_plain_history_is_its_own_plain_form(history: list[Message]):
    assert all(one is other for one, other in zip(parse_from(history), history, strict=True))


def test_only_the_messages_from_the_start_on_are_parsed():
    history = [reply(TextBlock(type="text", text="one")), reply(TextBlock(type="text", text="two"))]

    assert parse_from(history, 1) == [assistant(text("two"))]


@few
@given(valid_histories(sdk=True))
def test_the_plain_form_is_what_the_sdk_sends(gateway: Gateway, history: list[Message]):
    for message in history:
        assert compact_json(parse(message)) == gateway.sent(message)


FORMS: dict[str, Message] = {
    "None that was set": reply(TextBlock(type="text", text="é", citations=None)),
    "None that was not set": reply(TextBlock(type="text", text="é")),
    "an unknown field": reply(TextBlock.construct(type="text", text="a", later=1)),
    "a beta block": reply(BetaTextBlock(type="text", text="a")),
    "a call": reply(ToolUseBlock(type="tool_use", id="t", name="x", input={"a": [1.5, None]})),
    "an object inside a result": user({**tool_result("t"), "content": [SAID]}),
    "a tuple inside a result": user({**tool_result("t"), "content": (text("a"), text("b"))}),
    "a tuple of blocks": cast("Message", {"role": "user", "content": (text("a"), text("b"))}),
    "another mapping": cast("Message", {"role": "user", "content": [MappingProxyType(text("a"))]}),
    "a message of another type": cast("Message", OrderedDict(role="user", content="hi")),
    "objects inside a source": user({"type": "document", "source": {"content": [SAID]}}),
    "values that json does not know": assistant(tool_use("t", given={"when": WHEN, "of": (1, 2)})),
}


@pytest.mark.parametrize("name", FORMS)
def test_whatever_its_type_the_plain_form_is_sent_as_the_message(name: str, gateway):
    assert compact_json(parse(FORMS[name])) == gateway.sent(FORMS[name])


def test_the_plain_form_leaves_the_callers_message_as_it_was():
    message = reply(SAID, tool_use("t"))

    parse(message)

    assert message["content"] == [SAID, tool_use("t")]
    assert next(iter(blocks(message))) is SAID


def test_what_cannot_be_sent_is_refused_by_its_message_and_block():
    broken = ToolUseBlock.construct(type="tool_use", id="t", name="x", input={"a": object()})

    with pytest.raises(InvalidHistory, match="message 7, block 1: it holds a ToolUseBlock"):
        parse(reply(text("a"), broken), 7)


# What says the same -----------------------------------------------------------------------------

SAME: dict[str, tuple[Message, Message]] = {
    "text and its one block": (user("hi"), user(text("hi"))),
    "a mark on a text": (user("hi"), marked(user("hi"))),
    "a mark on a call": (assistant(tool_use("t")), marked(assistant(tool_use("t")))),
    "a key that is None": (user({**text("hi"), "citations": None}), user("hi")),
    "a mark inside a result": (
        user(tool_result("t", [text("a")])),
        user(tool_result("t", [{**text("a"), **MARK}])),
    ),
    "an object of the sdk": (
        reply(TextBlock(type="text", text="hi", citations=None)),
        assistant({"text": "hi", "type": "text"}),
    ),
}
REORDERED: dict[str, tuple[Message, Message]] = {
    "keys in another order": (user(text("hi")), user({"text": "hi", "type": "text"})),
    "an object of the sdk written by hand": (reply(SAID), assistant(text("a"))),
}
OTHER: dict[str, tuple[Message, Message]] = {
    "another role": (user("hi"), assistant("hi")),
    "another text": (user("hi"), user("ho")),
    "two blocks": (user("a", "b"), user("ab")),
    "a surrogate written out": (user("\ud83d"), user("\\ud83d")),
    "an error": (user(tool_result("t", "x")), user(tool_result("t", "x", is_error=True))),
    "another id": (user(tool_result("t")), user(tool_result("u"))),
    "no blocks": (user(""), cast("Message", {"role": "user", "content": []})),
    "a None in an input": (
        assistant(tool_use("t", given={"a": None})),
        assistant(tool_use("t", given={})),
    ),
    "a block more inside a result": (
        user(tool_result("t", [text("a")])),
        user(tool_result("t", [text("a"), text("")])),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_differs_in_form_says_the_same(name: str):
    one, other = SAME[name]

    assert says_the_same(one, other)
    assert digest(one) == digest(other)


@pytest.mark.parametrize("name", REORDERED)
def test_the_order_of_keys_makes_no_difference(name: str):
    assert says_the_same(*REORDERED[name])


@pytest.mark.parametrize("name", REORDERED)
def test_the_order_of_keys_makes_no_difference_to_a_digest(name: str):
    one, other = REORDERED[name]

    assert digest(one) == digest(other)


@pytest.mark.parametrize("name", OTHER)
def test_what_says_something_else_has_another_digest(name: str):
    one, other = OTHER[name]

    assert digest(one) != digest(other)
    assert not says_the_same(one, other)


@given(histories(3))
def test_a_copy_from_json_has_the_same_digests(history: list[Message]):
    assert list(map(digest, json.loads(json.dumps(history)))) == list(map(digest, history))


@few
@given(valid_histories(sdk=True))
def test_the_plain_form_of_any_block_says_the_same_as_the_message(history: list[Message]):
    for message in history:
        assert says_the_same(parse(message), message)
        assert digest(parse(message)) == digest(message)


def test_a_value_that_json_does_not_know_still_has_a_digest():
    call = assistant(tool_use("t", given={"when": WHEN}))

    assert digest(call) == digest(copy.deepcopy(call))


def test_a_digest_of_a_key_is_another_one_for_another_key():
    def keyed(key: bytes) -> bytes:
        return digest_of(marked(user("hi")), partial(hmac.new, key, None, "sha256"))

    assert keyed(b"a") == keyed(b"a") != keyed(b"b")
    assert digest_of(user("hi"), hashlib.sha256) == digest(user("hi"))


# Cache marks ------------------------------------------------------------------------------------


def test_marks_go_to_the_same_block_of_a_rewritten_message():
    source = user(tool_result("a"), {**tool_result("b"), **MARK})

    moved = with_marks(user(tool_result("a", "x"), tool_result("b", "y")), source)

    assert moved == user(tool_result("a", "x"), {**tool_result("b", "y"), **MARK})


def test_marks_inside_a_result_go_to_the_same_block_of_a_rewritten_one():
    source = user(tool_result("a", [text("long"), {**text("more"), **MARK}]))

    moved = with_marks(user(tool_result("a", [text("short"), text("more")])), source)

    assert moved == user(tool_result("a", [text("short"), {**text("more"), **MARK}]))


def test_a_mark_that_the_source_no_longer_has_is_taken_off():
    assert with_marks(marked(user("short")), user("long")) == user(text("short"))


def test_a_mark_of_another_kind_replaces_the_old_one():
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}

    assert with_marks(marked(user("hi")), user({**text("hi"), **hour})) == user(text("hi") | hour)


def test_a_message_of_other_blocks_than_its_source_gets_no_mark():
    assert with_marks(marked(user("a")), marked(user("a", "b"))) == user(text("a"))


def test_a_mark_on_bare_text_makes_it_a_block():
    assert with_marks(user("hi"), marked(user("hi"))) == marked(user("hi"))


def test_an_object_of_the_sdk_takes_a_mark_as_a_dict():
    said = reply(TextBlock(type="text", text="hi"))

    assert with_marks(said, marked(assistant("hi"))) == marked(assistant("hi"))


def test_a_message_that_has_the_marks_already_is_the_very_same():
    message = marked(user("hi"))

    assert with_marks(message, message) is message
    assert with_marks(user("hi"), user("hi")) == user("hi")


@pytest.mark.parametrize("message", [user("hi"), user("hi", "there"), step("t", say="a")[0]])
def test_a_message_without_marks_is_the_very_same_without_them(message: Message):
    assert without_marks(message) is message


def test_marks_inside_a_result_are_taken_off_too():
    held = user({**tool_result("a", [{**text("x"), **MARK}]), **MARK})

    assert without_marks(held) == user(tool_result("a", [text("x")]))


@given(histories(3), st.data())
def test_marks_come_and_go_and_nothing_else_changes(history: list[Message], data: st.DataObject):
    message = data.draw(st.sampled_from(history))
    if not message["content"]:
        return
    before = copy.deepcopy(message)

    moved = with_marks(message, marked(message))

    assert is_equal(moved, marked(message))
    assert says_the_same(moved, message)
    assert says_the_same(without_marks(moved), message)
    assert message == before


# Values that JSON says in another form ------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Point(BaseModel):
    x: int
    when: datetime


IN_ANOTHER_FORM: dict[str, Any] = {
    "a tuple": (1, 2),
    "tuples in lists": [(1, (2,)), {"a": (3,)}],
    "a set of texts": {"b", "a", "c", "ä"},
    "a set of several types": {1, "1", None, (2, 3)},
    "a frozenset": frozenset({"x", "y"}),
    "a deque": deque([1, 2]),
    "a range": range(3),
    "a view of keys": {"b": 1, "a": 2}.keys(),
    "a date": date(2026, 1, 1),
    "a time with a zone": datetime(2026, 1, 1, 12, tzinfo=UTC),
    "numbers as keys": {10: "a", 2: "b", 1: "c"},
    "keys of several types": {7: "a", "b": 2, None: 3, True: 4, 1.5: 5},
    "an enum of texts": Colour.RED,
    "an enum of numbers": Level.HIGH,
    "enums as keys": {Colour.RED: 1, Level.HIGH: 2},
    "a model": Point(x=1, when=datetime(2026, 1, 1, tzinfo=UTC)),
    "an ordered mapping": OrderedDict(b=1, a=2),
    "a mapping that cannot change": MappingProxyType({"b": (1,)}),
}


@pytest.mark.parametrize("name", IN_ANOTHER_FORM)
def test_a_value_says_the_same_as_what_a_journal_gives_back_for_it(name: str):
    message = assistant(tool_use("t", given={"v": IN_ANOTHER_FORM[name]}))
    back = json.loads(compact_json(message))

    assert says_the_same(message, back)
    assert says_the_same(back, message)
    assert digest(message) == digest(back)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [2, 1]),
        ({1: "a"}, {"2": "a"}),
        ({1: "a"}, {"1": "b"}),
        (date(2026, 1, 1), "2026-01-02"),
        ({"a", "b"}, ["a", "c"]),
        ({None: 1}, {"None": 1}),
        (Colour.RED, "Colour.RED"),
        ((), None),
    ],
)
def test_another_value_says_something_else(one, other):
    message, changed = (assistant(tool_use("t", given={"v": value})) for value in (one, other))

    assert not says_the_same(message, changed)
    assert not says_the_same(changed, message)
    assert digest(message) != digest(changed)


def test_a_set_says_the_same_in_every_process():
    code = (
        "from ctxpipe.messages.identity import digest; "
        "names = {f'name {i}' for i in range(40)}; "
        "block = {'type': 'tool_use', 'id': 't', 'name': 'n', 'input': {'v': names}}; "
        "print(digest({'role': 'assistant', 'content': [block]}).hex())"
    )
    digests = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        digests.add(subprocess.check_output([sys.executable, "-c", code], env=environment))

    assert len(digests) == 1
