"""The API's rules, told twice.

They are told on random histories of every block type of the SDK, valid and broken.

`ctxpipe.messages.check` and `ctxpipe.testing.rules` are written apart from each other, from the
same public pages; where they judge differently on purpose, the table DIFFERENCES says why. What is
refused comes back accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from api_histories import (
    ASSISTANT_TYPES,
    BROKEN,
    MODEL,
    MODELS,
    PARAMS,
    RESULT_TYPES,
    SYSTEM_TYPES,
    USE_TYPES,
    USER_TYPES,
    Broken,
    Builder,
    as_models,
    broken_histories,
    few,
    is_unfinished,
    refusals,
    unknown_blocks,
    valid_histories,
    wire,
)
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import ContextPipeline
from ctxpipe.messages import Message, check
from ctxpipe.testing import problems

# The generator ------------------------------------------------------------------------------------


def test_every_block_type_of_the_sdk_has_a_place():
    placed = {*ASSISTANT_TYPES, *USER_TYPES, *SYSTEM_TYPES, *RESULT_TYPES, *USE_TYPES, "compaction"}

    assert placed == {*PARAMS, *MODELS, *SYSTEM_TYPES}


@few
@given(valid_histories())
def test_what_is_generated_is_accepted(history: list[Message]):
    assert refusals(history) == []


def test_many_histories_hold_every_type_of_block():
    kinds = Counter[str]()
    for seed in range(300):
        for message in wire(Builder(Random(seed), sdk=seed % 2 == 0).history(4)):
            kinds.update(
                block["type"]
                for block in message["content"]
                if isinstance(message["content"], list)
            )

    assert kinds.keys() >= {*PARAMS, *MODELS, *SYSTEM_TYPES}


@pytest.mark.parametrize("label", sorted(BROKEN))
def test_each_broken_rule_is_refused(label: str):
    random = Random(label)
    histories = [wire(Builder(random).history(4)) for _ in range(25)]
    broken = [history for history in histories if BROKEN[label](history, random)]

    assert any(refusals(history) for history in broken)


# Two judges ---------------------------------------------------------------------------------------


GO: dict[str, Any] = {"role": "user", "content": "go"}


def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def call(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}, **fields}


RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}
PICTURE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
PROGRAM = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
MCP = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "", "server_name": "s", "input": {}}

DIFFERENCES: Mapping[str, tuple[str, list[dict[str, Any]]]] = {
    # Nothing to repair: the caller is about to answer them.
    "calls that wait": ("rules", [GO, said("assistant", call())]),
    # Nothing to repair: models that allow it go on from there.
    "a reply to be continued": ("rules", [GO, {"role": "assistant", "content": "So"}]),
    # The form that ctxpipe takes them in; whoever sends the context sends them as the system
    # prompt.
    "system messages at the head": ("rules", [{"role": "system", "content": "Be brief."}, GO]),
    # No page says that the API refuses these three, and no reply of the API looks so.
    "a program that made no call here": (
        "check",
        [GO, said("assistant", call(caller=PROGRAM)), said("user", RESULT)],
    ),
    "a picture of the system's": ("check", [GO, said("system", PICTURE)]),
    "a tool without a name": ("check", [GO, said("assistant", MCP)]),
}
"""What only one of the two refuses, by its name, and why that is so."""


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_the_two_differ_only_where_they_should(difference: str):
    judge, history = DIFFERENCES[difference]
    messages: Any = history

    assert bool(check(messages)) == (judge == "check")
    assert bool(problems({"model": "m", "max_tokens": 1, "messages": history}, MODEL)) == (
        judge == "rules"
    )


@few
@given(valid_histories())
def test_what_the_api_accepts_the_check_accepts(history: list[Message]):
    assert check(history) == []


@few
@given(broken_histories())
def test_what_the_api_refuses_the_check_refuses(broken: Broken):
    history: Any = broken.history
    # Calls that wait and a reply that is to be continued are nothing to repair: the caller goes on
    # with them.
    assert check(history) or is_unfinished(history), (broken.label, refusals(history))


# Every refused history ----------------------------------------------------------------------------


def dropped(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that go with all they hold.

    What the API's summary has replaced, and results that nobody waits for.
    """
    said = [
        (message["role"], part)
        for message in history
        if not isinstance(message["content"], str)
        for part in message["content"]
    ]
    start = max((place for place, (_, part) in enumerate(said) if is_replacement(part)), default=0)
    gone = [part for _, part in said[:start]]
    called = set()
    for role, part in said[start:]:
        if part.get("type") == "tool_use" and role == "assistant":
            called.add(part.get("id"))
        elif part.get("type") == "tool_result" and (
            role != "user" or part.get("tool_use_id") not in called
        ):
            gone.append(part)
    return gone


def is_replacement(part: dict[str, Any]) -> bool:
    return part.get("type") == "compaction" and "signature" in part


@few
@given(broken_histories(), st.booleans(), st.booleans())
async def test_what_the_api_refuses_comes_back_accepted_and_explained(
    broken: Broken, in_session: bool, sdk: bool
):
    history: Any = as_models(broken.history) if sdk else broken.history
    pipeline = ContextPipeline([])

    result = await (
        pipeline.session("s").run(history) if in_session else pipeline.run(history, session_id="s")
    )

    assert refusals(result.messages) == [] or is_unfinished(result.messages), broken.label
    unknown = {*unknown_blocks(broken.history)} - {*unknown_blocks(dropped(broken.history))}
    assert unknown <= {*unknown_blocks(wire(result.messages))}, broken.label
    if not is_unfinished(history):
        assert result.repaired, broken.label
        assert all(str(problem) for problem in result.repaired)


@few
@given(valid_histories(), st.integers(0, 2), st.integers(0, 2), st.booleans(), st.booleans())
async def test_the_cache_marks_of_system_and_tools_leave_fewer_to_the_messages(
    history: list[Message], of_system: int, of_tools: int, of_request: bool, short: bool
):
    short_mark, long_mark = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    mark = {"cache_control": short_mark if short else long_mark}
    system: Any = [{"type": "text", "text": "Be brief.", **mark} for _ in range(of_system)]
    tools: Any = [
        {"name": f"t{number}", "input_schema": {"type": "object"}, **mark}
        for number in range(of_tools)
    ]
    beside: dict[str, Any] = (
        {"cache_control": short_mark} if of_request and of_system + of_tools < 4 else {}
    )

    result = (
        await ContextPipeline([])
        .session("s")
        .run(history, system=system, tools=tools, request=beside)
    )

    assert refusals(result.messages, system=system, tools=tools, **beside) == []
