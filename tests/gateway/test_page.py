import base64

from gateways import Upstream, conversation, http, key, post, replies, serving

from ctxpipe.gateway.page import headers, write_page
from ctxpipe.gateway.record import Record, Turn
from ctxpipe.testing import MessagesServer

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def record(*turns: Turn) -> Record:
    made = Record()
    for turn in turns:
        made.add(turn)
    return made


def test_an_empty_page_says_what_to_do():
    assert "Point an agent's base URL here" in write_page(Record()).replace("&#x27;", "'")


def test_a_page_says_what_was_sent_and_what_it_would_have_been():
    page = write_page(record(Turn("s", "m", "shaped", sent=1_000, whole=4_000, status=200)))
    assert "1 turn: 1,000 tokens sent instead of 4,000, 75.0% less." in page


def test_every_text_of_others_is_escaped():
    turn = Turn(SCRIPT, SCRIPT, "shaped", left=[(SCRIPT, 5)], reason=SCRIPT, status=200)
    turn.text = SCRIPT
    page = write_page(record(turn))
    assert "<script" not in page
    assert "<img" not in page


def test_the_policy_lets_nothing_run_or_load():
    policy = headers()["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script-src" not in policy
    assert "unsafe" not in policy


async def test_a_script_in_a_result_is_nowhere_on_the_page(tmp_path):
    history = conversation(1)
    history[-1]["content"][0]["content"] += SCRIPT
    history += [{"role": "assistant", "content": "x"}, {"role": "user", "content": SCRIPT}]
    for show_texts in (False, True):
        async with (
            MessagesServer(replies(1)) as api,
            serving(api.url, tmp_path, show_texts=show_texts) as gateway,
            http() as client,
        ):
            await post(gateway, {"messages": history}, {"x-ctxpipe-session": SCRIPT})
            page = (await client.get(gateway.url + "/")).text
        assert "<script" not in page
        assert ("onerror=alert(2)" in page) is True  # as the session's name, escaped
        assert ("<p class=soft>&lt;script&gt;" in page) is show_texts


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
