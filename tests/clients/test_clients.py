"""Real agents through a gateway of their own: ``make test-clients``.

CLIENTS names those that are run; without it there are none, since all of them take minutes.
"""

import json
import os
import re
import subprocess
from itertools import pairwise

import pytest
from anyio import to_thread
from clients import CLIENTS, TASK, Run, long_script, result_count, run_client
from pictures import noise
from places import ROOT

from ctxpipe.diagnostics.misses import cache_usage
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.testing import RequestBody, answer_with, tool_use

WANTED = [name for name in os.environ.get("CLIENTS", "").split(",") if name]


def wanted(name: str) -> str:
    """*name*, where it is asked for; else the test is skipped, since all of them take minutes."""
    if name not in WANTED:
        pytest.skip(f"nobody asks for {name}: make test-clients")
    assert CLIENTS[name].binary.exists(), f"{name} is not installed: make clients"
    return name


@pytest.fixture(params=CLIENTS)
def client(request):
    return wanted(request.param)


def test_every_client_that_is_asked_for_is_known():
    assert set(WANTED) <= set(CLIENTS)


@pytest.mark.parametrize("asked", [None, "pi"], ids=["all", "one"])
def test_make_asks_for_every_client_unless_it_is_told_which(asked):
    variables = {"PATH": os.environ["PATH"], **({"CLIENTS": asked} if asked else {})}
    command = ["make", "--dry-run", "test-clients"]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, check=True, capture_output=True, text=True
    )

    [named] = re.findall(r"CLIENTS=(\S+) ", done.stdout)
    assert set(named.split(",")) == ({asked} if asked else set(CLIENTS))


def characters_sent(run: Run) -> int:
    """The size of all requests of *run*; not in bytes, since a client may compress them."""
    return sum(len(json.dumps(request.body)) for request in run.api.requests)


async def test_wrapped_as_a_user_does_it_it_finishes_with_less_and_keeps_its_prefix(
    client, tmp_path
):
    bare = await run_client(client, tmp_path / "bare")
    wrapped = await run_client(client, tmp_path / "wrapped", is_wrapped=True)
    assert bare.status == 0, bare.error
    assert wrapped.status == 0, wrapped.error
    assert "Done." in wrapped.output
    assert wrapped.refused == []
    assert len(wrapped.api.requests) == len(bare.api.requests)
    assert wrapped.breaks == 0
    assert characters_sent(wrapped) < 0.8 * characters_sent(bare)
    print(f"{client}: {bare.cached:.1%} of the prompt read from the cache, {wrapped.cached:.1%}")


async def test_with_a_window_too_small_for_it_alone_the_task_still_ends_well(client, tmp_path):
    window = CLIENTS[client].window
    bare = await run_client(client, tmp_path / "bare", window=window)
    wrapped = await run_client(client, tmp_path / "wrapped", is_wrapped=True, window=window)
    assert bare.refused != []
    assert wrapped.status == 0, wrapped.error
    assert "Done." in wrapped.output
    assert wrapped.refused == []


def shortens(run: Run) -> bool:
    """Return True if the agent itself has removed results from its history, or has given up."""
    own = [request.body for request in run.api.requests if run.client.is_own(request.body)]
    counts = [result_count(body) for body in own]
    return run.status != 0 or any(after < before for before, after in pairwise(counts))


async def test_only_one_that_counts_for_itself_shortens_a_history_that_is_small_when_sent(
    client, tmp_path
):
    agent = CLIENTS[client]
    if agent.limit is None:
        pytest.skip(f"{client} has no limit of its own")
    tokens = agent.limit_tokens

    async def run(name: str, limit: int, *, is_wrapped: bool) -> Run:
        script = long_script(agent)
        folder = tmp_path / name
        return await run_client(client, folder, is_wrapped=is_wrapped, limit=limit, script=script)

    bare = await run("bare", tokens, is_wrapped=False)
    wrapped = await run("wrapped", tokens, is_wrapped=True)
    raised = await run("raised", 10 * tokens, is_wrapped=True)
    print(f"{client}: {[[request.tokens for request in r.api.requests] for r in (bare, wrapped)]}")
    assert shortens(bare)
    assert shortens(wrapped) == agent.counts_itself
    assert not shortens(raised), raised.error
    assert "Done." in raised.output
    assert max(request.tokens for request in raised.api.requests) < tokens


async def test_two_gateways_on_one_port_with_one_journal_keep_its_prefix(
    client, tmp_path, postgres
):
    bare = await run_client(client, tmp_path / "bare")
    shared = await run_client(client, tmp_path / "shared", journal=postgres.url)
    assert shared.status == 0, shared.error
    assert "Done." in shared.output
    assert shared.refused == []
    assert len(shared.api.requests) == len(bare.api.requests)
    assert shared.breaks == 0
    print(f"{client}: {bare.cached:.1%} of the prompt read from the cache, {shared.cached:.1%}")


