"""A scripted model that surveys a Python package, and uses only what the request shows.

Each step reads the calls and results in the context and decides what to do next, so a context that
lost something makes the survey fail or never end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ctxpipe.messages import tool_calls, tool_results
from ctxpipe.testing import Answer, RequestBody, answer_with, thinking, tool_use

if TYPE_CHECKING:
    from ctxpipe.messages import Message

__all__ = ["FAULTS", "survey"]

MISSING = "nothing of it is left in the context"
DIFFERENT = "it is NOT what is on the disk"
FAULTS = (MISSING, DIFFERENT)
POINTER = re.compile(r"\[(?:Tool result offloaded to file|Content offloaded to): ([^\]\n]+)\]")
NEXT_PAGE = re.compile(r"\n\[Characters \d+ to (\d+) of \d+\. Read on with offset=\d+\.\]$")
DOCSTRING = re.compile(r'(?:#.*\n|\s)*[rR]?"""(.+)')
SUBJECTS = (
    r"^\s*raise \w+",
    r"^class \w+",
    r"^\s*async def ",
    r"# type: ignore",
    r"^(from|import) anyio",
    r"lambda",
)
OUTLINE = """import ast, pathlib
for path in {paths!r}:
    tree = ast.parse(pathlib.Path(path).read_text())
    print(path, *(node.name for node in ast.walk(tree) if hasattr(node, "name")))
"""
DIGEST = """import hashlib, pathlib
print(hashlib.sha256(pathlib.Path({path!r}).read_bytes()).hexdigest())
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A call in the context with the text of its result."""

    name: str
    input: Mapping[str, Any]
    result: str

    @property
    def pointer(self) -> str | None:
        """Path of the file with the result, if it was offloaded."""
        found = POINTER.match(self.result)
        return found[1] if found else None

    @property
    def visible(self) -> str:
        """The part of the result that the context shows: all of it, its preview, or nothing."""
        return self.result.partition("characters:\n")[2] if self.pointer else self.result


@dataclass(frozen=True, slots=True)
class Context:
    """The calls and results that the request shows."""

    calls: Sequence[Call]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Context:
        results = {result.tool_use_id: words(result.content) for result in tool_results(messages)}
        return cls(
            [Call(call.name, call.input, results.get(call.id, "")) for call in tool_calls(messages)]
        )

    def named(self, name: str, **arguments: str) -> Iterator[Call]:
        for call in self.calls:
            if call.name == name and arguments.items() <= call.input.items():
                yield call

    def first(self, name: str, **arguments: str) -> Call | None:
        return next(self.named(name, **arguments), None)

    def read_back(self, pointer: str) -> tuple[str, int | None]:
        """Return the part of an offloaded text that was read back, and the next offset.

        The offset is None at the end of the text.
        """
        text = ""
        offset = 0
        pages = {
            call.input["offset"]: call.result for call in self.named("read_offloaded", path=pointer)
        }
        while offset in pages:
            more = NEXT_PAGE.search(pages[offset])
            if more is None:
                return text + pages[offset], None
            text += pages[offset][: more.start()]
            offset = int(more[1])
        return text, offset


def survey(body: RequestBody) -> Answer:
    """Return the next step of the survey.

    It lists, reads and outlines every module, searches for some subjects, reads some results again,
    and reports.
    """
    context = Context.of(body.get("messages", []))
    steps = (
        listed,
        modules_read,
        subjects_searched,
        outline_searched,
        unseen_read_again,
        longest_read_again,
    )
    step = next((step for take in steps if (step := take(context))), None)
    # As with newer models, the signature of thinking covers everything before it in the request.
    return (
        answer_with(thinking(f"{len(context.calls)} calls so far."), *step.blocks)
        if step
        else answer_with(report(context))
    )


def words(content: object) -> str:
    if isinstance(content, str):
        return content
    parts: Any = content or []
    return "".join(part.get("text", "") for part in parts)


# Steps: each returns an answer with calls, or None if it is finished -----------------------------


def listed(context: Context) -> Answer | None:
    call = context.first("list_dir")
    if call is None:
        return answer_with("First I look at what is there.", tool_use("list_dir", {"path": "."}))
    return (
        read_on(context, call.pointer, "The listing was offloaded, I read it back.")
        if call.pointer
        else None
    )


