"""A request as the cache sees it."""

from __future__ import annotations

import copy
from typing import Any

from histories import assistant, histories, step, text, tool_result, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.diagnostics.prompt_cache import CacheMark
from ctxpipe.diagnostics.prompts import Prompt, SentRequest, as_prompt
from ctxpipe.messages import Message
from ctxpipe.tokens import TokenCounter

COUNTER = TokenCounter(len)
MARK = {"type": "ephemeral"}


def prompt(*messages: Message, last: Prompt | None = None, **options: Any) -> Prompt:
    fields = {name: options.pop(name) for name in ("system", "tools") if name in options}
    return as_prompt(SentRequest(messages, 0.0, **fields, options=options), COUNTER, last)


@given(histories(), histories(), st.integers(0, 9), st.booleans(), st.booleans())
def test_a_prompt_reused_from_the_last_request_equals_one_read_again(
    history: list[Message], more: list[Message], kept: int, is_other: bool, is_marked: bool
):
    request: dict[str, Any] = {"system": "Be brief.", "tools": [{"name": "a"}], "model": "m"}
    last = prompt(*history, **request, cache_control=MARK)
    if is_other:
        request |= {"system": [text("Be"), text("long.")], "thinking": {"type": "adaptive"}}
    if is_marked:
        more = [*more, user({**text("last"), "cache_control": MARK})]
    messages = [*history[:kept], *more]

    assert prompt(*messages, last=last, **request) == prompt(*messages, **request)


@given(histories())
def test_neither_marks_nor_the_form_of_a_text_make_another_prefix(history: list[Message]):
    marked: Any = copy.deepcopy(history)
    for message in marked:
        if isinstance(message["content"], str):
            message["content"] = [{**text(message["content"]), "cache_control": MARK}]

    assert prompt(*marked).chain == prompt(*history).chain


def test_the_order_of_keys_counts_in_a_tools_input_and_nowhere_else():
    one = step("t", given={"a": 1, "b": 2})
    other = step("t", given={"b": 2, "a": 1})
    turned: Any = [dict(reversed(list(message.items()))) for message in one]

    assert prompt(*one).keys != prompt(*other).keys
    assert prompt(*one).keys == prompt(*turned).keys


def test_a_setting_changes_the_keys_from_its_level_on():
    tools = [{"name": "a"}, {"name": "b"}]
    request: dict[str, Any] = {"system": "Be brief.", "tools": tools}
    history = user("Go."), assistant("Yes."), user("More?")
    plain = prompt(*history, **request)
    shared = {
        "tool_choice": 3,
        "thinking": 3,
        "speed": 2,
        "model": 0,
        "betas": 0,
    }
    for name, blocks in shared.items():
        value: Any = ["x"] if name == "betas" else "x"
        other = prompt(*history, **request, **{name: value})
        same = [one == two for one, two in zip(plain.chain, other.chain, strict=True)]
        assert same == [True] * blocks + [False] * (6 - blocks), name


def test_marks_are_found_on_every_level_with_their_lifetime():
    hour = {"type": "ephemeral", "ttl": "1h"}
    inner = {**text("found"), "cache_control": MARK}
    found = prompt(
        user("Go."),
        *step("t")[:1],
        user(tool_result("t", [inner])),
        tools=[{"name": "a", "cache_control": hour}],
        system=[{**text("Be brief."), "cache_control": hour}],
        cache_control=MARK,
    )

    assert found.marks == (CacheMark(0, 3600.0), CacheMark(1, 3600.0), CacheMark(4, 300.0))


def test_messages_that_the_server_summarized_are_not_in_the_prompt():
    summary = {"type": "compaction", "content": "what was before"}
    whole = prompt(user("Go."), assistant("Yes."), assistant(summary, text("So.")), user("More?"))
    rest = prompt(assistant(summary, text("So.")), user("More?"))

    assert whole.chain == rest.chain
    assert whole.is_summarized
