"""What differs between two prompts, and from which block on their prefixes are no longer equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .._text import one_line
from ..messages import common_prefix, field
from .misses import Cause
from .prompts import Prompt, Sent

NAME_CHARS = 40
_SETTINGS = {
    "tool_choice": (Cause.TOOL_CHOICE, "tool_choice changed"),
    "thinking": (Cause.THINKING, "the thinking settings changed"),
    "has_images": (Cause.IMAGES, "the first image came, or the last one went"),
}
_AMENDED = (Cause.BETAS, Cause.THINKING)


@dataclass(frozen=True, slots=True)
class Difference:
    """A *cause* that changes the prefix from the block at *place* on."""

    place: int
    cause: Cause
    detail: str
    is_lasting: bool = False


def differences(before: Prompt, sent: Sent, now: Prompt) -> list[Difference]:
    """What differs between *before* and *now*, that of *sent*; the first in the prompt first."""
    found = [*_head(before, now), *_messages(before, sent, now)]
    if now.is_amended != before.is_amended:
        # What a change of the pipeline's own needs, a beta and a setting, is part of that change.
        for index, one in enumerate(found):
            if one.cause in _AMENDED:
                detail = f"{one.detail}, as the pipeline's change of the context needs it"
                found[index] = replace(one, cause=Cause.REWRITE, detail=detail)
    return sorted(found, key=lambda difference: difference.place)


def _head(before: Prompt, now: Prompt) -> Iterator[Difference]:
    old, new = before.settings, now.settings
    if new.model != old.model:
        names = f"{_name(now.model)} instead of {_name(before.model)}"
        yield Difference(0, Cause.MODEL, f"the model was switched, {names}")
    if new.betas != old.betas:
        yield Difference(0, Cause.BETAS, "the betas of the request changed")
    old_tools, new_tools = before.keys[: len(before.tools)], now.keys[: len(now.tools)]
    if new_tools != old_tools:
        same = common_prefix(old_tools, new_tools)
        first = f", {_name(_tool_name(now.tools[same]))} first" if same < len(now.tools) else ""
        yield Difference(same, Cause.TOOLS, f"the tools changed{first}")
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
    name = field(tool, "name") or field(tool, "type")
    return name if isinstance(name, str) else "a tool"


def _name(name: str | None) -> str:
    return one_line(name or "an unnamed one", NAME_CHARS)


def _messages(before: Prompt, sent: Sent, now: Prompt) -> Iterator[Difference]:
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


def _is_own_rewrite(sent: Sent, index: int) -> bool:
    if sent.rewritten_from is None or sent.rewritten_from > index:
        return False
    return sent.edited_from is None or sent.rewritten_from < sent.edited_from


def index_blocks(before: Prompt, now: Prompt) -> int:
    """The number of blocks of *now* up to the last one that *before* has as well.

    All of these, had nothing changed, would be read from the cache.
    """
    same = common_prefix(before.keys[before.head :], now.keys[now.head :])
    known = now.head + same
    # In order: what is found in the old prompt is looked for behind what was found last.
    places: dict[int, list[int]] = {}
    for index, key in enumerate(before.keys[before.head + same :]):
        places.setdefault(key, []).append(index)
    reached = -1
    for index in range(known, len(now.keys) if places else known):
        found = next((place for place in places.get(now.keys[index], ()) if place > reached), None)
        if found is not None:
            known, reached = index + 1, found
    return known
