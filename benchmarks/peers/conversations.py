"""Conversations for the comparison, always the same: quiet, bulky, odd and broken ones."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ctxpipe.messages import Message

__all__ = [
    "billed",
    "bulky",
    "exchange",
    "facts",
    "halves",
    "odd",
    "pictures",
    "quiet",
    "safes",
    "spoken",
    "thoughtful",
    "turns",
]

SIGNED = "Er4BCkYIBRgCKkD"
WORDS = (
    *("reads", "parses", "opens", "writes", "moves", "checks", "loads", "a", "the", "table"),
    *("index", "request"),
)


def _message(role: str, content: Any) -> Message:
    return cast("Message", {"role": role, "content": content})


def exchange(number: int, result: str, say: str = "") -> list[Message]:
    """A call and its result, as two messages."""
    spoken = [{"type": "text", "text": say}] if say else []
    given = {"command": f"ls src/{number}", "cwd": "/"}
    call = {"type": "tool_use", "id": f"t{number}", "name": "bash", "input": given}
    answer = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
    return [_message("assistant", [*spoken, call]), _message("user", [answer])]


def quiet(messages: int, begin: int = 0) -> list[Message]:
    """About so many *messages*, of which nothing is worth taking out.

    The agent says much, the results are short.
    """
    say = "Look at what is there before anything is changed, then decide. " * 6
    opening = [] if begin else [_message("user", "Go.")]
    steps = (
        exchange(number, "a.py b.py c.py", f"Step {number}. {say}")
        for number in range(begin, begin + messages // 2)
    )
    return [*opening, *(message for step in steps for message in step)]


def prose(seed: int, chars: int) -> str:
    """Lines of code-like text: *chars* characters that differ from one seed to the next."""
    chance = random.Random(seed)
    lines = []
    length = 0
    while length < chars:
        line = (
            f"    value_{chance.randrange(10**6)} = "
            f"{' '.join(chance.choices(WORDS, k=8))}({chance.random():.4f})"
        )
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[:chars]


def bulky(results: int, chars: int, begin: int = 0) -> list[Message]:
    """Return a history with this number of *results*, each of *chars* characters."""
    opening = [] if begin else [_message("user", "Go.")]
    steps = (
        exchange(number, f"File src/{number}.py\n{prose(number, chars)}", f"Step {number}.")
        for number in range(begin, begin + results)
    )
    return [*opening, *(message for step in steps for message in step)]


def facts(
    results: int, chars: int, *, asking: bool, seed: int = 1
) -> tuple[list[Message], list[str]]:
    """A bulky history with words of its own in its results and remarks; and those words.

    Each result holds one, anywhere in it, and so does each remark.

    With *asking* the user says something every tenth step; else the whole is one request's loop.
    Another *seed* plants other words in the same texts.
    """
    chance = random.Random(seed)
    planted: list[str] = []

    def fact() -> str:
        planted.append("".join(chance.choices("bcdfghjklmnpqrstvwxz", k=12)))
        return f" the door opens to {planted[-1]} "

    messages: list[Message] = [_message("user", "Go.")]
    for number in range(results):
        text = prose(number, chars)
        place = chance.randrange(len(text))
        messages += exchange(
            number, text[:place] + fact() + text[place:], f"Step {number}:{fact()}"
        )
        if asking and number % 10 == 9:
            messages += [
                _message("assistant", "That is done."),
                _message("user", f"Now part {number}."),
            ]
    return messages, planted


def safes(results: int, chars: int) -> tuple[list[Message], dict[str, str]]:
    """A bulky history, in each result of which one line says which word opens which safe.

    And these words by the safes' names.
    """
    chance = random.Random(3)
    codes: dict[str, str] = {}
    messages: list[Message] = [_message("user", "Go.")]
    for number in range(results):
        name, code = ("".join(chance.choices("bcdfghjklmnpqrstvwxz", k=12)) for _ in range(2))
        codes[name] = code
        lines = prose(number, chars).split("\n")
        lines.insert(chance.randrange(len(lines)), f"The safe {name} opens with {code}.")
        messages += exchange(number, "\n".join(lines), f"Step {number}.")
    return messages, codes


def pictures(count: int, side: int = 512) -> list[Message]:
    """A loop that takes a screenshot in each step: a PNG of a megabyte, as base64."""
    messages: list[Message] = [_message("user", "Go.")]
    for number in range(count):
        step = exchange(number, "", f"Step {number}.")
        block = cast("Any", step[1]["content"])[0]
        source = {"type": "base64", "media_type": "image/png", "data": _png(number, side)}
        block["content"] = [{"type": "image", "source": source}]
        messages += step
    return messages


def _png(seed: int, side: int) -> str:
    """A square picture of colours by chance: it cannot be made smaller."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    chance = random.Random(seed)
    rows = b"".join(b"\0" + chance.randbytes(3 * side) for _ in range(side))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    picture = head + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + picture).decode()


def billed(messages: Sequence[Message], before: int = 0) -> list[Message]:
    """*messages* with a bill on each reply, as the API sends one.

    A bill is of *before* tokens and those in front of the reply.
    """
    told: list[Message] = []
    tokens = before
    for message in messages:
        length = len(str(message["content"])) // 4
        bill = (
            {"usage": {"input_tokens": tokens, "output_tokens": length}}
            if message["role"] == "assistant"
            else {}
        )
        told.append(cast("Message", {**message, **bill}))
        tokens += length
    return told


# Odd and broken -----------------------------------------------------------------------------------


