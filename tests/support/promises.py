"""The ten promises that hold everywhere.

Each is one function that looks at a run and says how it was broken.

A `Run` is what was handed in, what came out, and everything that could be seen from outside in
between. Each check yields a sentence for every breach; none for a promise that was kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from api_rules import faults, parts

from ctxpipe import CtxpipeError, Result
from ctxpipe.messages import Message
from ctxpipe.placeholders.placeholders import (
    INTERRUPTED,
    SILENT_ERROR,
    any_reference,
    media_reference,
)
from ctxpipe.stages.archive import parse_archive
from ctxpipe.stages.protocol import Change, Turn
from ctxpipe.stages.reports import Collapsed, Compacted, Offloaded, Outcome, StageReport, Truncated
from ctxpipe.testing import problems
from ctxpipe.testing.rules import Model
from ctxpipe.testing.signatures import verify

THINKING = ("thinking", "redacted_thinking")
FOLDED = "<system-reminder>\n## File Context: "
SURROGATE = "a lone surrogate"
SAID_BY_REPAIR = frozenset({INTERRUPTED, SILENT_ERROR})
STEP = re.compile(r"/s\d+(?:-[0-9a-f]{8}){0,2}(?:-\d+)?\.md$")
SENT_ID = re.compile(r"[a-zA-Z0-9_-]+")
MODEL = Model(prefill=True)  # a context may end in the assistant's words


# What is looked at --------------------------------------------------------------------------------


@dataclass(slots=True)
class Originals:
    """Every tool result and every input that was ever handed in, by the id of its call.

    They are held in all forms that a file may hold.

    One of them is the text as it was mended for a request: what an earlier turn had to mend is
    offloaded so.
    """

    results: dict[str, set[str]] = field(default_factory=dict)
    inputs: dict[str, set[str]] = field(default_factory=dict)
    media: set[str] = field(default_factory=set)

    def learn(self, messages: Iterable[Mapping[str, Any]]):
        for message in messages:
            for part in parts(message):
                inner = part.get("content") if part["type"] == "tool_result" else None
                for block in inner if isinstance(inner, list) else [part]:
                    if block["type"] in ("image", "document"):
                        self.media.add(_media_form(block))
                if part["type"] == "tool_result":
                    for name in _names(part["tool_use_id"]):
                        self.results.setdefault(name, set()).update(
                            _also_mended(_forms(part.get("content")))
                        )
                elif part["type"] == "tool_use":
                    for name in _names(part["id"]):
                        self.inputs.setdefault(name, set()).update(
                            _also_mended(_strings(part["input"]))
                        )

    def learn_folds(self, messages: Iterable[Mapping[str, Any]]):
        """Record what a truncation has made of file views.

        Whoever adopts it, or goes on with it, may offload it.
        """
        for name, text in _folds(messages):
            self.results.setdefault(name, set()).add(text)

    def all(self) -> set[str]:
        """All that a file may rightly hold, and what a repair says in the place of a result."""
        return (
            set(SAID_BY_REPAIR)
            | self.media
            | {
                on_disk(text)
                for held in (self.results, self.inputs)
                for texts in held.values()
                for text in texts
            }
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Run of a pipeline, seen from outside.

    *before* are the messages handed in as JSON, *objects* the very objects, both taken before the
    run. *proposals* are those that counted, *told* the reports as they came. *sent* is what the
    session sent last, None when there is nothing to compare with. *files* are those below the root
    before and after. *asked* says how many summaries were asked for, *allowed* how many may be.
    *signed* tells that thinking was signed by a model that saw what was sent.
    """

    given: Sequence[Message]
    before: Sequence[str]
    objects: Sequence[Message]
    result: Result
    stages: Sequence[object]
    root: Path
    originals: Originals
    proposals: Sequence[tuple[Turn, Change]] = ()
    told: Sequence[StageReport] = ()
    sent: Sequence[Message] | None = None
    files: tuple[Mapping[str, object], Mapping[str, object]] = ({}, {})
    journal: str = ""
    asked: int = 0
    allowed: int | None = None
    counts: Callable[[Iterable[Message]], int] = len  # type: ignore[assignment]
    encoded: Counter[str] = field(default_factory=Counter)
    raced: bool = False
    writing: bool = False  # a summary in the background, when the run began
    signed: bool = False
    in_session: bool = False
    edited: bool = False  # the caller has changed the last message since
    # placeholders seen so far
    pointers: dict[tuple[str, str, str], str] = field(default_factory=dict)
    cleaned: Collection[str] = ()  # files that a clean-up was free to delete
    secret: str = ""

    @property
    def outcomes(self) -> list[Outcome]:
        return [report.outcome for report in self.result.reports]


