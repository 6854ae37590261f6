"""How many conversations a gateway holds, and what becomes of the others."""

from __future__ import annotations

from gateways import conversation, post, replies, serving

from ctxpipe.gateway.serving import Serving
from ctxpipe.gateway.tokens import parse_token
from ctxpipe.testing import MessagesServer
from ctxpipe.wire.conversations import OWN_BYTES

SIZE = 6_000


async def ask(gateway: Serving, name: str, rounds: int):
    history = conversation(rounds, size=SIZE)
    reply = await post(gateway, {"messages": history}, {"x-ctxpipe-session": name})
    assert reply.status_code == 200, reply.text


def names(gateway: Serving) -> list[str]:
    return [known.name for known in gateway.gateway.shaper().conversations]


async def test_above_the_limit_the_longest_unused_conversations_are_forgotten(tmp_path):
    limit = int(2.5 * (OWN_BYTES + 4 * SIZE))
    async with (
        MessagesServer(replies(6)) as api,
        serving(api.url, tmp_path, max_bytes=limit) as gateway,
    ):
        for name in ("a", "b", "a", "c"):
            await ask(gateway, name, 1)
        assert names(gateway) == ["a", "c"]
        assert gateway.gateway.shaper().conversations.bytes <= limit


async def test_a_forgotten_conversation_goes_on_from_its_journal_with_the_same_bytes(tmp_path):
    async with (
        MessagesServer(replies(8)) as api,
        serving(api.url, tmp_path, max_bytes=1) as gateway,
    ):
        for rounds in range(1, 5):
            for name in "ab":
                await ask(gateway, name, rounds)
                assert names(gateway) == [name]
    for before, after in zip(api.requests, api.requests[2:], strict=False):
        known = before.body["messages"]
        assert after.body["messages"][: len(known)] == known


async def test_tokens_share_the_limit(tmp_path):
    tokens = ["a-token-of-one-user", "a-token-of-another"]
    async with (
        MessagesServer(replies(2)) as api,
        serving(api.url, tmp_path, tokens=tokens, max_bytes=3 * OWN_BYTES) as gateway,
    ):
        for name in ("a", "b"):
            headers = {"x-ctxpipe-session": name, "x-ctxpipe-token": tokens[0]}
            task = {"role": "user", "content": "hello"}
            await post(gateway, {"messages": [task]}, headers)
        held = gateway.gateway.shaper(parse_token(tokens[0])).conversations
        assert [known.name for known in held] == ["b"]
