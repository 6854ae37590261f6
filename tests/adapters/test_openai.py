"""The HTTP client in the real SDK, against loopback chat completions and responses.

What the server receives, and what comes back.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import openai
import pytest
from adapter_contract import AdapterContract, Done
from in_memory import in_memory
from mounts import placeholders, result
from readme import run_adapter_program
from sdks import responses_of

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Skip,
    SmartTruncate,
    Turn,
)
from ctxpipe.adapters.http_client import library_of
from ctxpipe.adapters.openai import ctxpipe_client, ctxpipe_sync_client
from ctxpipe.errors import SettingsError
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.storage import JournalStorage
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import (
    Failure,
    Model,
    OpenAIServer,
    Received,
    Reply,
    Script,
    answer_with,
    thinking,
    tool_use,
)
from ctxpipe.wire import conversation

if TYPE_CHECKING:
    import httpx2 as http
else:
    http = library_of(openai)

LONG = "a long line of output\n" * 100

every_api = pytest.mark.parametrize("api", ["chat", "responses"])
every_way = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


# Talking ------------------------------------------------------------------------------------------


Shaping = Callable[..., http.AsyncClient]


def shaping(pipeline: ContextPipeline, **settings: Any) -> Shaping:
    """The HTTP client of ctxpipe, but for its transport."""
    return partial(ctxpipe_client, pipeline, **settings)


@asynccontextmanager
async def talk(
    script: Script, http_client: Shaping = http.AsyncClient, **settings: Any
) -> AsyncIterator[tuple[OpenAIServer, openai.AsyncOpenAI]]:
    """A server that follows *script*, and a client that sends through an *http_client*."""
    server = OpenAIServer(script, **settings)
    async with (
        in_memory(server) as transport,
        openai.AsyncOpenAI(
            base_url=server.base_url,
            api_key="test",
            max_retries=0,
            http_client=http_client(transport=transport),
        ) as client,
    ):
        yield server, client


def chat_stream_of(client: Any) -> Any:
    """What streams the chats of *client*: in older versions a part of its beta."""
    chat = client.chat if hasattr(client.chat.completions, "stream") else client.beta.chat
    return chat.completions.stream


async def ask(
    client: openai.AsyncOpenAI, api: str, items: Any, *, stream: bool = False, **options: Any
) -> list[Any]:
    """What the model says to *items*, as items."""
    way = ask_chat if api == "chat" else ask_response
    return list(await way(client, items, stream, options))


async def ask_chat(client: openai.AsyncOpenAI, items: Any, stream: bool, options: Any) -> Any:
    if not stream:
        return said_in_chat(
            await client.chat.completions.create(model="m", messages=items, **options)
        )
    options = {"stream_options": {"include_usage": True}, **options}
    async with chat_stream_of(client)(model="m", messages=items, **options) as events:
        return said_in_chat(await events.get_final_completion())


async def ask_response(client: openai.AsyncOpenAI, items: Any, stream: bool, options: Any) -> Any:
    if not stream:
        return said_in_response(
            await responses_of(client).create(model="m", input=items, **options)
        )
    async with responses_of(client).stream(model="m", input=items, **options) as events:
        return said_in_response(await events.get_final_response())


def ask_in_thread(client: openai.OpenAI, api: str, items: Any, stream: bool) -> list[Any]:
    """As `ask`, by a synchronous client."""
    if api == "chat" and not stream:
        return said_in_chat(client.chat.completions.create(model="m", messages=items))
    if api == "chat":
        usage: Any = {"include_usage": True}
        with chat_stream_of(client)(model="m", messages=items, stream_options=usage) as chunks:
            return said_in_chat(chunks.get_final_completion())
    responses = responses_of(client)
    if not stream:
        return said_in_response(responses.create(model="m", input=items))
    with responses.stream(model="m", input=items) as events:
        return said_in_response(events.get_final_response())


def said_in_chat(reply: Any) -> list[Any]:
    return [reply.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})]


def said_in_response(reply: Any) -> list[Any]:
    unknown = {"parsed_arguments", "parsed"}
    return [item.model_dump(exclude_none=True, exclude=unknown) for item in reply.output]


def results(api: str, said: list[Any], text: Callable[[str], str]) -> list[Any]:
    """The results of all calls in *said*, each the *text* for its name."""
    if api == "chat":
        calls = [call["id"] for item in said for call in item.get("tool_calls", [])]
        return [{"role": "tool", "tool_call_id": call, "content": text(call)} for call in calls]
    calls = [item["call_id"] for item in said if item["type"] == "function_call"]
    kind = "function_call_output"
    return [{"type": kind, "call_id": call, "output": text(call)} for call in calls]


def named(call: str) -> str:
    """A long result of a *call* that is like no other."""
    return f"{call}\n{LONG}"


async def work(
    client: openai.AsyncOpenAI, api: str, rounds: int, *, stream: bool = False, **options: Any
) -> list[Any]:
    """An agent's loop of so many rounds; its whole history."""
    history: list[Any] = [{"role": "user", "content": "go"}]
    for _ in range(rounds):
        said = await ask(client, api, history, stream=stream, **options)
        history += [*said, *results(api, said, named)]
    return history


