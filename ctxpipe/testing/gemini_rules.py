"""Rules of Gemini's ``generateContent``, with the API's error messages where known.

Written, like `rules`, from documented and observed behaviour, independently of the rest of ctxpipe.
Everything else is accepted, above all parts of unknown kinds.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from .._values import JsonObject
from .turns import Problems

CALL = "functionCall"
RESPONSE = "functionResponse"
SIGNATURE = "thoughtSignature"
# Documented: the fields of a part that are not its data.
ANNOTATIONS = frozenset({"thought", SIGNATURE, "partMetadata", "videoMetadata", "mediaResolution"})
# Documented: values that replace the signature of a call which the model did not write.
DUMMY_SIGNATURES = frozenset(
    {"context_engineering_is_the_way_to_go", "skip_thought_signature_validator"}
)
SIGNING_MODELS = "gemini-3"
"""Prefix of the names of the models that require signatures."""

_Turn = tuple[bool, Sequence[JsonObject]]
"""True for a turn of the model, and the parts of the turn."""


def gemini_problems(body: JsonObject) -> list[str]:
    """Return the errors of ``generateContent`` for the request *body*; empty if valid.

    The "model" of *body* is the one that the path of the request names.
    """
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return ["* GenerateContentRequest.contents: contents is not specified"]
    error_texts: list[str] = []
    for index, content in enumerate(contents):
        error_texts += _content(f"contents[{index}]", content)
    instruction = body.get("systemInstruction")
    if isinstance(instruction, dict):
        error_texts += _parts("system_instruction", instruction)
    if not error_texts:
        turns = list(_turns(contents))
        error_texts += _order(turns)
        error_texts += _pairs(turns)
        if body.get("model", SIGNING_MODELS).startswith(SIGNING_MODELS):
            error_texts += _signatures(turns)
    return error_texts


def _content(where: str, content: Any) -> Problems:
    """Yield the API's errors in the message *content*, which is at *where* in the request."""
    if not isinstance(content, dict):
        yield f"Invalid value at '{where}': a message is expected"
    elif content.get("role", "user") not in ("user", "model"):
        yield "Please use a valid role: user, model."
    else:
        yield from _parts(where, content)


def _parts(where: str, content: JsonObject) -> Problems:
    """Yield errors of parts. Observed: a content has parts with data; functions have names."""
    at = f"* GenerateContentRequest.{where}.parts"
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts:
        yield f"{at}: contents.parts must not be empty."
        return
    for place, part in enumerate(parts):
        if not isinstance(part, dict) or not part.keys() - ANNOTATIONS:
            yield f"{at}[{place}].data: required oneof field 'data' must have one initialized field"
            continue
        for key, name in ((CALL, "function_call"), (RESPONSE, "function_response")):
            if key in part and not part[key].get("name"):
                yield f"{at}[{place}].{name}.name: Name cannot be empty."
        if RESPONSE in part and not isinstance(part[RESPONSE].get("response"), dict):
            yield f"{at}[{place}].function_response.response: a message is expected"


def _turns(contents: Sequence[JsonObject]) -> Iterator[_Turn]:
    """Yield the turns: consecutive contents of one role; function responses form their own turn."""

    def side(content: JsonObject) -> tuple[bool, bool]:
        return content.get("role") == "model", _has(RESPONSE, content["parts"])

    for (is_model, _), group in groupby(contents, side):
        yield is_model, [part for content in group for part in content["parts"]]


def _has(key: str, parts: Sequence[JsonObject]) -> bool:
    return any(key in part for part in parts)


def _order(turns: Sequence[_Turn]) -> Problems:
    """Yield errors of the order of turns. Observed: the first and the last are the user's."""
    is_model, first = turns[0]
    if is_model:
        what = "function call turn" if _has(CALL, first) else "model turn"
        yield (
            f"Please ensure that {what} comes immediately after a user turn or after a function "
            "response turn."
        )
    if turns[-1][0]:
        yield "Requests ending with a model turn are not supported."


def _pairs(turns: Sequence[_Turn]) -> Problems:
    """Yield errors of calls and responses. Observed: each call is answered in the next turn."""
    nothing: _Turn = (False, ())
    for (_, before), (is_model, parts) in pairwise([nothing, *turns, nothing]):
        calls = [part[CALL] for part in before if CALL in part]
        responses = [part[RESPONSE] for part in parts if RESPONSE in part]
        if responses and (is_model or not calls):
            yield (
                "Please ensure that function response turn comes immediately after a function call "
                "turn."
            )
        elif len(responses) != len(calls):
            yield (
                "Please ensure that the number of function response parts is equal to the number "
                "of function call parts of the function call turn."
            )
        elif sorted(call["name"] for call in calls) != sorted(one["name"] for one in responses):
            yield "Please ensure that each function response has the name of its function call."


# Signatures ---------------------------------------------------------------------------------------


def signature_of(name: str) -> str:
    """Return the signature of a call of the function *name*."""
    return base64.b64encode(f"thought before {name}".encode()).decode()


def _signatures(turns: Sequence[_Turn]) -> Problems:
    """Yield errors of signatures.

    Documented: after the last message of the user, the first call of each step is signed. A
    signature stays on the call with which it was received.
    """
    prompt_index = 0
    for index, (is_model, parts) in enumerate(turns):
        if not is_model and not _has(RESPONSE, parts):
            prompt_index = index
    for _, parts in turns[prompt_index:]:
        calls = [part for part in parts if CALL in part]
        if calls and SIGNATURE not in calls[0]:
            yield (
                "Function call is missing a thought_signature in functionCall parts. This is "
                "required for tools to work correctly, and missing thought_signature may lead to "
                "degraded model performance. Additional data, function call "
                f"`default_api:{calls[0][CALL]['name']}`, position {parts.index(calls[0]) + 1}."
            )
        for call in calls:
            expected_signature = signature_of(call[CALL]["name"])
            if call.get(SIGNATURE, expected_signature) not in {
                expected_signature,
                *DUMMY_SIGNATURES,
            }:
                yield "Corrupted thought signature."
