"""What users of context management suffer from, from end to end.

docs/troubleshooting.md has the index of the problems for users, and held_by.toml names the tests of
each: most are those of the part that answers it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from api_rules import faults
from histories import (
    assistant,
    broken_histories,
    conversation,
    step,
    tool_result,
    tool_use,
    user,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from own_agent import MODEL, SUMMARIES, Agent, Tool, api, asked, call, playing, reading
from processes import new_python

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SmartTruncate,
)
from ctxpipe.messages import Message, blocks, kind, pending_calls, split_system, texts
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.stages.compact.stage import Breaker, Restore
from ctxpipe.summarizers import AnthropicSummarizer, ExtractiveSummarizer, Retry, Summarizer
from ctxpipe.testing import answer_with
from ctxpipe.testing import thinking as thought
from ctxpipe.testing import tool_use as tool_call

# an example takes a server: to shrink takes minutes
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
# about 50 kB
LINES = "\n".join(f"{n:05d} {n * 7919 % 100_003} measured at station {n % 17}" for n in range(1300))


def four(root: Path, summarize: Summarizer | None = None, *, window: int = 4000) -> ContextPipeline:
    """All four stages, eager enough for a small *window*."""
    storage = LocalStorage(root / "store")
    stages = (
        DirectOffload(storage, min_chars=2000),
        BatchOffload(storage, min_chars=400),
        Compact(
            summarize or ExtractiveSummarizer(),
            storage,
            restore=Restore(work_dir=root),
            breaker=Breaker(retry=Retry(max_retries=0)),
        ),
        SmartTruncate(storage),
    )
    return ContextPipeline(stages, budget=Budget(window))


def dumped(messages: Sequence[Message]) -> list[str]:
    return [json.dumps(message, default=lambda block: block.to_dict()) for message in messages]


def texts_of(messages: Sequence[Message]) -> list[str]:
    return [words for message in messages for words in texts(message)]


def answerable(history: list[Message]) -> list[Message]:
    """*history* as a loop would send it: what waits is answered, and the user speaks last."""
    if pending_calls(history):
        return [*history, user(*(tool_result(call.id) for call in pending_calls(history)))]
    if history and history[-1]["role"] == "user":
        return history
    return [*history, user("Go on.")]


@settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=NO_SHRINKING
)
@given(broken_histories(3, 5), st.permutations(range(4)), st.booleans(), st.integers(300, 4000))
async def test_whatever_the_history_and_the_order_of_the_stages_the_api_takes_the_request(
    tmp_path_factory,
    history: list[Message],
    order: list[int],
    force: bool,
    window: int,
):
    root, history = tmp_path_factory.mktemp("r01a"), answerable(history)
    stages = four(root).stages
    pipeline = ContextPipeline([stages[i] for i in order], budget=Budget(window))
    async with api(playing(["ok"]), thinking="unchecked") as (server, client):
        shaped = await pipeline.run(history, session_id="s", force=force)
        head, body = split_system(shaped.messages)  # the API takes the head apart from the messages
        instructions = {"system": "\n".join(texts_of(head))} if head else {}
        options = cast("Any", {**instructions, **shaped.request_options})
        await client.messages.create(model=MODEL, max_tokens=10, messages=body, **options)

    assert faults(asked(server)[0].body["messages"]) == []


async def test_a_history_cut_at_any_index_is_mended(tmp_path):
    batch = [
        assistant(*(tool_use(f"b{n}") for n in range(3))),
        user(*(tool_result(f"b{n}") for n in range(3))),
    ]
    history = conversation(
        user("go"), step("a"), batch, user(tool_result("zz"), "and words"), step("c"), user("on")
    )
    async with api(playing([])) as (server, client):
        for start in range(len(history)):
            for stop in range(start + 1, len(history) + 1):
                result = await four(tmp_path).run(answerable(history[start:stop]), session_id="s")
                assert faults(result.messages) == []
                if stop == len(history):
                    await client.messages.create(
                        model=MODEL, max_tokens=10, messages=result.messages
                    )
        assert server.calls == len(history)


async def test_a_placeholder_depends_on_nothing_but_id_and_settings(tmp_path):
    history = conversation(user("go"), step("toolu_1", result=LINES))
    contexts = []
    for number in range(3):
        storage = LocalStorage(
            tmp_path / str(number), clock=partial(float, 1e9 * number), reference="storage"
        )
        stage = DirectOffload(storage, preview=Preview())
        contexts.append(
            dumped((await ContextPipeline([stage]).run(history, session_id="s")).messages)
        )
    assert contexts[0] == contexts[1] == contexts[2]


async def test_a_model_that_bills_more_than_is_counted_never_sees_its_window_nearly_full(
    tmp_path,
):
    window = 8000
    async with api(playing([call("bash")] * 60), window=window, billing_factor=1.63) as (
        server,
        client,
    ):
        pipeline = four(
            tmp_path, AnthropicSummarizer(client, model=SUMMARIES, window=4500), window=window
        )
        pipeline = ContextPipeline(pipeline.stages[2:], budget=pipeline.budget)
        agent = Agent(client, pipeline.session("s"), {"bash": lambda _: "word " * 150})
        await agent.turns(60)

    billed = [request.tokens for request in asked(server)]
    assert max(billed) < 0.95 * window
    assert max(billed) > 0.5 * window  # it was used, too
    assert asked(server, SUMMARIES) != []


async def test_thinking_that_the_api_has_signed_passes_it_again_through_every_stage(
    tmp_path,
):
    replies = [
        answer_with(thought(f"Thought {n}."), "Well.", tool_call("bash", {"command": f"make {n}"}))
        for n in range(40)
    ]
    async with api(playing(replies), thinking="bound") as (server, client):
        pipeline = four(tmp_path, AnthropicSummarizer(client, model=SUMMARIES))
        pipeline = ContextPipeline(
            [pipeline.stages[0], *pipeline.stages[2:]], budget=pipeline.budget
        )
        options = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
        results = iter(["word " * (600 if n % 7 == 3 else 150) for n in range(40)])
        agent = Agent(
            client, pipeline.session("s"), {"bash": lambda _: next(results)}, options=options
        )
        await agent.turns(40)

    assert len(asked(server)) == 40
    assert asked(server, SUMMARIES) != []
    sent = [
        block
        for block in blocks(asked(server)[-1].body["messages"][-2])
        if kind(block) == "thinking"
    ]
    kept = [
        block.to_dict()
        for block in cast("Any", agent.history[-4]["content"])
        if block.type == "thinking"
    ]
    assert sent == kept != []


MEMORY = """
import anyio, os, sys
from ctxpipe import *
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
async def main(root):
    storage = LocalStorage(root)
    stages = [DirectOffload(storage), BatchOffload(storage)]
    session = ContextPipeline(stages, counter=len).session("s")
    context, before = [{"role": "user", "content": "go"}], 0
    for n in range(100):
        if n == 20:
            before = resident()
        call = {"type": "tool_use", "id": f"t{n}", "name": "bash", "input": {}}
        log = f"line {n} of a megabyte\\n" * 45_000
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": log}
        context += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        context = list((await session.run(context)).messages)
        os.truncate(f"{root}/s/t{n}.md", 0)
    print(resident() - before)