def call_twice(body: Any) -> Reply:
    """Two calls at once, after some thinking."""
    number = len(body.get("messages") or body.get("input"))
    calls = [tool_use("look", {"n": number}, id=f"c{number}_{place}") for place in range(2)]
    return answer_with(thinking(f"thought {number}"), *calls)


def items_of(received: Received) -> list[Any]:
    key = "messages" if "chat" in received.path else "input"
    body: Any = received.body
    return list(body[key])


def offloading(folder: Path, **options: Any) -> ContextPipeline:
    return ContextPipeline([DirectOffload(LocalStorage(folder), min_chars=500)], **options)


def full(folder: Path, trigger: int = 3000) -> ContextPipeline:
    storage = LocalStorage(folder, clock=float)
    stages = (
        DirectOffload(storage, min_chars=2000),
        BatchOffload(storage),
        Compact(ExtractiveSummarizer(), storage, breaker=Breaker(clock=float)),
        SmartTruncate(storage, max_tokens=1500),
    )
    return ContextPipeline(stages, budget=Budget(window=4000, trigger=trigger))


class TestContract(AdapterContract):
    """A loop of the SDK's clients: the asynchronous one in memory, the other one on a socket."""

    apis = streams = ("chat", "responses", "chat-in-threads", "responses-in-threads")

    def form(self, api: str) -> str:
        return api.partition("-")[0]

    @asynccontextmanager
    async def serve(self, api: str, script: Script, **settings: Any) -> AsyncIterator[Any]:
        if not api.endswith("threads"):
            server = OpenAIServer(script, **settings)
            async with in_memory(server) as transport:
                yield server, {"base_url": server.base_url, "transport": transport}
            assert not any(request.ignored for request in server.requests)
            return
        async with OpenAIServer(script, late_refusal=True, **settings) as server:
            yield server, {"base_url": server.base_url}

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
        in_threads = api.endswith("threads")
        shape: Any = ctxpipe_sync_client if in_threads else ctxpipe_client
        sdk: Any = openai.OpenAI if in_threads else openai.AsyncOpenAI
        transport = reached.get("transport")
        http_client = shape(pipeline, session_id="t", journal=journal, transport=transport)
        given = {"base_url": reached["base_url"], "api_key": "k", "max_retries": 0}
        client = sdk(http_client=http_client, **given)
        items = [*(history or [{"role": "user", "content": "go"}])]
        kept: list[str] = []
        answers: list[Any] = []
        while True:
            if in_threads:
                asked = partial(ask_in_thread, client, self.form(api), items, stream)
                said = await anyio.to_thread.run_sync(asked)
            else:
                said = await ask(client, api, items, stream=stream)
            answers = results(self.form(api), said, lambda call: result(int(call[1:])))
            items += [*said, *answers]
            kept += [item.get("content") or item["output"] for item in answers]
            if not answers:
                break
        await (anyio.to_thread.run_sync(client.close) if in_threads else client.close())
        last = said[-1]["content"]
        return Done(last if isinstance(last, str) else last[0]["text"], kept, items[: -len(said)])


# Nothing to do ------------------------------------------------------------------------------------


