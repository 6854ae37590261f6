"""Tests of `make live`, with the scripted APIs in place of the real ones."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from ctxpipe.testing import (
    Failure,
    GeminiServer,
    MessagesServer,
    Model,
    OpenAIServer,
    Reply,
    answer_with,
    tool_use,
)
from scripts.live import APIS, main

TURNS = 30
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def reader() -> Any:
    """A model that reads the next page in each reply."""
    numbers = count(1)

    def reply(_: Any) -> Reply:
        number = next(numbers)
        return answer_with(tool_use("read_page", {"page": number}, f"call_{number}"))

    return reply


@asynccontextmanager
async def scripted(monkeypatch: pytest.MonkeyPatch, **scripts: Any) -> AsyncIterator[list[Any]]:
    """Run the three servers, with keys and addresses of them in the environment."""
    model = Model(window=200_000)
    async with (
        MessagesServer(scripts.get("anthropic") or reader(), model=model) as anthropic,
        OpenAIServer(scripts.get("openai") or reader(), model=model) as openai,
        GeminiServer(scripts.get("gemini") or reader(), model=model) as gemini,
    ):
        for name in KEYS:
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", anthropic.url)
        monkeypatch.setenv("OPENAI_BASE_URL", openai.base_url)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", gemini.url)
        yield [anthropic, openai, gemini]


def rows(printed: str) -> Mapping[str, list[float]]:
    """Return the numbers of each row of the table, by the name of its API."""
    table = {}
    for line in printed.splitlines()[1:]:
        name, *cells = line.split()
        if name in APIS and len(cells) == 7:
            table[name] = [float(cell.replace(",", "")) for cell in cells]
    return table


async def test_each_api_gets_thirty_turns_and_the_table_has_what_it_billed(monkeypatch, capsys):
    async with scripted(monkeypatch) as servers:
        status = await main([], TURNS, 0.9)
    printed = capsys.readouterr().out

    assert status == 0, printed
    table = rows(printed)
    assert list(table) == list(APIS)
    for turns, refused, compacted, estimated, billed, cached, dollars in table.values():
        assert (turns, refused) == (TURNS, 0)
        assert compacted > 0
        assert estimated == pytest.approx(billed, rel=0.03)
        assert 0 <= cached < billed
        assert 0 < dollars < 0.9
    assert table["anthropic"][5] > 0
    billed_by_server = sum(exchange.tokens for exchange in servers[0].requests)
    assert table["anthropic"][4] == billed_by_server


async def test_a_request_that_the_api_refuses_is_shown_with_its_answer(monkeypatch, capsys):
    broken = [Failure(403, "permission_error", "your key may not")]
    async with scripted(monkeypatch, anthropic=broken):
        status = await main(["anthropic"], TURNS, 0.9)
    printed = capsys.readouterr().out

    assert status == 1
    assert rows(printed)["anthropic"][:2] == [0, 1]
    assert "anthropic ended early: status 403: " in printed
    assert "your key may not" in printed


async def test_a_prompt_that_is_too_long_is_sent_once_more_and_counts_as_refused(
    monkeypatch, capsys
):
    too_long = Failure(
        400, "invalid_request_error", "prompt is too long: 9001 tokens > 9000 maximum"
    )
    replies = reader()
    numbers = count(1)

    def reply(body: Any) -> Reply:
        return too_long if next(numbers) == 12 else replies(body)

    async with scripted(monkeypatch, anthropic=reply):
        status = await main(["anthropic"], TURNS, 0.9)
    printed = capsys.readouterr().out

    assert status == 1
    assert rows(printed)["anthropic"][:2] == [TURNS, 1]
    assert "ended early" not in printed


async def test_it_stops_before_a_request_that_could_exceed_the_budget(monkeypatch, capsys):
    async with scripted(monkeypatch):
        status = await main([], TURNS, 0.04)
    printed = capsys.readouterr().out

    assert status == 1
    assert "anthropic ended early: the budget of $0.04 could be exceeded" in printed
    spent = re.search(r"^spent \$([\d.]+) of \$0.04$", printed, re.MULTILINE)
    assert spent
    assert 0 < float(spent[1]) < 0.04


async def test_without_a_key_the_error_names_the_variables(capsys):
    assert await main([], TURNS, 0.9) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in KEYS)


async def test_an_api_without_a_key_is_left_out_and_named(monkeypatch, capsys):
    async with scripted(monkeypatch):
        monkeypatch.delenv("GEMINI_API_KEY")
        status = await main(["openai-chat", "gemini"], 2, 0.9)
    printed = capsys.readouterr().out

    assert status == 0
    assert list(rows(printed)) == ["openai-chat"]
    assert re.search(r"^gemini +left out: GEMINI_API_KEY is not set$", printed, re.MULTILINE)


def test_the_budget_of_a_run_is_below_a_dollar():
    from scripts import live

    assert live.DOLLARS < 1
