"""What a conversation is called: no two names become one, however long they are."""

import json
from uuid import UUID

import pytest
from gateways import Upstream, conversation, http, post, serving

from ctxpipe.gateway.names import MAX_NAME, conversation_name
from ctxpipe.wire.conversations import Beginning, session_ids

CLAUDE_CODE = f"user_{'ab' * 32}_account_{UUID(int=1)}_session_"
LONG = "x" * 200


def in_header(name: str) -> str:
    return conversation_name({"x-ctxpipe-session": name}, {})


def of_agent(name: str) -> str:
    headers = {"x-claude-code-session-id": LONG, "x-claude-code-agent-id": name}
    return conversation_name(headers, {})


def of_user(name: str) -> str:
    return conversation_name({}, {"metadata": {"user_id": CLAUDE_CODE + name}})


def of_session(name: str) -> str:
    user_id = json.dumps({"session_id": CLAUDE_CODE + name})
    return conversation_name({}, {"metadata": {"user_id": user_id}})


def of_cache_key(name: str) -> str:
    return conversation_name({}, {"prompt_cache_key": CLAUDE_CODE + name})


@pytest.mark.parametrize("name", [in_header, of_agent, of_user, of_session, of_cache_key])
def test_long_names_that_differ_at_the_end_stay_different(name):
    ends = [str(UUID(int=number)) for number in range(5)]

    names = {name(LONG + end) for end in ends} | {name(end) for end in ends}

    assert len(names) == 10
    assert max(map(len, names)) <= MAX_NAME


@pytest.mark.parametrize("name", ["s", "run-2", "a/b c", "x" * MAX_NAME, "#", "a#b", "v1.2"])
def test_a_name_that_fits_stays_as_it_is(name):
    assert in_header(name) == name


def test_nobody_can_choose_a_name_that_is_made_here():
    beginnings = [Beginning(b"first"), Beginning(b"first", b"reply")]
    made = [it for name in ("", "s") for begins in beginnings for it in session_ids(name, begins)]
    made = [in_header(LONG), *(it for it in made if it != "s")]

    assert not {in_header(name) for name in made} & set(made)


def test_a_name_that_is_no_text_in_unicode_is_a_name():
    assert conversation_name({}, {"user": LONG + "\ud800"}) != conversation_name({}, {"user": LONG})


async def test_long_names_have_journals_and_texts_of_their_own(tmp_path):
    users = [CLAUDE_CODE + str(UUID(int=number)) for number in range(3)]
    async with (
        Upstream() as api,
        serving(api.url, tmp_path) as gateway,
        http() as client,
    ):
        for user in users:
            body = {"messages": conversation(1), "metadata": {"user_id": user}}
            await post(gateway, body)
        page = (await client.get(gateway.url + "/")).text
    folders = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.md")}
    journals = {path.parent for path in tmp_path.rglob("*") if "journal" in path.name}
    assert page.count("<section>") == len(folders) == len(users)
    assert len(journals) in (1, len(users))
