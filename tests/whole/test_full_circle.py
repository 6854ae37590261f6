"""The full circle, and nothing goes round and round.

A long result goes to a file, and the model reads it again.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from api_rules import faults
from histories import assistant, tool_use, user

from ctxpipe import (
    BatchOffload,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    TrimReadBacks,
    offload_tools,
)
from ctxpipe.messages import Message, tool_results
from ctxpipe.placeholders.placeholders import Preview, any_reference, reference
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.reports import Outcome
from ctxpipe.tools import answer

LONG = "\n".join(f"{n:05d} {n * 7919 % 100_003} measured at station {n % 17}" for n in range(1300))
HUGE = "\n".join(
    f"{n:06d} {n * 104_729 % 1_000_003} measured at station {n % 23}" for n in range(9000)
)


class Agent:
    """A loop with real tools over a real folder.

    It goes on with the context that came back, or with all of it.
    """

    def __init__(self, folder: Path, *, adopting: bool, reference: str = "absolute"):
        self.folder = folder
        storage = LocalStorage(folder / ".ctxpipe", reference=reference)
        self.pipeline = ContextPipeline(
            [
                DirectOffload(storage, preview=Preview()),
                TrimReadBacks(storage),
                BatchOffload(storage, RatioGate(0)),
            ]
        )
        self.session = None if adopting else self.pipeline.session("job")
        self.tools = offload_tools(storage, session_id="job")
        self.history: list[Message] = [user("find the outlier")]
        self.context: list[Message] = self.history
        self.calls = 0

    async def call(self, name: str, given: Mapping[str, object]) -> Any:
        """The model calls a tool; what it then sees of the result."""
        self.calls += 1
        call = tool_use(f"toolu_{self.calls:04d}", name, given)
        result = await answer(call, self.tools, others={"bash", "read_file"}) or {
            "type": "tool_result",
            "tool_use_id": call["id"],
            "content": await self._used(name, given),
        }
        await self._go_on(assistant(call), user(cast("dict[str, Any]", result)))
        return list(tool_results(self.context))[-1].content

    async def say(self, words: str):
        await self._go_on(assistant(words), user("go on"))

    async def _used(self, name: str, given: Mapping[str, object]) -> str:
        if name == "read_file":
            return await anyio.Path(self.folder / str(given["path"])).read_text()
        done = await anyio.run_process(["sh", "-c", str(given["command"])], cwd=self.folder)
        return done.stdout.decode()

    async def _go_on(self, *new: Message):
        if self.session is None:
            result = await self.pipeline.run([*self.context, *new], session_id="job")
        else:
            self.history = [*self.history, *new]
            before = copy.deepcopy(self.history)
            result = await self.session.run(self.history)
            assert self.history == before
        reasons = [report.reason for report in result.reports if report.outcome is Outcome.FAILED]
        assert reasons == []
        assert faults(result.messages) == []
        self.context = result.messages

    @property
    def files(self) -> dict[str, str]:
        folder = self.folder / ".ctxpipe"
        return {
            str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.md"))
        }


@pytest.fixture(params=["adopting", "session"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Agent:
    (tmp_path / "long.log").write_text(LONG)
    (tmp_path / "huge.log").write_text(HUGE)
    return Agent(tmp_path, adopting=request.param == "adopting")


def pointer(content: Any) -> str:
    where = any_reference(content)
    assert where is not None
    return where


READERS: Mapping[str, Callable[[str], tuple[str, dict[str, object]]]] = {
    "our tool": lambda where: ("read_offloaded", {"path": where, "limit": 60_000}),
    "a reading tool": lambda where: ("read_file", {"path": where}),
    "a shell": lambda where: ("bash", {"command": f"cat {shlex.quote(where)}"}),
    "a part by a shell": lambda where: (
        "bash",
        {"command": f"sed -n '200,900p' {shlex.quote(where)} | nl"},
    ),
}


@pytest.mark.parametrize("reader", READERS)
async def test_a_text_that_was_read_back_is_seen_and_stays_and_no_file_appears(agent, reader: str):
    where = pointer(await agent.call("bash", {"command": "cat long.log"}))
    files = agent.files
    assert list(files.values()) == [LONG]

    seen = await agent.call(*READERS[reader](where))
    assert len(seen) > 15_000
    assert any_reference(seen) is None
    for words in ("I see", "and again", "still"):
        await agent.say(words)

    assert agent.files == files
    assert [result.content for result in tool_results(agent.context)][1] == seen


async def test_reading_back_again_and_again_never_ends_in_another_placeholder(agent):
    where = pointer(await agent.call("read_file", {"path": "long.log"}))

    seen = [await agent.call(*READERS[reader](where)) for reader in list(READERS) * 3]

    assert all(reference(content) is None for content in seen)
    assert len(agent.files) == 1


@pytest.mark.parametrize("reader", ["a reading tool", "a shell"])
async def test_a_huge_text_that_was_read_back_does_not_flood_the_context(agent, reader):
    assert len(HUGE) > 300_000
    where = pointer(await agent.call("bash", {"command": "cat huge.log"}))
    files = agent.files

    seen = await agent.call(*READERS[reader](where))

    assert pointer(seen) == where
    assert len(seen) < 101_000
    assert HUGE[:70_000] in seen
    assert HUGE[-20_000:] in seen
    await agent.say("ok")
    assert agent.files == files == {next(iter(files)): HUGE}


async def test_what_is_computed_from_an_offloaded_file_is_kept_once_and_can_be_read_back_too(
    agent,
):
    where = pointer(await agent.call("bash", {"command": "cat huge.log"}))

    made = pointer(await agent.call("bash", {"command": f"sort -k2 -n {shlex.quote(where)}"}))
    again = pointer(await agent.call("bash", {"command": f"cat {shlex.quote(made)}"}))

    in_order = sorted(HUGE.split("\n"), key=lambda line: int(line.split()[1]))
    assert again == made != where
    assert sorted(text.strip() for text in agent.files.values()) == sorted(
        [HUGE, "\n".join(in_order)]
    )


@pytest.mark.parametrize("form", ["absolute", "storage", ".ctxpipe/{key}"])
async def test_the_circle_closes_for_every_form_of_path(tmp_path, form):
    (tmp_path / "long.log").write_text(LONG)
    agent = Agent(tmp_path, adopting=True, reference=form)
    where = pointer(await agent.call("bash", {"command": "cat long.log"}))

    seen = await agent.call("read_offloaded", {"path": where, "limit": 60_000})
    by_shell = await agent.call(
        "bash", {"command": f"cd .ctxpipe && cat {where.removeprefix('.ctxpipe/')}"}
    )
    await agent.say("ok")

    assert seen.startswith(LONG[:20_000])
    assert by_shell == LONG
    assert len(agent.files) == 1
