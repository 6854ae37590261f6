"""Sessions that the agents themselves have written: tests/clients/record_sessions.py runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT
from recorded import lines

from ctxpipe.diagnostics.misses import cache_usage
from ctxpipe.errors import TranscriptError
from ctxpipe.lab.json_files import read_json
from ctxpipe.lab.readers.table import READERS
from ctxpipe.lab.transcripts import (
    Transcript,
    parse_transcript,
    read_transcript,
    read_transcripts,
)
from ctxpipe.messages import check, texts, tool_calls, tool_results

FOLDER = Path(__file__).parent / "recordings"
FORMATS = {
    "claude.jsonl": "Claude Code session",
    "claude-main.jsonl": "Claude Code session",
    "claude-subagent.jsonl": "Claude Code session",
    "claude-rewound.jsonl": "Claude Code session",
    "codex.jsonl": "codex rollout",
    "opencode.json": "opencode export",
    "gemini.jsonl": "gemini-cli session",
    "copilot.jsonl": "Copilot CLI session",
    "copilot-chat.jsonl": "Copilot CLI session",
    "copilot-subagent.jsonl": "Copilot CLI session",
    "pi.jsonl": "pi session",
    "mini-swe-agent.json": "mini-swe-agent trajectory",
    "mini-swe-agent-tools.json": "mini-swe-agent trajectory",
    "spans-otlp.jsonl": "OpenTelemetry spans",
    "spans-console.json": "OpenTelemetry spans",
}
TWO_ROUNDS = ("claude", "codex", "opencode", "gemini", "copilot", "copilot-chat", "pi")
"""Agents that have two commands run at a time, twice, and then say that they are done."""


def recorded(name: str) -> Transcript:
    [file] = FOLDER.glob(f"{name}.json*")
    return read_transcript(file)


def records_of(file: str) -> list[Any]:
    """The JSON values in a recording."""
    return [record.value for record in read_json((FOLDER / file).read_text(), file).records]


def results_of(transcript: Transcript) -> list[str]:
    """The text of each tool result, in order."""
    return [json.dumps(result.content) for result in tool_results(transcript.messages)]


def prompt_sizes(transcript: Transcript) -> list[int]:
    """The tokens of each prompt, as they were reported."""
    sizes = [cache_usage(usage) for usage in transcript.usages.values()]
    return [size.total for size in sizes if size is not None]


def test_each_recording_is_one_that_a_program_is_run_for():
    assert {file.name for file in FOLDER.iterdir()} == set(FORMATS)
    recorder = (ROOT / "tests/clients/record_sessions.py").read_text()
    assert all(f'"{name}"' in recorder for name in FORMATS)


@pytest.mark.parametrize("file", FORMATS)
def test_a_recording_of_a_program_is_read_whole(file: str):
    transcript = read_transcript(FOLDER / file)

    assert transcript.format == FORMATS[file]
    assert (transcript.coverage.recognized, transcript.coverage.warning) == (1.0, "")
    assert transcript.repaired == ()
    assert not check(transcript.messages)
    assert transcript.model
    assert list(transcript.usages) == transcript.replies
    totals = prompt_sizes(transcript)
    assert totals == sorted(totals), "each prompt is longer than the one before"
    assert set(transcript.replies) <= set(transcript.seconds)


@pytest.mark.parametrize("name", TWO_ROUNDS)
def test_calls_and_results_of_a_recording_are_those_of_its_script(name: str):
    transcript = recorded(name)

    assert transcript.calls == 3
    first_words = json.dumps(transcript.messages[: transcript.replies[0]])
    assert "say done" in first_words
    sides = [re.findall(r"line 3 of (\w+ \d)", text) for text in results_of(transcript)]
    assert sorted(sides) == [["left 0"], ["left 1"], ["right 0"], ["right 1"]]
    answered = {result.tool_use_id for result in tool_results(transcript.messages)}
    assert [call.id for call in tool_calls(transcript.messages) if call.id not in answered] == []
    assert list(texts(transcript.messages[-1])) == ["Done."]


@pytest.mark.parametrize("name", ["claude", "copilot", "codex", "mini-swe-agent", "spans-otlp"])
def test_a_recording_with_a_system_prompt_has_it(name: str):
    assert recorded(name).system


@pytest.mark.parametrize("name", ["claude", "claude-subagent", "spans-otlp"])
def test_a_recording_with_definitions_of_tools_has_them(name: str):
    tools = recorded(name).tools
    assert tools
    assert all("name" in tool for tool in tools)  # type: ignore[operator]


def test_the_conversation_of_a_subagent_in_the_same_file_is_beside_that_of_the_main_agent():
    main, subagent = read_transcripts(FOLDER / "copilot-subagent.jsonl")

    assert (main.agent, subagent.agent) == ("", "general-purpose")
    assert subagent.name == f"{main.name}#1"
    assert [call.name for call in tool_calls(main.messages)] == ["task"]
    assert [call.name for call in tool_calls(subagent.messages)] == ["bash"]
    assert not check(subagent.messages)
    assert list(subagent.usages) == subagent.replies
    assert subagent.system
    assert subagent.system != main.system


def test_the_file_of_a_subagent_is_its_conversation_with_the_name_of_the_agent():
    main = recorded("claude-main")
    subagent = recorded("claude-subagent")

    assert (main.agent, subagent.agent) == ("", "general-purpose")
    assert [call.name for call in tool_calls(main.messages)] == ["Agent"]
    assert list(texts(subagent.messages[0])) == ["COUNT THE FILES"]
    assert list(texts(subagent.messages[-1])) == ["There are three files."]
    assert prompt_sizes(subagent)[0] < prompt_sizes(main)[0]


def test_a_subagent_in_the_file_of_its_session_is_left_out_and_counted():
    transcript = recorded("copilot-subagent")

    assert [call.name for call in tool_calls(transcript.messages)] == ["task"]
    assert transcript.dropped["of a subagent"] == 16
    assert "COUNT THE FILES" not in json.dumps(transcript.messages[0])


def test_what_a_user_took_back_is_not_in_the_conversation():
    transcript = recorded("claude-rewound")

    assert "TAKEN BACK" in (FOLDER / "claude-rewound.jsonl").read_text()
    assert "TAKEN BACK" not in json.dumps(transcript.messages)
    assert transcript.dropped["taken back by the user"] == 2
    said = [" ".join(texts(message)) for message in transcript.messages]
    assert said[1:] == ["Which folder?", "The one of the shop.", "Done."]


@pytest.mark.parametrize("name", ["mini-swe-agent", "mini-swe-agent-tools"])
def test_the_output_of_a_command_of_mini_swe_agent_is_a_tool_result(name: str):
    transcript = recorded(name)

    assert {call.name for call in tool_calls(transcript.messages)} == {"bash"}
    assert "line 3 of" in results_of(transcript)[0]
    assert len(results_of(transcript)) >= transcript.calls - 1


def test_both_forms_of_spans_are_the_same_conversation():
    otlp = recorded("spans-otlp")
    console = recorded("spans-console")

    assert otlp.messages == console.messages
    assert otlp.usages == console.usages
    assert otlp.dropped == console.dropped == {"not a model call": 4}
    assert [call.name for call in tool_calls(otlp.messages)] == ["bash"] * 3
    assert list(texts(otlp.messages[-1])) == ["Done."]


@pytest.mark.parametrize("file", FORMATS)
def test_no_other_reader_recognizes_a_recording_first(file: str):
    transcript = read_transcript(FOLDER / file)
    recognizers = [
        reader.format
        for reader in READERS
        if any(reader.recognizes(record) for record in records_of(file))
    ]
    assert recognizers[0] == transcript.format


@pytest.mark.parametrize("file", FORMATS)
def test_a_recording_has_no_path_or_name_of_the_machine_that_it_was_made_on(file: str):
    text = (FOLDER / file).read_text()
    paths = set(re.findall(r"/(?:root|home|Users|tmp|work|opt)/[\w.-]+", text))
    assert paths <= {"/home/user", "/tmp/project"}
    assert len(text) < 60_000


# Files that are changed ---------------------------------------------------------------------------

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, 7, -1.5, 10**400, float("nan"), "", "x", "9" * 5_000),
        *([], [7], ["x"], [[]], {}, {"type": []}),
    ]
)
SHARE = st.floats(0, 1, exclude_max=True)
RECORDS = {file: records_of(file) for file in FORMATS}


def places(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place in *value*: its path without indices, what holds it, and its key there."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            inner_path = f"{path}.{key}" if isinstance(value, dict) else f"{path}[]"
            yield inner_path, value, key
            yield from places(value[key], inner_path)


@settings(max_examples=settings().max_examples // 2)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.tuples(SHARE, SHARE, ODD), min_size=1, max_size=3),
)
def test_a_recording_with_any_values_is_read_or_refused_by_name(
    file: str, changes: list[tuple[float, float, Any]]
):
    broken = deepcopy(RECORDS[file])
    for path_share, share, value in changes:
        # A path first: a field that only one record has is changed as often as one of all records.
        paths: dict[str, list[tuple[Any, Any]]] = {}
        for path, holder, key in places(broken):
            paths.setdefault(path, []).append((holder, key))
        same_path = list(paths.values())[int(path_share * len(paths))]
        holder, key = same_path[int(share * len(same_path))]
        holder[key] = deepcopy(value)
    try:
        found = parse_transcript(lines(*broken), "odd.jsonl")
    except TranscriptError as error:
        assert str(error).startswith("odd.jsonl")  # noqa: PT017
    else:
        assert not check(found.messages)


@pytest.mark.parametrize("file", [file for file in FORMATS if file.endswith(".jsonl")])
def test_records_of_unknown_kinds_are_counted_and_warned_of(file: str, caplog):
    known = RECORDS[file]
    unknown = [{"type": "never_seen", "payload": number} for number in range(len(known) // 5 + 1)]

    found = parse_transcript(lines(*known, *unknown), "session.jsonl")

    assert found.messages == read_transcript(FOLDER / file).messages
    assert 0.5 < found.coverage.recognized < 0.9
    assert found.coverage.warning.startswith("session.jsonl: only ")
    assert f"% of the records are known in the format {found.format!r}" in found.coverage.warning
    assert [record.getMessage() for record in caplog.records] == [found.coverage.warning]


def test_a_few_unknown_records_are_no_reason_to_warn():
    known = RECORDS["claude.jsonl"]

    found = parse_transcript(lines(*known, {"type": "never_seen"}), "session.jsonl")

    assert 0.9 < found.coverage.recognized < 1
    assert found.coverage.warning == ""


@pytest.mark.parametrize("file", [file for file in FORMATS if file.endswith(".jsonl")])
def test_a_line_that_two_processes_wrote_at_once_is_read(file: str):
    first, *rest = (FOLDER / file).read_text().splitlines()
    whole = read_transcript(FOLDER / file)
    both = "\n".join(["".join([first, *rest[:1]]), *rest[1:]])
    cut = "\n".join([first, first[:25] + (rest or [first])[0], *rest[1:]]) if rest else ""

    assert parse_transcript(both).messages == whole.messages
    if cut:
        found = parse_transcript(cut, "session.jsonl")
        assert found.messages == whole.messages
        assert found.dropped["part of a damaged line"] == 1
        assert "parts of 1 damaged line" in found.coverage.warning
