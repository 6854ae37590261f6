"""Recognize texts that were moved to files, and replace them by their placeholders again.

A *placeholder* is a short text that names the file with the whole text. A caller may pass the
original history again, in which the text is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from ...messages import (
    Message,
    kind,
    rebuilt,
    rewrite,
    strings,
    tool_calls,
    tool_results,
    with_content,
)
from ...messages import field as read
from ...placeholders.placeholders import is_batch
from .results import ResultContent, only_text, placeholder_file, text_of, with_placeholder

Placeholders: TypeAlias = dict[int, str]
"""The placeholder of each text that left before, by `lookup_key`.

A caller who passes the original history again gets the same placeholders for the same texts.
"""


def lookup_key(call_id: str, text: str) -> int:
    """Return the key of *text* in a `Placeholders` mapping; it is valid in this process only.

    *call_id* is the id of the call, "" for a text of a user's message.
    """
    return hash((call_id, text))


def note_placeholders(
    placeholders: Placeholders, before: Sequence[Message], after: Sequence[Message]
) -> None:
    """Add to *placeholders* each text of *before* that *after* has a placeholder for."""
    for moved in find_moved_texts(before, after):
        placeholders[lookup_key(moved.call_id, moved.text)] = moved.placeholder


class Moved(NamedTuple):
    """A tool result, or a text in the input of a call, that was replaced by a placeholder.

    *content* is the content of the result; None for a text of an input.
    """

    call_id: str
    text: str
    placeholder: str
    content: ResultContent = None


def find_moved_texts(before: Sequence[Message], after: Sequence[Message]) -> Iterator[Moved]:
    """Yield the texts of *before* that are replaced by placeholders in *after*.

    Results come first, then inputs of calls; both are matched by the id of the call.
    """
    placeholders: dict[str, str] = {}  # by the id of the call
    for result in tool_results(after):
        text = only_text(result.content)
        if placeholder_file(result.tool_use_id, text) is not None:
            placeholders[result.tool_use_id] = text
    if placeholders:
        for result in tool_results(before):
            text = text_of(result.content)
            placeholder = placeholders.get(result.tool_use_id, text)
            if text and placeholder != text:
                yield Moved(result.tool_use_id, text, placeholder, content=result.content)
    calls = {call.id: call for call in tool_calls(after)}
    if not calls:
        return
    for call in tool_calls(before):
        other = calls.get(call.id)
        if other is None or other.input is call.input:
            continue
        for text, new in zip(strings(call.input), strings(other.input), strict=False):
            if new != text and placeholder_file(call.id, new) is not None:
                yield Moved(call.id, text, new)


def first_batch_placeholder(messages: Sequence[Message]) -> tuple[int, int] | None:
    """Return the place of the first placeholder of batch offloading, or None if there is none.

    The place is (message index, block index) of a tool result, or of a call with such a text in its
    input. The model saw the original text when it wrote what follows. Placeholders of direct
    offloading have other words and are skipped: they replaced a text before the model saw it.
    """
    places: list[tuple[int, int]] = []
    for result in tool_results(messages):
        if is_batch(only_text(result.content)):
            places.append(result.place)
            break
    for call in tool_calls(messages):
        if any(is_batch(text) for text in strings(call.input)):
            places.append(call.place)
            break
    return min(places, default=None)


def offload_again(
    placeholders: Placeholders,
    messages: list[Message],
    start: int,
    history: Sequence[Message],
    stop: int,
) -> list[Message]:
    """Return *messages* with the texts in *placeholders* replaced again from message *start* on.

    A result or an input is not replaced if its call id also occurs in *history* before message
    *stop*: it is a different call with the same id. A user's message that repeats a replaced
    result gets the placeholder too.
    """
    results = _results_to_replace(placeholders, messages, start)
    if results:
        earlier_ids = {earlier.tool_use_id for earlier in tool_results(history, 0, stop)}
        for result in tool_results(messages, start):
            if result.tool_use_id in earlier_ids:
                results.pop(result.place, None)
    inputs = _inputs_to_replace(placeholders, messages, start)
    if inputs:
        earlier_ids = {earlier.id for earlier in tool_calls(history, 0, stop)}
        for call in tool_calls(messages, start):
            if call.id in earlier_ids:
                inputs.pop(call.place, None)
    edited = rewrite(messages, results) if results else messages
    edited = rewrite(edited, inputs, key="input") if inputs else edited
    return _repeat_messages(placeholders, edited, start)


def _results_to_replace(
    placeholders: Placeholders, messages: Sequence[Message], start: int
) -> dict[tuple[int, int], object]:
    """Return the new contents of the results from message *start* on, by their places.

    Results without a text in *placeholders* are left out. A place is (message index, block index).
    """
    contents: dict[tuple[int, int], object] = {}
    for result in tool_results(messages, start):
        text = placeholders.get(lookup_key(result.tool_use_id, text_of(result.content)))
        if text is not None:
            contents[result.place] = with_placeholder(result.content, text)
    return contents


def _inputs_to_replace(
    placeholders: Placeholders, messages: Sequence[Message], start: int
) -> dict[tuple[int, int], object]:
    """Return the new inputs of the calls from message *start* on, by their places.

    A text in the input is replaced if *placeholders* has one for it. Calls without such a text are
    left out. A place is (message index, block index).
    """
    inputs: dict[tuple[int, int], object] = {}
    for call in tool_calls(messages, start):
        replacements: dict[str, str] = {}
        for text in strings(call.input):
            placeholder = placeholders.get(lookup_key(call.id, text))
            if placeholder is not None:
                replacements[text] = placeholder
        if replacements:
            inputs[call.place] = rebuilt(call.input, partial(_replace_string, replacements))
    return inputs


def _replace_string(replacements: Mapping[str, str], value: object) -> object:
    """Return the replacement of *value* if it is a string that has one; otherwise *value*."""
    return replacements.get(value, value) if isinstance(value, str) else value


def _repeat_messages(
    placeholders: Placeholders, messages: list[Message], start: int
) -> list[Message]:
    """Return *messages* with whole texts in *placeholders* replaced from message *start* on."""
    edited: list[Message] | None = None
    for index in range(start, len(messages)):
        message = messages[index]
        content = message["content"]
        if isinstance(content, str):
            placeholder = placeholders.get(lookup_key("", content))
            if placeholder is not None:
                edited = edited or list(messages)
                edited[index] = with_content(message, placeholder)
            continue
        updates: dict[tuple[int, int], object] = {}
        for place, block in enumerate(content or ()):
            text = read(block, "text") if kind(block) == "text" else None
            if not isinstance(text, str):
                continue
            placeholder = placeholders.get(lookup_key("", text))
            if placeholder is not None:
                updates[0, place] = placeholder
        if updates:
            edited = edited or list(messages)
            [edited[index]] = rewrite([message], updates, key="text")
    return edited or messages