def odd(seed: int, *, broken: bool, steps: range = range(4, 25)) -> list[Message]:
    """A random history that ends with the user, perhaps a *broken* one.

    It has parallel calls, thinking, mixed content and errors.

    It takes so many *steps*, each of one to four calls.
    """
    chance = random.Random(seed)
    messages: list[Message] = [_message("user", "Please begin.")]
    for number in range(chance.choice(steps)):
        messages += _step(chance, number)
        if chance.random() < 0.15:
            messages += [
                _message("assistant", [*_thought(chance), _text(f"Part {number} is done.")]),
                _message("user", chance.choice(["Go on.", [_text("Go on."), _text("And hurry.")]])),
            ]
    for _ in range(chance.randrange(1, 4) if broken else 0):
        FAULTS[chance.choice(sorted(FAULTS))](messages, chance)
    while messages and messages[-1]["role"] != "user":
        del messages[-1]
    return messages or [_message("user", "Please begin.")]


def thoughtful(seed: int) -> list[Message]:
    """A random sound history of up to 25,000 tokens, each reply of which begins with a thought.

    Nobody has signed the thoughts yet.
    """
    chance = random.Random(seed)
    return [
        _message("assistant", [_thinking(chance), *_spoken(message)])
        if message["role"] == "assistant"
        else message
        for message in odd(seed, broken=False, steps=range(12, 36))
    ]


def _spoken(message: Message) -> list[Any]:
    return [
        block for block in message["content"] if cast("Any", block)["type"] in ("text", "tool_use")
    ]


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def _thought(chance: random.Random) -> list[dict[str, Any]]:
    if chance.random() < 0.4:
        return []
    thought = _thinking(chance)
    hidden = [{"type": "redacted_thinking", "data": "EmwKAhgB"}] if chance.random() < 0.1 else []
    return [thought, *hidden]


def _thinking(chance: random.Random) -> dict[str, Any]:
    return {"type": "thinking", "thinking": f"hm {chance.random()}", "signature": SIGNED}


def _step(chance: random.Random, number: int) -> list[Message]:
    calls = [
        {
            "type": "tool_use",
            "id": f"toolu_{number}_{i}",
            "name": chance.choice(["bash", "read_file"]),
            "input": {"path": f"src/{i}.py"},
        }
        for i in range(chance.choice([1, 1, 2, 3, 4]))
    ]
    said = [_text(f"Step {number}.")] if chance.random() < 0.5 else []
    results = [_result(chance, call["id"]) for call in chance.sample(calls, len(calls))]
    after = [_text("A note from the user.")] if chance.random() < 0.1 else []
    return [
        _message("assistant", [*_thought(chance), *said, *calls]),
        _message("user", [*results, *after]),
    ]


def _result(chance: random.Random, call_id: Any) -> dict[str, Any]:
    body: Any = chance.choice(
        ["ok", prose(chance.randrange(50), 300), prose(chance.randrange(50), 3000)]
    )
    if chance.random() < 0.3:
        body = [_text(body)]
    failed = {"is_error": True} if chance.random() < 0.15 else {}
    return {"type": "tool_result", "tool_use_id": call_id, "content": body, **failed}


def _lose(messages: list[Message], chance: random.Random) -> None:
    del messages[chance.randrange(len(messages))]


def _double(messages: list[Message], chance: random.Random) -> None:
    place = chance.randrange(len(messages))
    messages.insert(place, messages[place])


def _lose_block(messages: list[Message], chance: random.Random) -> None:
    place = chance.randrange(len(messages))
    content = messages[place]["content"]
    if isinstance(content, list) and len(content) > 1:
        left = list(content)
        del left[chance.randrange(len(left))]
        messages[place] = _message(messages[place]["role"], left)


def _empty(messages: list[Message], chance: random.Random) -> None:
    place = chance.randrange(len(messages))
    content = messages[place]["content"]
    if isinstance(content, list):
        messages[place] = _message(messages[place]["role"], [*content, _text("")])


def _swap(messages: list[Message], chance: random.Random) -> None:
    place = chance.randrange(1, len(messages)) if len(messages) > 1 else 0
    messages[place], messages[place - 1] = messages[place - 1], messages[place]


FAULTS: Mapping[str, Any] = {
    "lose": _lose,
    "double": _double,
    "lose block": _lose_block,
    "empty": _empty,
    "swap": _swap,
}


def turns(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """*messages* as they come: what is new in each turn ends with the user's."""
    new: list[Message] = []
    for message in messages:
        new.append(message)
        if message["role"] == "user":
            yield new
            new = []


def spoken(messages: Sequence[Message]) -> list[Message]:
    """*messages* without thinking, which chat completions do not take back."""
    kept = []
    for message in messages:
        content: Any = message["content"]
        if isinstance(content, list):
            content = [block for block in content if "thinking" not in block["type"]]
        kept.append(_message(message["role"], content))
    return kept


def plain(messages: Sequence[Message]) -> list[Message]:
    """*messages* whose results name the tools that were found in a text, as every framework takes
    it.
    """
    return [_message(message["role"], _plain(message["content"])) for message in messages]


def _plain(content: Any) -> Any:
    """*content*, of a message or of a result in it."""
    if not isinstance(content, list):
        return content
    blocks = []
    for block in content:
        if block["type"] == "tool_result":
            blocks.append({**block, "content": _plain(block.get("content", ""))})
        elif block["type"] == "tool_reference":
            blocks.append({"type": "text", "text": json.dumps(block)})
        else:
            blocks.append(block)
    return blocks


def halves(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """*messages* in two parts, the second beginning with a reply."""
    middle = len(messages) // 2
    while middle < len(messages) and messages[middle]["role"] != "assistant":
        middle += 1
    yield messages[:middle]
    yield messages[middle:]