# 1 ------------------------------------------------------------------------------------------------


def the_input_is_never_modified(run: Run) -> Iterator[str]:
    """Copy on write; untouched messages by reference.

    Nothing to do: the very same list, and no file.
    """
    if snapshot(run.given)[: len(run.before)] != list(run.before):
        yield "what was handed in reads differently"
    if any(now is not then for now, then in zip(run.given, run.objects, strict=False)):
        yield "the list that was handed in holds other objects"
    for turn, change in run.proposals:
        pairs = enumerate(zip(turn.messages, change.messages, strict=False))
        for index, (old, new) in pairs if isinstance(change.detail, Offloaded) else ():
            if new is not old and plain_json(new) == plain_json(old):
                yield f"message {index} was copied without need"
    idle = all(outcome is Outcome.SKIPPED for outcome in run.outcomes) and not run.result.repaired
    if idle and not run.in_session and run.result.messages is not run.given:
        yield "nothing was done, and another list came back"
    # A summary from the background is tried without asking for one.
    has_tried = run.asked or any(
        isinstance(report.detail, Compacted) and report.detail.attempts
        for report in run.result.reports
    )
    if idle and not has_tried:
        written = {name for name, info in run.files[1].items() if run.files[0].get(name) != info}
        stem = run.journal.removesuffix(".jsonl") or "no journal"
        # one that was damaged is set aside
        written = {name for name in written if not name.startswith(stem)}
        if run.writing:  # the archive of a summary that an earlier turn has begun
            written = {name for name in written if "/compact-" not in name}
        if written:
            yield f"nothing was done, and {sorted(written)} was written"


# 2 ------------------------------------------------------------------------------------------------


def the_context_is_accepted(run: Run) -> Iterator[str]:
    """The API's rules, told twice; roles and ends of what was rewritten.

    Thinking byte for byte, and its bond.
    """
    messages = run.result.messages
    yield from faults(messages)
    for turn, change in run.proposals:
        rewritten = isinstance(change.detail, Compacted)
        ends = bool(turn.messages) and turn.messages[-1]["role"] == "user"
        found = faults(change.messages, end_user=ends)
        yield from (f"a proposal: {fault}" for fault in found if SURROGATE not in fault)
        yield from _new_neighbours(turn.messages, change.messages) if rewritten else ()
    body = _body(run)
    calls = {part["type"] for part in parts(messages[-1])} if messages else set()
    if (
        body["messages"] and "tool_use" not in calls
    ):  # who hands in a waiting call gets it back, and sends it to nobody
        yield from (text for text in problems(body, MODEL) if "should match pattern" not in text)
        if run.signed:
            verdict = verify(body, MODEL, str(run.result.request_options.get("extra_headers", "")))
            yield from verdict.problems
    was = Counter(_thoughts(run.given)) + Counter(_thoughts(run.sent or ()))
    yield from (
        f"thinking that nobody had: {thought[:80]}"
        for thought in Counter(_thoughts(messages)) - was
    )
    # `faults` takes any number of marks, of which a request may have four, and any id.
    marks = "".join(run.before).count('"cache_control":')
    sound = not faults(run.given) and marks <= 4
    told = [problem for problem in run.result.repaired if problem.rule != "tool-id"]
    if not run.in_session and sound == bool(told):
        yield f"what was broken and what is told differ: {faults(run.given)} and {told}"
    if sound and run.given and parts(run.given[-1])[-1]["type"] == "tool_use":
        last = run.result.messages[-1]
        waiting = [part for part in parts(run.given[-1]) if part["type"] == "tool_use"]
        # else they are renamed, in the first turn
        is_sendable = all(SENT_ID.fullmatch(part["id"]) for part in waiting)
        if (
            is_sendable
            and last is not run.given[-1]
            and plain_json(last) != plain_json(run.given[-1])
        ):
            yield "the calls that wait for their results were touched"


