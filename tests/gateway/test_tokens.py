"""Tokens have names and an end, and a file of them is read again."""

import asyncio
import logging
import os
from pathlib import Path

import pytest
from gateways import TASK, Upstream, conversation, http, post, serving

from ctxpipe.errors import SettingsError
from ctxpipe.gateway.settings import GatewaySettings
from ctxpipe.gateway.tokens import parse_token, read_tokens

OLD, NEW = "the first token of Alice", "the second token of Alice"
HELLO = [TASK]


def shown(token: str) -> dict[str, str]:
    return {"x-ctxpipe-token": token}


def test_words_after_a_token_are_its_name_its_end_and_its_rank():
    token = parse_token(f"{OLD} name=alice expires=2027-01-31 operator=yes\n")
    assert (token.secret, token.name, token.is_operator) == (OLD, "alice", True)
    assert token.expires is not None
    assert token.expires.isoformat() == "2027-02-01T00:00:00+00:00"


def test_a_token_without_words_is_the_whole_line():
    token = parse_token(f"{OLD}\n")
    assert (token.secret, token.name, token.expires, token.is_operator) == (OLD, "", None, False)
    assert token.label == token.owner


def test_the_repr_of_a_token_hides_it():
    assert OLD not in repr(parse_token(f"{OLD} name=alice"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("short", "16 characters"),
        (f"{OLD} name=", "the name of a token"),
        (f"{OLD} name=a/b", "the name of a token"),
        (f"{OLD} name=0123456789abcdef", "no digest"),
        (f"{OLD} expires=soon", "2027-01-31"),
        (f"{OLD} operator=maybe", "operator=yes or no"),
    ],
)
def test_an_invalid_line_is_refused_with_the_way_out_and_without_the_token(line, said):
    with pytest.raises(SettingsError, match=said) as refusal:
        GatewaySettings({"": "http://a"}, tokens=[line])
    assert OLD not in str(refusal.value)


def test_a_token_that_two_lines_have_is_refused():
    with pytest.raises(SettingsError, match="occurs twice"):
        GatewaySettings({"": "http://a"}, tokens=[f"{OLD} name=a", f"{OLD} name=b"])


def test_comments_and_empty_lines_of_a_token_file_are_skipped(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"# of the team\n\n{OLD} name=alice\n")
    file.chmod(0o600)
    assert read_tokens(file) == [f"{OLD} name=alice"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own a file as root")
def test_the_group_of_a_service_may_read_a_token_file_that_root_owns_but_not_change_it(
    tmp_path, monkeypatch
):
    file = tmp_path / "tokens"
    file.write_text(f"{OLD} name=alice\n")
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    file.chmod(0o640)
    assert read_tokens(file) == [f"{OLD} name=alice"]
    for mode in (0o660, 0o644):
        file.chmod(mode)
        with pytest.raises(SettingsError, match="may be read by others"):
            read_tokens(file)


async def test_tokens_with_one_name_continue_the_same_conversations(tmp_path):
    tokens = [f"{OLD} name=alice", f"{NEW} name=alice"]
    async with Upstream() as api, serving(api.url, tmp_path, tokens=tokens) as gateway:
        await post(gateway, {"messages": conversation(1)}, shown(OLD))
        await post(gateway, {"messages": conversation(2)}, shown(NEW))
        dialogs = list(gateway.gateway.shaper(parse_token(tokens[0])).conversations)
        record = gateway.gateway.record
    assert len(dialogs) == 1
    assert record.number == 2


async def test_the_log_names_the_tenant(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "ctxpipe.gateway"):
        async with (
            Upstream() as api,
            serving(api.url, tmp_path, tokens=[f"{OLD} name=alice"]) as gateway,
        ):
            await post(gateway, {"messages": HELLO}, shown(OLD))
    assert any(" for alice: " in text for text in caplog.messages)


async def test_a_token_that_has_expired_is_refused_by_its_name(tmp_path):
    tokens = [f"{OLD} name=alice expires=2026-01-31", NEW]
    async with Upstream() as api, serving(api.url, tmp_path, tokens=tokens) as gateway:
        refused = await post(gateway, {"messages": HELLO}, shown(OLD))
        accepted = await post(gateway, {"messages": HELLO}, shown(NEW))
    assert refused.status_code == 401
    assert "the token of alice has expired" in refused.json()["error"]["message"]
    assert accepted.status_code == 200
    assert len(api.bodies) == 1


# Reading them again -------------------------------------------------------------------------------


async def test_new_tokens_replace_the_previous_ones(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path, tokens=[OLD]) as gateway:
        gateway.gateway.reload([NEW])
        statuses = [
            (await post(gateway, {"messages": HELLO}, shown(token))).status_code
            for token in (OLD, NEW)
        ]
    assert statuses == [401, 200]


@pytest.mark.parametrize("tokens", [["short"], []])
async def test_tokens_that_cannot_be_used_change_nothing(tmp_path, tokens):
    async with Upstream() as api, serving(api.url, tmp_path, tokens=[OLD]) as gateway:
        with pytest.raises(SettingsError):
            gateway.gateway.reload(tokens)
        reply = await post(gateway, {"messages": HELLO}, shown(OLD))
    assert reply.status_code == 200


def write_pipeline(file: Path, min_chars: int) -> str:
    file.write_text(f'[[stage]]\nuse = "DirectOffload"\nmin_chars = {min_chars}\n')
    return str(file)


async def test_a_pipeline_that_is_read_again_shapes_new_conversations(tmp_path):
    file = tmp_path / "pipeline.toml"
    preset = write_pipeline(file, min_chars=1_000_000)
    async with Upstream() as api, serving(api.url, tmp_path / "root", preset=preset) as gateway:
        await post(gateway, {"messages": conversation(1)}, {"x-ctxpipe-session": "before"})
        write_pipeline(file, min_chars=1_000)
        await asyncio.to_thread(gateway.gateway.reload, [])
        await post(gateway, {"messages": conversation(1)}, {"x-ctxpipe-session": "after"})
    assert [b"offloaded to file" in body for body in api.bodies] == [False, True]


async def test_an_invalid_pipeline_changes_nothing(tmp_path):
    file = tmp_path / "pipeline.toml"
    preset = write_pipeline(file, min_chars=1_000)
    async with Upstream() as api, serving(api.url, tmp_path / "root", preset=preset) as gateway:
        file.write_text("[[stage]]\nuse = 'Nothing'\n")
        with pytest.raises(SettingsError, match="Nothing"):
            await asyncio.to_thread(gateway.gateway.reload, [])
        await post(gateway, {"messages": conversation(1)})
    assert b"offloaded to file" in api.bodies[0]


async def test_a_request_that_shows_no_token_is_refused_after_a_reload(tmp_path):
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, tokens=[OLD]) as gateway,
        http() as client,
    ):
        gateway.gateway.reload([NEW])
        reply = await client.get(gateway.url + "/v1/models")
    assert reply.status_code == 401
