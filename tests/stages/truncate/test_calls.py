"""The calls that are removed with their results, and the file views that stay."""

from __future__ import annotations

import pytest
from histories import (
    assistant,
    chat,
    conversation,
    step,
    system,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
    view,
)

from ctxpipe.messages import Message
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.providers.agent_tools import COMMON_READING_TOOLS
from ctxpipe.stages.truncate import selection as truncate
from ctxpipe.stages.truncate.calls import FileView, file_views, filter_calls
from ctxpipe.stages.truncate.parts import join_parts


def filtered(history: list[Message], middle: range, *, strict: bool = False) -> list[Message]:
    views = {view.place for view in file_views(history)}
    ends = truncate.find_ends(history)
    ground = truncate.editable_region(history, ends, middle, strict=strict)
    parts, _ = filter_calls(history, ground, views)
    return join_parts(parts)


def test_a_view_is_an_answered_call_of_a_reading_tool():
    history = conversation(
        user("go"), view("v1", "a.py", "x = 1"), step("b1"), assistant(tool_use("v2", "read_file"))
    )

    assert file_views(history) == [FileView((2, 0), "a.py", "x = 1")]


def test_a_repeated_id_is_a_view_only_where_its_own_call_is_one():
    history = conversation(user("go"), view("t1", "a.py", "x"), step("t1"), view("t1", "b.py", "y"))

    assert [found.path for found in file_views(history)] == ["a.py", "b.py"]


def test_text_blocks_are_the_text_of_a_view_and_a_picture_has_none():
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    history = conversation(
        user("go"),
        view("v1", "a.py", [text("x"), text("y")]),
        view("v2", "b.png", [text("b"), picture]),
    )

    assert [found.text for found in file_views(history)] == ["x\ny", ""]


def test_shell_views_and_other_tools_are_asked_for():
    history = conversation(
        user("go"),
        step("b1", "bash", {"command": "cat a.py"}, "x"),
        step("r1", "Read", {"file_path": "b.py"}, "y"),
    )

    assert file_views(history) == []
    paths = [found.path for found in file_views(history, COMMON_READING_TOOLS, True)]
    assert paths == ["a.py", "b.py"]


@pytest.mark.parametrize(
    "content",
    [
        "[Content offloaded to: ./tool-result-t1.md]",
        "[Tool result offloaded to file: /tmp/t1.md]",
        "[Tool result offloaded to file: /tmp/t1.md]"
        + Preview(10, 5).of("def f():\n    return 1\n" * 9),
        "<system-reminder>\n## File Context: a.py\n1 | f\n</system-reminder>",
        "",
    ],
)
def test_a_pointer_a_folded_file_and_no_text_are_not_to_be_folded(content):
    history = conversation(user("go"), view("v1", "a.py", content))
    assert not file_views(history)[0].is_foldable
    assert file_views(conversation(user("go"), view("v1", "a.py", "x = 1")))[0].is_foldable


@pytest.mark.parametrize(
    "content",
    [
        "<system-reminder>\n## File Context: a.py\n" + "1 | f\n" * 10_000,
        f"[Content offloaded to: {'a' * 5_000}]",
        "[Tool result offloaded to file: /tmp/t1.md]"
        + Preview(50_000, 5).of("def f():\n    return 1\n" * 9_000),
    ],
)
def test_a_long_view_that_only_looks_folded_is_folded(content):
    assert file_views(conversation(user("go"), view("v1", "a.py", content)))[0].is_foldable


def test_calls_of_the_middle_go_with_their_results_and_all_text_stays():
    history = conversation(
        user("go"),
        step("t1", say="one"),
        step("t2"),
        step("t3", say="three"),
        assistant("done"),
        user("next"),
    )

    assert filtered(history, range(1, 7)) == [
        user("go"),
        assistant("one", "three", "done"),
        user("next"),
    ]


def test_without_a_call_in_the_middle_nothing_changes():
    history = conversation(user("go"), step("t1"), chat(5), step("t2"))
    ground = truncate.editable_region(history, truncate.find_ends(history), range(3, 8))

    parts, calls = filter_calls(history, ground, frozenset())

    assert calls == 0
    assert [part.message for part in parts] == history


