"""The API's rules, each told by its name and place, and repaired.

They are those for server tools, ids, inputs, system messages, compaction blocks and keys.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import accumulate
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from anthropic import types
from anthropic.types import ThinkingBlock, ToolUseBlock
from api_histories import few
from histories import MARK, assistant, system, text, thinking, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from ctxpipe import ContextPipeline, InvalidHistory
from ctxpipe.messages import RULES, Message, as_dict, blocks, check, kind
from ctxpipe.placeholders.placeholders import DROPPED, INTERRUPTED, SILENT_ERROR
from ctxpipe.turn.repair import repair

DIRECTIVE = cast("Message", {"role": "system", "content": [], "output_config": {"effort": "low"}})
RESULTS = [
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "advisor_tool_result",
    "tool_of_the_future_tool_result",
]


def server_use(id: str = "srvtoolu_1", name: str = "web_search") -> dict[str, Any]:  # noqa: A002
    return {"type": "server_tool_use", "id": id, "name": name, "input": {"query": "q"}}


def server_result(id: str = "srvtoolu_1", name: str = "web_search_tool_result") -> dict[str, Any]:  # noqa: A002
    return {"type": name, "tool_use_id": id, "content": []}


def mcp_use(id: str = "mcptoolu_1") -> dict[str, Any]:  # noqa: A002
    return {"type": "mcp_tool_use", "id": id, "name": "ask", "server_name": "s", "input": {}}


def by_program(id: str, program: str = "srvtoolu_1", version: str = "20250825") -> dict[str, Any]:  # noqa: A002
    return {**tool_use(id), "caller": {"type": f"code_execution_{version}", "tool_id": program}}


def compaction(content: str | None = "what was", **more: object) -> dict[str, Any]:
    return {"type": "compaction", "content": content, **more}


def reply(**keys: object) -> Message:
    return cast("Message", {"role": "assistant", **keys})


def names(messages: list[Message], **options: int) -> list[tuple[int, int | None, str]]:
    return [(problem.index, problem.block, problem.rule) for problem in check(messages, **options)]  # type: ignore[arg-type]


# What is accepted ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "history",
    [
        *(
            [user("go"), assistant(server_use(), server_result(name=name), text("so"))]
            for name in RESULTS
        ),
        [
            user("go"),
            assistant(mcp_use(), {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1"}),
            user("ok"),
        ],
        [user("go"), assistant(text("I look"), server_use())],  # paused: the next request goes on
        [user("go"), assistant(server_use()), assistant(server_result(), text("so")), user("ok")],
        [
            user("go"),
            assistant(server_use()),
            assistant(server_use("srvtoolu_2")),
            assistant(server_result("srvtoolu_2"), server_result()),
            user("ok"),
        ],
        [user("go"), assistant(server_use(), tool_use("a"))],  # the client's call is answered first
        [user("go"), assistant(server_use(), tool_use("a")), user(tool_result("a"))],
        [
            user("go"),
            assistant(server_use(), tool_use("a")),
            user(tool_result("a")),
            assistant(server_result()),
        ],
        [
            user("go"),
            assistant(server_use(name="code_execution"), by_program("a")),
            user(tool_result("a")),
            assistant(by_program("b"), by_program("c")),
            user(tool_result("b"), tool_result("c")),
            system("be brief"),
            assistant(server_result(name="code_execution_tool_result"), text("so")),
            user("ok"),
        ],
        [
            user("go"),
            assistant({**tool_use("a"), "caller": {"type": "direct"}}),
            user(tool_result("a")),
        ],
        [user("go"), system("be brief"), assistant("ok"), user("more"), system("really")],
        [user("go"), system("be brief"), system("be kind"), assistant("ok")],
        [user("go"), assistant(server_use(), server_result()), system("be brief"), assistant("ok")],
        [user("go"), assistant("ok"), DIRECTIVE, user("x")],
        [
            user("go"),
            cast(
                "Message", {"role": "system", "content": "brief", "clear_at": "next_user_message"}
            ),
        ],
        [assistant(compaction()), user("go on")],
        [user(compaction(signature="s"), text("go on"))],
        [
            user("go"),
            assistant(compaction(), text("so")),
            user("ok"),
            assistant(compaction(None)),
            user("ok"),
        ],
        [
            user("go"),
            assistant(text("x"), {"type": "fallback", "from": {}, "to": {}}, text("y")),
            user("ok"),
        ],
        [
            user("go"),
            assistant({"type": "from the future", "id": "no id: here!", "input": None}),
            user("ok"),
        ],
    ],
)
def test_a_history_that_the_api_accepts_has_no_problem(history: list[Message]):
    assert check(history) == []
    assert repair(history) is history


# What is not --------------------------------------------------------------------------------------

BROKEN: list[tuple[str, list[Message], tuple[int, int | None, str], list[Message]]] = [
    (
        "an interrupted search",
        [user("go"), assistant(text("I look"), server_use()), user("stop")],
        (1, 1, "server-tool"),
        [user("go"), assistant(text("I look")), user("stop")],
    ),
    (
        "an interrupted call of an MCP server, and nothing else",
        [user("go"), assistant(mcp_use()), user("stop")],
        (1, 0, "server-tool"),
        [user(text("go"), text("stop"))],
    ),
    (
        "a search that was paused and then left behind",
        [user("go"), assistant(server_use()), assistant("never mind"), user("ok"), assistant("so")],
        (1, 0, "server-tool"),
        [user("go"), assistant("never mind"), user("ok"), assistant("so")],
    ),
    (
        "words beside the results for a running program end its turn",
        [
            user("go"),
            assistant(server_use(), by_program("a")),
            user(tool_result("a"), text("stop")),
            assistant("ok"),
        ],
        (1, 0, "server-tool"),
        [
            user("go"),
            assistant(tool_use("a")),
            user(tool_result("a"), text("stop")),
            assistant("ok"),
        ],
    ),
    (
        "the result of a search that nobody made",
        [user("go"), assistant(server_result(), text("so")), user("ok")],
        (1, 0, "server-tool"),
        [user("go"), assistant(text("so")), user("ok")],
    ),
    (
        "a result in a later turn",
        [
            user("go"),
            assistant(server_use()),
            user("wait"),
            assistant(server_result(), text("so")),
            user("ok"),
        ],
        (1, 0, "server-tool"),
        [user(text("go"), text("wait")), assistant(text("so")), user("ok")],
    ),
    (
        "a result before its call",
        [user("go"), assistant(server_result(), server_use(), text("so")), user("ok")],
        (1, 0, "server-tool"),
        [user("go"), assistant(text("so")), user("ok")],
    ),
    (
        "two results for one call",
        [
            user("go"),
            assistant(server_use(), server_result(), server_result(), text("so")),
            user("ok"),
        ],
        (1, 2, "server-tool"),
        [user("go"), assistant(server_use(), server_result(), text("so")), user("ok")],
    ),
    (
        "a program that was interrupted after a search of its own",
        [
            user("go"),
            assistant(
                server_use("srvtoolu_9", "code_execution"),
                {**server_use(), "caller": by_program("a", "srvtoolu_9")["caller"]},
                {**server_result(), "caller": by_program("a", "srvtoolu_9")["caller"]},
            ),
            user("stop"),
        ],
        (1, 0, "server-tool"),
        [user("go"), assistant(server_use(), server_result()), user("stop")],
    ),
    (
        "a call by a program that is not there",
        [user("go"), assistant(by_program("a")), user(tool_result("a")), assistant("so")],
        (1, 0, "server-tool"),
        [user("go"), assistant(tool_use("a")), user(tool_result("a")), assistant("so")],
    ),
    (
        "a server tool in the user's mouth",
        [user(text("go"), server_use()), assistant("so")],
        (0, 1, "speaker"),
        [user(text("go")), assistant("so")],
    ),
    (
        "a picture in a system message",
        [user("go"), system([text("be brief"), {"type": "image", "source": {}}])],
        (1, 1, "speaker"),
        [user("go"), system([text("be brief")])],
    ),
    (
        "a system message between the assistant and the user",
        [user("go"), assistant("a"), system("be brief"), user("x")],
        (2, None, "system-place"),
        [user("go"), assistant("a"), user("x"), system("be brief")],
    ),
    (
        "a system message between a call and its result",
        [
            user("go"),
            assistant(tool_use("a")),
            system("be brief"),
            user(tool_result("a")),
            assistant("so"),
        ],
        (2, None, "system-place"),
        [
            user("go"),
            assistant(tool_use("a")),
            user(tool_result("a")),
            system("be brief"),
            assistant("so"),
        ],
    ),
    (
        "a system message before the user goes on",
        [user("go"), system("be brief"), user("x"), assistant("so")],
        (1, None, "system-place"),
        [user(text("go"), text("x")), system("be brief"), assistant("so")],
    ),
    (
        "a system message between two assistant messages",
        [user("go"), assistant("a"), system("be brief"), assistant("so")],
        (2, None, "system-place"),
        [user("go"), assistant("a"), user(DROPPED), system("be brief"), assistant("so")],
    ),
    (
        "an empty compaction block",
        [user("go"), assistant(compaction(""), text("so")), user("ok")],
        (1, 0, "compaction"),
        [user("go"), assistant(text("so")), user("ok")],
    ),
    (
        "a signed compaction block behind what it stands for",
        [user("go"), assistant("so"), user("ok"), assistant(compaction(signature="s")), user("on")],
        (3, 0, "compaction"),
        [assistant(compaction(signature="s")), user("on")],
    ),
    (
        "two signed compaction blocks",
        [
            user(compaction(signature="s"), text("go")),
            assistant(text("so"), compaction(signature="t")),
            user("on"),
        ],
        (1, 1, "compaction"),
        [assistant(compaction(signature="t")), user("on")],
    ),
    (
        "a reply that was appended as it came",
        [
            user("go"),
            reply(content=[text("hi")], id="msg_1", model="m", usage={}, stop_reason=None),
            user("x"),
        ],
        (1, None, "message-key"),
        [user("go"), assistant(text("hi")), user("x")],
    ),
    (
        "a message with a time",
        [cast("Message", {"role": "user", "content": "go", "timestamp": 1})],
        (0, None, "message-key"),
        [user("go")],
    ),
    (
        "an assistant message that only a system message may be",
        [user("go"), reply(content="hi", output_config={})],
        (1, None, "message-key"),
        [user("go"), assistant("hi")],
    ),
    (
        "content that is None",
        [user("go"), reply(content=None), user("x")],
        (1, None, "empty"),
        [user(text("go"), text("x"))],
    ),
    (
        "thinking without a signature",
        [user("go"), assistant({"type": "thinking", "thinking": "x"}, text("y")), user("x")],
        (1, 0, "thinking"),
        [user("go"), assistant(text("y")), user("x")],
    ),
    (
        "thinking with an empty signature",
        [user("go"), assistant({**thinking(), "signature": ""}, text("y")), user("x")],
        (1, 0, "thinking"),
        [user("go"), assistant(text("y")), user("x")],
    ),
    (
        "redacted thinking without its data",
        [user("go"), assistant({"type": "redacted_thinking", "data": None}, text("y")), user("x")],
        (1, 0, "thinking"),
        [user("go"), assistant(text("y")), user("x")],
    ),
    (
        "thinking with a mark",
        [user("go"), assistant({**thinking(), **MARK}, text("y")), user("x")],
        (1, 0, "thinking"),
        [user("go"), assistant(thinking(), text("y")), user("x")],
    ),
    (
        "a text block without its type",
        [user("go"), assistant({"text": "y"}), user("x")],
        (1, 0, "block-type"),
        [user("go"), assistant({"text": "y", "type": "text"}), user("x")],
    ),
    (
        "a block without a type that is no text",
        [user("go"), assistant({"what": 1}, text("y")), user("x")],
        (1, 0, "block-type"),
        [user("go"), assistant(text("y")), user("x")],
    ),
    (
        "a call without a name",
        [user("go"), assistant(tool_use("a", "")), user(tool_result("a"))],
        (1, 0, "tool-name"),
        [user("go"), assistant(tool_use("a", "unknown_tool")), user(tool_result("a"))],
    ),
]


@pytest.mark.parametrize(
    ("history", "problem", "repaired"), [case[1:] for case in BROKEN], ids=[c[0] for c in BROKEN]
)
async def test_what_the_api_refuses_is_reported_with_rule_and_block_and_repaired(
    history: list[Message], problem: tuple[int, int | None, str], repaired: list[Message]
):
    before = copy.deepcopy(history)

    assert problem in names(history)
    assert repair(history) == repaired
    assert check(repaired) == []
    assert history == before

    result = await ContextPipeline([]).session("s").run(history)

    assert result.messages == repaired
    assert problem in [(p.index, p.block, p.rule) for p in result.repaired]


def test_every_rule_has_a_name_that_the_problems_use():
    reported = {rule for _, history, _, _ in BROKEN for _, _, rule in names(history)}

    assert reported <= {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_server_tools_are_recognized_in_sdk_objects_too():
    made = types.ServerToolUseBlock(
        type="server_tool_use", id="srvtoolu_1", name="web_search", input={}
    )
    history = [user("go"), cast("Message", {"role": "assistant", "content": [made]}), user("stop")]

    assert names(history) == [(1, 0, "server-tool")]
    assert repair(history) == [user(text("go"), text("stop"))]


# Ids and inputs -----------------------------------------------------------------------------------

IDS = ["functions.Bash:0", "call|1", "", " ", "é", "a b", "\ud83d", "x" * 300 + ".", None, 7]


@pytest.mark.parametrize("id", IDS)
def test_an_id_that_the_api_refuses_is_replaced_in_call_and_result(id):  # noqa: A002
    history = [
        user("go"),
        assistant(tool_use(id), tool_use("b")),
        user(tool_result(id, "found"), tool_result("b")),
    ]

    assert (1, 0, "tool-id") in names(history)
    assert (2, 0, "tool-id") in names(history)
    [call, other], [result, _] = ([as_dict(b) for b in blocks(m)] for m in repair(history)[1:])
    assert call["id"] == result["tool_use_id"]
    assert result["content"] == "found"
    assert other == tool_use("b")
    assert check(repair(history)) == []


def test_ids_of_server_tools_and_of_callers_are_renamed_with_them():
    history = [
        user("go"),
        assistant(server_use("s:1"), by_program("a:1", "s:1")),
        user(tool_result("a:1")),
        assistant(server_result("s:1"), text("so")),
        user("ok"),
    ]

    repaired = repair(history)

    assert check(repaired) == []
    assert [len(blocks(m)) for m in repaired] == [0, 2, 1, 2, 0]
    program = cast("Any", repaired[1]["content"])[0]["id"]
    assert cast("Any", repaired[1]["content"])[1]["caller"]["tool_id"] == program
    assert cast("Any", repaired[3]["content"])[0]["tool_use_id"] == program


@given(st.lists(st.text(max_size=6), min_size=1, max_size=6, unique=True))
def test_ids_stay_different_and_are_the_same_in_every_process(ids: list[str]):
    history = [
        user("go"),
        assistant(*map(tool_use, ids)),
        user(*(tool_result(i, f"for {i}") for i in ids)),
    ]

    repaired = repair(history)

    assert check(repaired) == []
    found = {b["tool_use_id"]: b["content"] for b in map(as_dict, blocks(repaired[2]))}
    asked = [as_dict(b)["id"] for b in blocks(repaired[1])]
    assert [without(found[name]) for name in asked] == [without(f"for {i}") for i in ids]
    assert repair(copy.deepcopy(history)) == repaired


def without(words: str) -> str:
    return words.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.mark.parametrize(
    ("given_input", "expected"),
    [
        (None, {}),
        ("", {}),
        ("{}", {}),
        ('{"path": "a.py"}', {"path": "a.py"}),
        ('{"path": "a.p', {"input": '{"path": "a.p'}),
        ("[1]", {"input": "[1]"}),
        ("ls -l", {"input": "ls -l"}),
        ('{"n": NaN}', {"input": '{"n": NaN}'}),
        ([1, 2], {"input": [1, 2]}),
        (7, {"input": 7}),
        (True, {"input": True}),
    ],
)
@pytest.mark.parametrize("make", [tool_use, server_use, mcp_use])
def test_an_input_that_is_no_object_becomes_one_and_loses_nothing(make, given_input, expected):
    call = {**make("srvtoolu_1"), "input": given_input}
    history = [user("go"), assistant(call)]

    assert names(history) == [(1, 0, "tool-input")]
    assert cast("Any", repair(history)[1]["content"])[0] == {**call, "input": expected}


def test_an_input_that_is_missing_or_held_by_an_sdk_object_is_repaired_too():
    missing = {key: value for key, value in tool_use("a").items() if key != "input"}
    made = ToolUseBlock.model_construct(type="tool_use", id="b", name="bash", input=None)
    history = [user("go"), cast("Message", {"role": "assistant", "content": [missing, made]})]

    assert [as_dict(b)["input"] for b in blocks(repair(history)[1])] == [{}, {}]


# Marks for the cache ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_parts", "left"),
    [
        ({}, 4),
        ({"system": [{**text("s"), **MARK}]}, 3),
        ({"system": [{**text("s"), **MARK}], "tools": [{"name": "x", **MARK}]}, 2),
        ({"tools": [{"name": "x", **MARK}, {"name": "y", **MARK}], "options": MARK}, 1),
        ({"system": [{**text("s"), **MARK}] * 2, "tools": [{"name": "x", **MARK}] * 2}, 0),
        ({"system": [{**text("s"), **MARK}] * 4, "tools": [{"name": "x", **MARK}]}, 0),
        ({"system": "plain", "tools": [{"name": "x"}]}, 4),
    ],
)
@pytest.mark.parametrize("marked", [1, 4, 6])
async def test_the_messages_keep_as_many_marks_as_the_rest_of_the_request_leaves(
    request_parts: Mapping[str, Any], left, marked
):
    history = [m for k in range(marked) for m in (user({**text(f"q{k}"), **MARK}), assistant("a"))]
    options = request_parts.get("options", {})
    parts = {key: value for key, value in request_parts.items() if key != "options"}

    result = await ContextPipeline([]).session("s").run(history, **parts, request=options)

    kept = [
        index
        for index, m in enumerate(result.messages)
        if any(as_dict(b).get("cache_control") for b in blocks(m))
    ]
    assert kept == list(range(0, 2 * marked, 2))[max(0, marked - left) :]
    assert [p.rule for p in result.repaired] == (["cache-marks"] if marked > left else [])


# Values -------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1


UNSENDABLE = [
    UUID(int=1),
    Decimal("1.5"),
    Colour.RED,
    Path("a.py"),
    b"bytes",
    bytearray(b"x"),
    object(),
    float("nan"),
    float("inf"),
    {(1, 2): "x"},
    {date(2026, 1, 1): "x"},
    iter([1]),
    (n for n in range(3)),
    10**5000,
]


@pytest.mark.parametrize("value", UNSENDABLE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("where", ["input", "deeper", "future"])
async def test_what_the_client_cannot_encode_is_refused_by_its_place(value: object, where):
    made: dict[str, Any] = {
        "input": tool_use("a", given={"x": value}),
        "deeper": tool_use("a", given={"x": [{"y": (value,)}]}),
        "future": {"type": "from the future", "x": value},
    }[where]
    history = [user("go"), assistant(text("ok"), made)]

    assert (1, 1, "value") in names(history)
    with pytest.raises(InvalidHistory, match=r"message 1, block 1: it holds "):
        await ContextPipeline([]).run(history, session_id="s")


def test_the_client_refuses_exactly_what_is_refused_here():
    from anthropic._utils._json import openapi_dumps

    for value in UNSENDABLE:
        if not hasattr(value, "__next__"):  # these it reads, but a second time they are empty
            with pytest.raises((TypeError, ValueError)):
                openapi_dumps({"x": value})


# Whatever is lost ---------------------------------------------------------------------------------


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """A history of calls of all kinds, with messages and blocks lost, doubled and swapped.

    It is whole before that.
    """
    history: list[Message] = [user("go")]
    for n in range(draw(st.integers(1, 4))):
        search = [server_use(f"srvtoolu_{n}"), server_result(f"srvtoolu_{n}"), text(f"found {n}")]
        program = [
            assistant(
                text(f"run {n}"), server_use(f"srvtoolu_{n}"), by_program(f"t{n}", f"srvtoolu_{n}")
            ),
            user(tool_result(f"t{n}")),
            assistant(server_result(f"srvtoolu_{n}"), text(f"ran {n}")),
        ]
        paused = [assistant(*search[:1]), assistant(*search[1:])]
        plain = [
            assistant(text(f"call {n}"), tool_use(f"t{n}")),
            user(tool_result(f"t{n}")),
            assistant(f"so {n}"),
        ]
        history += draw(st.sampled_from([[assistant(*search)], paused, program, plain]))
        history += [user(f"next {n}"), *draw(st.sampled_from([[], [system("be brief")]]))]
    history = history[: len(history) - draw(st.integers(0, 3))]
    for _ in range(draw(st.integers(0, 3))):
        index = draw(st.integers(0, len(history) - 1)) if history else 0
        if not history:
            break
        match draw(st.sampled_from(["lose", "lose block", "double", "swap", "reverse"])):
            case "lose":
                del history[index]
            case "double":
                history.insert(index, copy.deepcopy(history[index]))
            case "swap":
                history[index], history[index - 1] = history[index - 1], history[index]
            case lost:
                content = list(blocks(history[index]))[::-1]
                if content:
                    kept = content[1:] if lost == "lose block" else content
                    history[index] = cast("Message", {**history[index], "content": kept})
    return history


@given(turns())
def test_what_was_repaired_breaks_no_rule_whatever_was_lost(history: list[Message]):
    repaired = repair(history)

    assert [str(p) for p in check(repaired)] == []
    assert repair(repaired) is repaired


@given(turns())
def test_repairing_loses_no_words_and_no_more_server_tools_than_problems(
    history: list[Message],
):
    def words(messages: list[Message]) -> set[str]:
        said = [b for m in messages for b in map(as_dict, blocks(m)) if b["type"] == "text"]
        return {b["text"] for b in said} | {
            m["content"] for m in messages if isinstance(m["content"], str)
        }

    def pairs(messages: list[Message]) -> int:
        return sum(kind(b).endswith("_tool_result") for m in messages for b in blocks(m))

    repaired = repair(history)
    assert words(history) <= words(repaired)
    assert pairs(history) - pairs(repaired) <= len(check(history))


@given(turns(), st.integers(0, 20))
def test_a_check_of_new_messages_reports_the_same_as_one_of_all(history: list[Message], start: int):
    def new_problems(problems: Any) -> list[str]:
        return sorted(str(p) for p in problems if p.index >= start)

    assert new_problems(check(history, min(start, len(history)))) == new_problems(check(history))


def test_calls_with_the_words_of_an_interruption_are_still_calls():
    history = [user("go"), assistant(server_use(), by_program("a")), user("stop")]

    assert repair(history) == [
        user("go"),
        assistant(tool_use("a")),
        user(tool_result("a", INTERRUPTED, is_error=True), text("stop")),
    ]


def test_thinking_of_the_sdk_without_a_signature_is_removed_too():
    made = ThinkingBlock.model_construct(type="thinking", thinking="x", signature=None)
    history = [
        user("go"),
        cast("Message", {"role": "assistant", "content": [made, text("y")]}),
        user("x"),
    ]

    assert repair(history)[1] == assistant(text("y"))


def test_every_rule_but_one_says_how_it_is_repaired():
    assert [rule.name for rule in RULES if not rule.repair] == ["value"]


def test_the_page_lists_every_rule_as_the_table_has_it():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

    for rule in RULES:
        assert f"| `{rule.name}` | {rule.says} | {rule.repair or 'InvalidHistory'} |" in page


# What dumps, errors and marks do not keep ---------------------------------------------------------


@pytest.mark.parametrize("given_caller", [None, "direct", []])
@pytest.mark.parametrize("make", [tool_use, server_use, mcp_use])
def test_a_caller_that_is_no_object_is_removed(make, given_caller):
    call = make("srvtoolu_1")
    history = [user("go"), assistant({**call, "caller": given_caller})]

    assert names(history) == [(1, 0, "block-key")]
    assert repair(history) == [user("go"), assistant(call)]


def test_a_caller_of_none_is_removed_from_an_sdk_object_too():
    made = ToolUseBlock(type="tool_use", id="a", name="bash", input={}, caller=None)
    history = [user("go"), cast("Message", {"role": "assistant", "content": [made]})]

    assert names(history) == [(1, 0, "block-key")]
    assert repair(history)[1]["content"] == [tool_use("a")]


@pytest.mark.parametrize(
    "extra", [{"citations": None}, {"text": None}, {"citations": None, "text": None}]
)
def test_a_compaction_block_loses_the_keys_that_a_dump_adds(extra: dict[str, None]):
    history = [user("go"), assistant(compaction(**extra), text("so")), user("on")]

    assert names(history) == [(1, 0, "block-key")]
    assert repair(history) == [user("go"), assistant(compaction(), text("so")), user("on")]


@pytest.mark.parametrize("content", [None, "", []])
def test_an_error_without_a_text_gets_one(content):
    history = [user("go"), assistant(tool_use("a")), user(tool_result("a", content, is_error=True))]

    assert names(history) == [(2, 0, "error-result")]
    assert repair(history)[2] == user(tool_result("a", SILENT_ERROR, is_error=True))


@pytest.mark.parametrize("kind_of_block", ["image", "document", "hologram"])
def test_an_error_with_other_blocks_is_no_error_any_more_and_loses_nothing(
    kind_of_block,
):
    content = [
        text("failed"),
        {"type": kind_of_block, "source": {"type": "url", "url": "https://example.com"}},
    ]
    history = [user("go"), assistant(tool_use("a")), user(tool_result("a", content, is_error=True))]

    assert names(history) == [(2, 0, "error-result")]
    assert repair(history)[2] == user({**tool_result("a", content), "is_error": False})


def hour(words: str) -> dict[str, Any]:
    return {**text(words), "cache_control": {"type": "ephemeral", "ttl": "1h"}}


@pytest.mark.parametrize("short", [MARK, {"cache_control": {"type": "ephemeral", "ttl": "5m"}}])
def test_a_mark_for_an_hour_after_a_shorter_one_is_shortened(short: dict[str, Any]):
    history = [user({**text("a"), **short}), assistant("b"), user(hour("c"), hour("d"))]

    assert names(history) == [(2, 0, "cache-marks")]
    assert repair(history) == [*history[:2], user({**text("c"), **MARK}, {**text("d"), **MARK})]
    assert not names([user(hour("a")), assistant("b"), user({**text("c"), **short})])


def test_a_mark_for_an_hour_inside_a_result_is_shortened_too():
    result = tool_result("a", [hour("x")])
    history = [user({**text("go"), **MARK}), assistant(tool_use("a")), user(result)]

    assert names(history) == [(2, 0, "cache-marks")]
    assert repair(history)[2] == user(tool_result("a", [{**text("x"), **MARK}]))


async def test_a_growing_session_reports_a_late_mark_for_an_hour():
    session = ContextPipeline([]).session("s")
    history = [user({**text("a"), **MARK}), assistant("b"), user("c")]
    await session.run(history)

    result = await session.run([*history, assistant("d"), user(hour("e"))])

    assert [problem.rule for problem in result.repaired] == ["cache-marks"]
    assert not check(result.messages)


@pytest.mark.parametrize("foreign", ["call_1", "toolu_1", "srvtoolu_a-b", "功能:0"])
def test_a_server_tools_id_of_another_provider_becomes_one_with_the_prefix(foreign):
    made = assistant(server_use(foreign), by_program("t", foreign))
    history = [
        user("go"),
        made,
        user(tool_result("t")),
        assistant(server_result(foreign), text("so")),
        user("on"),
    ]

    repaired: Any = repair(history)

    name = repaired[1]["content"][0]["id"]
    assert {rule for _, _, rule in names(history)} == {"tool-id"}
    assert name.startswith("srvtoolu_")
    assert (
        repaired[1]["content"][1]["caller"]["tool_id"]
        == repaired[3]["content"][0]["tool_use_id"]
        == name
    )
    assert not check(repaired)


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_results_of_an_unknown_kind_and_id_are_accepted_anywhere(role):
    block = {"type": "smell_tool_result", "tool_use_id": "nobody:1", "payload": [1]}
    history = [
        user("go"),
        cast("Message", {"role": role, "content": [block, text("so")]}),
        user("on"),
    ]

    assert not check(history)
    assert repair(history) is history


@pytest.mark.parametrize(
    "later", [compaction(), compaction(None), compaction("more", encrypted_content="x")]
)
def test_no_compaction_block_may_follow_a_signed_one(later: dict[str, Any]):
    first = assistant(compaction(signature="s"))
    history = [first, user("go"), assistant(later, text("so")), user("on")]

    assert names(history) == [(2, 0, "compaction")]
    assert repair(history) == [first, user("go"), assistant(text("so")), user("on")]


@few
@given(turns(), st.lists(st.integers(1, 3), min_size=20, max_size=20))
async def test_a_session_that_grows_by_broken_messages_sends_none_of_them(
    history: list[Message], steps: list[int]
):
    session = ContextPipeline([]).session("s")
    again = ContextPipeline([])
    told: list[str] = []
    for length in accumulate(steps):
        result = await session.run(history[:length])
        told += [problem.rule for problem in result.repaired]
        assert [str(problem) for problem in check(result.messages)] == []
        assert check((await again.run(history[:length], session_id="s")).messages) == []
    assert bool(told) >= bool(check(history))


@pytest.mark.parametrize(
    "odd", [{"text": "hi"}, {"type": None, "text": "hi"}, {"type": 5, "text": "hi"}]
)
def test_a_block_without_a_type_is_reported_and_repaired_anywhere(odd):
    history: Any = [
        {"role": "user", "content": [odd]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "ls", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [odd, {"of": 1}]}],
        },
    ]

    mended: Any = repair(history)

    assert [problem.rule for problem in check(history)] == ["block-type", "block-type"]
    assert check(mended) == []
    assert (
        mended[0]["content"]
        == mended[2]["content"][0]["content"]
        == [{"type": "text", "text": "hi"}]
    )
