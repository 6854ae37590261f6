"""Conversations for tests: short builders for a written one, strategies for a random one.

conversation(system("Be brief."), user("Go."), step("t1", "bash", {"command": "ls"}, "a.py"),
assistant("Done."))
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from hypothesis import strategies as st

from ctxpipe.messages import Message, blocks, kind

Part: TypeAlias = Message | Sequence[Message]
Content: TypeAlias = str | list[Any]
Picked = TypeVar("Picked")

MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
PICTURE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"},
}


# Builders -----------------------------------------------------------------------------------------


def conversation(*parts: Part) -> list[Message]:
    """Messages, and lists of messages such as `step` makes, as one history."""
    return [
        message for part in parts for message in ([part] if isinstance(part, Mapping) else part)
    ]


def system(content: Content) -> Message:
    return cast("Message", {"role": "system", "content": content})


def user(*content: str | Mapping[str, Any]) -> Message:
    """A user message: one text stays bare, anything else becomes a list of blocks."""
    return _message("user", content)


def assistant(*content: str | Mapping[str, Any]) -> Message:
    return _message("assistant", content)


def _message(role: str, content: Sequence[str | Mapping[str, Any]]) -> Message:
    if len(content) == 1 and isinstance(content[0], str):
        return cast("Message", {"role": role, "content": content[0]})
    return cast(
        "Message",
        {"role": role, "content": [text(b) if isinstance(b, str) else b for b in content]},
    )


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def thinking(words: str = "hm") -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": f"signed {words}"}


def marked(message: Message) -> Message:
    """*message*, as a caller would mark its last block for the cache."""
    content = message["content"]
    held: list[Any] = [text(content)] if isinstance(content, str) else list(content)
    return cast("Message", {**message, "content": [*held[:-1], {**held[-1], **MARK}]})


def tool_use(id: str, name: str = "bash", given: Mapping[str, Any] | None = None) -> dict[str, Any]:  # noqa: A002
    return {"type": "tool_use", "id": id, "name": name, "input": dict(given or {})}


def tool_result(
    id: str,  # noqa: A002
    content: Content | None = "done",
    is_error: bool = False,
) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": id}
    if content is not None:
        block["content"] = content
    return {**block, "is_error": True} if is_error else block


def step(
    id: str,  # noqa: A002
    name: str = "bash",
    given: Mapping[str, Any] | None = None,
    result: Content = "done",
    *,
    say: str = "",
    think: str = "",
) -> list[Message]:
    """Return a tool call and its result as two messages; *say* and *think* precede the call."""
    before = [*([thinking(think)] if think else []), *([text(say)] if say else [])]
    return [assistant(*before, tool_use(id, name, given)), user(tool_result(id, result))]


def view(id: str, path: str, content: Content, name: str = "read_file") -> list[Message]:  # noqa: A002
    """A file view: a call of the reading tool, and the file."""
    return step(id, name, {"path": path}, content)


def chat(turns: int, words: int = 5) -> list[Message]:
    """*turns* alternating messages of *words* words, beginning with the user's.

    The i-th begins with ``m<i>``.
    """
    spoken = [" ".join([f"m{i}", *["word"] * (words - 1)]) for i in range(turns)]
    return [user(words) if i % 2 == 0 else assistant(words) for i, words in enumerate(spoken)]


def python_source(functions: int, lines: int = 3) -> str:
    """Python source of *functions* functions, ``f0`` and on, of *lines* lines each."""
    body = [f"    value_{n} = argument + {n}" for n in range(lines - 1)]
    return "\n".join(f"def f{n}(argument):\n" + "\n".join(body) for n in range(functions)) + "\n"


def said(messages: Iterable[Message]) -> list[str]:
    """Every text that *messages* say, in order: bare content and text blocks, no tool results."""
    return [
        words
        for message in messages
        for words in (
            [message["content"]]
            if isinstance(message["content"], str)
            else [cast("Any", block)["text"] for block in blocks(message) if kind(block) == "text"]
        )
    ]


# Strategies ---------------------------------------------------------------------------------------

RESULTS = ("ok", "", None, python_source(4), python_source(40, 9), "line of a log\n" * 60)


def pick(draw: st.DrawFn, options: Sequence[Picked]) -> Picked:
    """Return one of *options*, of which the first is the simplest.

    A strategy is costly to make, and these are of integers, which hypothesis makes once:
    `sampled_from` of options that a history has just made would be a new one for each.
    """
    return options[draw(st.integers(0, len(options) - 1))]


ORDERS = [st.permutations(range(count)) for count in range(5)]


def shuffle(draw: st.DrawFn, items: Sequence[Picked]) -> list[Picked]:
    """Up to four *items*, in any order."""
    return [items[at] for at in draw(ORDERS[len(items)])]


class _Draft:
    """Numbers what a random history says, so that every text and every id of it is told apart."""

    def __init__(self, draw: st.DrawFn, repeat_ids: bool, thoughts: bool):
        self.draw = draw
        self.repeat_ids = repeat_ids
        self.thoughts = thoughts
        self.count = 0

    def words(self, label: str = "m") -> str:
        self.count += 1
        filler = pick(
            self.draw, ["", " a word", " lorem ipsum dolor" * 12, " 漢字かな🙂é" * 6, " x" * 400]
        )
        return f"{label}{self.count}.{filler}"

    def id(self) -> str:
        self.count += 1
        number, time = (self.count % 3, 0) if self.repeat_ids else (self.count, self.count)
        return f"toolu_{number}_{time}"

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(0, one_in - 1)) == 0

    def report(self) -> str:
        """The long text of a harness, or one that a person quotes."""
        report = f"<task-notification>{self.words()}{' finding' * 150}</task-notification>"
        return pick(self.draw, [report, report, f"Is it so? {report}", f"{report} So?"])

    def speech(self, role: str) -> Message:
        """A message of nothing but text: bare, or one to three blocks."""
        if role == "user" and self.chance(8):
            return cast("Message", {"role": role, "content": self.report()})
        command = " <command>keep</command>" if role == "user" and self.chance(8) else ""
        if self.chance(2):
            return cast("Message", {"role": role, "content": self.words() + command})
        texts = [text(self.words() + command) for _ in range(self.draw(st.integers(1, 3)))]
        return cast("Message", {"role": role, "content": [*self.thought(role), *texts]})

    def thought(self, role: str = "assistant") -> list[dict[str, Any]]:
        if role != "assistant" or not self.thoughts or self.chance(2):
            return []
        redacted = {"type": "redacted_thinking", "data": self.words("r")}
        return [thinking(self.words("t")), *([redacted] if self.chance(5) else [])]

    def call(self) -> dict[str, Any]:
        name = pick(self.draw, ["bash", "read_file", "Read", "grep", "bash"])
        number = self.draw(st.integers(0, 3))
        path = f"src/file{number}.{pick(self.draw, ['py', 'ts', 'txt'])}"
        given: dict[str, dict[str, Any]] = {
            "bash": {
                "command": pick(self.draw, ["ls -l", f"cat {path}", f"sed -n 1,9p {path}", "make"])
            },
            "read_file": {"path": path},
            "Read": {"file_path": path, "limit": 100},
        }
        return tool_use(
            self.id(), name, given.get(name, {"pattern": "x", "nested": {"deep": [1, None]}})
        )

    def result(self, call: Mapping[str, Any]) -> dict[str, Any]:
        body: Content | None = pick(self.draw, RESULTS)
        if body and self.chance(3):
            picture = {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"},
            }
            body = [text(cast("str", body)), *([picture] if self.chance(3) else [])]
        # Only words may be an error, as the API has it.
        is_error = self.chance(6) and (isinstance(body, str) and body != "")
        return tool_result(call["id"], body, is_error=is_error)

    def step(self, say: bool = True) -> list[Message]:
        """Return one model call with one to four tool calls, and their results."""
        calls = {
            made["id"]: made for made in (self.call() for _ in range(self.draw(st.integers(1, 4))))
        }
        before = [*self.thought(), *([text(self.words())] if say and self.chance(2) else [])]
        results = [self.result(made) for made in shuffle(self.draw, list(calls.values()))]
        after = [text(self.words())] if self.chance(5) else []
        after += [text(self.report())] if self.chance(12) else []
        return [assistant(*before, *calls.values()), user(*results, *after)]

    def exchange(self) -> list[Message]:
        """A user's request is answered: some tool calls, then words and the next request."""
        loop = [message for _ in range(self.draw(st.integers(0, 4))) for message in self.step()]
        return [*loop, self.speech("assistant"), self.speech("user")]

    def ending(self) -> list[Message]:
        """The last turn of a history.

        A request, results that just came, calls still waiting, or the assistant's words.
        """
        last = pick(self.draw, ["request", "results", "waiting", "words"])
        ends = {
            "request": [],
            "results": self.step(),
            "waiting": self.step()[:1],
            "words": [self.speech("assistant")],
        }
        return ends[last]