def test_a_file_view_stays_with_its_call_in_the_midst_of_a_parallel_batch():
    calls = assistant(
        "look", tool_use("b1"), tool_use("v1", "read_file", {"path": "a.py"}), tool_use("b2")
    )
    results = user(
        tool_result("b1"), tool_result("v1", "x = 1"), tool_result("b2"), text("and now?")
    )
    history = conversation(user("go"), calls, results, assistant("done"))

    assert filtered(history, range(1, 3)) == conversation(
        user("go"),
        assistant("look", tool_use("v1", "read_file", {"path": "a.py"})),
        user(tool_result("v1", "x = 1"), text("and now?")),
        assistant("done"),
    )


def test_the_users_words_in_a_message_of_results_join_the_message_before():
    history = conversation(
        user("go"),
        view("v1", "a.py", "x"),
        assistant(tool_use("t1")),
        user(tool_result("t1"), "hm"),
        assistant("ok"),
    )

    assert filtered(history, range(3, 5)) == conversation(
        user("go"),
        view("v1", "a.py", "x")[0],
        user(tool_result("v1", "x"), "hm"),
        assistant("ok"),
    )


def test_in_strict_ground_a_call_is_spared_where_a_message_outside_would_be_touched():
    mixed = conversation(assistant(tool_use("t1")), user(tool_result("t1"), "hm"))
    history = conversation(
        chat(3), mixed, step("t2"), step("t3", say="x"), assistant("so"), user("next")
    )

    loose = filtered(history, range(3, 9))
    strict = filtered(history, range(3, 9), strict=True)

    assert loose == [
        *chat(2),
        user(chat(3)[2]["content"], "hm"),  # type: ignore[arg-type]
        assistant("x", "so"),
        user("next"),
    ]
    assert strict == [*history[:5], *history[7:]]
    assert all(any(message is other for other in history) for message in strict)


def test_thinking_goes_with_its_call_when_nothing_else_is_left():
    history = conversation(
        user("go"), step("t1", think="a"), step("t2", think="b", say="look"), user("and?")
    )

    assert filtered(history, range(1, 5)) == [
        user("go"),
        assistant(thinking("b"), "look"),
        user("and?"),
    ]


def test_a_message_never_ends_in_the_thinking_that_led_to_a_call():
    history = conversation(
        user("go"), assistant("a", thinking("b"), tool_use("t1")), user(tool_result("t1"), "hm")
    )

    assert filtered([*history, assistant("ok")], range(1, 3)) == [
        *conversation(user("go"), assistant(text("a")), user(text("hm")), assistant("ok"))
    ]


def test_thinking_that_a_merge_would_move_goes_in_a_closed_turn():
    history = conversation(
        user("go"),
        step("t1", think="a", say="one"),
        step("t2", think="b", say="two"),
        assistant("three"),
        user("next"),
    )

    assert filtered(history, range(1, 5)) == [
        user("go"),
        assistant(thinking("a"), "one", "two", "three"),
        user("next"),
    ]


@pytest.mark.parametrize(
    ("end", "parts"),
    [
        (
            5,
            [
                assistant(tool_use("t1")),
                user(tool_result("t1"), "hm"),
                step("t2", say="x"),
                assistant("a"),
            ],
        ),
        (5, [step(f"t{n}", think="a", say="one") for n in range(3)]),
        (3, [step("t1", say="one"), assistant(thinking(), "two"), user("next")]),
        (3, [step("t1", say="one"), system("be brief"), assistant("done"), user("next")]),
    ],
    ids=[
        "what the first request or the last turn would be merged with",
        "what would move the thinking of an open loop",
        "what would move thinking outside the middle",
        "what would put a system message behind the assistant's",
    ],
)
def test_a_call_is_spared_rather_than(end, parts):
    history = conversation(user("go"), *parts)

    assert filtered(history, range(1, end)) == history
