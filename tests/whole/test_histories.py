"""The random histories that other tests stand on are what they claim to be."""

from __future__ import annotations

from histories import (
    assistant,
    broken_histories,
    chat,
    conversation,
    histories,
    said,
    step,
    system,
    user,
    view,
)
from hypothesis import Phase, given, seed, settings

from ctxpipe.messages import Message, check, pending_calls, tool_calls, tool_results


def test_a_written_conversation_is_a_list_of_plain_messages():
    made = conversation(
        system("be"), user("go"), step("t1", say="look"), view("t2", "a.py", "x"), assistant("done")
    )

    roles = [message["role"] for message in made]
    assert roles == ["system", "user", *["assistant", "user"] * 2, "assistant"]
    assert said(made) == ["be", "go", "look", "done"]
    assert check(made) == []


def test_a_chat_alternates_and_numbers_its_messages():
    assert [words.split()[0] for words in said(chat(4))] == ["m0", "m1", "m2", "m3"]


@given(histories())
def test_a_random_history_is_valid_and_no_text_occurs_twice(history: list[Message]):
    assert check(history) == []
    assert len(set(said(history))) == len(said(history))


@given(histories(ends=False))
def test_a_history_without_an_ending_ends_in_the_users_text(history: list[Message]):
    assert history[-1]["role"] == "user"
    assert not list(tool_results(history, len(history) - 1))


def test_random_histories_hold_the_shapes_that_matter():
    seen: set[str] = set()

    @seed(7)
    @settings(phases=[Phase.generate], max_examples=60)
    @given(histories(), broken_histories())
    def look(history: list[Message], broken: list[Message]) -> None:
        shapes = {
            "waiting calls": bool(pending_calls(history)),
            "many calls": len(list(tool_calls(history))) > 8,
            "a command": any("<command>" in words for words in said(history)),
            "broken": bool(check(broken)),
        }
        seen.update(name for name, is_so in shapes.items() if is_so)

    look()

    assert seen == {"waiting calls", "many calls", "a command", "broken"}