async def test_the_laboratory_reads_what_it_stores_with_the_bills_of_all_its_requests(
    client, tmp_path
):
    read = CLIENTS[client].stored
    if read is None:
        pytest.skip(f"the laboratory does not read what {client} stores")
    run = await run_client(client, tmp_path)
    raw = await to_thread.run_sync(read, tmp_path)
    transcript = read_transcript("session", raw)
    is_own = CLIENTS[client].is_own
    sent = [request.usage for request in run.api.requests if is_own(request.body)]
    stored = [cache_usage(usage) for usage in transcript.usages.values()]
    assert run.status == 0, run.error
    assert transcript.repaired == ()
    assert (transcript.coverage.recognized, transcript.coverage.warning) == (1.0, "")
    assert [bill and bill.total for bill in stored] == [bill and bill.total for bill in sent]


@pytest.mark.parametrize("client", ["claude", "codex"], indirect=True)
async def test_a_trial_has_it_do_each_task_in_both_arms_and_knows_what_that_cost(client, tmp_path):
    (tmp_path / "work" / "project").mkdir(parents=True)
    tasks = '[make]\nfolder = "project"\nprompt = "Make it."\ncheck = "test -e made"'
    (tmp_path / "work" / "tasks.toml").write_text(tasks)

    def reply(body):
        if not body.get("tools"):
            return "A title"
        if result_count(body) == 0:
            return answer_with(CLIENTS[client].call("touch made; seq -f 'line %g of it' 900"))
        assert "Make it." in json.dumps(body)
        return "Done."

    run = await run_client(
        client,
        tmp_path,
        trial=["tasks.toml", "--runs", "2", "--jobs", "2"],
        arguments=[word.replace(TASK, "{prompt}") for word in CLIENTS[client].arguments],
        script=reply,
    )
    assert run.status == 0, run.error
    assert run.refused == []
    lines = (tmp_path / "work" / "trial.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["success"] for row in rows] == [True] * 4, run.error
    assert sorted(row["arm"] for row in rows) == ["bare", "bare", "shaped", "shaped"]
    assert all(row["dollars"] > 0 and row["turns"] >= 2 and not row["refused"] for row in rows)
    assert sum(row["turns"] for row in rows) == len(run.api.requests)
    print(run.output)
    if client == "claude":  # which says in its output what it reckons a run has cost
        said = (tmp_path / "work" / "trial.jsonl.log").read_text()
        costs = map(float, re.findall(r'"total_cost_usd":([0-9.]+)', said))
        assert sorted(costs) == pytest.approx(sorted(row["dollars"] for row in rows))


READ_BACK = "mcp__ctxpipe__read_offloaded"


async def test_claude_reads_back_by_the_tools_that_the_gateway_serves(tmp_path):
    asked: list[list[str]] = []

    def reply(body):
        asked.append([tool["name"] for tool in body.get("tools", ())])
        sent = json.dumps(body["messages"])
        if result_count(body) == 0:
            return answer_with(CLIENTS["claude"].call("seq -f 'line %g of it' 900"))
        if result_count(body) == 1:
            path = re.search(r'/[^" ]+/\.ctxpipe/[^" ]+\.md', sent)
            return answer_with(tool_use(READ_BACK, {"path": path and path[0]}))
        return "Done." if "line 450 of it" in sent else "It was not read back."

    run = await run_client(
        wanted("claude"),
        tmp_path,
        is_wrapped=True,
        arguments=["-p", TASK, "--allowedTools", f"Bash,{READ_BACK}"],
        script=reply,
    )
    assert run.status == 0, run.error
    assert "Done." in run.output
    assert run.refused == []
    # From the first request on: later ones would change what is cached.
    assert all(READ_BACK in tools for tools in asked)


LOOKS = 60  # Claude Code sends each image with 400,000 characters
MOST_BYTES = 20_000_000


async def test_claude_looks_at_many_screens_and_at_the_first_once_more(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    for number in range(LOOKS):
        (work / f"{number}.png").write_bytes(noise(number))

    def reply(body):
        done = result_count(body)
        if done < LOOKS:
            return answer_with(tool_use("Read", {"file_path": str(work / f"{done}.png")}))
        if done == LOOKS:
            path, *_ = left(body)
            return answer_with(tool_use(READ_BACK, {"path": path}))
        return "Done."

    run = await run_client(
        wanted("claude"),
        tmp_path,
        is_wrapped=True,
        arguments=["-p", TASK, "--allowedTools", f"Read,{READ_BACK}"],
        script=reply,
    )
    bodies = [request.raw for request in run.api.requests]
    assert "Done." in run.output, run.error
    assert run.refused == []
    assert max(map(len, bodies)) < MOST_BYTES
    assert 0 < run.breaks <= 5
    [first] = images(run.api.requests[1].body)
    assert first in images(run.api.requests[-1].body)
    assert first not in images(run.api.requests[-2].body)


def left(body: RequestBody) -> list[str]:
    """The paths of the images that have left."""
    return re.findall(r"\[Image \([^)]*\) offloaded to file: ([^\]]*)\]", json.dumps(body))


def images(body: RequestBody) -> list[str]:
    """The data of each image in *body*."""
    return re.findall(r'"data": "([^"]*)"', json.dumps(body["messages"]))
