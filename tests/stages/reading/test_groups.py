"""Groups of messages that are removed together.

Server tools, programs, and what the system adds.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any, cast

import pytest
from api_histories import few
from histories import assistant, system, text, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import Budget, ContextPipeline, LocalStorage, SmartTruncate
from ctxpipe.functions import smart_truncate, truncate_conversation
from ctxpipe.messages import Message, blocks, check, kind
from ctxpipe.stages.reading.groups import after_compaction, groups, server_spans
from ctxpipe.testing import rules

WORDS = "lorem ipsum dolor sit amet " * 40


def use(k: int, name: str = "web_search") -> dict[str, Any]:
    return {"type": "server_tool_use", "id": f"srvtoolu_{k}", "name": name, "input": {"query": "q"}}


def found(k: int, kind_of_result: str = "web_search_tool_result") -> dict[str, Any]:
    return {"type": kind_of_result, "tool_use_id": f"srvtoolu_{k}", "content": []}


def by_program(id: str, k: int) -> dict[str, Any]:  # noqa: A002
    return {
        **tool_use(id, "query"),
        "caller": {"type": "code_execution_20250825", "tool_id": f"srvtoolu_{k}"},
    }


def said(rng: Random) -> dict[str, Any]:
    return text(WORDS[: rng.randint(10, 500)])


def paused(rng: Random, k: int) -> list[Message]:
    between = [assistant(said(rng)) for _ in range(rng.randint(0, 2))]
    return [assistant(said(rng), use(k)), *between, assistant(found(k), said(rng))]


def mcp(rng: Random, k: int) -> list[Message]:
    call = {
        "type": "mcp_tool_use",
        "id": f"mcptoolu_{k}",
        "name": "ask",
        "server_name": "s",
        "input": {},
    }
    return [
        assistant(said(rng), call),
        assistant(
            {
                "type": "mcp_tool_result",
                "tool_use_id": f"mcptoolu_{k}",
                "content": WORDS[: rng.randint(1, 900)],
            }
        ),
    ]


def program(rng: Random, k: int) -> list[Message]:
    rounds = [
        message
        for n in range(rng.randint(1, 3))
        for message in (
            assistant(
                *([said(rng), use(k, "code_execution")] if not n else []),
                by_program(f"t{k}_{n}", k),
            ),
            user(tool_result(f"t{k}_{n}", WORDS[: rng.randint(1, 900)])),
        )
    ]
    return [*rounds, assistant(found(k, "code_execution_tool_result"), said(rng))]


def mixed(rng: Random, k: int) -> list[Message]:
    """A search and a client's call in one reply: the search ends once the call is answered."""
    return [
        assistant(said(rng), use(k), tool_use(f"t{k}", "read_file", {"path": "a.py"})),
        user(tool_result(f"t{k}", WORDS[: rng.randint(1, 900)])),
        assistant(found(k), said(rng)),
    ]


def plain(rng: Random, k: int) -> list[Message]:
    return [
        assistant(said(rng), tool_use(f"t{k}")),
        user(tool_result(f"t{k}", WORDS[: rng.randint(1, 900)])),
        assistant(said(rng)),
    ]


TURNS = [paused, mcp, program, mixed, plain]


def history_of(makers: list[Any], seed: int) -> list[Message]:
    rng = Random(seed)
    history: list[Message] = [user("go")]
    for k, make in enumerate(makers):
        history += make(rng, k)
        history += [
            user(text(f"next {k}"), said(rng)),
            *([system("be brief")] if rng.random() < 0.2 else []),
        ]
    return history


def refusals(messages: list[Message]) -> list[str]:
    body = {"model": "m", "max_tokens": 1, "messages": json.loads(json.dumps(messages))}
    return [str(problem) for problem in rules.problems(body, rules.Model())]


histories_of_turns = st.builds(
    history_of, st.lists(st.sampled_from(TURNS), min_size=4, max_size=12), st.integers(0, 10**6)
)