@every_api
@every_way
async def test_below_the_gates_the_request_is_byte_for_byte_the_one_without_ctxpipe(
    tmp_path, api: str, stream: bool
):
    received = []
    for http_client in (http.AsyncClient, shaping(full(tmp_path))):
        async with talk(lambda _: "é😀", http_client) as (server, client):
            items = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "ok"}]
            await ask(client, api, [*items, items[0]], stream=stream, temperature=0.5)
        received.append(server.requests[0])

    bare, ours = received
    assert ours.raw == bare.raw
    assert comparable(ours.headers) == comparable(bare.headers)


def comparable(headers: Any) -> dict[str, str]:
    """The headers without what differs between two servers, and what an answer is packed in."""
    differs = ("host", "x-stainless-async", "idempotency-key", "accept-encoding")
    return {name: value for name, value in headers.items() if name not in differs}


@every_api
@every_way
async def test_the_answer_is_the_one_without_ctxpipe(tmp_path, api: str, stream: bool):
    replies = []
    for http_client in (http.AsyncClient, shaping(offloading(tmp_path))):
        async with talk([answer_with("Hello.", tool_use("look", {}, id="c"))], http_client) as (
            _,
            c,
        ):
            replies.append(await ask(c, api, [{"role": "user", "content": "hi"}], stream=stream))

    assert replies[0] == replies[1]


# Something to do ----------------------------------------------------------------------------------


async def test_reasoning_and_its_signatures_are_sent_as_they_came(tmp_path):
    http_client = shaping(offloading(tmp_path), session_id="s")

    async with talk(call_twice, http_client) as (server, client):
        history = await work(client, "responses", 4)

    thoughts = [item for item in history if item.get("type") == "reasoning"]
    sent = [item for item in items_of(server.requests[-1]) if item.get("type") == "reasoning"]
    assert sent == thoughts[:3]
    assert all(item["encrypted_content"] for item in sent)


@pytest.mark.parametrize("stream", [False, True])
async def test_of_what_the_provider_holds_only_new_results_leave(tmp_path, stream):
    http_client = shaping(offloading(tmp_path), session_id="s")
    given: Any = [{"role": "user", "content": "go"}]
    held: Any = {}
    sent: list[Any] = []

    async with talk(call_twice, http_client) as (server, client):
        for _ in range(3):
            reply = await answer_of(client, stream=stream, input=given, **held)
            outputs = [item.call_id for item in reply.output if item.type == "function_call"]
            given = [
                {"type": "function_call_output", "call_id": call, "output": LONG}
                for call in outputs
            ]
            held = {"previous_response_id": reply.id}
            sent.append(items_of(server.requests[-1]))

    assert not server.refused
    assert [len(items) for items in sent] == [1, 2, 2]
    for item in [*sent[1], *sent[2]]:
        assert item["output"].startswith("[Tool result offloaded to file: ")
    assert (tmp_path / "s" / "c1_0.md").read_text() == LONG


async def test_of_what_the_provider_holds_a_result_stays_that_may_have_been_read_back(
    tmp_path, caplog
):
    http_client = shaping(offloading(tmp_path), session_id="s")
    output = {"type": "function_call_output", "output": LONG}

    async with talk(call_twice, http_client) as (server, client):
        first = await responses_of(client).create(model="m", input="go")
        calls = [item.call_id for item in first.output if item.type == "function_call"]
        given: Any = [{**output, "call_id": call} for call in calls]
        await responses_of(client).create(model="m", input=given, previous_response_id=first.id)

    assert not server.refused
    assert items_of(server.requests[1]) == given
    assert caplog.text.count("continues a conversation that the provider stores") == 1


async def answer_of(client: openai.AsyncOpenAI, *, stream: bool, **given: Any) -> Any:
    """The response to a request, which may be streamed."""
    if not stream:
        return await responses_of(client).create(model="m", **given)
    async with responses_of(client).stream(model="m", **given) as streamed:
        return await streamed.get_final_response()


async def test_other_requests_pass(tmp_path):
    http_client = shaping(offloading(tmp_path))

    async with talk([], http_client) as (server, client):
        with pytest.raises(openai.NotFoundError):
            await client.models.list()
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="m", input="x")

    assert not server.requests


# The bill -----------------------------------------------------------------------------------------


async def test_a_body_without_usage_teaches_nothing(caplog):
    http_client = ctxpipe_client(
        ContextPipeline(),
        session_id="s",
        transport=http.MockTransport(lambda _: http.Response(200, json={"choices": []})),
    )
    async with openai.AsyncOpenAI(api_key="k", http_client=http_client) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])

    assert not caplog.records


