"""What differs between two prompts, and from which block on their prefixes are no longer equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..words import one_line
from .misses import Cause
from .prompts import Prompt, Sent

__all__ = ["Difference", "common_blocks", "differences", "index_blocks"]

NAME_CHARS = 40
_SETTINGS = (
    (
        "tool_choice",
        Cause.TOOL_CHOICE,
        "tool_choice changed",
    ),
    (
        "thinking",
        Cause.THINKING,
        "the thinking settings changed",
    ),
    (
        "has_images",
        Cause.IMAGES,
        "the first image came, or the last one went",
    ),
)

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
    found = [*_messages(before, sent, now)]
    if now.seed != before.seed:  # which stands for all that precedes the messages
        found = [
            *_switches(before, now),
            *_tools(before, now),
            *_system(before, now),
            *_settings(before, now),
            *found,
        ]
    return sorted(found, key=lambda difference: difference.place)


def _switches(before: Prompt, now: Prompt) -> Iterator[Difference]:
    if now.settings.model != before.settings.model:
        names = f"{_name(now.model)} instead of {_name(before.model)}"
        detail = f"the model was switched, {names}"
        yield Difference(0, Cause.MODEL, detail)
    if now.settings.betas != before.settings.betas:
        detail = "the betas of the request changed"
        difference = Difference(0, Cause.BETAS, detail)
        yield _by_whom(before, now, difference)


def _tools(before: Prompt, now: Prompt) -> Iterator[Difference]:
    old = before.keys[: len(before.tools)]
    new = now.keys[: len(now.tools)]
    if old == new:
        return
    place = _common(old, new)
    detail = _tools_detail(before, now, old, new)
    yield Difference(place, Cause.TOOLS, detail)


def _tools_detail(
    before: Prompt,
    now: Prompt,
    old: Sequence[int],
    new: Sequence[int],
) -> str:
    if Counter(old) == Counter(new):
        return "the tools are in another order"
    added = [name for name in now.tools if name not in before.tools]
    removed = [name for name in before.tools if name not in now.tools]
    changed = []
    for name, key in zip(now.tools, new, strict=True):
        is_new = key not in old
        if is_new and name not in added:
            changed.append(name)
    parts = []
    if added:
        parts.append(f"{_names(added)} added")
    if removed:
        parts.append(f"{_names(removed)} removed")
    if changed:
        parts.append(f"{_names(changed)} changed")
    what = ", ".join(parts)
    if not parts:
        what = "one of them twice"
    return f"the tools changed: {what}"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(map(_name, names[:3]))
    if len(names) > 3:
        shown += f" and {len(names) - 3} more"
    return shown


def _name(name: str | None) -> str:
    return one_line(name or "an unnamed one", NAME_CHARS)


def _system(before: Prompt, now: Prompt) -> Iterator[Difference]:
    if now.settings.speed != before.settings.speed:
        yield Difference(len(now.tools), Cause.SPEED, "the speed setting changed")
    old = before.keys[len(before.tools) : before.head]
    new = now.keys[len(now.tools) : now.head]
    if old == new:
        return
    place = _common(old, new)
    where = "the system prompt"
    if max(len(old), len(new)) > 1:
        where = f"block {place} of the system prompt"
    is_changed = place < min(len(old), len(new))
    what = "changed" if is_changed else "was added or removed"
    yield Difference(len(now.tools) + place, Cause.SYSTEM, f"{where} {what}")


def _settings(before: Prompt, now: Prompt) -> Iterator[Difference]:
    for name, cause, detail in _SETTINGS:
        old = getattr(before.settings, name)
        new = getattr(now.settings, name)
        if new != old:
            difference = Difference(now.head, cause, detail)
            yield _by_whom(before, now, difference)


def _by_whom(
    before: Prompt,
    now: Prompt,
    difference: Difference,
) -> Difference:
    """*difference*, or that the pipeline has made it: its change needs a beta and a setting."""
    if now.is_amended == before.is_amended:
        return difference
    if difference.cause not in _AMENDED:
        return difference
    detail = f"{difference.detail}, as the pipeline's change of the context needs it"
    return Difference(difference.place, Cause.REWRITE, detail)


def _messages(before: Prompt, sent: Sent, now: Prompt) -> Iterator[Difference]:
    same = common_blocks(before, now)
    if same == len(before.keys) - before.head:
        return
    place = now.head + same
    if now.is_summarized and not before.is_summarized:
        detail = "the server summarized the conversation"
        yield Difference(place, Cause.REWRITE, detail)
        return
    index = len(now.messages)
    if place < len(now.keys):
        index = now.message_at(place)
    if _is_own_rewrite(sent, index):
        detail = f"the pipeline rewrote the context from message {index} on"
        yield Difference(place, Cause.REWRITE, detail)
        return
    detail = f"message {index} of the context is not the one sent before"
    yield Difference(place, Cause.MESSAGE, detail)


def _is_own_rewrite(sent: Sent, index: int) -> bool:
    if sent.rewritten_from is None:
        return False
    if sent.rewritten_from > index:
        return False
    if sent.edited_from is None:
        return True
    return sent.rewritten_from < sent.edited_from


def common_blocks(before: Prompt, now: Prompt) -> int:
    """How many blocks at the beginning of the messages are equal."""
    old = before.keys[before.head :]
    new = now.keys[now.head :]
    return _common(old, new)


def index_blocks(before: Prompt, now: Prompt) -> int:
    """The number of blocks of *now* up to the last one that *before* has as well.

    All of these, had nothing changed, would be read from the cache.
    """
    same = common_blocks(before, now)
    place = now.head + same
    old = before.keys[before.head + same :]
    if not old:
        return place
    # In order: what is found in the old prompt is looked for behind what was found last.
    places: dict[int, list[int]] = {}
    for index, key in enumerate(old):
        places.setdefault(key, []).append(index)
    known = place
    reached = -1
    for index in range(place, len(now.keys)):
        key = now.keys[index]
        for found in places.get(key, ()):
            if found > reached:
                known = index + 1
                reached = found
                break
    return known


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading items are equal."""
    stop = min(len(one), len(other))
    if one[:stop] == other[:stop]:
        return stop
    for place in range(stop):
        if one[place] != other[place]:
            return place
    return stop
