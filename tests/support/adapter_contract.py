"""Contract of every adapter, which the tests of each adapter inherit."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
from mounts import Factors, bodies, compacting, items_of, offloading, placeholders, result, rounds

from ctxpipe import ContextPipeline, LocalStorage, Skip, Turn
from ctxpipe.messages import tool_calls
from ctxpipe.storage import JournalStorage
from ctxpipe.testing import GeminiServer, MessagesServer, Model, OpenAIServer, Received, Script
from ctxpipe.testing.scripted import is_stream

PROOFS = {
    "chat": "",
    "responses": "encrypted_content",
    "anthropic": "'signature': '",
    "gemini": "'thoughtSignature': '",
}
"""What a request has for each thought, by the form of its API."""
TOO_LONG = ("long", "context", "exceeds the maximum number of tokens")


@dataclass(frozen=True)
class Done:
    """Outcome of a run: its last text, and the *results* and the *history* that are kept.

    Another run can go on from *history*, which ends before the last word.
    """

    output: str
    results: list[str]
    history: Any


@dataclass(frozen=True)
class Work:
    """A run of all rounds that is over: only read, by more than one test."""

    done: Done
    folder: Path
    server: MessagesServer | OpenAIServer | GeminiServer


async def broken(turn: Turn) -> Skip:
    raise RuntimeError("this stage is broken")


class AdapterContract(ABC):
    """Inherit it as ``class TestContract``, and say how an agent of the framework is run.

    Its agent says "go", calls the tool ``look`` as often as it is asked to, and is named "t". With
    *adds_prompt* each run adds a prompt to the history that it is given.
    """

    apis: ClassVar[tuple[str, ...]] = ("chat", "responses", "anthropic")
    streams: ClassVar[tuple[str, ...]] = apis
    rounds: ClassVar[int] = 5
    too_many_rounds: ClassVar[int] = 8  # they do not fit into the window
    window: ClassVar[int] = 4000
    adds_prompt: ClassVar[bool] = False
    works: ClassVar[dict[str, Work]]

    def __init_subclass__(cls) -> None:
        cls.works = {}

    @abstractmethod
    def serve(self, api: str, script: Script, **settings: Any) -> AbstractAsyncContextManager[Any]:
        """A server that follows *script*, and whatever `run` reaches it by."""

    @abstractmethod
    async def run(
        self,
        api: str,
        reached: Any,
        pipeline: ContextPipeline,
        *,
        history: Any = None,
        journal: JournalStorage | None = None,
        stream: bool = False,
    ) -> Done:
        """Run an agent until it calls nothing, from its task or from a *history*."""

    def form(self, api: str) -> str:
        """The form of what is sent to *api*: a key of PROOFS."""
        return api

    def compacting(self, folder: Path) -> ContextPipeline:
        """Return the pipeline that makes room once the API has refused a request."""
        return compacting(folder)

    def sent(self, received: Received) -> Any:
        """Return the part of a request that is the same in another process."""
        return received.raw

    def pytest_generate_tests(self, metafunc: pytest.Metafunc):
        cls: Any = metafunc.cls
        if "stream" in metafunc.fixturenames:
            cases = [(api, False) for api in cls.apis] + [(api, True) for api in cls.streams]
            ids = [f"{api}-{'streamed' if stream else 'plain'}" for api, stream in cases]
            metafunc.parametrize(("api", "stream"), cases, ids=ids)
        elif "streamed_api" in metafunc.fixturenames:
            metafunc.parametrize("streamed_api", cls.streams)
        elif "api" in metafunc.fixturenames:
            metafunc.parametrize("api", cls.apis)

    async def work(self, api: str, folders: pytest.TempPathFactory) -> Work:
        """The one run of all rounds with *api*, in which long results leave."""
        if api not in self.works:
            folder = folders.mktemp("work")
            async with self.serve(api, rounds(self.rounds)) as (server, reached):
                done = await self.run(api, reached, offloading(folder))
            self.works[api] = Work(done, folder, server)
        return self.works[api]

    async def test_rounds_with_parallel_calls_and_no_request_is_refused(
        self, api: str, tmp_path_factory
    ):
        work = await self.work(api, tmp_path_factory)

        assert work.done.output == "Done."
        assert len(work.server.requests) == self.rounds + 1
        assert not work.server.refused

    async def test_the_store_keeps_every_original(self, api: str, tmp_path_factory):
        work = await self.work(api, tmp_path_factory)

        assert sorted(work.done.results) == sorted(map(result, range(2 * self.rounds)))

    async def test_placeholders_are_what_is_sent(self, api: str, tmp_path_factory):
        work = await self.work(api, tmp_path_factory)

        sent = [placeholders(request) for request in work.server.requests]
        assert sent == [2 * number for number in range(self.rounds + 1)]
        for number in range(2 * self.rounds):
            assert (work.folder / "t" / f"c{number}.md").read_text() == result(number)

    async def test_signatures_are_unchanged(self, api: str, tmp_path_factory):
        work = await self.work(api, tmp_path_factory)

        proof = PROOFS[self.form(api)]
        assert not proof or str(bodies(work.server.requests)[-1]).count(proof) >= self.rounds

    async def test_a_stream_is_shaped(self, tmp_path, streamed_api: str):
        async with self.serve(streamed_api, rounds(self.rounds)) as (server, reached):
            done = await self.run(streamed_api, reached, offloading(tmp_path), stream=True)

        assert done.output == "Done."
        assert any(map(is_stream, server.requests))
        assert placeholders(server.requests[-1]) == 2 * self.rounds
        assert not server.refused

    async def test_usage_is_learned(self, api: str, stream: bool):
        factors = Factors()
        async with self.serve(api, rounds(4), model=Model(billing_factor=3)) as (_, reached):
            await self.run(api, reached, ContextPipeline([factors]), stream=stream)

        assert factors.noted[0] <= 1.5
        assert 2 < factors.noted[-1] < 4

    async def test_an_overflow_is_survived(self, tmp_path, api: str, stream: bool):
        model = Model(window=self.window, thinking="signed")
        async with self.serve(api, rounds(self.too_many_rounds), model=model) as (server, reached):
            done = await self.run(api, reached, self.compacting(tmp_path), stream=stream)

        assert done.output == "Done."
        assert server.refused
        broke = [bool(request.problems) for request in server.requests]
        assert (True, True) not in pairwise(broke)  # it was asked once more, and that was shorter
        for refused in server.refused:
            assert any(words in refused.problems[0] for words in TOO_LONG)

    async def test_an_error_of_ours_sends_what_was_given(self, api: str):
        pipeline = ContextPipeline([broken], on_error="raise")
        async with self.serve(api, rounds(1)) as (server, reached):
            done = await self.run(api, reached, pipeline)

        assert done.output == "Done."
        assert "result 1\\n" in server.requests[-1].raw.decode()

    async def test_a_new_process_goes_on_with_the_same_bytes(self, tmp_path, api: str):
        storage = LocalStorage(tmp_path)
        async with self.serve(api, [*rounds(2), "Again."]) as (server, reached):
            done = await self.run(api, reached, offloading(tmp_path), journal=storage)
            await self.run(
                api, reached, offloading(tmp_path), journal=storage, history=done.history
            )

        before, after = server.requests[-2:]
        assert self.sent(before) == self.sent(after)

    async def test_an_agent_that_goes_back_leaves_a_line_that_can_be_read(self, tmp_path, api: str):
        storage = LocalStorage(tmp_path)
        script = [*rounds(1), *rounds(3)[1:], *rounds(4)[3:]]
        async with self.serve(api, script) as (server, reached):
            early = await self.run(api, reached, offloading(tmp_path), journal=storage)
            for _ in range(2):  # once on, and once back
                history = copy.deepcopy(early.history)  # some frameworks would add to it
                await self.run(api, reached, offloading(tmp_path), journal=storage, history=history)

        first = server.requests[2 if self.adds_prompt else 1]
        assert self.sent(server.requests[-2]) == self.sent(first)
        session = offloading(tmp_path).session("t", journal=storage)
        [name] = await session.branches()
        left = await session.history(branch=name)
        assert [call.id for call in tool_calls(left)] == [f"c{number}" for number in range(6)]
        calls = tool_calls(await session.history())
        assert [call.id for call in calls] == ["c0", "c1", "c6", "c7"]


class LongContract(AdapterContract):
    """The same over thirty turns, whose prefix stays, also where a summary is made."""

    rounds = 30

    async def test_the_bytes_before_what_is_new_stay(self, api: str, tmp_path_factory):
        work = await self.work(api, tmp_path_factory)

        sent = list(map(items_of, work.server.requests))
        assert all(after[: len(before)] == before for before, after in pairwise(sent))

    async def test_compactions_within_thirty_turns(self, api: str, stream: bool, tmp_path):
        async with self.serve(api, rounds(self.rounds)) as (server, reached):
            done = await self.run(api, reached, compacting(tmp_path, window=14_000), stream=stream)

        assert done.output == "Done."
        assert sorted(done.results) == sorted(map(result, range(2 * self.rounds)))
        assert not server.refused
        tokens = [request.tokens for request in server.requests]
        assert max(tokens) < 14_000
        assert sum(after < before for before, after in pairwise(tokens)) >= 2