# Too long -----------------------------------------------------------------------------------------


def history_of(api: str, rounds: int) -> list[Any]:
    items: list[Any] = [{"role": "user", "content": "go"}]
    for number in range(rounds):
        name = f"c{number}"
        if api == "chat":
            function = {"name": "look", "arguments": "{}"}
            call = {"id": name, "type": "function", "function": function}
            items.append({"role": "assistant", "tool_calls": [call]})
            items.append({"role": "tool", "tool_call_id": name, "content": LONG})
        else:
            call = {"type": "function_call", "call_id": name, "name": "look"}
            items.append({**call, "arguments": "{}"})
            items.append({"type": "function_call_output", "call_id": name, "output": LONG})
    return items


def compacting(folder: Path) -> ContextPipeline:
    storage = LocalStorage(folder)
    return ContextPipeline([Compact(ExtractiveSummarizer(), storage)], budget=Budget(20_000))


async def test_a_refusal_within_a_stream_is_recovered_too(tmp_path):
    http_client = shaping(compacting(tmp_path), session_id="s")
    settings: Any = {"model": Model(window=6000), "late_refusal": True}

    async with talk(["ok"], http_client, **settings) as (server, client):
        said = await ask(client, "responses", history_of("responses", 20), stream=True)

    assert said[0]["content"][0]["text"] == "ok"
    assert len(server.requests) == 2


@every_api
async def test_what_cannot_be_shortened_gives_the_apis_own_error(tmp_path, api: str):
    http_client = shaping(offloading(tmp_path, budget=Budget(20_000)), session_id="s")

    async with talk([], http_client, model=Model(window=100)) as (server, client):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, api, [{"role": "user", "content": LONG}])

    assert caught.value.code == "context_length_exceeded"
    assert len(server.requests) == 1


@every_api
async def test_another_error_passes(tmp_path, api: str):
    http_client = shaping(compacting(tmp_path), session_id="s")
    failure = Failure(400, "invalid_request_error", "Unknown parameter: 'x'.")

    async with talk([failure], http_client) as (server, client):
        with pytest.raises(openai.BadRequestError, match="Unknown parameter"):
            await ask(client, api, history_of(api, 20))

    assert len(server.requests) == 1


# Failing open -------------------------------------------------------------------------------------


@every_api
async def test_an_error_of_ours_is_logged_once_and_the_request_sent_as_it_came(api: str, caplog):
    async def fail(turn: Turn) -> Skip:
        raise RuntimeError("secret")

    http_client = shaping(ContextPipeline([fail], on_error="raise"), session_id="s")

    async with talk(["ok"], http_client) as (server, client):
        await ask(client, api, history_of(api, 1))

    assert items_of(server.requests[0]) == history_of(api, 1)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    ours = [text for text in warnings if "could not be shaped" in text]
    assert len(ours) == 1
    assert "secret" not in ours[0]


@every_api
async def test_a_request_with_open_calls_is_sent_as_it_came(tmp_path, api: str, caplog):
    http_client = shaping(offloading(tmp_path), session_id="s")
    items = history_of(api, 2)[:-1]

    async with talk([], http_client) as (server, client):
        for _ in range(2):
            with pytest.raises(openai.BadRequestError):
                await ask(client, api, items)

    assert items_of(server.requests[0]) == items
    assert caplog.text.count("calls that have no result") == 1


# Names --------------------------------------------------------------------------------------------


Named = Callable[[openai.AsyncOpenAI], Awaitable[Any]]


async def by_cache_key(client: openai.AsyncOpenAI):
    named: Any = {"extra_body": {"prompt_cache_key": "job"}}
    await ask(client, "responses", history_of("responses", 1), **named)


async def by_metadata(client: openai.AsyncOpenAI):
    await ask(client, "chat", history_of("chat", 1), metadata={"session_id": "job"})


async def by_user(client: openai.AsyncOpenAI):
    await ask(client, "chat", history_of("chat", 1), user="job")


async def by_context(client: openai.AsyncOpenAI):
    with conversation("job"):
        await ask(client, "chat", history_of("chat", 1), user="other")


