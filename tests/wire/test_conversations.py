"""Which session a request belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.errors import SettingsError
from ctxpipe.session import Session
from ctxpipe.wire import Conversations, conversation, conversation_name
from ctxpipe.wire.conversations import MAX_OTHERS, texts_at


def of_sessions(pipeline: ContextPipeline, **settings: Any) -> Conversations[Session]:
    return Conversations(pipeline, lambda session: session, **settings)


def test_the_name_that_was_given_counts_most():
    with conversation("around"):
        assert conversation_name("given", {}, ["found"]) == "given"
        assert conversation_name(lambda body: body["id"], {"id": "asked"}, ["found"]) == "asked"
        assert conversation_name(None, {}, ["found"]) == "around"
        assert conversation_name(lambda _: None, {}, ["found"]) == "around"
    assert conversation_name(None, {}, [None, "", 5, "found"]) == "found"
    assert conversation_name(None, {}, []) == "unnamed"


def test_a_name_that_is_too_long_is_cut():
    assert len(conversation_name(None, {}, ["x" * 5000])) == 1000


def test_long_names_that_begin_alike_stay_different():
    ends = ["", "a", "b", "y" * 5000]
    names = {conversation_name(None, {}, ["x" * 1000 + end]) for end in ends}
    names |= {conversation_name("x" * 1000 + end, {}) for end in ends}
    assert len(names) == len(ends)


def test_an_invalid_name_is_refused():
    with pytest.raises(SettingsError), conversation(""):
        pass


def test_texts_are_found_at_their_paths():
    body = {"metadata": {"session_id": "s"}, "user": "u"}

    assert list(texts_at(body, "metadata.session_id", "user.name", "none.at", "user")) == [
        "s",
        None,
        None,
        "u",
    ]


def test_conversations_without_a_name_share_a_session_which_is_said_once(
    caplog: pytest.LogCaptureFixture,
):
    conversations = of_sessions(ContextPipeline())

    for beginning in (b"one", b"two", b"one"):
        name = conversation_name(None, {}, [])
        assert conversations.of(name, beginning).session_id == "unnamed"
    conversations.of("job-42", b"one")

    [said] = caplog.messages
    assert 'share the session "unnamed"' in said
    assert "session_id=" in said


def test_the_first_conversation_of_a_name_has_the_journal_and_others_are_siblings(tmp_path: Path):
    conversations = of_sessions(ContextPipeline(), journal=LocalStorage(tmp_path))

    first, other = conversations.of("s", b"one"), conversations.of("s", b"two")

    assert first.journal is not None
    assert other.journal is None
    assert first.session_id == other.session_id == "s"
    assert conversations.of("s", b"one") is first
    assert conversations.of("s", b"two") is other


def test_no_more_than_the_pipelines_sessions_are_remembered():
    conversations = of_sessions(ContextPipeline(max_sessions=2))
    first = conversations.of("a", b"")
    for name in "bc":
        conversations.of(name, b"")

    assert conversations.of("a", b"") is not first


def test_no_more_than_some_others_are_remembered():
    conversations = of_sessions(ContextPipeline())
    conversations.of("s", b"first")
    other = conversations.of("s", b"0")
    for number in range(1, MAX_OTHERS + 1):
        conversations.of("s", b"%d" % number)

    assert conversations.of("s", b"0") is not other
