"""Find the differences between two prompts, and the block from which their prefixes differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .._text import one_line
from ..messages import common_prefix, field
from .misses import Cause
from .prompts import Prompt, SentRequest

NAME_CHARS = 40
_SETTINGS = {
    "tool_choice": (Cause.TOOL_CHOICE, "tool_choice changed"),
    "thinking": (Cause.THINKING, "the thinking settings changed"),
    "has_images": (Cause.IMAGES, "the first image was added, or the last one removed"),
}
_AMENDED = (Cause.BETAS, Cause.THINKING)


@dataclass(frozen=True, slots=True)
class Difference:
    """A *cause* that changes the prefix from the block at *place* on."""

    place: int
    cause: Cause
    detail: str
    is_lasting: bool = False


def differences(before: Prompt, sent: SentRequest, now: Prompt) -> list[Difference]:
    """Return the differences between the prompts *before* and *now*, in the order of the prompt.

    *sent* is the request of *now*.
    """
    results = [*_head_differences(before, now), *_message_differences(before, sent, now)]
    if now.is_amended != before.is_amended:
        # A beta and a setting that the pipeline's own change needs are part of that change.
        for index, difference in enumerate(results):
            if difference.cause in _AMENDED:
                detail = f"{difference.detail}, as the pipeline's change of the context needs it"
                results[index] = replace(difference, cause=Cause.REWRITE, detail=detail)
    return sorted(results, key=lambda difference: difference.place)


def _head_differences(before: Prompt, now: Prompt) -> Iterator[Difference]:
    """Yield each difference before the messages: model, betas, tools, speed, system, settings.

    The place of a difference is the index of the first block of the prompt that it changes.
    """
    old = before.settings
    new = now.settings
    if new.model != old.model:
        names = f"{_name(now.model)} instead of {_name(before.model)}"
        yield Difference(0, Cause.MODEL, f"the model was switched, {names}")
    if new.betas != old.betas:
        yield Difference(0, Cause.BETAS, "the betas of the request changed")
    old_tools = before.keys[: len(before.tools)]
    new_tools = now.keys[: len(now.tools)]
    if new_tools != old_tools:
        same = common_prefix(old_tools, new_tools)
        detail = "the tools changed"
        if same < len(now.tools):
            detail = f"{detail}, {_name(_tool_name(now.tools[same]))} first"
        yield Difference(same, Cause.TOOLS, detail)
    if new.speed != old.speed:
        yield Difference(len(now.tools), Cause.SPEED, "the speed setting changed")
    old_system = before.keys[len(before.tools) : before.head]
    new_system = now.keys[len(now.tools) : now.head]
    if new_system != old_system:
        place = len(now.tools) + common_prefix(old_system, new_system)
        yield Difference(place, Cause.SYSTEM, "the system prompt changed")
    for name, (cause, detail) in _SETTINGS.items():
        if getattr(new, name) != getattr(old, name):
            yield Difference(now.head, cause, detail)


def _tool_name(tool: object) -> str:
    """Return the name or the type of *tool*; "a tool" if it has neither."""
    name = field(tool, "name") or field(tool, "type")
    return name if isinstance(name, str) else "a tool"


def _name(name: str | None) -> str:
    return one_line(name or "an unnamed one", NAME_CHARS)


def _message_differences(before: Prompt, sent: SentRequest, now: Prompt) -> Iterator[Difference]:
    """Yield the first difference in the messages, if any; appended messages do not count."""
    same = common_prefix(before.keys[before.head :], now.keys[now.head :])
    if same == len(before.keys) - before.head:
        return
    place = now.head + same
    index = now.message_at(place) if place < len(now.keys) else len(now.messages)
    if now.is_summarized and not before.is_summarized:
        yield Difference(place, Cause.REWRITE, "the server summarized the conversation")
    elif _is_own_rewrite(sent, index):
        detail = f"the pipeline rewrote the context from message {index} on"
        yield Difference(place, Cause.REWRITE, detail)
    else:
        detail = f"message {index} of the context is not the one sent before"
        yield Difference(place, Cause.MESSAGE, detail)


def _is_own_rewrite(sent: SentRequest, index: int) -> bool:
    """Return True if a stage of the pipeline, not the caller, changed message *index*."""
    if sent.rewritten_from is None or sent.rewritten_from > index:
        return False
    return sent.edited_from is None or sent.rewritten_from < sent.edited_from


def index_blocks(before: Prompt, now: Prompt) -> int:
    """Return the number of blocks of *now* up to the last one that *before* also has.

    If nothing had changed, all of them would be read from the cache.
    """
    same = common_prefix(before.keys[before.head :], now.keys[now.head :])
    shared_count = now.head + same
    places: dict[int, list[int]] = {}
    for index, key in enumerate(before.keys[before.head + same :]):
        places.setdefault(key, []).append(index)
    if not places:
        return shared_count
    # Blocks count in the order of the old prompt: each is searched behind the match before it.
    last_place = -1
    for index in range(shared_count, len(now.keys)):
        for place in places.get(now.keys[index], ()):
            if place > last_place:
                shared_count = index + 1
                last_place = place
                break
    return shared_count