anyio.run(main, sys.argv[1])
"""


def test_offloaded_megabytes_do_not_stay_in_memory(tmp_path):
    assert int(new_python(MEMORY, tmp_path)) < 50


async def test_with_relative_paths_neither_user_nor_home_reach_the_model(
    tmp_path,
):
    home = tmp_path / "home" / "erika.mustermann"
    storage = LocalStorage(home / "store", reference="storage")
    sizes = iter([2000 if n % 5 == 0 else 250 for n in range(40)])
    tools: dict[str, Tool] = {"bash": lambda _: "word " * next(sizes), "read_file": reading(home)}
    (home / "src").mkdir(parents=True)
    (home / "src" / "a.py").write_text("x = 1\n" * 30)
    replies = [call("read_file", path="src/a.py"), *[call("bash")] * 40]
    async with api(playing(replies)) as (server, client):
        stages = [
            DirectOffload(storage, min_chars=8000),
            Compact(
                AnthropicSummarizer(client, model=SUMMARIES),
                storage,
                restore=Restore(work_dir=home),
            ),
            SmartTruncate(storage),
        ]
        pipeline = ContextPipeline(cast("Any", stages), budget=Budget(6000))
        await Agent(client, pipeline.session("s"), tools).turns(40)

    assert asked(server, SUMMARIES)
    assert any("Raw messages: ./s/compact-" in str(request.body) for request in asked(server))
    assert not any("mustermann" in json.dumps(request.body) for request in server.requests)
