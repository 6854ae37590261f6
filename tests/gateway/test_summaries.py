"""Who writes the summaries behind a gateway, with every vendor's key in its environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from connections import WINDOW, Agent, chat_history, every_key, summaries
from gateways import key, serving
from models import MODEL, OTHER_MODEL
from recorded import in_turn

from ctxpipe.gateway.record import GatewayRecord
from ctxpipe.testing import GeminiServer, MessagesServer, OpenAIServer

TURNS = 8
APIS: Mapping[str, Any] = {
    "messages": MessagesServer,
    "chat": OpenAIServer,
    "responses": OpenAIServer,
    "gemini": GeminiServer,
    "gemini, streamed": GeminiServer,
}
every_api = pytest.mark.parametrize("api", APIS)


def request_of(
    api: str, history: list[Any], model: str = "m"
) -> tuple[str, dict[str, Any], dict[str, str]]:
    """The path, the body and the credentials of a request with *history*."""
    bearer = {"authorization": f"Bearer {key()}"}
    if api == "messages":
        body = {"model": model, "max_tokens": 99, "messages": history, "inference_geo": "eu"}
        return "/v1/messages", body, {"x-api-key": key(), "anthropic-version": "2023-06-01"}
    if api == "chat":
        return "/v1/chat/completions", {"model": model, "messages": history}, bearer
    if api == "responses":
        return "/v1/responses", {"model": model, "input": history}, bearer
    contents = [
        {
            "role": "model" if message["role"] == "assistant" else "user",
            "parts": [{"text": message["content"]}],
        }
        for message in history
    ]
    method = "streamGenerateContent?alt=sse&trace=1" if "streamed" in api else "generateContent"
    return f"/v1beta/models/{model}:{method}", {"contents": contents}, {"x-goog-api-key": key()}


async def work(api: str, url: str, model: str) -> None:
    """A person's turns, from a client that ctxpipe knows nothing of."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        for turns in range(TURNS):
            path, body, headers = request_of(api, chat_history(turns), model)
            answer = await client.post(path, json=body, headers=headers, timeout=60)
            assert answer.status_code == 200, answer.text


async def shaped(
    api: str, folder: Path, monkeypatch: pytest.MonkeyPatch, model: str = "m", **settings: Any
) -> tuple[Any, GatewayRecord]:
    """The upstream after a run of *api* through a gateway with *settings*, and the record."""
    with every_key(monkeypatch) as noted:
        async with (
            APIS[api](Agent(rounds=0)) as server,
            serving(server.url, folder, window=WINDOW, **settings) as gateway,
        ):
            noted.allow(server.url)
            noted.allow(gateway.url)
            await work(api, gateway.url, model)
    assert not noted.foreign
    assert not server.refused
    return server, gateway.gateway.record


def compactions(record: GatewayRecord) -> list[str]:
    """What *record* says of each compaction."""
    leavings = [leaving for turn in record.turns for leaving in turn.removals]
    return [leaving.detail for leaving in leavings if leaving.stage == "Compact"]


@every_api
async def test_no_model_is_asked_for_a_summary_unless_one_is_named(
    api: str, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("SUMMARY_MODEL", "small")

    server, record = await shaped(api, tmp_path, monkeypatch)

    assert len(compactions(record)) > 1
    assert all("(ExtractiveSummarizer)" in told for told in compactions(record))
    assert not summaries(server.requests)


@pytest.mark.parametrize(
    ("api", "preset"), in_turn(APIS, last=["coding", "chat", "file", "no files"])
)
async def test_the_named_model_is_asked_at_the_clients_upstream_with_the_clients_key(
    api: str, preset: str, tmp_path: Path, monkeypatch
):
    pipeline = tmp_path / "pipeline.toml"
    pipeline.write_text('[[stage]]\nuse = "Compact"\n')
    folder: Any = None if preset == "no files" else tmp_path / "root"
    names = {"file": str(pipeline), "no files": "coding"}

    server, record = await shaped(
        api, folder, monkeypatch, preset=names.get(preset, preset), summary_model="small"
    )

    asked = summaries(server.requests)
    assert len(compactions(record)) > 1
    assert all("(AgentSummarizer, small" in told for told in compactions(record))
    assert len(asked) >= len(compactions(record))
    _, _, credentials = request_of(api, [])
    for request in asked:
        assert credentials.items() <= request.headers.items()
        assert request.body.get("model") == "small" or request.path.endswith(
            "/models/small:generateContent"
        )
        if api == "messages":
            assert request.body["inference_geo"] == "eu"


async def test_a_dry_run_asks_for_no_summary(tmp_path: Path, monkeypatch):
    server, record = await shaped(
        "chat", tmp_path, monkeypatch, dry_run=True, summary_model="small"
    )

    assert compactions(record)
    assert not summaries(server.requests)


async def test_what_a_turn_has_cost_includes_its_summary(tmp_path: Path, monkeypatch):
    _, record = await shaped("chat", tmp_path, monkeypatch, MODEL, summary_model=OTHER_MODEL)

    told = re.compile(rf"\(AgentSummarizer, {OTHER_MODEL}, \$([\d.]+)\)")
    checked = 0
    for turn in record.turns:
        for leaving in turn.removals:
            found = told.search(leaving.detail)
            if found is not None:
                checked += 1
                assert turn.bill.dollars is not None
                assert turn.bill.dollars > float(found[1]) > 0
    assert checked == len(compactions(record)) > 1
