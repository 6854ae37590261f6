"""Conversations in the forms of OpenAI's APIs and of Gemini, which these accept, for hypothesis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from histories import MARK, Picked, pick, shuffle
from hypothesis import strategies as st

from ctxpipe.testing.gemini_rules import signature_of

SHORT = ["ok", "", " ", "é😀", "continue", "thinking aloud", '{"a": 1}', "\ud800"]
WORDS = st.sampled_from(SHORT)
LONG = st.integers(1, 200).map(lambda number: f"line {number} of output\n" * number)
TEXT = st.one_of(WORDS, LONG)
TEXT_OR_NONE = st.one_of(st.none(), TEXT)
SAID = TEXT.filter(bool)
IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="
ARGUMENTS = st.one_of(
    st.sampled_from(["{}", "", "{not json", "[1, 2]", '{"n":  NaN}', '{"a":  "é"}', "null"]),
    st.integers(1, 2000).map(lambda number: json.dumps({"path": "a.py", "text": "z " * number})),
)
NAMES = st.sampled_from(["bash", "read_file", "write-file"])


def some(draw: st.DrawFn, options: Sequence[Picked]) -> list[Picked]:
    """None, one, or two of *options*."""
    return [pick(draw, options) for _ in range(draw(st.integers(0, 2)))]


def call_ids(number: int, at: int) -> list[str]:
    """Ids of calls; some providers repeat theirs, or use characters that others do not take."""
    forms = (f"call_{at}_", "functions.bash:", f"c|{at}|")
    return [f"{forms[at % 3]}{place}" for place in range(number)]


# Chat ---------------------------------------------------------------------------------------------


@st.composite
def chats(draw: Any, most: int = 8) -> list[dict[str, Any]]:
    """Messages of chat completions, which end with the user or with results."""
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 2))):
        role = pick(draw, ["system", "developer"])
        messages.append({"role": role, "content": draw(SAID)})
    if draw(st.booleans()):
        messages.append({"role": "user", "content": draw(SAID)})
    for at in range(draw(st.integers(1, most))):
        messages += pick(draw, [chat_call, chat_words])(draw, at)
    if messages[-1]["role"] in ("assistant", "system", "developer"):
        messages.append({"role": "user", "content": chat_content(draw)})
    return messages


def chat_content(draw: st.DrawFn) -> Any:
    if draw(st.booleans()):
        return draw(SAID)
    part = {"type": "text", "text": draw(SAID)}
    if draw(st.booleans()):
        part |= MARK
    picture = {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}}
    sound = {"type": "input_audio", "input_audio": {"data": "QUJD" * 900, "format": "wav"}}
    return [part, *some(draw, [picture, sound])]


def chat_words(draw: st.DrawFn, _: int) -> list[dict[str, Any]]:
    said: dict[str, Any] = {"role": "assistant", "content": draw(SAID), "refusal": None}
    if draw(st.booleans()):
        said["reasoning_content"] = draw(SAID)
    asked = {"role": "user", "content": chat_content(draw)}
    noted = {"role": "developer", "content": draw(SAID)}
    return pick(draw, [[said], [said, asked], [said, asked, noted], [said, noted, asked], [asked]])


def chat_call(draw: st.DrawFn, at: int) -> list[dict[str, Any]]:
    names = call_ids(draw(st.integers(1, 3)), at)
    calls: list[dict[str, Any]] = []
    for name in names:
        if draw(st.integers(0, 4)):
            function = {"name": draw(NAMES), "arguments": draw(ARGUMENTS)}
            calls.append({"id": name, "type": "function", "function": function})
        else:
            custom = {"name": "patch", "input": draw(TEXT)}
            calls.append({"id": name, "type": "custom", "custom": custom})
    said: dict[str, Any] = {"role": "assistant", "content": draw(TEXT_OR_NONE)}
    if draw(st.booleans()):
        said["reasoning_content"] = draw(SAID)
    said["tool_calls"] = calls
    results = [chat_result(draw, name) for name in shuffle(draw, names)]
    return [said, *results]


def chat_result(draw: st.DrawFn, name: str) -> dict[str, Any]:
    text = draw(TEXT)
    content = pick(draw, [text, [{"type": "text", "text": text, **MARK}]])
    return {"role": "tool", "tool_call_id": name, "content": content}


# Responses ----------------------------------------------------------------------------------------


@st.composite
def responses(draw: Any, most: int = 8) -> list[dict[str, Any]]:
    """Items of the responses API, which end with the user or with results."""
    items: list[dict[str, Any]] = []
    if draw(st.booleans()):
        items.append({"role": "developer", "content": draw(SAID)})
    if draw(st.booleans()):
        items.append({"role": "user", "content": draw(SAID)})
    for at in range(draw(st.integers(1, most))):
        items += pick(draw, [response_calls, response_words, response_tools])(draw, at)
    items.append({"role": "user", "content": response_content(draw)})
    return items


def response_content(draw: st.DrawFn) -> Any:
    if draw(st.booleans()):
        return draw(SAID)
    text = {"type": "input_text", "text": draw(SAID)}
    picture = {"type": "input_image", "detail": "auto", "image_url": IMAGE}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "QUJD" * 900}
    return [text, *some(draw, [picture, file])]


def reasoning(name: str, words: Sequence[str]) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text} for text in words]
    return {"type": "reasoning", "id": f"rs_{name}", "summary": summary, "encrypted_content": name}


def response_calls(draw: st.DrawFn, at: int) -> list[dict[str, Any]]:
    names = call_ids(draw(st.integers(1, 3)), at)
    items: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        if draw(st.booleans()):
            words = some(draw, list(filter(None, SHORT)))
            items.append(reasoning(f"{at}_{place}", words))
        items.append(response_call(draw, name, f"{at}_{place}"))
        output = response_output(draw)
        kind = f"{items[-1]['type']}_output"
        results.append({"type": kind, "call_id": name, "output": output})
        if draw(st.integers(0, 3)) == 0:  # some models answer calls one by one
            items += results
            results = []
    return items + shuffle(draw, results)


def response_call(draw: st.DrawFn, name: str, number: str) -> dict[str, Any]:
    call: dict[str, Any] = {"type": "function_call", "name": draw(NAMES)}
    if draw(st.integers(0, 4)) == 0:
        call = {"type": "custom_tool_call", "name": "patch", "input": draw(TEXT)}
    else:
        call["arguments"] = draw(ARGUMENTS)
    if draw(st.booleans()):
        prefix = "fc" if call["type"] == "function_call" else "ctc"
        call["id"] = f"{prefix}_{number}"
    return {**call, "call_id": name}


def response_output(draw: st.DrawFn) -> Any:
    text = draw(TEXT)
    if draw(st.booleans()):
        return text
    return [
        {"type": "input_text", "text": text},
        {"type": "input_image", "detail": "auto", "image_url": IMAGE},
    ]


def response_words(draw: st.DrawFn, at: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if draw(st.booleans()):
        items.append(reasoning(f"m{at}", []))
    part: dict[str, Any] = {
        "type": "output_text",
        "text": draw(SAID),
        "annotations": [],
        "logprobs": None,
    }
    items.append(
        {
            "type": "message",
            "id": f"msg_{at}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    )
    if draw(st.booleans()):
        items.append({"role": "user", "content": response_content(draw)})
    if draw(st.integers(0, 3)) == 0:
        items.append({"role": "developer", "content": draw(SAID)})
    return items


def response_tools(draw: st.DrawFn, at: int) -> list[dict[str, Any]]:
    """Tools that run at the provider, and items of which nobody knows anything."""
    action = {"type": "search", "query": draw(SAID)}
    search = {"type": "web_search_call", "id": f"ws_{at}", "status": "completed", "action": action}
    unknown = {"type": "moon_call", "id": f"mo_{at}", "phase": draw(WORDS)}
    thought = reasoning(f"t{at}", [])
    return pick(draw, [[search], [thought, search], [unknown], [search, unknown]])


# Gemini -------------------------------------------------------------------------------------------


@st.composite
def geminis(draw: Any, most: int = 8) -> list[dict[str, Any]]:
    """Contents of Gemini, which begin and end with the user, or end with responses."""
    contents = [gemini_user(gemini_parts(draw))]
    for at in range(draw(st.integers(1, most))):
        contents += pick(draw, [gemini_calls, gemini_words])(draw, at)
    if contents[-1].get("role") == "model":
        contents.append(gemini_user(gemini_parts(draw)))
    return contents


def gemini_user(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "parts": parts}


def gemini_parts(draw: st.DrawFn) -> list[dict[str, Any]]:
    picture = {"inlineData": {"mimeType": "image/png", "data": IMAGE.partition(",")[2]}}
    file = {"fileData": {"mimeType": "video/mp4", "fileUri": "files/a"}}
    unknown = {"moonPhase": {"phase": draw(WORDS)}}
    others: list[dict[str, Any]] = [picture, file, unknown, {"text": ""}]
    return [{"text": draw(SAID)}, *some(draw, others)]


def gemini_words(draw: st.DrawFn, _: int) -> list[dict[str, Any]]:
    """Return the words of the model, in as many contents as chunks came."""
    parts: list[dict[str, Any]] = [{"text": draw(SAID)} for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        parts.insert(0, {"text": draw(SAID), "thought": True})
    parts[-1] = {**parts[-1], "thoughtSignature": signature_of("")}
    if draw(st.booleans()):
        code = {"executableCode": {"language": "PYTHON", "code": draw(SAID)}}
        parts.append(pick(draw, [code, {"text": ""}]))
    said = gemini_chunks(draw, parts)
    return [*said, gemini_user(gemini_parts(draw))] if draw(st.booleans()) else said


def gemini_chunks(draw: st.DrawFn, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if draw(st.booleans()):
        return [{"role": "model", "parts": parts}]
    return [{"role": "model", "parts": [part]} for part in parts]


def gemini_calls(draw: st.DrawFn, at: int) -> list[dict[str, Any]]:
    """Calls with ids, without any, or with ids that only the responses have."""
    names = [draw(NAMES) for _ in range(draw(st.integers(1, 3)))]
    ids = pick(draw, ["both", "none", "responses"])
    calls: list[dict[str, Any]] = []
    responses: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        call = {"name": name, "args": {"path": "a.py", "text": draw(TEXT)}}
        answered = {"name": name, "response": gemini_response(draw)}
        if ids == "both":
            call["id"] = f"c|{at}|{place}"
        if ids != "none":
            answered["id"] = f"c|{at}|{place}"
        calls.append({"functionCall": call})
        responses.append({"functionResponse": answered})
    calls[0]["thoughtSignature"] = signature_of(names[0])
    if ids == "both":
        responses = shuffle(draw, responses)
    spoken = pick(draw, [[], [{"text": draw(SAID)}]])
    said = gemini_chunks(draw, [*spoken, *calls])
    if draw(st.booleans()):
        return [*said, gemini_user(responses)]
    return [*said, *(gemini_user([response]) for response in responses)]


def gemini_response(draw: st.DrawFn) -> dict[str, Any]:
    text = draw(TEXT)
    forms: list[dict[str, Any]] = [
        {"output": text},
        {"error": text},
        {"result": text, "code": 0},
        {"result": [text]},
        {},
    ]
    return pick(draw, forms)
