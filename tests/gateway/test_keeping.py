"""What a gateway writes: without secrets, and no longer than it may."""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from gateways import Upstream, conversation, post, replies, serving

from ctxpipe.errors import SettingsError
from ctxpipe.gateway import app
from ctxpipe.gateway.settings import GatewaySettings
from ctxpipe.testing import MessagesServer

SECRET = "sk-0123456789abcdef"  # noqa: S105
PATTERN = "sk-[0-9a-f]+"
DAY = 86_400


def with_secret() -> list[dict[str, object]]:
    text = json.dumps(conversation(2)).replace("line 0 of", f"{SECRET} of")
    history: list[dict[str, object]] = json.loads(text)
    return history


def written(folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in files)


@pytest.mark.parametrize("journal", [False, True], ids=["local", "sqlite"])
async def test_secrets_are_hidden_in_everything_that_is_written_and_sent_as_they_are(
    tmp_path, journal
):
    url = f"sqlite:////{tmp_path}/journal.db" if journal else None
    history = [*with_secret(), {"role": "user", "content": f"my key is {SECRET}"}]
    async with (
        MessagesServer(replies(1)) as api,
        serving(api.url, tmp_path, redact=["password: .*", PATTERN], journal=url) as gateway,
    ):
        await post(gateway, {"messages": history})
    text = await asyncio.to_thread(written, tmp_path)
    assert "[redacted] of the output" in text
    assert SECRET not in text
    assert SECRET in json.dumps(api.requests[0].body)


@pytest.mark.parametrize("pattern", ["(", "a*"])
def test_a_pattern_that_is_invalid_or_finds_nothing_is_refused(pattern):
    with pytest.raises(SettingsError, match="redact is"):
        GatewaySettings({"": "http://a"}, redact=[pattern])


def make_older(folder: Path, days: float):
    moment = time.time() - days * DAY
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (moment, moment))


async def test_sessions_that_were_unused_for_too_long_are_deleted_with_their_journals(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(app, "CLEAN_UP_SECONDS", 0.01)
    tokens = ["the token of Alice name=alice", "the token of Bob... name=bob"]
    async with Upstream() as api:
        async with serving(api.url, tmp_path, tokens=tokens) as gateway:
            for name in ("the token of Alice", "the token of Bob..."):
                await post(gateway, {"messages": conversation(1)}, {"x-ctxpipe-token": name})
        assert "line 0 of the output" in await asyncio.to_thread(written, tmp_path)
        await asyncio.to_thread(make_older, tmp_path, 3)
        async with serving(api.url, tmp_path, tokens=tokens, max_days=2):
            while "line 0 of the output" in await asyncio.to_thread(written, tmp_path):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_sessions_in_use_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "CLEAN_UP_SECONDS", 0.01)
    async with Upstream() as api, serving(api.url, tmp_path, max_days=1) as gateway:
        await post(gateway, {"messages": conversation(1)})
        await asyncio.sleep(0.2)
        assert "line 0 of the output" in await asyncio.to_thread(written, tmp_path)


@pytest.mark.parametrize(("breakpoints", "marks"), [(None, 0), (4, 2)])
async def test_a_client_without_cache_breakpoints_gets_those_that_are_asked_for(
    tmp_path, breakpoints, marks
):
    async with (
        MessagesServer(replies(1)) as api,
        serving(api.url, tmp_path, cache_breakpoints=breakpoints) as gateway,
    ):
        await post(gateway, {"messages": conversation(3), "system": "You are an agent."})
    count = json.dumps(api.requests[0].body).count('"cache_control"')
    assert (count >= marks) if marks else count == 0


def test_the_number_of_cache_breakpoints_is_that_of_the_api():
    with pytest.raises(SettingsError, match="cache_breakpoints"):
        GatewaySettings({"": "http://a"}, cache_breakpoints=5)