@pytest.mark.parametrize("named", [by_cache_key, by_metadata, by_user, by_context])
async def test_the_name_of_a_conversation_is_found(tmp_path, named: Named):
    async with talk(["ok"], shaping(offloading(tmp_path))) as (_, client):
        await named(client)

    assert (tmp_path / "job" / "c0.md").exists()


async def test_sub_agents_under_one_name_do_not_disturb_each_other(tmp_path):
    http_client = shaping(full(tmp_path), session_id="s")

    async with talk(call_twice, http_client) as (server, client):
        alone = await work(client, "chat", 12)
        sub: list[Any] = [{"role": "user", "content": "a side question"}]
        mixed = [{"role": "user", "content": "go"}]
        for _ in range(12):
            for history in (mixed, sub):
                said = await ask(client, "chat", history)
                history += [*said, *results("chat", said, named)]

    assert not server.refused
    assert mixed == alone


async def test_a_given_name_is_the_name(tmp_path):
    find: Any = lambda body: "of-" + body["user"]  # noqa: E731

    async with talk(["ok"], shaping(offloading(tmp_path), session_id=find)) as (_, client):
        await by_user(client)

    assert (tmp_path / "of-job" / "c0.md").exists()


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{"pipeline": None}, {"session_id": 5}, {"session_id": ""}, {"journal": "."}, {"transport": 5}],
    ids=str,
)
@pytest.mark.parametrize("make", [ctxpipe_client, ctxpipe_sync_client])
def test_invalid_settings_are_refused_where_they_are_made(make, settings):
    with pytest.raises(SettingsError):
        make(**{"pipeline": ContextPipeline(), **settings})


# The row of the README --------------------------------------------------------------------------


@every_api
@every_way
async def test_the_program_of_the_page_sends_placeholders(
    api: str, stream: bool, tmp_path, monkeypatch
):
    script: list[Reply] = [answer_with(tool_use("look", {}, id="c0")), "Done."]
    async with OpenAIServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "test")
        async with run_adapter_program("openai", offloading(tmp_path))["client"] as client:
            await work(client, api, 2, stream=stream)

    assert not server.refused
    assert placeholders(server.requests[-1]) == 1


# Compressed bodies --------------------------------------------------------------------------------


class Compressing(http.AsyncBaseTransport):
    """A transport before ctxpipe's that compresses what the SDK sends, as some clients do."""

    def __init__(self, inner: http.AsyncBaseTransport) -> None:
        self.inner = inner

    async def handle_async_request(self, request: http.Request) -> http.Response:
        await request.aread()
        headers = dict(request.headers)
        del headers["content-length"]
        headers["content-encoding"] = "gzip"
        packed = gzip.compress(request.content)
        sent = http.Request(
            request.method,
            request.url,
            headers=headers,
            content=packed,
            extensions=request.extensions,
        )
        return await self.inner.handle_async_request(sent)


@every_api
async def test_a_request_that_the_client_compresses_is_shaped_and_goes_out_plain(tmp_path, api):
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path))])

    def http_client(transport: http.AsyncBaseTransport) -> http.AsyncClient:
        client = ctxpipe_client(pipeline, transport=transport)
        client._transport = Compressing(client._transport)
        return client

    async with talk(["Done."], http_client) as (server, client):
        await ask(client, api, history_of(api, 1))
    [request] = server.requests
    assert "content-encoding" not in request.headers
    assert "offloaded to file" in request.raw.decode()


@every_api
@pytest.mark.parametrize(
    ("model", "breakpoints", "count"),
    [("gpt-5.6", 4, 1), ("gpt-5.6", 0, 0), ("gpt-4o", 4, 0)],
)
async def test_breakpoints_are_placed_for_models_that_have_them(
    tmp_path, api: str, model: str, breakpoints: int, count: int
):
    http_client = shaping(
        ContextPipeline([DirectOffload(LocalStorage(tmp_path))]), cache_breakpoints=breakpoints
    )
    items: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    async with talk(lambda _: "Done.", http_client) as (server, client):
        if api == "chat":
            await client.chat.completions.create(model=model, messages=items)
        else:
            await responses_of(client).create(model=model, input=items)

    [received] = server.requests
    assert str(received.body).count("prompt_cache_breakpoint") == count
    assert items[0]["content"] == "Be brief."
