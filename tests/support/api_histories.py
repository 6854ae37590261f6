"""Random histories of every block type that the SDK knows.

Each is valid; and the same with one rule broken.

The types are read from the annotations of ``anthropic.types`` and ``anthropic.types.beta``: a type
that a newer SDK adds is built from its fields, and stands where the SDK lets it stand, without a
change here.
"""

from __future__ import annotations

import copy
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from anthropic.types import ContentBlock, ContentBlockParam
from anthropic.types.beta import BetaContentBlock, BetaContentBlockParam
from hypothesis import reject, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from typing_extensions import is_typeddict

from ctxpipe.messages import Message
from ctxpipe.testing import problems
from ctxpipe.testing.rules import Model

try:
    from anthropic.types.beta.beta_system_message_param import ContentBlock as SystemBlock
except ImportError:  # an SDK that knows no system messages
    from anthropic.types import TextBlockParam as SystemBlock

MODEL = Model(thinking="unchecked")
few = settings(max_examples=max(20, settings().max_examples // 2))
"""For a property of whole conversations: fewer examples than of small things."""

FUTURE = ("hologram", "smell", "hologram_tool_use", "smell_tool_result")
ONE_HOUR = {"type": "ephemeral", "ttl": "1h"}


# What the SDK knows -------------------------------------------------------------------------------


def _members(annotation: Any) -> list[Any]:
    """The members of a union, however it is written; of anything else, itself."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for arg in get_args(annotation) for member in _members(arg)]
    return [annotation]


@cache
def _hints(block: Any) -> Mapping[str, Any]:
    return get_type_hints(block, include_extras=True)


def _type_name(block: Any) -> str:
    annotation = (
        _hints(block)["type"] if is_typeddict(block) else block.model_fields["type"].annotation
    )
    while get_origin(annotation) in (Required, NotRequired, Annotated):
        annotation = get_args(annotation)[0]
    return str(get_args(annotation)[0])


def _by_type(*unions: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for union in unions:
        for member in _members(union):
            found.setdefault(_type_name(member), []).append(member)
    return found


PARAMS = {
    name: [member for member in members if is_typeddict(member)]
    for name, members in _by_type(ContentBlockParam, BetaContentBlockParam).items()
}
MODELS = _by_type(ContentBlock, BetaContentBlock)
SYSTEM_TYPES = sorted(_by_type(SystemBlock))
RESULT_TYPES = sorted(
    name for name, (block, *_) in PARAMS.items() if "tool_use_id" in _hints(block)
)
USE_TYPES = sorted(
    name for name, (block, *_) in PARAMS.items() if {"id", "input", "name"} <= set(_hints(block))
)
PAIRED = {*RESULT_TYPES, *USE_TYPES}
ASSISTANT_TYPES = sorted(MODELS.keys() - PAIRED - {"compaction"})  # a summary of the API's is rare
USER_TYPES = [*sorted(PARAMS.keys() - PAIRED - MODELS.keys() - set(SYSTEM_TYPES)), "text"]
SERVER_PAIRS = {
    use: [
        name
        for name in RESULT_TYPES
        if name != "tool_result" and name.startswith("mcp_") == use.startswith("mcp_")
    ]
    for use in USE_TYPES
    if use != "tool_use"
}


# Building blocks ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Builder:
    """Builds a history from the choices of *random*, and numbers what it says."""

    random: Random
    sdk: bool = False
    count: int = 0
    unknown: list[dict[str, Any]] = field(default_factory=list)

    def chance(self, one_in: int) -> bool:
        return self.random.randrange(one_in) == 0

    def number(self) -> int:
        self.count += 1
        return self.count

    def words(self, label: str = "w") -> str:
        fillers = ("", " a word", " lorem ipsum dolor" * 30, " 漢字かな🙂é" * 9, " x" * 900)
        return f"{label}{self.number()}.{self.random.choice(fillers)}"

    # From annotations

    def block(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        """A block of the type *kind*.

        *fields* are as given, the rest is built from the SDK's annotations.
        """
        built = self._typed_dict(self.random.choice(PARAMS[kind]), fields)
        if kind in ("thinking", "redacted_thinking"):
            built["signature" if kind == "thinking" else "data"] = f"signed{self.number()}"
        if kind == "compaction":
            built.pop("signature", None)
        return {**built, **fields}

    def _typed_dict(
        self, block: Any, given: Mapping[str, Any] = types.MappingProxyType({})
    ) -> dict[str, Any]:
        built = {}
        for name, annotation in _hints(block).items():
            # the class itself cannot tell where annotations are texts
            required = get_origin(annotation) is Required
            if name in given or name in LEFT_OUT or not (required or self.chance(4)):
                continue
            built[name] = self._value(annotation, name)
        return built

    def _value(self, annotation: Any, name: str) -> Any:  # noqa: PLR0911 -- one for each kind of annotation
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin in (Required, NotRequired, Annotated):
            return self._value(arguments[0], name)
        if origin is Literal:
            return self.random.choice(arguments)
        members = _members(annotation)
        if len(members) > 1:
            return self._value(
                self.random.choice([m for m in members if m is not type(None)]), name
            )
        if is_typeddict(annotation):
            return self._typed_dict(annotation)
        if (
            origin is not None and arguments and len(arguments) == 1
        ):  # an iterable, list or sequence
            return [self._value(arguments[0], name) for _ in range(self.random.randrange(1, 3))]
        if annotation is str:
            return SHAPED.get(name) or self.words(name)
        if annotation in (int, float):
            return self.random.randrange(1, 9)
        if annotation is bool:
            return False
        return {self.words("key")[:6]: self.words(name), "nested": {"deep": [1, None, True]}}

    # Blocks in pairs

    def call(self, **fields: Any) -> dict[str, Any]:
        path = f"src/file{self.random.randrange(4)}.py"
        inputs: list[dict[str, Any]] = [
            {"command": f"cat {path}"},
            {"path": path},
            {"path": path, "content": self.words("content")},
            {"pattern": "x", "nested": {"deep": [1, None]}},
        ]
        name = self.random.choice(["bash", "read_file", "write_file", "grep"])
        held = {"id": f"toolu_{self.number()}", "name": name, "input": self.random.choice(inputs)}
        return self.block("tool_use", **{**held, **fields})

    def result(self, call: Mapping[str, Any]) -> dict[str, Any]:
        built = self.block("tool_result", tool_use_id=call["id"], is_error=False)
        if self.chance(5):
            built["content"] = [*_listed(built.get("content")), self.future()]
        if self.chance(2):
            built["content"] = "line of a log\n" * self.random.choice((1, 40, 200))
        if self.chance(6):
            built |= {"is_error": True, "content": self.words("error")}
        return built

    def server_use(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        number = self.number()
        name = f"srvtoolu_{number}" if kind != "mcp_tool_use" else f"mcptoolu_{number}"
        return self.block(kind, **{"id": name, "input": {"query": self.words("q")}, **fields})

    def server_result(self, use: Mapping[str, Any]) -> dict[str, Any]:
        kinds = SERVER_PAIRS[use["type"]]
        own = [kind for kind in kinds if kind.removesuffix("_result") in f"{use['name']}_tool"]
        kind = next(
            (kind for kind in kinds if kind == f"{use['name']}_tool_result"), (own or kinds)[0]
        )
        return self.block(kind, tool_use_id=use["id"])

    def server_pair(self) -> list[dict[str, Any]]:
        use = self.server_use(self.random.choice(sorted(SERVER_PAIRS)))
        return [use, self.server_result(use)]

    def future(self) -> dict[str, Any]:
        """A block of a type that nobody knows yet."""
        number = self.number()
        kind = self.random.choice(FUTURE)
        built: dict[str, Any] = {"type": kind, "payload": {"of": [self.words("future"), None]}}
        if kind.endswith("_tool_use"):
            built["id"] = f"future:{number}"
        if kind.endswith("_tool_result"):
            built["tool_use_id"] = f"nobody:{number}"
        self.unknown.append(built)
        return built

    # Messages

    def said(self, role: str, blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        message = {"role": role, "content": list(blocks)}
        return as_models([message])[0] if self.sdk else message

    def speech(self) -> dict[str, Any]:
        """Return a message of the user: bare text, or blocks of every type that is the user's."""
        if self.chance(2):
            return {"role": "user", "content": self.words("user")}
        kinds = [self.random.choice(USER_TYPES) for _ in range(self.random.randrange(1, 4))]
        blocks = [self.block(kind) for kind in kinds]
        if self.chance(5):
            blocks.insert(self.random.randrange(len(blocks) + 1), self.future())
        return self.said("user", blocks)

    def thoughts(self) -> list[dict[str, Any]]:
        """Return the beginning of a reply: thinking, and other blocks of replies."""
        held = [self.block("thinking")] if self.chance(3) else []
        held += [
            self.block(self.random.choice(ASSISTANT_TYPES)) for _ in range(self.random.randrange(3))
        ]
        if self.chance(5):
            held.insert(self.random.randrange(len(held) + 1), self.future())
        return held

    def text(self) -> dict[str, Any]:
        return self.block("text")

    def system(self) -> list[dict[str, Any]]:
        """Perhaps a system message, for behind the user's."""
        if not self.chance(6):
            return []
        kinds = [
            self.random.choice([*SYSTEM_TYPES, "text"]) for _ in range(self.random.randrange(1, 3))
        ]
        content = self.words("system") if self.chance(2) else [self.block(kind) for kind in kinds]
        scoped = (
            {"clear_at": "next_user_message"} if isinstance(content, str) and self.chance(3) else {}
        )
        return [{"role": "system", "content": content, **scoped}]

    # Turns

    def turn(self) -> list[dict[str, Any]]:
        """An assistant's turn to its end, with all that the user does for it."""
        kinds = [
            self.plain_turn,
            self.client_turn,
            self.server_turn,
            self.paused_turn,
            self.mixed_turn,
            self.program_turn,
        ]
        return self.random.choice(kinds)()

    def plain_turn(self) -> list[dict[str, Any]]:
        if self.chance(3):
            return [{"role": "assistant", "content": self.words("reply")}]
        summary = [self.block("compaction")] if self.chance(20) else []
        return [self.said("assistant", [*summary, *self.thoughts(), self.text()])]

    def server_turn(self) -> list[dict[str, Any]]:
        return [self.said("assistant", [*self.thoughts(), *self.server_pair(), self.text()])]

    def client_turn(self) -> list[dict[str, Any]]:
        """One to three rounds of the client's tools, parallel calls among them."""
        rounds = [
            message for _ in range(self.random.randrange(1, 4)) for message in self.client_round()
        ]
        return [*rounds, *self.system(), *self.plain_turn()]

    def client_round(self) -> list[dict[str, Any]]:
        calls = [self.call() for _ in range(self.random.randrange(1, 4))]
        results = [self.result(call) for call in self.random.sample(calls, len(calls))]
        after = [self.text()] if self.chance(4) else []
        return [
            self.said("assistant", [*self.thoughts(), *calls]),
            self.said("user", [*results, *after]),
        ]

    def paused_turn(self) -> list[dict[str, Any]]:
        use = self.server_use(self.random.choice(sorted(SERVER_PAIRS)))
        return [
            self.said("assistant", [*self.thoughts(), use]),
            self.said("assistant", [self.server_result(use), self.text()]),
        ]

    def mixed_turn(self) -> list[dict[str, Any]]:
        """Tools of the API's and of the client's, called at once."""
        use, call = self.server_use("server_tool_use", name="web_search"), self.call()
        return [
            self.said("assistant", [*self.thoughts(), use, call]),
            self.said("user", [self.result(call)]),
            self.said("assistant", [self.server_result(use), self.text()]),
        ]

    def program_turn(self) -> list[dict[str, Any]]:
        """A program calls the client's tools, in one or two rounds."""
        use = self.server_use("server_tool_use", name="code_execution")
        caller = {
            "type": self.random.choice(("code_execution_20250825", "code_execution_20260120"))
        }
        held: list[dict[str, Any]] = []
        begins = [*self.thoughts(), use]
        for _ in range(self.random.randrange(1, 3)):
            calls = [
                self.call(caller={**caller, "tool_id": use["id"]})
                for _ in range(self.random.randrange(1, 3))
            ]
            held += [
                self.said("assistant", [*begins, *calls]),
                self.said("user", [self.result(c) for c in calls]),
            ]
            begins = []
        return [*held, self.said("assistant", [self.server_result(use), self.text()])]

    # Histories

    def history(self, exchanges: int) -> list[dict[str, Any]]:
        history = [*self.beginning(), self.speech()]
        for _ in range(exchanges):
            history += [*self.system(), *self.turn(), self.speech()]
            if self.chance(9):
                history.append(self.speech())  # the API joins neighbours of one role
        history += self.ending()
        self.mark(history)
        return history

    def beginning(self) -> list[dict[str, Any]]:
        """Perhaps the summary that the API made of all that came before."""
        if not self.chance(12):
            return []
        summary = self.block("compaction", content=self.words("summary"))
        if self.chance(2):
            return [self.said("assistant", [summary, self.text()])]
        return [self.said("assistant", [summary])]

    def ending(self) -> list[dict[str, Any]]:
        ends = (
            list[dict[str, Any]],
            self.system,
            self.client_round,
            lambda: self.paused_turn()[:1],
            lambda: self.mixed_turn()[:2],
            lambda: self.program_turn()[:2],
        )
        return self.random.choice(ends)()

    def mark(self, history: Sequence[Mapping[str, Any]]):
        """Up to four cache marks, those for an hour before the others."""
        places = [
            block
            for message in history
            if "clear_at" not in message and not isinstance(message["content"], str)
            for block in message["content"]
            if isinstance(block, dict) and block["type"] in MARKABLE
        ]
        if not places or self.chance(2):
            return
        indexes = sorted(
            self.random.sample(range(len(places)), min(len(places), self.random.randrange(1, 5)))
        )
        hours = self.random.randrange(len(indexes) + 1)
        for order, index in enumerate(indexes):
            places[index]["cache_control"] = (
                dict(ONE_HOUR) if order < hours else {"type": "ephemeral"}
            )


LEFT_OUT = frozenset({"cache_control", "caller", "toolset_name", "is_error"})
SHAPED = {
    "name": "a_tool",
    "server_name": "server",
    "data": "iVBORw0K",
    "url": "https://example.com/a",
    "file_id": "file_1",
    "media_type": "image/png",
}
MARKABLE = frozenset({"text", "image", "document", "tool_use", "tool_result", "server_tool_use"})


def _listed(content: Any) -> list[Any]:
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


# Strategies ---------------------------------------------------------------------------------------

# a choice for each word would cost hypothesis far more than the histories do
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def valid_histories(
    draw: st.DrawFn, max_exchanges: int = 4, *, sdk: bool | None = None
) -> list[Message]:
    """A history that the API accepts.

    With *sdk* the replies are model objects of the SDK, else dicts; None: either.
    """
    exchanges = draw(st.integers(0, max_exchanges))
    builder = Builder(Random(draw(SEEDS)), draw(st.booleans()) if sdk is None else sdk)
    return builder.history(exchanges)  # type: ignore[return-value]


def wire(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """*messages* as the SDK would send them."""
    return json.loads(json.dumps(messages, default=_dumped))  # type: ignore[no-any-return]


def _dumped(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_unset=True, by_alias=True)


def body_of(messages: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    """The request that sends *messages*.

    The system messages at their head go where the API wants them.
    """
    sent = wire(messages)
    head = next(
        (index for index, message in enumerate(sent) if message["role"] != "system"), len(sent)
    )
    system = [block for message in sent[:head] for block in _listed(message["content"])]
    return {"model": "m", "max_tokens": 1, "system": system, "messages": sent[head:], **fields}


def refusals(
    messages: Sequence[Mapping[str, Any]], model: Model = MODEL, **fields: Any
) -> list[str]:
    """Return what the API would refuse in *messages*; empty if it accepts them."""
    return problems(body_of(messages, **fields), model)


def is_unfinished(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the API refuses *messages* only because of their end.

    Calls wait there, or a reply to be continued.
    """
    last = wire(messages[-1:])
    calls = (
        [block["id"] for _, _, block in _blocks(last, "tool_use")]
        if last[0]["role"] == "assistant"
        else []
    )
    reply = [{"type": "tool_result", "tool_use_id": name} for name in calls] or "go on"
    if not refusals([*messages, {"role": "user", "content": reply}]):
        return True
    # words that come while a server tool is at work
    return all("prefill" in fault for fault in refusals(messages))


def as_models(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """*messages* with the assistant's blocks as the SDK returns them.

    They are model objects, where there is one.
    """
    return [
        {**message, "content": list(map(_as_model, message["content"]))}
        if message["role"] == "assistant" and isinstance(message["content"], list)
        else dict(message)
        for message in messages
    ]


def _as_model(block: dict[str, Any]) -> dict[str, Any] | BaseModel:
    for model in MODELS.get(block["type"], ()):
        try:
            return model.model_validate(block)  # type: ignore[no-any-return]
        except ValidationError:
            continue
    return block


def unknown_blocks(value: Any) -> Iterator[str]:
    """Every block of an unknown type in *value*, as JSON."""
    if isinstance(value, Mapping):
        if value.get("type") in FUTURE:
            yield json.dumps(
                {key: held for key, held in value.items() if key != "cache_control"}, sort_keys=True
            )
        for held in value.values():
            yield from unknown_blocks(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from unknown_blocks(held)


# One rule broken ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Broken:
    """A *history* in which the rule called *label* was broken."""

    label: str
    history: list[dict[str, Any]]


Break = Callable[[list[dict[str, Any]], Random], bool]
BROKEN: dict[str, Break] = {}


def breaks(rule: str) -> Callable[[Break], Break]:
    """Register a function that breaks *rule* in a history, in place, and tells whether it could."""

    def register(act: Break) -> Break:
        BROKEN[rule] = act
        return act

    return register


@st.composite
def broken_histories(
    draw: st.DrawFn, max_exchanges: int = 3, labels: Sequence[str] | None = None
) -> Broken:
    """A history that the API refuses because of one rule; *labels* narrows the choice."""
    label = draw(st.sampled_from(sorted(labels or BROKEN)))
    random = Random(draw(SEEDS))
    for _ in range(20):
        history = wire(Builder(random).history(random.randrange(1, max_exchanges + 1)))
        if BROKEN[label](history, random) and refusals(history):
            return Broken(label, history)
    raise AssertionError(reject())


def _blocks(
    history: Sequence[dict[str, Any]], *kinds: str
) -> list[tuple[int, int, dict[str, Any]]]:
    """Yield each block of these *kinds* with the places of its message and of itself."""
    return [
        (index, place, block)
        for index, message in enumerate(history)
        if isinstance(message["content"], list)
        for place, block in enumerate(message["content"])
        if block["type"] in kinds
    ]


def _one(
    history: Sequence[dict[str, Any]], random: Random, *kinds: str
) -> tuple[int, int, dict[str, Any]] | None:
    found = _blocks(history, *kinds)
    return random.choice(found) if found else None


def _of_role(
    history: Sequence[dict[str, Any]], random: Random, role: str, lists: bool = False
) -> int | None:
    found = [
        index
        for index, message in enumerate(history)
        if message["role"] == role and (not lists or isinstance(message["content"], list))
    ]
    return random.choice(found) if found else None


def _dropping(*kinds: str) -> Break:
    def drop(history: list[dict[str, Any]], random: Random) -> bool:
        chosen = _one(history, random, *kinds)
        if chosen is None:
            return False
        index, place, _ = chosen
        del history[index]["content"][place]
        if not history[index]["content"]:
            history[index]["content"] = "something else"
        return True

    return drop


def _changing(change: Callable[[dict[str, Any]], object], *kinds: str) -> Break:
    def act(history: list[dict[str, Any]], random: Random) -> bool:
        chosen = _one(history, random, *kinds)
        if chosen is not None:
            change(chosen[2])
        return chosen is not None

    return act


def _inserting(block: Mapping[str, Any], role: str, *, last: bool = False) -> Break:
    def insert(history: list[dict[str, Any]], random: Random) -> bool:
        index = _of_role(history, random, role, lists=True)
        if index is None:
            return False
        content = history[index]["content"]
        content.insert(
            len(content) if last else random.randrange(len(content) + 1), copy.deepcopy(dict(block))
        )
        return True

    return insert


SERVER_RESULTS = tuple(name for names in SERVER_PAIRS.values() for name in names)
BROKEN |= {
    "a call without its result": _dropping("tool_result"),
    "a result without its call": _dropping("tool_use"),
    "a server call without its result": _dropping(*SERVER_RESULTS),
    "a server result without its call": _dropping(*SERVER_PAIRS),
    "an input of null": _changing(lambda b: b.update(input=None), *USE_TYPES),
    "an input of text": _changing(lambda b: b.update(input='{"a": 1}'), *USE_TYPES),
    "an input that is a list": _changing(lambda b: b.update(input=[1, 2]), *USE_TYPES),
    "no input at all": _changing(lambda b: b.pop("input"), *USE_TYPES),
    "a caller of null": _changing(lambda b: b.update(caller=None), *USE_TYPES),
    "a name of nothing": _changing(lambda b: b.update(name=""), "tool_use"),
    "a name too long": _changing(lambda b: b.update(name="n" * 300), "tool_use"),
    "thinking without signature": _changing(lambda b: b.pop("signature"), "thinking"),
    "thinking with an empty signature": _changing(lambda b: b.update(signature=""), "thinking"),
    "thinking that is marked": _changing(
        lambda b: b.update(cache_control=ONE_HOUR), "thinking", "redacted_thinking"
    ),
    "thinking at the end": _inserting(
        {"type": "thinking", "thinking": "x", "signature": "s"}, "assistant", last=True
    ),
    "thinking of the user's": _inserting(
        {"type": "thinking", "thinking": "x", "signature": "s"}, "user"
    ),
    "an empty text": _inserting({"type": "text", "text": ""}, "user"),
    "a blank text": _inserting({"type": "text", "text": " \n"}, "assistant"),
    "an error that says nothing": _changing(
        lambda b: b.update(is_error=True, content=""), "tool_result"
    ),
    "an error without content": _changing(
        lambda b: (b.update(is_error=True), b.pop("content", 0)), "tool_result"
    ),
    "an error that is a picture": _changing(
        lambda b: b.update(
            is_error=True,
            content=[{"type": "image", "source": {"type": "url", "url": "https://example.com"}}],
        ),
        "tool_result",
    ),
    "a server's id without its prefix": _changing(
        lambda b: b.update(id="call_1"), "server_tool_use"
    ),
    "a server call of the user's": _inserting(
        {"type": "server_tool_use", "id": "srvtoolu_x", "name": "web_search", "input": {}},
        "user",
        last=True,
    ),
    "a server result of the user's": _inserting(
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_x", "content": []},
        "user",
        last=True,
    ),
    "a call of the user's": _inserting(
        {"type": "tool_use", "id": "x", "name": "ls", "input": {}}, "user", last=True
    ),
    "a result of the assistant's": _inserting(
        {"type": "tool_result", "tool_use_id": "x"}, "assistant"
    ),
    "a signed summary in the middle": _inserting(
        {"type": "compaction", "content": "so far", "signature": "s"}, "assistant"
    ),
    "a summary with a field too many": _inserting(
        {"type": "compaction", "content": "x", "citations": None}, "assistant"
    ),
}


@breaks("five cache marks")
def _five_marks(history: list[dict[str, Any]], random: Random) -> bool:
    places = _blocks(history, *MARKABLE)
    for _, _, block in random.sample(places, min(len(places), 7)):
        block["cache_control"] = {"type": "ephemeral"}
    return len(places) > 4


@breaks("an hour after five minutes")
def _late_hour(history: list[dict[str, Any]], random: Random) -> bool:
    places = _blocks(history, *MARKABLE)
    if len(places) < 2:
        return False
    for _, _, block in places:
        block.pop("cache_control", None)
    first, second = sorted(random.sample(range(len(places)), 2))
    places[first][2]["cache_control"] = {"type": "ephemeral"}
    places[second][2]["cache_control"] = dict(ONE_HOUR)
    return True


@breaks("ids of another provider")
def _foreign_ids(history: list[dict[str, Any]], random: Random) -> bool:
    for _, _, block in _blocks(history, "tool_use", "tool_result"):
        key = "id" if block["type"] == "tool_use" else "tool_use_id"
        block[key] = f"functions.{block[key]}:{random.choice((0, 0, 0))}"
    return bool(_blocks(history, "tool_use"))


@breaks("ids that only differ in characters that are refused")
def _close_ids(history: list[dict[str, Any]], random: Random) -> bool:
    done = False
    for index, message in enumerate(history[:-1]):
        calls = _blocks([message], "tool_use")
        if len(calls) < 2:
            continue
        for number, (_, _, call) in enumerate(calls):
            for _, _, result in _blocks([history[index + 1]], "tool_result"):
                if result["tool_use_id"] == call["id"]:
                    result["tool_use_id"] = f"a{'.:/'[number]}b"
            call["id"] = f"a{'.:/'[number]}b"
        done = True
    return done


@breaks("one id for two calls")
def _same_ids(history: list[dict[str, Any]], random: Random) -> bool:
    index = _of_role(history, random, "assistant", lists=True)
    calls = [] if index is None else _blocks([history[index]], "tool_use")
    for _, _, call in calls:
        call["id"] = "toolu_same"
    return len(calls) > 1


@breaks("keys of a whole reply")
def _whole_reply(history: list[dict[str, Any]], random: Random) -> bool:
    index = _of_role(history, random, "assistant")
    if index is None:
        return False
    history[index] |= {
        "id": "msg_1",
        "type": "message",
        "model": "m",
        "stop_reason": None,
        "usage": {"input_tokens": 1},
    }
    return True


@breaks("private keys")
def _private_keys(history: list[dict[str, Any]], random: Random) -> bool:
    random.choice(history)["_pinned"] = True
    return True


@breaks("a scope of the user's")
def _scoped_user(history: list[dict[str, Any]], random: Random) -> bool:
    history[_of_role(history, random, "user") or 0]["clear_at"] = "next_user_message"
    return True


def _system_at(history: list[dict[str, Any]], places: Sequence[int], random: Random) -> bool:
    if places:
        history.insert(random.choice(places), {"role": "system", "content": "Plan mode is on."})
    return bool(places)


@breaks("a system message after the assistant's turn")
def _late_system(history: list[dict[str, Any]], random: Random) -> bool:
    after = [index + 1 for index, message in enumerate(history) if message["role"] == "assistant"]
    return _system_at(history, after, random)


@breaks("a system message before the user's")
def _early_system(history: list[dict[str, Any]], random: Random) -> bool:
    return _system_at(
        history, [i for i, m in enumerate(history) if i and m["role"] == "user"], random
    )


@breaks("an empty message")
def _empty(history: list[dict[str, Any]], random: Random) -> bool:
    random.choice(history)["content"] = random.choice(("", [], " \n"))
    return True


@breaks("words after the results of a mixed turn or a program")
def _words_after(history: list[dict[str, Any]], random: Random) -> bool:
    places = [index for index, _, _ in _blocks(history, "tool_result")]
    if places:
        history[random.choice(places)]["content"].append({"type": "text", "text": "And?"})
    return bool(places)


@breaks("a result twice")
def _twice(history: list[dict[str, Any]], random: Random) -> bool:
    chosen = _one(history, random, "tool_result", *SERVER_RESULTS)
    if chosen is not None:
        history[chosen[0]]["content"].insert(chosen[1], copy.deepcopy(chosen[2]))
    return chosen is not None


@breaks("a result behind words")
def _behind(history: list[dict[str, Any]], random: Random) -> bool:
    chosen = _one(history, random, "tool_result")
    if chosen is not None:
        history[chosen[0]]["content"].insert(0, {"type": "text", "text": "Look:"})
    return chosen is not None


@breaks("blocks in another order")
def _reversed(history: list[dict[str, Any]], random: Random) -> bool:
    index = _of_role(history, random, random.choice(("user", "assistant")), lists=True)
    if index is not None:
        history[index]["content"].reverse()
    return index is not None


@breaks("a message lost")
def _lost(history: list[dict[str, Any]], random: Random) -> bool:
    del history[random.randrange(len(history))]
    return bool(history)


@breaks("a message twice")
def _doubled(history: list[dict[str, Any]], random: Random) -> bool:
    index = random.randrange(len(history))
    history.insert(index, copy.deepcopy(history[index]))
    return True


@breaks("two messages exchanged")
def _exchanged(history: list[dict[str, Any]], random: Random) -> bool:
    index = random.randrange(len(history))
    history[index - 1], history[index] = history[index], history[index - 1]
    return len(history) > 1


@breaks("a message of another role")
def _other_role(history: list[dict[str, Any]], random: Random) -> bool:
    message = random.choice(history)
    message["role"] = "user" if message["role"] == "assistant" else "assistant"
    return True


@breaks("a turn interrupted by the user")
def _interrupted(history: list[dict[str, Any]], random: Random) -> bool:
    index = _of_role(history, random, "assistant")
    if index is not None:
        history[index + 1 : index + 1] = [{"role": "user", "content": "Stop. Something else."}]
    return index is not None
