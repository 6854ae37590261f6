"""Recordings of programs that are not supported: each is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded import lines

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.readers.foreign import FOREIGN_FORMATS
from ctxpipe.lab.transcripts import parse_transcript, read_transcript

ASKED = {"role": "user", "content": "Fix it."}
SAID = {"role": "assistant", "content": "Done."}
HUMAN = {"type": "human", "content": "Fix it.", "id": "1"}
AI = {"type": "ai", "content": "Done.", "tool_calls": [], "id": "2"}
CONSTRUCTED = {
    "lc": 1,
    "type": "constructor",
    "id": ["langchain", "schema", "messages", "HumanMessage"],
    "kwargs": {"content": "Fix it."},
}

FOREIGN: dict[str, list[Any]] = {
    "SWE-agent trajectory (.traj)": [
        {
            "environment": "swe_main",
            "trajectory": [{"action": "ls", "observation": "a.py", "response": "I look."}],
            "history": [ASKED, SAID],
            "info": {"exit_status": "submitted"},
        },
        {
            "trajectory": [{"action": "ls", "observation": "", "thought": "?"}],
            "replay_config": "{}",
        },
    ],
    "trae-agent trajectory": [
        {
            "task": "Fix it.",
            "start_time": "2026-01-01T10:00:00",
            "provider": "anthropic",
            "llm_interactions": [{"input_messages": [ASKED], "response": {"content": "Done."}}],
            "agent_steps": [{"step_number": 1, "llm_messages": [ASKED]}],
        },
    ],
    "kimi-cli session": [
        [
            {"type": "metadata", "protocol_version": "1.1"},
            {"timestamp": 1.0, "message": {"type": "TurnBegin", "payload": {"user_input": "Fix"}}},
            {"timestamp": 2.0, "message": {"type": "ToolCall", "payload": {"id": "c"}}},
        ],
        [{"role": "_checkpoint", "id": 0}, ASKED, SAID, {"role": "_usage", "token_count": 7}],
    ],
    "moatless trajectory": [
        {"nodes": [{"node_id": 0, "user_message": "Fix it.", "action_steps": []}], "metadata": {}},
        {"root": {"node_id": 0, "children": [{"node_id": 1}]}},
        {"transitions": [{"id": 1, "state": {"name": "Search"}, "actions": []}]},
    ],
    "tau-bench result": [
        {"timestamp": "…", "info": {}, "tasks": [], "simulations": [{"messages": [ASKED, SAID]}]},
        [[{"task_id": 0, "reward": 1.0, "info": {}, "traj": [ASKED, SAID], "trial": 0}]][0],
    ],
    "LangChain or LangGraph state": [
        {"values": {"messages": [HUMAN, AI]}, "next": [], "config": {}},
        {"messages": [HUMAN, AI]},
        {"v": 4, "id": "1", "channel_values": {"messages": []}, "channel_versions": {}},
        [CONSTRUCTED],
        [{"event": "on_chat_model_end", "run_id": "1", "data": {"output": AI}}],
        {"messages": [{"type": "HumanMessage", "content": "Fix it."}]},
        {"messages": [CONSTRUCTED]},
        [HUMAN, AI],
        [{"type": "human", "data": {"content": "Fix it."}}, {"type": "ai", "data": {}}],
    ],
    "OpenHands trajectory": [
        [
            {"id": 0, "source": "user", "action": "message", "args": {"content": "Fix it."}},
            {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls"}},
            {"id": 2, "source": "agent", "observation": "run", "content": "a.py"},
        ],
        [{"id": "e1", "source": "agent", "kind": "ActionEvent", "tool_name": "terminal"}],
        {"instance_id": "x", "history": [{"id": 0, "source": "user", "action": "message"}]},
    ],
    "inspect_ai log": [
        {
            "version": 2,
            "status": "success",
            "eval": {"task": "t", "model": "m"},
            "plan": {},
            "samples": [{"id": 1, "messages": [ASKED, SAID]}],
        },
    ],
    "Cline display log (ui_messages.json)": [
        [
            {"ts": 1, "type": "say", "say": "text", "text": "Fix it."},
            {"ts": 2, "type": "ask", "ask": "tool", "text": "{}"},
        ],
    ],
    "Grok CLI session": [
        [
            {"type": "system", "content": "You are an agent."},
            {"type": "user", "content": [{"type": "text", "text": "Read it."}]},
            {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
            {"type": "assistant", "content": "I read.", "model_id": "grok-4.5"},
            {"type": "tool_result", "tool_call_id": "c", "content": "1"},
        ],
        [
            {"type": "user", "content": "Read it."},
            {"type": "assistant", "content": "I read.", "tool_calls": [{"id": "c"}]},
        ],
    ],
    "Qwen Code session": [
        [
            {"sessionId": "s", "type": "user", "message": {"role": "user", "parts": []}},
            {"sessionId": "s", "type": "assistant", "message": {"role": "model", "parts": []}},
        ],
    ],
    "goose session": [
        [
            {"working_dir": "/tmp", "description": "d", "message_count": 2},
            {"role": "user", "created": 1, "content": [{"type": "text", "text": "Fix it."}]},
            {
                "role": "assistant",
                "created": 2,
                "content": [{"type": "toolRequest", "id": "c", "toolCall": {"status": "success"}}],
            },
        ],
    ],
    "Factory Droid session": [
        [
            {"type": "session_start", "id": "s", "title": "t"},
            {"type": "message", "id": "m", "message": ASKED},
            {"type": "message", "id": "n", "message": SAID},
        ],
    ],
    "Cursor session": [
        [{"role": "user", "message": {"content": [{"type": "text", "text": "Fix it."}]}}],
        {"composerId": "c", "conversation": []},
    ],
    "Antigravity session": [{"cascadeId": "c", "steps": []}],
    "ChatGPT export": [[{"title": "t", "mapping": {"a": {}}, "current_node": "a"}]],
    "claude.ai export": [[{"uuid": "u", "name": "n", "chat_messages": [{"sender": "human"}]}]],
    "ShareGPT conversation": [{"conversations": [{"from": "human", "value": "Fix it."}]}],
    "LangSmith run": [{"id": "r", "run_type": "llm", "inputs": {"messages": []}, "outputs": {}}],
    "Langfuse export": [{"id": "t", "observations": [{"type": "GENERATION"}]}],
    "OpenInference trace": [
        {
            "context": {"trace_id": "t", "span_id": "s"},
            "attributes": {"llm.input_messages.0.message.role": "user"},
        },
    ],
    "ATIF trajectory": [{"schema_version": "ATIF-v1.6", "steps": [{"source": "user"}]}],
    "HAR file": [{"log": {"version": "1.2", "entries": []}}],
    "VS Code chat export": [{"responderUsername": "GitHub Copilot", "requests": []}],
    "AutoGen log": [
        [{"source": "user", "models_usage": None, "content": "Fix it.", "type": "TextMessage"}]
    ],
    "Continue session": [{"sessionId": "s", "history": [{"message": ASKED, "contextItems": []}]}],
    "batch file": [
        [{"custom_id": "1", "method": "POST", "body": {"messages": [ASKED]}}],
        [{"custom_id": "1", "params": {"messages": [ASKED, SAID]}}],
    ],
}
CASES = [(name, value) for name, values in FOREIGN.items() for value in values]


def test_each_foreign_format_has_a_case():
    assert set(FOREIGN) == {foreign.name for foreign in FOREIGN_FORMATS}


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_foreign_recording_is_refused_by_its_name(name: str, value: Any):
    texts = [json.dumps(value), json.dumps(value, indent=1)]
    if isinstance(value, list):
        texts.append(lines(*value))
    for text in texts:
        with pytest.raises(TranscriptError) as caught:
            parse_transcript(text, "session.jsonl")

        assert str(caught.value).startswith(f"session.jsonl: a file of the kind {name!r} is not")
        assert "'The laboratory' in the docs lists" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "# aider chat started at 2026-01-01 10:00:00\n\n#### Fix it.\n\nDone.\n",
        "TO LLM 2026-01-01T10:00:00\n-------\nUSER Fix it.\n",
    ],
)
def test_the_history_of_aider_is_refused_by_its_name(text: str):
    with pytest.raises(TranscriptError, match="of the kind 'aider chat history' is not"):
        parse_transcript(text, ".aider.chat.history.md")


def test_the_archive_of_inspect_ai_is_refused_by_its_name():
    with pytest.raises(TranscriptError, match="of the kind 'inspect_ai log' is not supported"):
        read_transcript("2026-01-01_task.eval", b"PK\x03\x04\x14")


def test_a_file_of_cline_is_refused_with_the_one_beside_it():
    with pytest.raises(TranscriptError, match=r"give the file api_conversation_history\.json"):
        parse_transcript(json.dumps([{"ts": 1, "type": "say", "say": "text"}]))


def test_the_api_conversation_history_of_cline_is_read():
    history = [{**ASKED, "ts": 1}, {**SAID, "ts": 2}]

    assert parse_transcript(json.dumps(history)).calls == 1


def test_a_file_of_which_few_records_are_known_is_refused_with_their_share():
    unknown = [{"type": f"thing_{number}", "text": "x"} for number in range(9)]
    known = {"type": "reasoning", "summary": []}

    with pytest.raises(TranscriptError, match=r"only 10\.0% of the records are known"):
        parse_transcript(lines(known, *unknown))


def test_text_of_a_tool_result_that_looks_like_another_format_does_no_harm():
    inner = json.dumps(FOREIGN["OpenHands trajectory"][0])
    call = {"type": "tool_use", "id": "t1", "name": "cat", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": inner}
    said = {"role": "assistant", "content": [call]}

    found = parse_transcript(lines(ASKED, said, {"role": "user", "content": [result]}, SAID))

    assert found.calls == 2
