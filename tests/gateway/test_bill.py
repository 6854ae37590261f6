"""What the API reported is what the gateway says, in the log, on the page and at the end."""

import json
import logging

import pytest
from gateways import TASK, conversation, post, replies, serving
from models import MODEL

from ctxpipe.gateway.bill import TurnBill, bill_of
from ctxpipe.gateway.logs import JsonLines
from ctxpipe.providers.prices import prices_of, usage_dollars
from ctxpipe.stages.reports import Compacted
from ctxpipe.testing import MessagesServer

USAGE = {
    "input_tokens": 200,
    "cache_read_input_tokens": 60_000,
    "cache_creation_input_tokens": 2_000,
    "output_tokens": 500,
}
TOKENS = {"input": 200, "cache_read": 60_000, "cache_write": 2_000, "output": 500}


def test_each_token_of_a_usage_is_of_one_kind():
    bill = bill_of(MODEL, USAGE, ())
    assert bill.tokens == TOKENS
    assert bill.prompt_tokens == 62_200
    assert bill.dollars == pytest.approx(usage_dollars(prices_of(MODEL), USAGE))


def test_a_summary_by_a_model_is_part_of_the_bill():
    summary = Compacted(
        9, 1, 3, model="m", input_tokens=100, cached_tokens=40, output_tokens=7, dollars=1.0
    )
    bill = bill_of(MODEL, USAGE, [summary])
    assert bill.tokens == {**TOKENS, "input": 260, "cache_read": 60_040, "output": 507}
    assert bill.dollars == pytest.approx(1 + usage_dollars(prices_of(MODEL), USAGE))


def test_a_summary_without_a_price_makes_the_price_unknown():
    assert bill_of(MODEL, USAGE, [Compacted(9, 1, 3, model="m")]).dollars is None


def test_a_summary_without_a_model_costs_nothing():
    assert bill_of(MODEL, USAGE, [Compacted(9, 1, 3)]) == bill_of(MODEL, USAGE, ())


@pytest.mark.parametrize(("model", "usage"), [("no such model", USAGE), (MODEL, {})])
def test_without_a_price_or_a_usage_there_are_no_dollars(model, usage):
    assert bill_of(model, usage, ()).dollars is None


def test_a_bill_says_what_was_billed_in_words():
    assert TurnBill(TOKENS, 1.5).phrases() == [
        "62,200 tokens billed (60,000 of them read from the cache) and 500 for replies",
        "$1.50",
    ]
    assert TurnBill().phrases() == []


def billed_by(api: MessagesServer) -> int:
    """The prompt tokens that *api* has billed."""
    usages = [request.usage for request in api.requests]
    assert all(usage is not None for usage in usages)
    return sum(request.tokens for request in api.requests)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sum_at_the_end_is_what_the_api_has_billed(tmp_path, stream):
    async with MessagesServer(replies(3)) as api, serving(api.url, tmp_path) as gateway:
        for rounds in (1, 2, 3):
            await post(gateway, {"messages": conversation(rounds), "stream": stream})
        record = gateway.gateway.record
    assert f"{billed_by(api):,} tokens billed" in str(record)
    assert record.priced_turns == 3


@pytest.mark.parametrize("path", ["off", "dry"])
async def test_a_turn_that_is_not_shaped_has_its_bill_too(tmp_path, path):
    headers = {"x-ctxpipe": "off"} if path == "off" else {}
    async with (
        MessagesServer(replies(1)) as api,
        serving(api.url, tmp_path, dry_run=path == "dry") as gateway,
    ):
        await post(gateway, {"messages": conversation(1)}, headers)
        record = gateway.gateway.record
    assert f"{billed_by(api):,} tokens billed" in str(record)
    assert record.dollars > 0


# The log ------------------------------------------------------------------------------------------


async def test_a_line_of_a_json_log_has_the_turn_s_facts(tmp_path, caplog):
    tokens = ["the token of Alice name=alice"]
    headers = {"x-ctxpipe-token": "the token of Alice", "x-ctxpipe-session": "job-42"}
    with caplog.at_level(logging.INFO, "ctxpipe.gateway"):
        async with (
            MessagesServer(replies(1)) as api,
            serving(api.url, tmp_path, tokens=tokens) as gateway,
        ):
            await post(gateway, {"messages": conversation(1)}, headers)
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    [turn] = [line for line in lines if line.get("event") == "turn"]
    [removed] = turn["removed"]
    assert (turn["tenant"], turn["session"], turn["model"]) == ("alice", "job-42", MODEL)
    assert (turn["outcome"], turn["status"], turn["level"]) == ("shaped", 200, "INFO")
    assert turn["history_tokens"] - turn["sent_tokens"] == removed["tokens"] > 0
    assert removed["stage"] == "DirectOffload"
    assert turn["billed_tokens"]["output"] > 0
    assert turn["dollars"] > 0
    assert turn["time"].endswith("+00:00")


def test_each_record_is_one_line_of_json_also_with_a_traceback():
    record = logging.LogRecord("ctxpipe", logging.ERROR, "", 1, "a\nb %s", ("c",), None)
    try:
        int("two\nlines")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    text = JsonLines().format(record)
    assert "\n" not in text
    assert json.loads(text)["message"] == "a\nb c"
    assert "two" in json.loads(text)["traceback"]


async def test_a_log_has_no_text_of_the_conversation(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "ctxpipe.gateway"):
        async with MessagesServer(replies(1)) as api, serving(api.url, tmp_path) as gateway:
            await post(gateway, {"messages": [{**TASK, "content": "a secret of the user"}]})
    assert "secret" not in "".join(JsonLines().format(record) for record in caplog.records)
