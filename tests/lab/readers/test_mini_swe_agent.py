"""Trajectories of mini-swe-agent: commands in texts, and the messages beside them."""

from __future__ import annotations

import json
from typing import Any

from ctxpipe.lab.transcripts import Transcript, parse_transcript
from ctxpipe.messages import texts, tool_calls, tool_results

ASKED = {"role": "user", "content": "Fix it."}
COMMAND = {"role": "assistant", "content": "```bash\nls\n```"}
OUTPUT = {"role": "user", "content": "<returncode>0</returncode>\n<output>\na.py\n</output>"}
ENDED = {"role": "exit", "content": "Done."}


def trajectory(*messages: Any) -> Transcript:
    info = {"mini_version": "1.17.0", "config": {"model": {"model_name": "m-1"}}}
    whole = {"info": info, "messages": messages, "trajectory_format": "mini-swe-agent-1"}
    return parse_transcript(json.dumps(whole))


def test_a_command_in_a_text_is_a_call_and_its_output_the_result():
    found = trajectory(ASKED, COMMAND, OUTPUT, ENDED)

    [call] = tool_calls(found.messages)
    [result] = tool_results(found.messages)
    assert (call.name, call.input) == ("bash", {"input": COMMAND["content"]})
    assert (result.tool_use_id, result.content) == (call.id, OUTPUT["content"])
    assert (found.model, found.dropped) == ("m-1", {"not a message": 1})


def test_a_reply_without_a_command_stays_a_text():
    complaint = {"role": "user", "content": "Give exactly one command."}

    found = trajectory(ASKED, {"role": "assistant", "content": "Hm."}, complaint, COMMAND, OUTPUT)

    assert list(texts(found.messages[1])) == ["Hm."]
    assert [call.name for call in tool_calls(found.messages)] == ["bash"]


def test_an_output_is_recognized_by_its_details_too():
    output = {"role": "user", "content": "a.py", "extra": {"raw_output": "a.py", "returncode": 0}}

    found = trajectory(ASKED, COMMAND, output)

    assert [result.content for result in tool_results(found.messages)] == ["a.py"]


def test_messages_of_another_api_are_unknown():
    found = trajectory(ASKED, COMMAND, OUTPUT, {"type": "function_call_output", "output": "x"})

    assert found.coverage.recognized == 0.75
    assert "function_call_output (1)" in found.coverage.warning
