"""The numbers of a gateway, for Prometheus and as JSON, and its probes."""

import asyncio
import json
import logging
from collections import Counter
from typing import Any

import pytest
from gateways import TASK, Upstream, conversation, http, key, post, request, serving
from models import MODEL
from prometheus_client.parser import text_string_to_metric_families
from recorded import NIGHTLY

from ctxpipe.gateway import readiness

MANY = 1_000 if NIGHTLY else 200
TENANTS = ("alice", "bob", "carol")
TOKENS = [f"the token of {name} name={name}" for name in TENANTS]
OPERATOR = "the token of the operator"


def shown(tenant: str) -> dict[str, str]:
    return {"x-ctxpipe-token": f"the token of {tenant}"}


async def read(gateway: Any, token: str = "") -> dict[tuple[str, ...], float]:
    """The samples of ``/metrics``: name and values of the labels → value."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with http() as client:
        reply = await client.get(gateway.url + "/metrics", headers=headers)
    assert reply.status_code == 200
    return {
        place(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def place(name: str, labels: dict[str, str]) -> tuple[str, ...]:
    """The name of a sample and the values of its labels, that of the tenant first."""
    others = [labels[label] for label in sorted(labels) if label != "tenant"]
    return (name, labels["tenant"], *others) if "tenant" in labels else (name, *others)


class CountingUpstream:
    """An upstream that answers with a usage of its own, and sums it by the key of the request."""

    def __init__(self) -> None:
        self.sums: dict[str, Counter[str]] = {name: Counter() for name in TENANTS}
        self.requests = 0
        self.url = ""

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                if head.startswith("head"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    continue
                headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                await reader.readexactly(int(headers["content-length"]))
                answer = json.dumps(self._answer(headers["x-api-key"])).encode()
                length = f"content-length: {len(answer)}\r\n\r\n".encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + length + answer
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, name: str) -> dict[str, Any]:
        self.requests += 1
        usage = {
            "input_tokens": 3 + self.requests % 7,
            "cache_read_input_tokens": self.requests % 11,
            "cache_creation_input_tokens": self.requests % 5,
            "output_tokens": 1 + self.requests % 3,
        }
        self.sums[name].update(usage)
        self.sums[name]["requests"] += 1
        content = [{"type": "text", "text": "ok"}]
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL}
        return {**message, "content": content, "stop_reason": "end_turn", "usage": usage}


KINDS = {
    "input": "input_tokens",
    "cache_read": "cache_read_input_tokens",
    "cache_write": "cache_creation_input_tokens",
    "output": "output_tokens",
}


async def test_the_metrics_agree_with_the_upstream_s_own_count_of_many_requests():
    body = json.dumps({"model": MODEL, "max_tokens": 9, "messages": [TASK]}).encode()
    tokens = [*TOKENS, f"{OPERATOR} name=operator operator=yes"]

    async def ask(port: int, numbers: range):
        """Send these requests over one connection; an HTTP library would take longer than all."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            name = TENANTS[number % 3]
            lines = [f"{header}: {value}" for header, value in shown(name).items()]
            lines += [f"x-api-key: {name}", f"x-ctxpipe-session: s{number % 40}"]
            writer.write(request("POST /v1/messages", *lines, body=body))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b" 200 " in head
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r")[0]))
        writer.close()

    async with (
        CountingUpstream() as api,
        serving(api.url, None, tokens=tokens) as gateway,
    ):
        port = int(gateway.url.rpartition(":")[2])
        async with asyncio.TaskGroup() as tasks:
            for first in range(8):
                tasks.create_task(ask(port, range(first, MANY, 8)))
        samples = await read(gateway, OPERATOR)
    assert api.requests == MANY
    for name in TENANTS:
        for kind, field in KINDS.items():
            billed = samples["ctxpipe_gateway_billed_tokens_total", name, kind]
            assert billed == api.sums[name][field] > 0
        count = api.sums[name]["requests"]
        assert samples["ctxpipe_gateway_replies_total", name, "2xx"] == count
        assert samples["ctxpipe_gateway_added_seconds_count", name] == count
        assert samples["ctxpipe_gateway_priced_turns_total", name] == count


async def test_a_tenant_sees_its_own_numbers_only(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path, tokens=TOKENS) as gateway:
        await post(gateway, {"messages": conversation(1)}, shown("alice"))
        hers = await read(gateway, "the token of alice")
        his = await read(gateway, "the token of bob")
    assert hers["ctxpipe_gateway_requests_total", "alice", "shaped"] == 1
    assert hers["ctxpipe_gateway_removed_tokens_total", "alice", "DirectOffload"] > 0
    assert not [labels for labels in his if "alice" in labels]


async def test_the_metrics_need_a_token_if_the_gateway_has_tokens(tmp_path):
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, tokens=TOKENS) as gateway,
        http() as client,
    ):
        replies = [await client.get(gateway.url + path) for path in ("/metrics", "/metrics.json")]
    assert [reply.status_code for reply in replies] == [401, 401]


