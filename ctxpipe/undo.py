"""The way back: the raw history from a context, the files and the archives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from .edits.projection import digest
from .errors import InvalidHistory, StorageError
from .messages import MEDIA, Block, as_dict, blocks, common_prefix, field, kind, rebuilt, same_at_end, strings
from .placeholders import any_reference
from .reports import Offloaded
from .stages.archive import load_archive, parse_archive
from .threads import in_thread, in_thread_if

if TYPE_CHECKING:
    from .messages import Message
    from .runner import Step
    from .storage import TextReader

__all__ = ["Undo", "goes_one_by_one", "restored", "shortened", "undo_of"]

_HEX = 16  # of a digest are kept for each archived message: enough to tell a changed file
_LONG = 100_000  # characters
_ESCAPED_SURROGATE = re.compile(r"\\u(d[89a-f][0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Undo:
    """How to get from the context after a change, of *after* messages, back to the one of *before* messages.

    From message *start* on, an item is ``[i, j]`` for the messages i … j of the context after the change,
    ``{"files": i, "blocks": …}`` for message i with its texts read back from their files, ``{"archived": digests}``
    for a run of messages in *archive*, or the message itself. The change can be taken back as long as the first
    *needs* messages of its outcome stand; None when it went message by message, so that any part of it can be.
    """

    start: int
    before: int
    after: int
    items: tuple[Any, ...]
    archive: str | None = None
    needs: int | None = None


def goes_one_by_one(step: Step) -> bool:
    """Whether the change has rewritten messages, each for itself: then an index means the same before and after."""
    if len(step.before) != len(step.after):
        return False
    # A repair tells no detail; one that has moved a block between messages shows in their shapes.
    return isinstance(step.detail, Offloaded) or (step.detail is None and all(map(_are_alike, step.before, step.after)))


def _are_alike(old: Message, new: Message) -> bool:
    return old is new or (old["role"] == new["role"] and len(blocks(old)) == len(blocks(new)))


# From a change to the way back ------------------------------------------------------------------------------------


def undo_of(step: Step) -> Undo:
    """How the change of *step* can be taken back later."""
    before, after = step.before, step.after
    start = common_prefix(before, after)
    places = {id(message): index for index, message in enumerate(after[start:], start)}
    archive = getattr(step.detail, "archive", None)
    files = _file_names(step)
    items: list[Any] = []
    for index in range(start, len(before)):
        place = places.get(id(before[index]))
        _add(items, _item(step, index, archive, files) if place is None else [place, place + 1])
    most = min(len(before), len(after)) - start
    needs = None if goes_one_by_one(step) else len(after) - same_at_end(before, after, most)
    return Undo(start, len(before), len(after), tuple(items), archive, needs)


def _add(items: list[Any], item: Any) -> None:
    """Add *item*, as part of the last one where it goes on."""
    last = items[-1] if items else None
    if isinstance(item, list) and isinstance(last, list) and last[1] == item[0]:
        last[1] = item[1]
    elif isinstance(last, dict) and "archived" in last and "archived" in item:
        last["archived"] += item["archived"]
    else:
        items.append(item)


def _file_names(step: Step) -> frozenset[str] | None:
    """The names of the files that the change has written, where it goes one by one."""
    if not goes_one_by_one(step):
        return None
    return frozenset(PurePath(file).name for file in getattr(step.detail, "files", ()))


def _item(step: Step, index: int, archive: str | None, files: AbstractSet[str] | None) -> object:
    message = step.before[index]
    if archive is not None:
        return {"archived": _short(message)}
    if files is not None:
        moved = _moved(message, step.after[index], files)
        if moved is not None:
            return {"files": index, "blocks": moved}
    return message


def _short(message: Message) -> str:
    return digest(message).hex()[:_HEX]


def _moved(before: Message, after: Message, files: AbstractSet[str]) -> dict[str, tuple[str, str]] | None:
    """By block index, form and digest of each block whose texts went to *files*; None when that is not all."""
    ours, theirs = blocks(before), blocks(after)
    if len(ours) != len(theirs) or before["role"] != after["role"]:
        return None
    moved: dict[str, tuple[str, str]] = {}
    for index, (old, new) in enumerate(zip(ours, theirs, strict=True)):
        if old is new or old == new:
            continue
        if not any(PurePath(where.replace("\\", "/")).name in files for where in _references(new)):
            return None
        moved[str(index)] = _form(field(old, "content")), _block_digest(old)
    return moved or None


def _form(content: object) -> str:
    """Of a tool result with blocks, t for a text and m for an image or a document, in their order; "" for any other."""
    held = content if isinstance(content, list | tuple) else ()
    return "".join("m" if kind(block) in MEDIA else "t" for block in held)


def _block_digest(block: Block) -> str:
    return _short(cast("Message", {"role": "", "content": [block]}))


def _references(value: object) -> list[str]:
    """The paths of the placeholders inside a block."""
    return [where for text in strings(value) if (where := any_reference(text))]


# After a cut ------------------------------------------------------------------------------------------------------


def shortened(undos: Sequence[Undo], length: int, *, in_front: bool = False) -> list[Undo]:
    """What of *undos*, oldest first, can be taken back once only *length* messages of their outcome remain.

    A cut into the outcome of a change, such as its summary, makes what remains the new raw history. A change that has
    only taken messages out stands when the cut is right behind it, unless it lies *in_front*.
    """
    kept: list[Undo] = []
    for undo in reversed(undos):
        if undo.needs is None:
            kept += [_first(undo, length)] if undo.start < length else []
        elif length >= undo.needs and not (in_front and length <= undo.start):
            kept.append(undo)
            length += undo.before - undo.after
        elif length > undo.start:
            break
    return kept[::-1]


def _first(undo: Undo, length: int) -> Undo:
    """*undo*, which goes message by message, for the first *length* messages alone."""
    items: list[Any] = []
    place = undo.start
    for item in undo.items:
        if place >= length:
            break
        items.append([item[0], min(item[1], length)] if isinstance(item, list | tuple) else item)
        place += item[1] - item[0] if isinstance(item, list | tuple) else 1
    size = min(undo.after, length)
    return replace(undo, before=size, after=size, items=tuple(items))


# The way back -----------------------------------------------------------------------------------------------------


async def restored(context: Sequence[Message], undos: Sequence[Undo], storage: TextReader) -> list[Message]:
    """The history of which the changes of *undos*, oldest first, have made *context*.

    Raises StorageError, naming the message, when a file or an archive is missing or holds something else by now; and
    when a change was recorded in another form than this module's.
    """
    messages = list(context)
    for number in range(len(undos) - 1, -1, -1):
        try:
            messages = await _Back(messages, undos[number], undos[:number], storage).undone()
        except (TypeError, LookupError, AttributeError, ValueError) as error:
            told = f"change {number + 1} of {len(undos)} was recorded in another form, and cannot be taken back"
            raise StorageError(told) from error
    return messages


@dataclass(slots=True)
class _Back:
    """One change to take back, and the *older* ones, which tell a message's index in the history."""

    context: Sequence[Message]
    undo: Undo
    older: Sequence[Undo]
    storage: TextReader

    async def undone(self) -> list[Message]:
        found = list(self.context[: self.undo.start])
        archive: dict[str, Message] = {}
        for item in self.undo.items:
            if isinstance(item, list | tuple):
                found += self.context[item[0] : item[1]]
            elif "archived" in item:
                archive = archive or await self._archived(len(found))
                found += self._from(archive, item["archived"], len(found))
            elif "files" in item:
                found.append(await self._read_back(item, len(found)))
            else:
                found.append(item)
        return [*found, *self.context[self.undo.after :]]

    def _index(self, place: int) -> int:
        """The index in the raw history of message *place* of the context before this change."""
        for undo in reversed(self.older):
            place += undo.before - undo.after if undo.needs is not None and place >= undo.needs else 0
        return place

    async def _archived(self, place: int) -> dict[str, Message]:
        """The messages of the archive by their digests; message *place* is the first that is wanted."""
        location = self.undo.archive or ""
        try:
            try:
                text = (await self.storage.read(location)).text
                messages = await in_thread(parse_archive, text, location)
            except StorageError:  # it may lie in another storage on this disk
                messages = await load_archive(location)
        except (StorageError, InvalidHistory) as error:
            raise StorageError(f"message {self._index(place)} of the history cannot be restored: {error}") from error
        return await in_thread(lambda: {_short(message): message for message in messages})

    def _from(self, archive: Mapping[str, Message], digests: str, place: int) -> list[Message]:
        found: list[Message] = []
        for start in range(0, len(digests), _HEX):
            message = archive.get(digests[start : start + _HEX])
            if message is None:
                index = self._index(place + len(found))
                raise StorageError(f"message {index} of the history is not in {self.undo.archive} as it was")
            found.append(message)
        return found

    async def _read_back(self, item: Mapping[str, Any], place: int) -> Message:
        message = self.context[item["files"]]
        content = list(blocks(message))
        for index, (form, expected) in item["blocks"].items():
            try:
                content[int(index)] = await _original(content[int(index)], form, expected, self.storage)
            except StorageError as error:
                where = f"block {index} of message {self._index(place)} of the history"
                raise StorageError(f"{where} cannot be restored: {error}") from error
        return cast("Message", {**message, "content": content})


