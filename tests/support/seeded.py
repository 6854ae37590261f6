"""Conversations from a seed.

Hundreds of messages for one draw, where a drawn history costs a draw for each word.

    talk = Talk(Random(7))
    history = talk.opening() + talk.loop(3)

All texts of one `Talk` are told apart by a number, so that what stands in a file can be traced to
where it came from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

from anthropic.types import RedactedThinkingBlock, TextBlock, ThinkingBlock, ToolUseBlock
from histories import FAULTS, PICTURE, python_source, text, tool_result, tool_use

from ctxpipe.messages import Message

HOSTILE = (
    *("../../outside", "/etc/passwd", "a/b", "..", ".", "", "con", "x" * 300, "nul.md", "日本"),
    *("half \ud83d", "a\0b"),
)
"""Ids that would like to lead somewhere else."""

DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "A page.\n" * 40},
}
MARK = {"type": "ephemeral"}

Sign = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], list[dict[str, Any]]]
"""Signs the thinking among the blocks of a reply to the messages that the model has seen."""


def unsigned(_seen: Sequence[Message], blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks as they are."""
    return [dict(block) for block in blocks]


class Talk:
    """Says something new each time.

    *hostile* ids, *repeated* ids and *sdk* objects come now and then.
    """

    def __init__(
        self,
        random: Random,
        *,
        hostile: bool = False,
        repeated: bool = False,
        sdk: bool = False,
        sign: Sign = unsigned,
    ):
        self._random = random
        self._hostile, self._repeated, self._sdk = hostile, repeated, sdk
        self._sign = sign
        self._said = 0

    # Parts ----------------------------------------------------------------------------------------

    def _one_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0

    def words(self, label: str = "m") -> str:
        """A new text."""
        self._said += 1
        fillers = (
            "",
            " a word",
            " lorem ipsum dolor" * 12,
            " 漢字かな🙂é" * 6,
            " x" * 400,
            " <command>keep</command>",
        )
        return f"{label}{self._said}.{self._random.choice(fillers)}"

    def _id(self) -> str:
        self._said += 1
        if self._hostile and self._one_in(3):
            return self._random.choice(HOSTILE)
        return f"toolu_{self._said % 3 if self._repeated else self._said}"

    def _path(self) -> str:
        return f"src/file{self._random.randrange(4)}.{self._random.choice(('py', 'ts', 'txt'))}"

    def call(self) -> dict[str, Any]:
        """A call of one of the tools that agents have."""
        path = self._path()
        calls: tuple[tuple[str, dict[str, Any]], ...] = (
            (
                "bash",
                {
                    "command": self._random.choice(
                        ("ls -l", f"cat {path}", f"sed -n 1,9p {path}", "make")
                    )
                },
            ),
            ("read_file", {"path": path}),
            ("Read", {"file_path": path, "limit": 100}),
            ("grep", {"pattern": "x", "nested": {"deep": [1, None]}}),
            (
                "write_file",
                {
                    "path": path,
                    "content": self.words("w") + " written" * self._random.randrange(200),
                },
            ),
        )
        return tool_use(self._id(), *self._random.choice(calls))

    def result(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result of *call*: nothing, a line, a log or source; as text or as blocks."""
        sources = (
            "ok",
            "",
            None,
            f"{self.words('r')}\n" + python_source(4),
            f"{self.words('r')}\n" + python_source(40, 9),
            f"{self.words('r')}\n" + "line of a log\n" * self._random.randrange(300),
            f"{self.words('r')} \ud83d half a pair\r\n" * 30,
            f"[Tool result offloaded to file: /x/{self.words('r').replace(chr(10), ' ')}.md]",
        )
        body: Any = self._random.choice(sources)
        if body and self._one_in(3):
            body = [text(body), *([text(self.words("b"))] if self._one_in(2) else [])]
            body += [copy.deepcopy(PICTURE)] if self._one_in(3) else []
        # Only words may be an error, as the API has it
        is_error = self._one_in(6) and (isinstance(body, str) and body != "")
        return tool_result(call["id"], body, is_error=is_error)

    def _thinking(self) -> list[dict[str, Any]]:
        if not self._one_in(3):
            return []
        thought = {"type": "thinking", "thinking": self.words("t"), "signature": ""}
        hidden = {"type": "redacted_thinking", "data": ""}
        return [thought, hidden] if self._one_in(5) else [thought]

    def _searched(self) -> list[dict[str, Any]]:
        """A tool that runs on the provider's side: call and result stand in the same reply."""
        if not self._one_in(9):
            return []
        self._said += 1
        name = f"srvtoolu_{self._said}"
        found = {
            "type": "web_search_result",
            "title": self.words("s"),
            "url": "https://x.org",
            "encrypted_content": "E",
        }
        return [
            {"type": "server_tool_use", "id": name, "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": name, "content": [found]},
        ]

    # Messages -------------------------------------------------------------------------------------

    def user(self) -> Message:
        """Return a message of the user: bare text, blocks, a picture, a document, a cache mark."""
        if self._one_in(2):
            return cast("Message", {"role": "user", "content": self.words("u")})
        content: list[dict[str, Any]] = [
            text(self.words("u")) for _ in range(self._random.randrange(1, 3))
        ]
        content += (
            [copy.deepcopy(self._random.choice((PICTURE, DOCUMENT)))] if self._one_in(3) else []
        )
        if self._one_in(4):
            content[-1]["cache_control"] = dict(MARK)
        return cast("Message", {"role": "user", "content": content})

    def reply(self, seen: Sequence[Message], calls: Sequence[Mapping[str, Any]] = ()) -> Message:
        """Return the answer of the model to the messages that it has *seen*.

        Thinking, words, server tools, *calls*.
        """
        spoken = [text(self.words("a"))] if not calls or self._one_in(2) else []
        if not calls and self._one_in(2):
            return cast("Message", {"role": "assistant", "content": self.words("a")})
        blocks = self._sign(seen, [*self._thinking(), *self._searched(), *spoken, *calls])
        content = (
            [_as_object(block) for block in blocks] if self._sdk and self._one_in(2) else blocks
        )
        return cast("Message", {"role": "assistant", "content": content})

    def results(self, calls: Sequence[Mapping[str, Any]]) -> Message:
        """The results of *calls* in some order, perhaps with words of the user behind them."""
        shuffled = [self.result(call) for call in self._random.sample(calls, len(calls))]
        after = [text(self.words("u"))] if self._one_in(5) else []
        return cast("Message", {"role": "user", "content": [*shuffled, *after]})

    # Runs of messages -----------------------------------------------------------------------------

    def opening(self) -> list[Message]:
        """System messages, perhaps, and the user's first request."""
        head = [
            {"role": "system", "content": self.words("system")}
            for _ in range(self._random.choice((0, 0, 1, 2)))
        ]
        return [*cast("list[Message]", head), self.user()]

    def loop(
        self, steps: int, seen: Sequence[Message] = (), *, open_end: bool = False
    ) -> list[Message]:
        """*steps* replies to what was *seen*.

        Most of them have one to four calls and their results.

        With *open_end* the last calls may still wait, or the model has spoken last.
        """
        made: list[Message] = []
        for step in range(steps):
            calls = list(
                {
                    c["id"]: c
                    for c in (self.call() for _ in range(self._random.choice((0, 1, 1, 2, 4))))
                }.values()
            )
            made.append(self.reply([*seen, *made], calls))
            if open_end and step == steps - 1 and self._one_in(3):
                break
            made.append(self.results(calls) if calls else self.user())
        return made

    def broken(self, history: Sequence[Message]) -> list[Message]:
        """A copy of *history* with a fault or two of the kinds that `repair` is for."""
        wrecked = [cast("Message", _plain(message)) for message in history]
        for _ in range(self._random.randrange(1, 3)):
            if wrecked:
                FAULTS[self._random.choice(sorted(FAULTS))](
                    wrecked, self._random.randrange(len(wrecked))
                )
        return wrecked


def _as_object(block: Mapping[str, Any]) -> object:
    """*block* as the SDK hands it out in a reply."""
    match block["type"]:
        case "text":
            return TextBlock(type="text", text=block["text"])
        case "tool_use":
            return ToolUseBlock(
                type="tool_use", id=block["id"], name=block["name"], input=block["input"]
            )
        case "thinking":
            return ThinkingBlock(
                type="thinking", thinking=block["thinking"], signature=block["signature"]
            )
        case "redacted_thinking":
            return RedactedThinkingBlock(type="redacted_thinking", data=block["data"])
    return block


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return dict(message)
    blocks = [
        copy.deepcopy(b) if isinstance(b, Mapping) else b.model_dump(exclude_unset=True)
        for b in content
    ]
    return {**message, "content": blocks}
