"""Cost of recorded sessions through a gateway, beside the same preset in the laboratory.

    python benchmarks/bench_gateway_replay.py FILES… [--preset coding] [--window 200000]

FILES are transcripts of any kind that `ctxpipe.lab.transcripts` reads. Each is sent, request by
request over HTTP, to a server that checks them and bills its prompt cache by the API's rules: once
directly and once through a gateway in a process of its own. An agent here sends its whole history,
with cache marks after the system prompt and at the end; nothing is read back, and no time passes
between its requests. The laboratory replays the same file through the same stages and budget,
under the same rules: billed tokens are 1.25 times the raw ones, and the summary, which is
extracted, costs nothing. Target: through the gateway 1 % more than in the laboratory at most.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx2

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_gateway import running
from benchmarks.figures import add_figure, recording
from ctxpipe import ContextPipeline
from ctxpipe.gateway.bill import bill_of
from ctxpipe.gateway.pipelines import Pipelines
from ctxpipe.lab.costs import bill
from ctxpipe.lab.replay import ReplaySettings, replay
from ctxpipe.lab.transcripts import Transcript, read_transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message
from ctxpipe.providers.prices import prices_of
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.testing import MessagesServer, Model, answer_with
from ctxpipe.testing.signatures import as_blocks

WINDOW = 200_000
UNLIMITED = 100_000_000
LIMIT = 1.01
"""What a session may cost through the gateway, of what it costs in the laboratory."""
MARK = {"type": "ephemeral"}


@dataclass(frozen=True, slots=True)
class Spent:
    """Cost of the requests of a session over HTTP.

    *longest* is the largest prompt in tokens, *refused* counts the requests that the API has not
    taken.
    """

    dollars: float
    longest: int
    refused: int


def without_times(path: str | Path) -> Transcript:
    """The transcript at *path*, in which no time passes."""
    return replace(read_transcript(path), seconds={})


# Over HTTP ----------------------------------------------------------------------------------------


def server(transcript: Transcript, window: int) -> MessagesServer:
    """An API that answers what the model of *transcript* has answered, and never waits."""
    contents: list[Any] = [message["content"] for message in transcript.messages]
    replies = [answer_with(*as_blocks(contents[at])) for at in transcript.replies]
    model = Model(window=window, billing_factor=ReplaySettings().tokens_per_raw)
    return MessagesServer(replies, model=model, clock=lambda: 0.0)


async def send_all(transcript: Transcript, api: MessagesServer, url: str) -> Spent:
    """Send every request of *transcript* to *url*, behind which *api* answers.

    The history grows by the replies as they come back, with the signatures of *api*. Raises
    SystemExit for a request that is not answered.
    """
    headers = {
        "x-api-key": "sk-ant-nobody-s",
        "anthropic-version": "2023-06-01",
        "x-claude-code-session-id": Path(transcript.name).stem,
    }
    history: list[Message] = []
    position = 0
    cost = 0.0
    async with httpx2.AsyncClient(timeout=120, trust_env=False, headers=headers) as client:
        for at in transcript.replies:
            history += transcript.messages[position:at]
            position = at + 1
            content = json.dumps(request(transcript, history)).encode()
            reply = await client.post(f"{url}/v1/messages", content=content)
            if reply.status_code != 200:
                raise SystemExit(f"{transcript.name}, message {at}: {reply.text[:300]}")
            message = reply.json()
            cost += bill_of(EXAMPLE_MODEL, message["usage"], ()).dollars or 0.0
            history.append({"role": "assistant", "content": message["content"]})
    longest = max(received.tokens for received in api.requests)
    return Spent(cost, longest, len(api.refused))


def request(transcript: Transcript, history: Sequence[Message]) -> Mapping[str, Any]:
    """The request that an agent sends with *history*."""
    *before, last = history
    body: dict[str, Any] = {
        "model": EXAMPLE_MODEL,
        "max_tokens": 32_000,
        "thinking": {"type": "adaptive"},
    }
    if transcript.tools:
        body["tools"] = transcript.tools
    if transcript.system:
        body["system"] = marked(transcript.system)
    body["messages"] = [*before, {**last, "content": marked(last["content"])}]
    return body


def marked(content: Any) -> list[Any]:
    """*content* as blocks, with a cache mark on the last one."""
    *others, last = as_blocks(content)
    return [*others, {**last, "cache_control": MARK}]


# In the laboratory --------------------------------------------------------------------------------


async def laboratory(transcript: Transcript, preset: str, window: int) -> float:
    """The dollars of *transcript* in the laboratory, with the stages of the gateway's *preset*."""

    def make(bench: Workbench) -> ContextPipeline:
        return Pipelines(preset, bench.storage, window=window).of(EXAMPLE_MODEL, "")

    # What is sent over HTTP has no system prompt but that of the recording.
    settings = ReplaySettings(refetch=False, by_settings=True, prefix_tokens=0)
    replayed = await replay(transcript, make, settings)
    # A summary that is extracted is no request.
    requests = [request for request in replayed.requests if request.purpose != "summary"]
    return bill(requests, prices_of(EXAMPLE_MODEL)).total


# Both ---------------------------------------------------------------------------------------------


async def compare(path: Path, preset: str, window: int) -> tuple[Spent, Spent, float]:
    """Return the cost of the session at *path* bare, through a gateway, and in the laboratory."""
    transcript = without_times(path)
    async with server(transcript, UNLIMITED) as api:
        bare = await send_all(transcript, api, api.url)
    with tempfile.TemporaryDirectory() as root:
        async with (
            server(transcript, window) as api,
            running(
                *("-m", "ctxpipe", "gateway", "--upstream", api.url, "--listen", "127.0.0.1:0"),
                *("--root", root, "--preset", preset, "--window", str(window)),
            ) as gateway,
        ):
            shaped = await send_all(transcript, api, gateway.url)
    return bare, shaped, await laboratory(transcript, preset, window)


async def main(files: Sequence[Path], preset: str, window: int) -> None:
    """Compare the sessions in *files*, and print a line for each and one for all."""
    print(f"{'':36}bare  through it  laboratory  ratio  longest, refused")
    sums = [0.0, 0.0, 0.0]
    for path in files:
        bare, through, expected = await compare(path, preset, window)
        for place, cost in enumerate((bare.dollars, through.dollars, expected)):
            sums[place] += cost
        print(
            f"{path.stem[:32]:32}{bare.dollars:8.2f} {through.dollars:11.2f} {expected:11.2f}"
            f"{through.dollars / expected:7.3f}  {bare.longest:,} > {through.longest:,}, "
            f"{through.refused}",
            flush=True,
        )
    bare_sum, shaped_sum, expected_sum = sums
    print(
        f"{'all':32}{bare_sum:8.2f} {shaped_sum:11.2f} {expected_sum:11.2f}"
        f"{shaped_sum / expected_sum:7.3f}  (at most {LIMIT})"
    )
    add_figure("cost of that in the laboratory", shaped_sum / expected_sum)
    add_figure("cost of that without it", shaped_sum / bare_sum)


if __name__ == "__main__":
    with recording(__file__):
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("files", nargs="+", type=Path, metavar="FILES")
        parser.add_argument("--preset", default="coding")
        parser.add_argument("--window", type=int, default=WINDOW)
        given = parser.parse_args()
        logging.getLogger("ctxpipe").setLevel(logging.ERROR)
        anyio.run(main, given.files, given.preset, given.window)