def _new_neighbours(before: Sequence[Message], after: Sequence[Message]) -> Iterator[str]:
    """Check that the messages of a change alternate between the roles.

    Neighbours of one role that were neighbours in the input may stay.
    """
    stood = {(id(one), id(other)) for one, other in pairwise(before)}
    for index, (one, other) in enumerate(pairwise(after), 1):
        if one["role"] == other["role"] != "system" and (id(one), id(other)) not in stood:
            yield f"a proposal: message {index} has the role of the one before"


def _body(run: Run) -> dict[str, Any]:
    head = {"model": "m", "max_tokens": 1, **run.result.request_options.get("extra_body", {})}
    messages = [
        message for message in map(plain, run.result.messages) if message["role"] != "system"
    ]
    system = [
        p for message in run.result.messages if message["role"] == "system" for p in parts(message)
    ]
    return {**head, "system": system, "messages": messages}


def _thoughts(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    found = [part for message in messages for part in parts(message) if part["type"] in THINKING]
    return [
        json.dumps({name: value for name, value in part.items() if value is not None})
        for part in found
    ]


# 3 ------------------------------------------------------------------------------------------------


def nothing_is_lost(run: Run) -> Iterator[str]:
    """Behind each placeholder lies the whole text; what a change takes out lies in its archive.

    Files are whole.
    """
    for name, where, text in _pointers(run.result.messages, run.originals):
        held = text_at(run.root, where)
        if held is None:
            if where not in run.cleaned:
                yield f"{where} is not there"
        elif held not in {on_disk(original) for original in _known(run.originals, name)}:
            yield f"{where} does not hold what {name!r} gave, but {held[:60]!r}"
        del text
    yield from _lost_media(run)
    for turn, change in run.proposals:
        archive = getattr(change.detail, "archive", None)
        if isinstance(change.detail, Collapsed | Compacted | Truncated):
            if archive is None:
                yield "messages left, and were not archived"
                continue
            kept = set(map(id, change.messages))
            left = Counter(
                plain_json(message) for message in turn.messages if id(message) not in kept
            )
            saved = Counter(map(plain_json, parse_archive(Path(archive).read_text(), archive)))
            head = Counter(
                plain_json(message) for message in turn.messages if message["role"] == "system"
            )
            if left - saved - head:
                yield f"{archive} lacks {list(left - saved)[:1]}"
    rightly = None
    for name, info in run.files[1].items():
        is_step = STEP.search(name)  # several texts: whether it is whole, tests of its stage tell
        if run.files[0].get(name) != info and name.endswith(".md") and not is_step:
            rightly = run.originals.all() if rightly is None else rightly
            held = text_at(run.root, name)
            if held not in rightly:
                yield f"{name} holds something that nobody said: {held!r:.200}"


def _lost_media(run: Run) -> Iterator[str]:
    for message in run.result.messages:
        for said in _strings(plain(message)):
            path = media_reference(said)
            if path is not None and text_at(run.root, path) not in run.originals.media:
                yield f"{path} does not hold an image or document that was handed in"


def _folds(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for message in messages:
        for part in parts(message):
            content = part.get("content") if part["type"] == "tool_result" else None
            if isinstance(content, str) and content.startswith(FOLDED):
                yield mended(part["tool_use_id"]), content


def _known(originals: Originals, name: str) -> set[str]:
    if name not in originals.results and name not in originals.inputs:
        name = re.sub(r"-\d+$", "", name)  # one that came twice in a message was told apart
    return (
        set(SAID_BY_REPAIR) | originals.results.get(name, set()) | originals.inputs.get(name, set())
    )


def _names(given: str) -> tuple[str, ...]:
    """Return the names by which a call is recognized.

    Its id as it can be sent, and another where the API does not take it.
    """
    if SENT_ID.fullmatch(given):
        return (given,)
    digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return mended(given), f"{re.sub('[^a-zA-Z0-9_-]', '_', given)[:40]}_{digest}"


def _pointers(
    messages: Iterable[Mapping[str, Any]], originals: Originals
) -> Iterator[tuple[str, str, str]]:
    """Yield each placeholder of ctxpipe: the id of its call, the path, the text.

    One that a tool made up is no such thing.
    """
    for message in messages:
        for part in parts(message):
            if part["type"] == "tool_result":
                name, texts = mended(part["tool_use_id"]), _openings(part.get("content"))
            elif part["type"] == "tool_use":
                name, texts = mended(part["id"]), list(_strings(part["input"]))
            else:
                continue
            for text in texts:
                where = any_reference(text)
                if where is not None and not any(
                    text in mended(said) for said in _known(originals, name)
                ):
                    yield name, where, text


def _openings(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in (content or [])[:1] if part["type"] == "text"]


# 4 ------------------------------------------------------------------------------------------------


def every_change_shrinks(run: Run) -> Iterator[str]:
    """A change that saves no tokens is refused."""
    for turn, change in run.proposals:
        before, after = run.counts(turn.messages), run.counts(change.messages)
        if after >= before and not change.may_grow:
            yield f"a change from {before} to {after} tokens"


# 5 ------------------------------------------------------------------------------------------------


def placeholders_depend_on_content_alone(run: Run) -> Iterator[str]:
    """The same text of the same call, in the same form, is always the same placeholder."""
    for name, where, text in _pointers(run.result.messages, run.originals):
        held = text_at(run.root, where)
        if held is None:  # cleaned up: another text of that call may have had this place
            continue
        key = (name, held, text.split(":", 1)[0])
        if run.pointers.setdefault(key, text) != text:
            yield f"{text!r}, which was {run.pointers[key]!r}"


# 6 ------------------------------------------------------------------------------------------------


def the_context_grows_at_its_end(run: Run) -> Iterator[str]:
    """Check that the last context is a byte prefix of the new one.

    It is so up to the index that the result tells.
    """
    if run.sent is None:
        return
    is_another = any("differs" in notice for notice in run.result.notices)
    if is_another and not run.edited:
        yield f"a history that only grew is taken for another: {run.result.notices}"
        return
    first = run.result.first_changed_index
    end = len(run.sent) if first is None else min(first, len(run.sent))
    now, then = run.result.messages[:end], run.sent[:end]
    if len(now) < end:
        yield f"{len(now)} messages instead of the {end} that stand"
    for index, (new, old) in enumerate(zip(now, then, strict=False)):
        if new is not old and plain_json(new) != plain_json(old):
            yield (
                f"message {index} changed, and {first} is told: {plain_json(old)[:300]} "
                f"{plain_json(new)[:300]}"
            )
            return


# 7 ------------------------------------------------------------------------------------------------


def each_text_is_counted_once(run: Run) -> Iterator[str]:
    """Check that each distinct text of the conversation is encoded once."""
    if not run.raced:  # two at the same time may find the same thing out
        texts = {
            text for message in run.given for part in parts(message) for text in _strings(part)
        }
        yield from (
            f"{text[:60]!r} was encoded {run.encoded[text]} times"
            for text in texts
            if run.encoded[text] > 1
        )


# 8 ------------------------------------------------------------------------------------------------


def only_one_layer_retries(run: Run) -> Iterator[str]:
    """The summarizer is asked as often as its retry layer says, and by nobody else."""
    if run.allowed is not None and run.asked > run.allowed:
        yield f"{run.asked} summaries were asked for, {run.allowed} are allowed"


# 9 ------------------------------------------------------------------------------------------------


def names_stay_inside(run: Run) -> Iterator[str]:
    """Check that nothing is outside the root, whatever the names of ids and sessions.

    Nobody else may read what lies there.
    """
    for name, info in run.files[1].items():
        if run.files[0].get(name) == info:
            continue
        found = os.lstat(run.root / name)
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != 0o600:
            yield f"{name} has the mode {found.st_mode:o}"
        if len(Path(name).parts) != 2:
            yield f"{name} is no file of a session"
    if run.secret and any(run.secret in plain_json(message) for message in run.result.messages):
        yield "the context shows a file from outside"


# 10 -----------------------------------------------------------------------------------------------


def every_turn_explains_itself(run: Run) -> Iterator[str]:
    """Check that each stage has one immutable report, in order, with a true reason and saving."""
    reports = run.result.reports
    if [report.stage for report in reports] != [type(stage).__name__ for stage in run.stages]:
        yield f"reports of {[report.stage for report in reports]}"
    if run.told and list(run.told) != list(reports):
        yield "what was told as it happened is not what is told at the end"
    for report in reports:
        if (
            report.outcome in (Outcome.SKIPPED, Outcome.REFUSED, Outcome.FAILED)
            and not report.reason
        ):
            yield f"{report.stage} gives no reason"
        if (report.outcome is Outcome.CHANGED) != (report.first_changed_index is not None):
            yield f"{report.stage} {report.outcome} from message {report.first_changed_index} on"
        if (report.outcome is Outcome.FAILED) != (report.error is not None):
            yield f"{report.stage} {report.outcome} with the error {report.error!r}"
        if report.error is not None and not isinstance(report.error, CtxpipeError):
            yield f"{report.stage} failed with what is no error of ours: {report.error!r}"
        try:
            report.reason = "another"  # type: ignore[misc]
            yield f"the report of {report.stage} can be changed"
        except FrozenInstanceError:
            pass
    if len(run.proposals) != run.outcomes.count(Outcome.CHANGED):
        yield f"{len(run.proposals)} changes, {run.outcomes.count(Outcome.CHANGED)} of them told"
    if not run.in_session:
        first = _first_difference(run.given, run.result.messages)
        if first != run.result.first_changed_index:
            yield (
                f"message {first} is the first that changed, and {run.result.first_changed_index} "
                "is told"
            )


def _first_difference(before: Sequence[Message], after: Sequence[Message]) -> int | None:
    pairs = enumerate(zip(before, after, strict=False))
    end = None if len(before) == len(after) else min(len(before), len(after))
    return next((index for index, (old, new) in pairs if old is not new and old != new), end)


PROMISES: tuple[Callable[[Run], Iterator[str]], ...] = (
    the_input_is_never_modified,
    the_context_is_accepted,
    nothing_is_lost,
    every_change_shrinks,
    placeholders_depend_on_content_alone,
    the_context_grows_at_its_end,
    each_text_is_counted_once,
    only_one_layer_retries,
    names_stay_inside,
    every_turn_explains_itself,
)


def breaches(run: Run) -> list[str]:
    """Return how *run* has broken a promise; empty if all were kept."""
    return [f"{promise.__name__}: {text}" for promise in PROMISES for text in promise(run)]


# Reading ------------------------------------------------------------------------------------------


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """*message* as it would be sent, without cache marks, its text as a block."""
    return {"role": message["role"], "content": [_unmarked(part) for part in parts(message)]}


def _unmarked(part: Any) -> dict[str, Any]:
    held = dict(part) if isinstance(part, Mapping) else part.model_dump()
    bare = {
        name: value for name, value in held.items() if name != "cache_control" and value is not None
    }
    if isinstance(bare.get("content"), list | tuple):
        bare["content"] = [_unmarked(inner) for inner in bare["content"]]
    return bare


def plain_json(message: Mapping[str, Any]) -> str:
    return json.dumps(plain(message))


def snapshot(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return each message as JSON, with its marks."""
    return [json.dumps(message, default=_dumped) for message in messages]


def _dumped(value: Any) -> Any:
    return value.model_dump()


def files_below(root: Path) -> dict[str, object]:
    """Every file below *root* by its relative name.

    With it stands what tells it apart from one that was changed.
    """
    found: dict[str, object] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            if not name.startswith("."):  # a draft of a thread that was left alone
                path = os.path.join(folder, name)
                info = os.lstat(path)
                found[os.path.relpath(path, root)] = (info.st_ino, info.st_size, info.st_mtime_ns)
    return found


def on_disk(text: str) -> str:
    """*text* as a file holds it."""
    return text.encode("utf-8", "backslashreplace").decode()


def _also_mended(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (text, mended(text))


def mended(text: str) -> str:
    """*text* as it can be sent."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_at(root: Path, where: str) -> str | None:
    """Return the text that a placeholder points to.

    An absolute path, or one below the root or the current folder.
    """
    for base in (root, Path.cwd()):
        try:
            return (base / where).read_bytes().decode()
        except OSError:
            continue
    return None


def _forms(content: Any) -> set[str]:
    if isinstance(content, str):
        return {content}
    told = [_whole(part) for part in content or () if _whole(part)["type"] == "text"]
    forms: list[tuple[tuple[str, str] | None, int | None]] = [((",", ":"), None), (None, 2)]
    return {
        json.dumps(told, ensure_ascii=False, separators=marks, indent=indent)
        for marks, indent in forms
    }


def _media_form(block: Any) -> str:
    bare = {name: value for name, value in _whole(block).items() if name != "cache_control"}
    return json.dumps(bare, sort_keys=True, separators=(",", ":"))


def _whole(part: Any) -> dict[str, Any]:
    return dict(part) if isinstance(part, Mapping) else part.model_dump()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