def modules_read(context: Context) -> Answer | None:
    read = [call.input["path"] for call in context.named("read_file")]
    outlined = " ".join(call.input["code"] for call in context.named("run_python"))
    rest = [path for path in read if repr(path) not in outlined]
    if rest:
        return answer_with(
            "What do they define?", tool_use("run_python", {"code": OUTLINE.format(paths=rest)})
        )
    batch = [path for path in modules(context) if path not in read][: 1 + len(read) % 3]
    return (
        answer_with(*(tool_use("read_file", {"path": path}) for path in batch)) if batch else None
    )


def subjects_searched(context: Context) -> Answer | None:
    searched = {call.input["pattern"] for call in context.named("grep")}
    rest = [subject for subject in SUBJECTS if subject not in searched]
    return (
        answer_with(*(tool_use("grep", {"pattern": subject}) for subject in rest[:2]))
        if rest
        else None
    )


def outline_searched(context: Context) -> Answer | None:
    pointer = next((call.pointer for call in context.named("run_python") if call.pointer), None)
    if pointer is None or context.first("search_offloaded", path=pointer):
        return None
    search = tool_use("search_offloaded", {"path": pointer, "pattern": ".py", "limit": 3})
    return answer_with("Whose outline was that?", search)


def unseen_read_again(context: Context) -> Answer | None:
    for path in modules(context):
        call = context.first("read_file", path=path)
        if call and call.pointer and not call.visible:
            step = read_on(context, call.pointer, f"What was {path} about?")
            if step:
                return step
    return None


def longest_read_again(context: Context) -> Answer | None:
    path, pointer = longest(context)
    if pointer is None:
        return None
    step = read_on(context, pointer, f"I read {path} again, whole.")
    code = DIGEST.format(path=path)
    if step is None and context.first("run_python", code=code) is None:
        return answer_with("Is it what is on the disk?", tool_use("run_python", {"code": code}))
    return step


def read_on(context: Context, pointer: str, why: str) -> Answer | None:
    _, offset = context.read_back(pointer)
    return (
        None
        if offset is None
        else answer_with(why, tool_use("read_offloaded", {"path": pointer, "offset": offset}))
    )


# What the steps and the report ask of the context -------------------------------------------------


def modules(context: Context) -> dict[str, int]:
    """Return the modules that the listing names, with their sizes."""
    call = context.first("list_dir")
    listing = (
        "" if call is None else context.read_back(call.pointer)[0] if call.pointer else call.result
    )
    lines = (line.rpartition(" ") for line in listing.splitlines())
    return {path: int(size) for path, _, size in lines if path.endswith(".py")}


def longest(context: Context) -> tuple[str, str | None]:
    """Return the longest module, and the path of its text if that was offloaded."""
    sizes = modules(context)
    path = max(sizes, key=lambda name: sizes[name], default="")
    call = context.first("read_file", path=path)
    return path, call.pointer if call else None


def purpose(context: Context, path: str) -> str:
    """Return the first line of the module's docstring, if the context still shows it."""
    call = context.first("read_file", path=path)
    seen = (
        call.visible or (context.read_back(call.pointer)[0] if call.pointer else "") if call else ""
    )
    found = DOCSTRING.match(seen)
    return found[1].removesuffix('"""') if found else "(no docstring)" if seen else MISSING


def report(context: Context) -> str:
    lines = [f"- {path}: {purpose(context, path)}" for path in modules(context)]
    return "\n".join([f"The folder holds {len(lines)} modules.", *lines, same_on_disk(context)])


def same_on_disk(context: Context) -> str:
    path, pointer = longest(context)
    printed = context.first("run_python", code=DIGEST.format(path=path))
    if pointer is None or printed is None:
        return "No module was long enough to be offloaded."
    digest = hashlib.sha256(context.read_back(pointer)[0].encode()).hexdigest()
    same = digest == printed.result.strip()
    return (
        f"The longest, {path}, was read back: {'it is what is on the disk' if same else DIFFERENT}."
    )
