import base64
from typing import Any

import pytest
from gateways import Upstream, conversation, http, key, post, replies, serving

from ctxpipe import __version__
from ctxpipe.gateway.bill import TurnBill
from ctxpipe.gateway.page import headers, write_page
from ctxpipe.gateway.record import GatewayRecord, GatewayTurn, StageRemoval
from ctxpipe.testing import MessagesServer

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def record(*turns: GatewayTurn) -> GatewayRecord:
    made = GatewayRecord()
    for turn in turns:
        made.add(turn)
    return made


def test_an_empty_page_says_what_to_do():
    assert "Point an agent's base URL here" in write_page(GatewayRecord()).replace("&#x27;", "'")


def test_a_page_says_what_was_sent_and_what_it_would_have_been():
    page = write_page(
        record(GatewayTurn("s", "m", "shaped", sent_tokens=1_000, history_tokens=4_000, status=200))
    )
    assert "1 turn: 1,000 tokens sent instead of 4,000, 75.0% less." in page


def test_a_page_says_what_made_it_and_whose_prices_its_dollars_are():
    free = write_page(record(GatewayTurn("s", "m", "shaped", sent_tokens=1, history_tokens=2)))
    priced = write_page(
        record(
            GatewayTurn(
                "s", "m", "shaped", sent_tokens=1, history_tokens=2, bill=TurnBill(dollars=0.5)
            )
        )
    )
    assert f"ctxpipe {__version__}, 20" in free
    assert "genai-prices" not in free
    assert "dollars at the prices of each turn&#x27;s model, as genai-prices lists them" in priced


def shaped(session: str, sent: int, whole: int, **more: Any) -> GatewayTurn:
    return GatewayTurn(
        session, "m", "shaped", sent_tokens=sent, history_tokens=whole, status=200, **more
    )


def test_what_was_sent_is_drawn_by_kind_in_the_colours_of_the_replay_page():
    page = write_page(record(shaped("s", 100, 100, kinds={"results": 60, "user": 40})))
    assert page.count("<path") == 2
    assert "<path class=user d='M0 100V63.64" in page  # 40 of 110: there is room above
    assert "<path class=results d='M0 100V9.09" in page
    assert ".results { --of: var(--results); }" in page
    assert "tool results</ul>" not in page
    assert "<span class='swatch results'></span>tool results" in page
    assert "thinking</" not in page


def test_what_was_left_out_is_drawn_where_something_was():
    assert "sent, and left out" in write_page(record(shaped("s", 50, 100)))
    assert "sent, and left out" not in write_page(record(shaped("s", 100, 100)))


def test_what_left_a_context_is_told_turn_by_turn_and_in_all():
    removals = [StageRemoval("DirectOffload", 3_000, "1 block moved to files")]
    page = write_page(
        record(shaped("s", 1, 9, removals=removals), shaped("s", 2, 9, removals=removals))
    )
    assert page.count("<td class=soft>DirectOffload −3,000: 1 block moved to files") == 2
    assert "Left the context: 6,000 tokens by DirectOffload in 2 turns." in page
    assert page.count("<line ") == 2


def test_sessions_keep_their_places_while_several_are_at_work():
    one, two = shaped("one", 1, 2), shaped("two", 1, 2)
    for turns in ([one, two], [one, two, shaped("one", 1, 2)]):
        page = write_page(record(*turns))
        assert page.index("<h2>two") < page.index("<h2>one")


def test_every_text_of_others_is_escaped():
    removals = [StageRemoval(SCRIPT, 5, SCRIPT)]
    turn = GatewayTurn(
        SCRIPT,
        SCRIPT,
        "shaped",
        sent_tokens=1,
        history_tokens=2,
        removals=removals,
        reason=SCRIPT,
        status=200,
    )
    turn.text = SCRIPT
    page = write_page(record(turn))
    assert "<script" not in page
    assert "<img" not in page


def test_the_policy_lets_nothing_run_or_load():
    policy = headers()["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script-src" not in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("show_texts", [False, True])
async def test_a_script_in_a_conversation_is_nowhere_on_the_page(tmp_path, show_texts):
    history = conversation(1)
    history[1]["content"][0]["name"] = SCRIPT
    history[2]["content"][0]["content"] += SCRIPT
    history += [{"role": "assistant", "content": SCRIPT}, {"role": "user", "content": SCRIPT}]
    body = {"messages": history, "model": SCRIPT, "system": SCRIPT, "tools": [{"name": SCRIPT}]}
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, show_texts=show_texts) as gateway,
        http() as client,
    ):
        await post(gateway, body, {"x-ctxpipe-session": SCRIPT})
        reply = await client.get(gateway.url + "/")
    assert "1 turn: " in reply.text
    assert "<script" not in reply.text
    assert "<img" not in reply.text
    assert "<h2>&lt;script&gt;" in reply.text
    assert ("<p class=soft>&lt;script&gt;" in reply.text) is show_texts
    assert "script-src" not in reply.headers["content-security-policy"]
    assert "default-src 'none'" in reply.headers["content-security-policy"]


async def test_texts_are_shown_only_where_that_is_wanted(tmp_path):
    history = [{"role": "user", "content": "a word that is nobody's business"}]
    async with (
        MessagesServer(replies(1)) as api,
        serving(api.url, tmp_path) as gateway,
        http() as client,
    ):
        await post(gateway, {"messages": history})
        page = (await client.get(gateway.url + "/")).text
    assert "nobody" not in page
    assert key() not in page


async def test_with_tokens_the_page_asks_for_one(tmp_path):
    token = "a token of the gateway"  # noqa: S105
    login = base64.b64encode(f"me:{token}".encode()).decode()
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, tokens=[token]) as gateway,
        http() as client,
    ):
        refused = await client.get(gateway.url + "/")
        shown = await client.get(gateway.url + "/", headers={"authorization": f"Basic {login}"})
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Basic"
    assert shown.status_code == 200


def test_its_table_needs_nothing_of_the_replay_page_but_its_colours():
    page = write_page(record(shaped("s", 1, 2)))
    assert "--results: #cc6677" in page
    assert "attr(data-label)" not in page
