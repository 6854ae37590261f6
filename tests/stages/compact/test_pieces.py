"""The pieces of a history that a compaction may carry over."""

from __future__ import annotations

from histories import assistant, conversation, histories, said, step, user
from hypothesis import assume, given
from hypothesis import strategies as st

from ctxpipe.messages import Message, check, pending_calls, split_system
from ctxpipe.placeholders.summaries import restored_text, summary_body
from ctxpipe.stages.compact import pieces
from ctxpipe.stages.compact.arrangement import arrange, with_reply
from ctxpipe.stages.compact.partition import replacements
from ctxpipe.stages.compact.pieces import CarryRules
from ctxpipe.stages.compact.source import Source, gather_facts
from ctxpipe.stages.reading.pins import Pin
from ctxpipe.stages.reading.unanswered import open_tail


def pinned_messages(messages: list[Message], pin: Pin) -> list[Message]:
    """The messages that *pin* chooses, as a piece of a context."""
    return with_reply(arrange(pieces.pins(messages, pin)))


def test_pinned_messages_are_kept_by_reference_a_call_with_its_result():
    history = conversation(
        user("rules"), step("t1", "todo", {"list": [1]}), assistant("ok"), user("go"), user("on")
    )

    kept = pinned_messages(history, lambda message: message in (history[0], history[1], history[5]))

    indexes = [index for index, message in enumerate(history) if any(message is k for k in kept)]
    assert indexes == [0, 1, 2, 5]
    roles = [message["role"] for message in kept]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert check(kept) == []


def test_what_a_compaction_made_is_never_pinned():
    history = conversation(user("a"), step("t1"), user("b"))
    source = Source(history, is_raw=True)
    first, *_ = replacements(
        [],
        history,
        "S",
        source,
        gather_facts(source),
        tail=open_tail(history),
        carry=CarryRules(lambda _message: True),
    )
    context = first.messages("", [user(restored_text("a.py", "x"))])

    again = pinned_messages(context, lambda _message: True)

    assert sum(1 for message in again if summary_body(message) is not None) == 0
    assert [text for text in said(again) if text in ("a", "b")] == ["a", "b"]


@given(histories(), st.sets(st.integers(0, 30)))
def test_pinned_messages_are_a_valid_piece_of_conversation(history: list[Message], pins: set[int]):
    _, rest = split_system(history)
    assume(not pending_calls(rest))  # the stage puts compaction off
    chosen = [message for index, message in enumerate(rest) if index in pins]

    kept = pinned_messages(rest, lambda message: any(message is one for one in chosen))

    assert check([*kept, user("go on")]) == []
    assert all(
        any(message is one for one in kept) for message in chosen if message["role"] != "system"
    )
