"""The way back: the raw history from a context, the files and the archives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from .edits.projection import digest
from .errors import StorageError
from .journal import Undo
from .messages import Block, as_dict, blocks, field, kind
from .placeholders import previewed_reference, reference
from .reports import Offloaded
from .stages.archive import load_archive

if TYPE_CHECKING:
    from .messages import Message
    from .runner import Step
    from .storage import TextReader

__all__ = ["undo_of", "undone"]


def undo_of(step: Step) -> Undo:
    """How the change of *step* can be taken back later."""
    places = {id(message): index for index, message in enumerate(step.after)}
    pairs = zip(step.before, step.after, strict=False)
    start = next((i for i, (old, new) in enumerate(pairs) if old is not new), min(len(step.before), len(step.after)))
    archive = getattr(step.detail, "archive", None)
    items: list[Any] = []
    for index, message in enumerate(step.before[start:], start):
        place = places.get(id(message))
        if place is None:
            items.append(_item(step, index, archive))
        elif items and isinstance(items[-1], list) and items[-1][1] == place:
            items[-1][1] += 1
        else:
            items.append([place, place + 1])
    return Undo(start, len(step.before), len(step.after), tuple(items), archive)


def _item(step: Step, index: int, archive: str | None) -> object:
    message = step.before[index]
    if archive is not None:
        return {"archived": digest(message).hex()}
    if isinstance(step.detail, Offloaded) and len(step.before) == len(step.after):
        shapes = _shapes(message, step.after[index], {PurePath(file).name for file in step.detail.files})
        if shapes is not None:
            return {"files": index, "digest": digest(message).hex(), "shapes": shapes}
    return message


def _shapes(before: Message, after: Message, files: set[str]) -> dict[str, str] | None:
    """By block index, the form of each content that went to one of *files*; None when something went elsewhere."""
    shapes: dict[str, str] = {}
    for index, (old, new) in enumerate(zip(blocks(before), blocks(after), strict=True)):
        if old is new or old == new:
            continue
        content = field(old, "content")
        named = [where for where in _references(new) if PurePath(where.replace("\\", "/")).name in files]
        if not named:
            return None
        shapes[str(index)] = "text" if isinstance(content, str) else _order(content)
    return shapes


def _order(content: object) -> str:
    """t for a text, m for an image or whatever else stays in the context, in the order in which they stood."""
    held = content if isinstance(content, list | tuple) else ()
    return "".join("t" if kind(block) == "text" else "m" for block in held)


def _references(value: object) -> list[str]:
    """The paths of the placeholders inside a block."""
    if isinstance(value, str):
        where = reference(value) or previewed_reference(value)
        return [where] if where else []
    if isinstance(value, Mapping):
        return [where for item in value.values() for where in _references(item)]
    if isinstance(value, list | tuple):
        return [where for item in value for where in _references(item)]
    return _references(as_dict(value)) if hasattr(value, "model_dump") else []


async def undone(context: Sequence[Message], undo: Undo, storage: TextReader) -> list[Message]:
    """The context before the change that *undo* takes back, with what was appended since.

    A context that was shortened since, because the history was, gets back what belongs to the rest of it. Raises
    StorageError, naming the message, when a file or archive is missing or holds something else by now.
    """
    archived: dict[str, Message] = {}
    if undo.archive is not None:
        archived = {digest(message).hex(): message for message in await load_archive(undo.archive)}
    found = list(context[: undo.start])
    length = len(context) if undo.before == undo.after else max(undo.before, len(context))
    for item in undo.items:
        if len(found) >= length:
            break
        if isinstance(item, list | tuple):
            found += context[item[0] : item[1]]
        elif "archived" in item:
            if item["archived"] not in archived:
                raise StorageError(f"the archive {undo.archive} does not hold message {len(found)} of the history")
            found.append(archived[item["archived"]])
        elif "files" in item:
            found.append(await _read_back(context[item["files"]], item, len(found), storage))
        else:
            found.append(item)
    return [*found, *context[undo.after :]]


async def _read_back(message: Message, item: Mapping[str, Any], index: int, storage: TextReader) -> Message:
    content = [
        await _original(block, item["shapes"][str(place)], storage) if str(place) in item["shapes"] else block
        for place, block in enumerate(blocks(message))
    ]
    restored = cast("Message", {**message, "content": content})
    if digest(restored).hex() != item["digest"]:
        raise StorageError(f"the files of message {index} do not hold what was offloaded from it")
    return restored


async def _original(block: Block, shape: str, storage: TextReader) -> dict[str, Any]:
    plain = as_dict(block)
    if kind(block) == "tool_use":
        return {**plain, "input": await _filled(plain["input"], storage)}
    [where] = _references(plain["content"])
    text = (await storage.read(where)).text
    if shape == "text":
        return {**plain, "content": text}
    told = iter(json.loads(text))
    media = (kept for kept in plain["content"] if kind(kept) != "text") if "m" in shape else iter(())
    return {**plain, "content": [next(media if form == "m" else told) for form in shape]}


async def _filled(value: Any, storage: TextReader) -> Any:
    """*value* with each placeholder in it replaced by the text of its file."""
    if isinstance(value, str):
        where = _references(value)
        return (await storage.read(where[0])).text if where else value
    if isinstance(value, Mapping):
        return {key: await _filled(item, storage) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [await _filled(item, storage) for item in value]
    return value