@few
@given(histories_of_turns, st.sampled_from([300, 600, 1_200]))
async def test_the_stage_keeps_both_halves_of_every_tool(history: list[Message], limit: int):
    before = copy.deepcopy(history)
    pipeline = ContextPipeline([SmartTruncate(max_tokens=limit)], budget=Budget(window=limit * 2))

    result = await pipeline.run(history, session_id="s")

    assert result.repaired == ()
    assert [str(problem) for problem in check(result.messages)] == []
    assert refusals(result.messages) == []
    assert result.messages[-1] is history[-1]
    assert history == before


@given(histories_of_turns, st.sampled_from([0.1, 0.3, 0.5, 0.9, 1]))
def test_a_cut_by_a_fraction_keeps_both_halves_of_every_tool(
    history: list[Message], fraction: float
):
    assert [str(problem) for problem in check(truncate_conversation(history, fraction))] == []


@given(histories_of_turns)
def test_groups_cover_all_messages_once_and_no_pair_goes_over_an_edge(
    history: list[Message],
):
    found_groups = list(groups(history))

    assert [index for span in found_groups for index in span] == list(range(len(history)))
    for span in server_spans(history)[0]:
        assert any(span.start in group and span.stop - 1 in group for group in found_groups)
    for span in found_groups:
        assert (
            check([user("go"), *history[span.start : span.stop]][1 if span.start == 0 else 0 :])
            == []
        )


def test_a_program_that_still_runs_is_one_group_up_to_the_end():
    history = program(Random(1), 1)[:-1]

    assert list(groups([user("go"), *history])) == [range(1), range(1, len(history) + 1)]


async def test_a_program_that_still_runs_is_not_cut_into():
    running = [
        assistant(use(9, "code_execution"), by_program("p0", 9)),
        user(tool_result("p0", WORDS)),
    ]
    for n in range(1, 6):
        running += [assistant(by_program(f"p{n}", 9)), user(tool_result(f"p{n}", WORDS))]
    history = [*history_of([plain, plain], 1), *running]

    result = await ContextPipeline([SmartTruncate(max_tokens=400)], budget=Budget(window=800)).run(
        history, session_id="s"
    )

    assert result.messages[-len(running) :] == running
    assert check(result.messages) == []


# The server's own summary -------------------------------------------------------------------------


def summed_up(content: str | None = "what was") -> Message:
    return assistant(cast("Any", {"type": "compaction", "content": content}), text("so"))


@pytest.mark.parametrize("turns", [3, 12])
async def test_nothing_up_to_the_servers_summary_goes(turns):
    old = history_of([plain] * turns, 1)
    new = history_of([paused, plain, program, plain, mixed, plain], 2)
    history = [*old, summed_up(), *new]

    result = await ContextPipeline([SmartTruncate(max_tokens=300)], budget=Budget(window=600)).run(
        history, session_id="s", force=True
    )

    kept = len(old) + 1
    assert [
        after is before
        for after, before in zip(result.messages[:kept], history[:kept], strict=True)
    ] == [True] * kept
    assert len(result.messages) < len(history)
    assert check(result.messages) == []


async def test_where_all_is_before_the_servers_summary_nothing_is_cut_and_the_report_says_so():
    history = [*history_of([plain] * 8, 1), summed_up(), user("on")]

    result = await ContextPipeline([SmartTruncate(max_tokens=200)], budget=Budget(window=600)).run(
        history, session_id="s", force=True
    )

    assert result.messages is history
    assert result.reports[0].reason


@pytest.mark.parametrize("content", ["what was", None])
@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.9])
async def test_the_servers_summary_never_goes(content: str | None, fraction, tmp_path):
    history = [*history_of([plain] * 4, 1), summed_up(content), *history_of([plain] * 9, 2)]
    pipeline = ContextPipeline(
        [SmartTruncate(LocalStorage(tmp_path), max_tokens=300)], budget=Budget(window=600)
    )

    for messages in (
        truncate_conversation(history, fraction),
        (await smart_truncate(history, max_tokens=300)).messages,
        (await pipeline.run(history, session_id="s")).messages,
    ):
        assert (
            sum(kind(block) == "compaction" for message in messages for block in blocks(message))
            == 1
        )


def test_only_a_summary_that_says_something_counts():
    assert after_compaction([user("go"), summed_up(None), user("on")]) == 0
    assert after_compaction([user("go"), summed_up(), user("on"), summed_up(None), user("on")]) == 2