@st.composite
def histories(
    draw: st.DrawFn,
    max_exchanges: int = 5,
    *,
    thoughts: bool = True,
    repeat_ids: bool = False,
    ends: bool = True,
) -> list[Message]:
    """A valid history of any kind.

    Perhaps a system head; parallel calls; bare and block content; thinking; `<command>` texts.

    With *repeat_ids* later turns use ids again, as some providers do. Without *ends* it ends in the
    user's text.
    """
    draft = _Draft(draw, repeat_ids, thoughts)
    head = [system(draft.words("system")) for _ in range(pick(draw, [0, 0, 1, 2]))]
    body = [
        message for _ in range(draw(st.integers(0, max_exchanges))) for message in draft.exchange()
    ]
    return [*head, draft.speech("user"), *body, *(draft.ending() if ends else [])]


@st.composite
def broken_histories(draw: st.DrawFn, max_exchanges: int = 4, max_faults: int = 4) -> list[Message]:
    """A history as `repair` is for.

    It has orphans, dangling calls, empty blocks, lost or doubled messages.
    """
    history = copy.deepcopy(draw(histories(max_exchanges)))
    for _ in range(draw(st.integers(1, max_faults))):
        if history:
            FAULTS[pick(draw, sorted(FAULTS))](history, draw(st.integers(0, len(history) - 1)))
    return history


def _lose(history: list[Message], index: int):
    del history[index]


def _double(history: list[Message], index: int):
    history.insert(index, copy.deepcopy(history[index]))


def _swap(history: list[Message], index: int):
    history[index], history[index - 1] = history[index - 1], history[index]


def _lose_block(history: list[Message], index: int):
    content = history[index]["content"]
    if isinstance(content, list) and content:
        del content[len(content) // 2]


def _reverse(history: list[Message], index: int):
    content = history[index]["content"]
    if isinstance(content, list):
        content.reverse()


def _empty(history: list[Message], index: int):
    content = history[index]["content"]
    if isinstance(content, list):
        content.insert(0, text(" "))


def _wreck_text(history: list[Message], index: int):
    content = history[index]["content"]
    if isinstance(content, list):
        content.append(text("half a pair \ud83d"))


FAULTS = {
    "lose": _lose,
    "double": _double,
    "swap": _swap,
    "lose block": _lose_block,
    "reverse": _reverse,
    "empty": _empty,
    "wreck text": _wreck_text,
}