async def _original(block: Block, form: str, expected: str, storage: TextReader) -> Block:
    """*block* with the texts of its files. Raises StorageError when it is not the block with the digest *expected*."""
    texts = {where: (await storage.read(where)).text for where in _references(block)}
    # On disk a lone surrogate stands escaped; only the digest can tell whether the text said it so.
    is_long = sum(map(len, texts.values())) > _LONG
    original = await in_thread_if(is_long, _found, block, form, texts, expected)
    if original is None:
        raise StorageError(f"{', '.join(texts) or 'no file'} does not hold what was offloaded")
    return original


def _found(block: Block, form: str, texts: Mapping[str, str], expected: str) -> Block | None:
    for given in (texts, {where: _unescaped(text) for where, text in texts.items()}):
        original = _filled(block, form, given)
        if original is not None and _block_digest(original) == expected:
            return original
    return None


def _unescaped(text: str) -> str:
    return _ESCAPED_SURROGATE.sub(lambda match: chr(int(match[1], 16)), text)


def _filled(block: Block, form: str, texts: Mapping[str, str]) -> Block | None:
    """*block* with the files' *texts* in the place of its placeholders; None when they cannot be what stood there."""
    plain = as_dict(block)
    if kind(block) == "tool_use":
        return {**plain, "input": _with_texts(plain["input"], texts)}
    text = next(iter(texts.values()), "")
    if not form:
        return {**plain, "content": text}
    try:
        told = json.loads(text)
    except ValueError:
        return None
    held = plain["content"] if isinstance(plain["content"], list | tuple) else ()
    media = [kept for kept in held if kind(kept) in MEDIA]
    if not isinstance(told, list) or (form.count("t"), form.count("m")) != (len(told), len(media)):
        return None
    parts = {"t": iter(told), "m": iter(media)}
    return {**plain, "content": [next(parts[letter]) for letter in form]}


def _with_texts(value: Any, texts: Mapping[str, str]) -> Any:
    def filled(item: Any) -> Any:
        where = next(iter(_references(item)), None) if isinstance(item, str) else None
        return item if where is None else texts[where]

    return rebuilt(value, filled)
