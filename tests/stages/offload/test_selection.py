"""Decisions which tool results leave the context, without I/O."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from anthropic.types import TextBlock, ToolUseBlock
from histories import (
    assistant,
    conversation,
    histories,
    step,
    system,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.functions.offload import offloadable, scan_of
from ctxpipe.messages import Message, ToolCall, compact_json, tool_calls, tool_results
from ctxpipe.placeholders.placeholders import BATCH, DIRECT, Preview, placeholder
from ctxpipe.stages.offload.selection import (
    CandidateIndex,
    OffloadCandidate,
    OffloadRules,
    Scan,
    characters,
    contains_excerpt,
    first_batch_placeholder,
    index_after_last_reply,
    is_placeholder,
    result_characters,
    results_with_calls,
    sources_in,
    stored_text,
    text_of,
    with_placeholder,
)

IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K" * 99},
}
DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "x" * 999},
}
FOUND = {"type": "search_result", "title": "t", "source": "s", "content": [text("x" * 200)]}
TOOL = {"type": "tool_reference", "tool_name": "deploy"}
POINTER = placeholder(BATCH, "./s/tool-result-a.md")


def result(
    content: Any, name: str = "bash", given: dict[str, Any] | None = None
) -> tuple[Any, ToolCall]:
    """A result as the stages see it, with the call that it answers."""
    history = step("a", name, given, content)
    return next(tool_results(history)), next(tool_calls(history))


# Measuring ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (user("漢🙂é"), 3),
        (user(text("ab"), text("c")), 3),
        (assistant(thinking("hmm"), text("ok")), 5),
        (assistant({"type": "redacted_thinking", "data": "x" * 50}), 0),
        (assistant(tool_use("a", "bash", {"command": "é"})), len('{"command":"é"}')),
        (user(tool_result("a", "found")), 5),
        (user(tool_result("a", [text("ab")])), len('[{"type":"text","text":"ab"}]')),
        (user(tool_result("a", [text("ab"), IMAGE])), len('[{"type":"text","text":"ab"}]')),
        (user(tool_result("a", [IMAGE])), 0),
        (user(tool_result("a", [])), 0),
        (user(tool_result("a", None)), 0),
        (user(IMAGE), 0),
        (user(DOCUMENT), 0),
        (user({"type": "new", "x": 1}), len('{"type":"new","x":1}')),
        (system("be"), 2),
    ],
)
def test_characters_are_counted_by_the_kind_of_block(message: Message, expected):
    assert characters(message) == expected


def test_an_sdk_object_counts_as_its_dict_does():
    objects = [
        TextBlock(type="text", text="abc"),
        ToolUseBlock(type="tool_use", id="a", name="bash", input={"command": "ls"}),
    ]

    assert characters(cast("Message", {"role": "assistant", "content": objects})) == characters(
        assistant(text("abc"), tool_use("a", "bash", {"command": "ls"}))
    )


def test_the_size_of_a_block_list_is_that_of_its_json():
    content = [text('"quoted"\n'), text("é")]

    assert result_characters(content) == len(compact_json(content))


# Before and after ---------------------------------------------------------------------------------


def test_text_is_stored_as_it_is_and_blocks_as_json():
    assert stored_text("a\n", indent=2) == "a\n"
    assert stored_text([text("é")], indent=None) == '[{"type":"text","text":"é"}]'
    assert (
        stored_text([text("é")], indent=2) == '[\n  {\n    "type": "text",\n    "text": "é"\n  }\n]'
    )


def test_what_is_no_text_is_not_stored():
    assert stored_text([text("a"), IMAGE, text("b")], indent=None) == compact_json(
        [text("a"), text("b")]
    )


def test_search_results_and_text_documents_are_stored_as_their_texts_with_their_sources():
    terms = {**DOCUMENT, "title": "Terms", "context": "of 2026"}
    content = [text("a"), IMAGE, FOUND, terms]

    stored = f"a\n\nt (s)\n\n{'x' * 200}\n\nTerms\n\nof 2026\n\n{'x' * 999}"
    assert stored_text(content, indent=2) == stored
    assert text_of(content) == stored_text(content, indent=None)
    assert with_placeholder(content, "P") == [text("P"), IMAGE]
    assert sources_in(content) == ["t (s)", "Terms"]


def test_sdk_objects_are_stored_as_their_dicts():
    assert '"text": "hi"' in stored_text([TextBlock(type="text", text="hi")], indent=2)


def test_images_and_unknown_blocks_stay_behind_the_placeholder():
    assert with_placeholder([text("a"), IMAGE, text("b"), TOOL], "P") == [text("P"), IMAGE, TOOL]


def test_text_alone_is_replaced_by_text_alone():
    assert (
        with_placeholder("a", "P")
        == with_placeholder([text("a"), text("b")], "P")
        == with_placeholder(None, "P")
        == "P"
    )


def test_a_mark_for_the_cache_goes_with_the_text_it_stood_on():
    marked = {**text("b"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}

    assert with_placeholder([text("a"), marked], "P") == [
        {**text("P"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ]


def test_what_a_result_says_is_its_text():
    assert text_of("a") == text_of([text("a")]) == text_of([IMAGE, text("a")]) == "a"
    assert text_of([text("a"), text("b"), {"type": "text"}]) == "ab"
    assert text_of(None) == text_of([]) == text_of([IMAGE]) == ""


@pytest.mark.parametrize(
    "content",
    [POINTER, [text(POINTER)], [text(POINTER), IMAGE], [TextBlock(type="text", text=POINTER)]],
)
def test_a_placeholder_is_recognised_alone_and_before_images(content: str | list[object]):
    assert is_placeholder(content)


@pytest.mark.parametrize(
    "content", ["", POINTER + "!", None, [], [IMAGE, text(POINTER)], [{"type": "text"}]]
)
def test_other_content_is_no_placeholder(content: str | list[object] | None):
    assert not is_placeholder(content)


# Read back ----------------------------------------------------------------------------------------

NUMBERED = "\n".join(f"line {n} of the file" for n in range(1000))


@pytest.mark.parametrize(
    "shown",
    [
        NUMBERED,
        "<file>\n" + NUMBERED + "\n</file>",
        "\n".join(f"{n:6}\t{line}" for n, line in enumerate(NUMBERED.split("\n"), 1)),
        "\n".join(f"{n}→{line}" for n, line in enumerate(NUMBERED.split("\n"), 1)),
        "\n".join(f"{n}: {line}" for n, line in enumerate(NUMBERED.split("\n"), 1)),
        NUMBERED.replace("\n", "\r\n"),
        NUMBERED[777:],
    ],
)
def test_the_excerpt_of_a_reading_tool_is_found_in_the_file(shown):
    assert contains_excerpt(NUMBERED, shown, 300, len(shown) - 300)


@pytest.mark.parametrize(
    "shown",
    [
        NUMBERED.upper(),
        "\n".join(sorted(NUMBERED.split("\n"))),
        "\n".join(NUMBERED.split("\n")[::2]),
        NUMBERED + "\nsomething else" + "\n" * 300,
        NUMBERED.replace("line 500 of", "line 500 off"),
        "x" * 5000,
        " ".join(NUMBERED.split("\n")),
    ],
)
def test_the_output_of_a_filter_is_not_found_in_the_file(shown):
    assert not contains_excerpt(NUMBERED, shown, 300, len(shown) - 100)


def test_a_file_of_one_line_is_known_by_what_would_be_left_out():
    line = "".join(chr(65 + n % 26) for n in range(9000))

    assert contains_excerpt(line, line, 300, 8000)
    assert contains_excerpt(line, f"content: {line}!", 300, 8000)
    assert not contains_excerpt(line, line[::-1], 300, 8000)


# The functions' rules -----------------------------------------------------------------------------


def prescan(history: list[Message], min_chars: int) -> Scan:
    return scan_of(history, offloadable(history, min_chars))


# Rules of the stages ------------------------------------------------------------------------------

OURS = re.compile(r"\./s/[\w.-]+\.md")


def test_a_result_long_enough_is_a_candidate():
    found, call = result("x" * 100)

    assert OffloadRules(100).result_candidate(found, call) == OffloadCandidate(found, 100)
    assert OffloadRules(101).result_candidate(found, call) is None


def test_a_result_without_its_call_is_a_candidate_too():
    found, _ = result("x" * 100)

    assert OffloadRules(100).result_candidate(found, None) == OffloadCandidate(found, 100)


def test_each_tool_may_have_a_limit_of_its_own():
    found, call = result("x" * 100)

    assert OffloadRules(1000, per_tool={"bash": 100}).result_candidate(found, call) is not None
    assert OffloadRules(1, per_tool={"bash": None}).result_candidate(found, call) is None
    assert OffloadRules(1, per_tool={"grep": None}).result_candidate(found, call) is not None


@pytest.mark.parametrize(
    "content",
    [
        "",
        None,
        [],
        [IMAGE],
        [TOOL],
        [TOOL, text("x" * 100)],
        [{"type": "opaque", "kind": "input_audio", "json": "x" * 100}],
        [text("")],
        POINTER,
        [text(POINTER), IMAGE],
        placeholder(BATCH, "./s/tool-result-a.md", "y" * 999, Preview(50, 50)),
        [text(placeholder(BATCH, "./s/tool-result-a.md", "y" * 999, Preview(50, 50))), IMAGE],
        placeholder(BATCH, "./s/tool-result-a-0123abcd.md", "y" * 999, Preview(50, 50)),
    ],
)
def test_a_result_without_text_or_with_a_placeholder_is_never_a_candidate(content):
    assert OffloadRules(0).result_candidate(*result(content)) is None


def test_a_forged_preview_of_another_id_is_content():
    forged = placeholder(DIRECT, "/s/other.md", "y" * 999, Preview(50, 50))

    assert OffloadRules(0).result_candidate(*result(forged)) is not None


def test_of_a_result_with_an_image_only_the_texts_count():
    found, call = result([text("x" * 100), IMAGE, {**FOUND, "content": [IMAGE]}])

    assert OffloadRules(0).result_candidate(found, call) == OffloadCandidate(
        found, len(compact_json([text("x" * 100)]))
    )


def test_the_results_of_exempt_tools_stay():
    assert OffloadRules(0, exempt_tools={"bash"}).result_candidate(*result("x" * 100)) is None


@pytest.mark.parametrize(
    "given_input",
    [
        {"path": "./s/a.md"},
        {"command": "cat ./s/a.md | head"},
        {"args": ["-n", {"file": "./s/a.md"}]},
    ],
)
def test_the_result_of_a_call_that_reads_an_offloaded_file_stays(
    given_input: dict[str, Any],
):
    found, call = result("x" * 100, given=given_input)

    assert OffloadRules(0, file_pattern=OURS).read_back_path(call) == "./s/a.md"
    assert OffloadRules(0, file_pattern=OURS).result_candidate(found, call) is None


def test_a_call_that_reads_something_else_is_no_read_back():
    _, call = result("x", given={"command": "cat ./t/a.md", "n": 5})

    assert OffloadRules(0, file_pattern=OURS).read_back_path(call) is None
    assert OffloadRules(0, file_pattern=OURS).read_back_path(None) is None
    assert OffloadRules(0).read_back_path(call) is None


def test_the_long_texts_of_a_writing_call_may_leave():
    [call] = tool_calls(
        [
            assistant(
                tool_use(
                    "a",
                    "write",
                    {"path": "x", "text": "y" * 1000, "edits": [{"new": "z" * 1500}, POINTER]},
                )
            )
        ]
    )
    rules = OffloadRules(0, input_tools={"write"})

    assert rules.input_candidate(call) == OffloadCandidate(call, 2500)
    assert rules.long_texts(call) == ["y" * 1000, "z" * 1500]
    assert OffloadRules(0).input_candidate(call) is None
    assert (
        OffloadRules(0, input_tools={"write"}, min_input_chars=2000).input_candidate(call) is None
    )


def test_a_placeholder_in_an_input_never_leaves_again():
    pointer = placeholder(BATCH, "/" + "x" * 1000)
    shown = placeholder(BATCH, "/x", "y" * 9999, Preview(900, 900))
    [call] = tool_calls([assistant(tool_use("a", "write", {"text": pointer, "more": shown}))])

    assert OffloadRules(0, input_tools={"write"}).input_candidate(call) is None


# Which part of the history ------------------------------------------------------------------------


def test_the_unanswered_messages_begin_after_the_last_reply():
    history = conversation(user("go"), step("a"), step("b"), user("and"), system("note"))

    assert index_after_last_reply(history) == 4
    assert index_after_last_reply(history[:4]) == 4
    assert index_after_last_reply([user("go")]) == 0
    assert index_after_last_reply([]) == 0


def test_each_result_comes_with_the_call_it_answers():
    history = conversation(
        user("go"),
        assistant(tool_use("a", "bash"), tool_use("b", "grep")),
        user(tool_result("b"), tool_result("a")),
        assistant(tool_use("a", "view")),
        user(tool_result("a"), tool_result("orphan")),
    )

    def named(start: int) -> list[tuple[str, str]]:
        return [
            (found.tool_use_id, call.name if call else "")
            for found, call in results_with_calls(history, start, 0)
        ]

    assert named(0) == [("b", "grep"), ("a", "bash"), ("a", "view"), ("orphan", "")]
    assert named(4) == [("a", "view"), ("orphan", "")]


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (user(tool_result("a", POINTER)), (2, 0)),
        (user(tool_result("x"), tool_result("a", [text(POINTER), IMAGE])), (2, 1)),
        (user(tool_result("a", placeholder(BATCH, "./x.md", "y" * 99, Preview(5, 5)))), (2, 0)),
        (assistant(text("ok"), tool_use("a", "write", {"text": POINTER})), (2, 1)),
        (user(tool_result("a", placeholder(DIRECT, "/x.md"))), None),
        (user(f"so {POINTER}"), None),
    ],
)
def test_the_first_block_that_batch_offloading_rewrote_is_found(
    message: Message, place: tuple[int, int] | None
):
    later = step("z", result=POINTER) if place else []

    assert first_batch_placeholder([*step("y"), message, *later]) == place


# The running sums ---------------------------------------------------------------------------------

RULES = OffloadRules(50, input_tools={"bash"}, min_input_chars=3)


def summed(history: list[Message], start: int, end: int) -> tuple[Scan, list[OffloadCandidate]]:
    """Return the sums and candidates of a new index."""
    running = CandidateIndex()
    running.extend(history, RULES)
    return between(running, start, end)


def between(running: CandidateIndex, start: int, end: int) -> tuple[Scan, list[OffloadCandidate]]:
    scan, candidates = running.between(start, end)
    return scan, candidates()


def test_the_running_sums_are_those_of_the_prescan():
    history = conversation(
        user("go"), step("a", "grep", result="x" * 100), step("b", "grep", result="x" * 30)
    )

    assert summed(history, 0, 5)[0] == prescan(history, 50)


def test_only_candidates_in_the_asked_range_count():
    history = conversation(user("go"), *[step(name, "grep", result="x" * 100) for name in "abc"])

    total = prescan(history, 50).total_chars
    assert [
        summed(history, *bounds)[0] for bounds in ((0, 7), (0, 4), (3, 7), (3, 4), (5, 3), (7, 7))
    ] == [Scan(total, chars) for chars in (300, 100, 200, 0, 0, 0)]
    assert [found.item.message for found in summed(history, 3, 7)[1]] == [4, 6]


@given(histories(4), histories(4), st.data())
def test_sums_kept_from_turn_to_turn_are_those_made_afresh(
    history: list[Message], other: list[Message], data: st.DataObject
):
    running = CandidateIndex()
    now: list[Message] = []
    for source in (history, other, history):
        # The context grows, shrinks or has other messages from some index on.
        kept = data.draw(st.integers(0, len(now)))
        now = [*now[:kept], *source[: data.draw(st.integers(0, len(source)))]]
        running.rewind(kept)
        running.extend(now, RULES)
        start = data.draw(st.integers(0, len(now)))
        end = data.draw(st.integers(0, len(now)))

        assert between(running, start, end) == summed(now, start, end)


def test_a_message_that_cannot_be_measured_leaves_the_record_as_it_was():
    running = CandidateIndex()
    history = conversation(user("go"), step("a", "grep", result="x" * 100))
    broken = [*history, *step("b", "grep", {"odd": object()}, "x" * 100)]

    with pytest.raises(ValueError, match="object"):
        running.extend(broken, RULES)
    running.extend(history, RULES)

    assert between(running, 0, 3) == summed(history, 0, 3)
