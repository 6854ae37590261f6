"""The rules of Gemini's ``generateContent``, with its error messages as far as they are known.

Written, as `rules`, from documented and observed behaviour, without the rest of ctxpipe. What
neither mentions is accepted, above all parts of unknown kinds.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from .._values import JsonObject
from .turns import Problems

CALL, RESPONSE, SIGNATURE = "functionCall", "functionResponse", "thoughtSignature"
# Documented: what a part may have beside its data.
BESIDE = frozenset({"thought", SIGNATURE, "partMetadata", "videoMetadata", "mediaResolution"})
# Documented: what calls that another has written may have instead of a signature.
SKIPPING = frozenset({"context_engineering_is_the_way_to_go", "skip_thought_signature_validator"})
SIGNED = "gemini-3"
"""How the models begin that want signatures."""

_Turn = tuple[bool, Sequence[JsonObject]]
"""Whether the model says it, and its parts."""


def gemini_problems(body: JsonObject) -> list[str]:
    """Everything that ``generateContent`` would refuse in *body*; empty when it is valid.

    Its "model" is what the path of the request names.
    """
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return ["* GenerateContentRequest.contents: contents is not specified"]
    named = enumerate(contents)
    found = [it for index, content in named for it in _content(f"contents[{index}]", content)]
    instruction = body.get("systemInstruction")
    if isinstance(instruction, dict):
        found += _parts("system_instruction", instruction)
    if not found:
        turns = list(_turns(contents))
        found += _order(turns)
        found += _pairs(turns)
        if body.get("model", SIGNED).startswith(SIGNED):
            found += _signatures(turns)
    return found


def _content(where: str, content: Any) -> Problems:
    if not isinstance(content, dict):
        yield f"Invalid value at '{where}': a message is expected"
    elif content.get("role", "user") not in ("user", "model"):
        yield "Please use a valid role: user, model."
    else:
        yield from _parts(where, content)


def _parts(where: str, content: JsonObject) -> Problems:
    """Observed: a content has parts, and each has data; what is called has a name."""
    at = f"* GenerateContentRequest.{where}.parts"
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts:
        yield f"{at}: contents.parts must not be empty."
        return
    for place, part in enumerate(parts):
        if not isinstance(part, dict) or not part.keys() - BESIDE:
            yield f"{at}[{place}].data: required oneof field 'data' must have one initialized field"
            continue
        for key, name in ((CALL, "function_call"), (RESPONSE, "function_response")):
            if key in part and not part[key].get("name"):
                yield f"{at}[{place}].{name}.name: Name cannot be empty."
        if RESPONSE in part and not isinstance(part[RESPONSE].get("response"), dict):
            yield f"{at}[{place}].function_response.response: a message is expected"


def _turns(contents: Sequence[JsonObject]) -> Iterator[_Turn]:
    """The contents of each side, one after the other, in one turn; a response is one of its own."""

    def side(content: JsonObject) -> tuple[bool, bool]:
        return content.get("role") == "model", _has(RESPONSE, content["parts"])

    for (is_model, _), group in groupby(contents, side):
        yield is_model, [part for content in group for part in content["parts"]]


def _has(key: str, parts: Sequence[JsonObject]) -> bool:
    return any(key in part for part in parts)


def _order(turns: Sequence[_Turn]) -> Problems:
    """Observed: the user begins, and has the last word."""
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
    """Observed: responses follow their calls at once, and are as many."""
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
    """The signature of a call of the function *name*."""
    return base64.b64encode(f"thought before {name}".encode()).decode()


def _signatures(turns: Sequence[_Turn]) -> Problems:
    """Documented: since the user has said something, the first call of each step is signed.

    And a signature is where it was received.
    """
    begin = 0
    for index, (is_model, parts) in enumerate(turns):
        if not is_model and not _has(RESPONSE, parts):
            begin = index
    for _, parts in turns[begin:]:
        calls = [part for part in parts if CALL in part]
        if calls and SIGNATURE not in calls[0]:
            yield (
                "Function call is missing a thought_signature in functionCall parts. This is "
                "required for tools to work correctly, and missing thought_signature may lead to "
                "degraded model performance. Additional data, function call "
                f"`default_api:{calls[0][CALL]['name']}`, position {parts.index(calls[0]) + 1}."
            )
        for call in calls:
            own = signature_of(call[CALL]["name"])
            if call.get(SIGNATURE, own) not in {own, *SKIPPING}:
                yield "Corrupted thought signature."