async def test_the_sums_as_json_are_those_for_prometheus(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path) as gateway, http() as client:
        await post(gateway, {"messages": conversation(1)})
        await client.get(gateway.url + "/v1/models")
        samples = await read(gateway)
        reply = await client.get(gateway.url + "/metrics.json")
    numbers = {
        place(name, sample["labels"]): sample["value"]
        for name, values in reply.json().items()
        for sample in values
    }
    of_the_process = {labels for labels in samples if labels[0].startswith("process_")}
    assert of_the_process
    assert (
        numbers.items()
        == {
            labels: value for labels, value in samples.items() if labels not in of_the_process
        }.items()
    )
    assert numbers["ctxpipe_gateway_requests_total", "", "passed"] == 1


async def test_requests_without_an_answer_of_the_upstream_are_counted_for_their_tenant(tmp_path):
    async with serving("http://127.0.0.1:9", tmp_path, tokens=TOKENS) as gateway:
        replies = [
            await post(gateway, {"messages": conversation(1)}, shown(name))
            for name in ("alice", "alice", "bob")
        ]
        hers = await read(gateway, "the token of alice")
    assert [reply.status_code for reply in replies] == [502] * 3
    assert hers["ctxpipe_gateway_requests_total", "alice", "failed"] == 2


async def test_names_that_clients_choose_are_no_labels(tmp_path):
    chosen = "a-name-that-the-client-has-chosen"
    async with Upstream() as api, serving(api.url, tmp_path) as gateway, http() as client:
        body = {"messages": conversation(1), "model": chosen}
        await post(gateway, body, {"x-ctxpipe-session": chosen})
        text = (await client.get(gateway.url + "/metrics")).text
    assert chosen not in text


# Probes -------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Checks that are run at each request."""
    monkeypatch.setattr(readiness, "REPEAT_SECONDS", 0.0)


async def probe(gateway: Any, path: str) -> tuple[int, Any]:
    async with http() as client:
        reply = await client.get(gateway.url + path)
    return reply.status_code, reply.json()


async def test_probes_need_no_token_and_reveal_names_of_checks_only(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path, tokens=TOKENS) as gateway:
        live = await probe(gateway, "/livez")
        ready = await probe(gateway, "/readyz")
    assert live == (200, {"status": "ok"})
    assert ready == (
        200,
        {"status": "ready", "checks": {"upstream": "ok", "texts": "ok"}},
    )


async def test_a_probe_sends_no_key_and_asks_the_upstream_for_nothing(tmp_path):
    async with Upstream(404) as api, serving(api.url, tmp_path) as gateway:
        status, _ = await probe(gateway, "/readyz")
    assert status == 200
    assert api.targets == ["HEAD /"]
    assert key() not in str(api.headers)


async def test_it_is_not_ready_without_an_upstream_and_says_so_once(tmp_path, caplog):
    async with serving("http://127.0.0.1:9", tmp_path) as gateway:
        answers = [await probe(gateway, "/readyz") for _ in range(2)]
        live, _ = await probe(gateway, "/livez")
        samples = await read(gateway)
    assert [status for status, _ in answers] == [503, 503]
    assert answers[0][1]["checks"] == {"upstream": "failed", "texts": "ok"}
    assert live == 200
    assert samples["ctxpipe_gateway_store_up", "upstream"] == 0
    assert caplog.messages.count("the check of upstream fails") == 1


async def test_a_check_that_is_excluded_does_not_count(tmp_path):
    async with serving("http://127.0.0.1:9", tmp_path) as gateway:
        status, answer = await probe(gateway, "/readyz?exclude=upstream")
    assert (status, answer["status"]) == (200, "ready")


async def test_it_is_not_ready_if_texts_cannot_be_written(tmp_path):
    root = tmp_path / "root"
    async with Upstream() as api, serving(api.url, root) as gateway:
        before, _ = await probe(gateway, "/readyz")
        await asyncio.to_thread(root.rename, tmp_path / "elsewhere")
        await asyncio.to_thread(root.write_text, "a file")
        after, answer = await probe(gateway, "/readyz")
    assert (before, after) == (200, 503)
    assert answer["checks"]["texts"] == "failed"


async def test_it_is_not_ready_if_the_journal_cannot_be_read(tmp_path, caplog):
    database = tmp_path / "journal.db"
    journal = f"sqlite:////{database}"
    async with Upstream() as api, serving(api.url, tmp_path / "root", journal=journal) as gateway:
        before, _ = await probe(gateway, "/readyz")
        await asyncio.to_thread(database.unlink)
        await asyncio.to_thread(database.mkdir)
        with caplog.at_level(logging.CRITICAL):
            after, answer = await probe(gateway, "/readyz")
    assert (before, after) == (200, 503)
    assert answer["checks"] == {"upstream": "ok", "texts": "ok", "journal": "failed"}
