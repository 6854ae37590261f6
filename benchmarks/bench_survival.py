"""Facts that survive a compaction: in sight, in a file that is named there, or found by search.

    python benchmarks/bench_survival.py FOLDER [--sessions N] [--peers a,b]

FOLDER holds transcripts of any kind that `ctxpipe.lab.transcripts` reads. Each is compacted after
35, 55 and 75 % of its replies, where that is 15,000 tokens or more. Of what was said until then,
each thing once, the share is told that stands in the context afterwards: paths (the last two
names), commands, numbers that are neither round nor years, identifiers and hashes, the last line of
a call that failed, and the lines of three words or more of the user's. A command or a line counts
when all of it is there. Then the means of the six shares: in sight or in a file that the context
names; or in one that such a file names.

Ours compact by force, truncation keeps the first request and a quarter of the tokens, and the peers
are asked to leave a quarter. All summaries are by the peers' stand-in for a model, which names what
its prompt names most, in 6,000 characters; "summary alone" is that in the place of everything. In a
session file of Claude Code that has summaries of its own, the compactions are where these are, and
they stand beside the others as "recorded summary".

Of what is out of sight, three things of each kind are drawn after each compaction and asked for
with `search_history`: the question is the line that said it, without it; of a command or a line,
every second word.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean

import anyio

from benchmarks.baselines import BudgetedPolicy
from benchmarks.figures import add_figure, recording
from benchmarks.peers import fake_model
from benchmarks.peers.conversations import plain
from benchmarks.peers.driving import with_strings
from benchmarks.peers.processes import OURS, PEERS, Peer, PeerFailed
from benchmarks.peers.rows import shortening_way
from benchmarks.recall import cuts
from ctxpipe import ContextPipeline, offload_tools, presets
from ctxpipe.config import OLD_EXCHANGES
from ctxpipe.lab.json_files import read_json
from ctxpipe.lab.policies import BUDGET
from ctxpipe.lab.readers import claude_code
from ctxpipe.lab.references import Context
from ctxpipe.lab.replay import PipelineMaker
from ctxpipe.lab.transcripts import read_bytes, read_transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message, result_text, texts, tool_results
from ctxpipe.messages.activity import commands, is_failure, one_line
from ctxpipe.placeholders.summaries import own_words
from ctxpipe.stages.archive import parse_archive
from ctxpipe.stages.protocol import Change, Stage, Turn
from ctxpipe.stages.reading.atoms import Atom, AtomIndex, message_texts
from ctxpipe.summarizers import PromptSummarizer
from ctxpipe.tokens import TokenCounter

PRESETS = (*OLD_EXCHANGES, "chat")
TRUNCATED, SUMMARY, RECORDED = "truncation", "summary alone", "recorded summary"
SHARE = 0.25
"""Of the tokens: what is left where that can be said."""
SESSION = "session-that-is-compacted"
ASKED = 3
"""Of each kind after each compaction: so many questions."""
MOST_WORDS = 12
KINDS = ("paths", "commands", "numbers", "identifiers", "errors", "user's lines")
KIND_OF_ATOM = {"P": "paths", "F": "paths", "N": "numbers", "I": "identifiers", "H": "identifiers"}


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was said, and the *line* that said it: an atom, or one line of text."""

    kind: str
    text: str
    line: str
    is_atom: bool = True

    def question(self) -> str:
        """Return the question of a user who remembers the words around a fact, and not the fact."""
        if self.is_atom:
            words = self.line.replace(self.text[1:], " ").split()
        else:
            words = self.text.split()[::2]
        return " ".join(words[:MOST_WORDS])


class Held:
    """Messages in which facts are looked for."""

    def __init__(self, messages: Iterable[Message], index: AtomIndex) -> None:
        known = [text for message in messages for text in message_texts(message)]
        self.atoms: frozenset[Atom] = frozenset().union(*map(index.text, known))
        self.text = " ".join(map(one_line, known))

    def __contains__(self, fact: Fact) -> bool:
        return fact.text in (self.atoms if fact.is_atom else self.text)


@dataclass(frozen=True, slots=True)
class Places:
    """Content in *sight*, in the files *named* there, and *further* in files that these name."""

    sight: Held
    named: Held
    further: Held

    @classmethod
    def of(
        cls,
        context: Sequence[Message],
        files: Mapping[str, Sequence[Message]],
        named_in: Callable[[Iterable[Message]], set[str]],
        index: AtomIndex,
    ) -> Places:
        """Return those of a *context* and *files*; *named_in* finds their names in messages."""
        named = named_in(context)
        further = named_in(chain.from_iterable(files[name] for name in named)) - named
        return cls(
            Held(context, index),
            Held(chain.from_iterable(files[name] for name in sorted(named)), index),
            Held(chain.from_iterable(files[name] for name in sorted(further)), index),
        )


@dataclass(slots=True)
class Survival:
    """Fate of the facts of all compactions, by kind, and the share of tokens *left*."""

    total: Counter[str] = field(default_factory=Counter)
    sight: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    found: int = 0
    left: list[float] = field(default_factory=list)

    def share(self, counts: Counter[str], kind: str) -> float:
        return counts[kind] / max(1, self.total[kind])

    def mean_share(self, counts: Counter[str]) -> float:
        """The mean of the kinds' shares: there are many more numbers than anything else."""
        return mean(self.share(counts, kind) for kind in KINDS if self.total[kind])

    def take(self, facts: Iterable[Fact], places: Places) -> list[Fact]:
        """Count *facts* by where they are; those that are out of sight."""
        missing = []
        for fact in facts:
            is_seen = fact in places.sight
            is_named = is_seen or fact in places.named
            self.total[fact.kind] += 1
            self.sight[fact.kind] += is_seen
            self.named[fact.kind] += is_named
            self.reached[fact.kind] += is_named or fact in places.further
            if not is_seen:
                missing.append(fact)
        return missing


# What was said ------------------------------------------------------------------------------------


def facts_in(messages: Sequence[Message], index: AtomIndex) -> list[Fact]:
    """The facts in *messages*, each once, by the line that said it last."""
    found: dict[tuple[str, str], Fact] = {}

    def add(fact: Fact) -> None:
        if fact.text:
            found[fact.kind, fact.text] = fact

    for message in messages:
        for text in message_texts(message):
            if not any(atom[0] in KIND_OF_ATOM for atom in index.text(text)):
                continue
            for line in text.splitlines():
                for atom in sorted(index.text(line)):
                    if atom[0] in KIND_OF_ATOM:
                        add(Fact(KIND_OF_ATOM[atom[0]], atom, line))
        for line in lines_in(own_words(message), index):
            add(Fact("user's lines", line, "", is_atom=False))
    for command, _ in commands(messages):
        add(Fact("commands", one_line(command), "", is_atom=False))
    for result in filter(is_failure, tool_results(messages)):
        lines = (lines_in(line, index) for line in result_text(result).splitlines())
        *_, last = ["", *chain.from_iterable(lines)]
        add(Fact("errors", last, "", is_atom=False))
    return list(found.values())


def lines_in(text: str, index: AtomIndex) -> list[str]:
    """The lines of *text* of three words or more, in alphabetical order."""
    return sorted(atom[1:] for atom in index.text(text) if atom.startswith("L"))


def compactions(path: Path, index: AtomIndex) -> Iterator[tuple[list[Message], str]]:
    """The messages before each compaction of a transcript, and the summary recorded there."""
    recorded = list(recorded_summaries(path))
    yield from recorded
    if not recorded:
        for cut in cuts(read_transcript(path), min_weight=0.0, index=index):
            yield cut.history, ""


def recorded_summaries(path: Path) -> Iterator[tuple[list[Message], str]]:
    """The messages before each summary that Claude Code has recorded in its file, and that."""
    records = read_json(read_bytes(path).decode(), path.name).records
    for number, record in enumerate(records):
        if record.fields.get("isCompactSummary") and claude_code.is_session_line(record.fields):
            before = claude_code.read(records[:number]).entries
            text = "\n".join(texts(record.fields["message"]))
            yield [entry.message for entry in before], text


# What becomes of it -------------------------------------------------------------------------------


async def ask(prompt: str, _model: str) -> str:
    return fake_model.summary(prompt)


async def summary_alone(turn: Turn) -> Change:
    """A summary in place of all messages."""
    everything = "\n".join(text for message in turn.messages for text in message_texts(message))
    return Change([said(fake_model.summary(everything))])


def pipeline(name: str, bench: Workbench) -> ContextPipeline:
    """Return the pipeline of the preset *name*, or of a summary alone."""
    writer = PromptSummarizer(ask)
    stages: Sequence[Stage] = [summary_alone]
    if name == "chat":
        stages = presets.chat(bench.storage, summarize=writer)
    elif name in OLD_EXCHANGES:
        stages = presets.coding_agent(
            bench.storage,
            work_dir=None,
            old_exchanges=OLD_EXCHANGES[name],
            summarize=writer,
            files=bench.files,
        )
    return ContextPipeline(stages, budget=BUDGET, counter=bench.counter)


def makers(tokens: int) -> dict[str, PipelineMaker]:
    """The pipelines that are compared, for a history of so many *tokens*."""
    names = (*PRESETS, SUMMARY)
    made: dict[str, PipelineMaker] = {name: partial(pipeline, name) for name in names}
    return {**made, TRUNCATED: BudgetedPolicy("keep last", int(SHARE * tokens))}


async def compact(
    history: list[Message],
    facts: Sequence[Fact],
    make: PipelineMaker,
    index: AtomIndex,
    survival: Survival,
) -> None:
    """Compact *history* by the pipeline that *make* makes, and count what survives."""
    bench = Workbench()
    bench.files.learn(history)
    session = make(bench).session(SESSION)
    result = await session.run(history, force=True)
    stored = {key: stored_messages(key, text) for key, text in bench.storage.stored.items()}

    def named_in(messages: Iterable[Message]) -> set[str]:
        context = Context(index, SESSION)
        context.update(list(messages))
        return context.keys & stored.keys()

    places = Places.of(result.messages, stored, named_in, index)
    missing = survival.take(facts, places)
    tokens = await bench.counter.counts(history), await bench.counter.counts(result.messages)
    survival.left.append(sum(tokens[1]) / sum(tokens[0]))
    if stored:
        search = {tool.name: tool for tool in offload_tools(session)}["search_history"]
        for fact in sample(missing):
            survival.asked += 1
            answer = await search({"query": fact.question()})
            survival.found += fact in Held([said(str(answer))], index)


def stored_messages(key: str, text: str) -> Sequence[Message]:
    """The messages in the file *key*, an archive; any other as what somebody says."""
    return parse_archive(text, key) if key.endswith(".json") else [said(with_strings(text))]


def said(text: str) -> Message:
    return {"role": "user", "content": text}


def sample(facts: Iterable[Fact]) -> Iterator[Fact]:
    """Some of each kind that can be asked for, always the same."""
    by_kind: defaultdict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.question():
            by_kind[fact.kind].append(fact)
    for kind, known in sorted(by_kind.items()):
        yield from random.Random(f"{kind} {len(known)}").sample(known, min(ASKED, len(known)))


def compact_by_peer(
    peer: Peer,
    history: list[Message],
    facts: Sequence[Fact],
    index: AtomIndex,
    survival: Survival,
) -> None:
    """Compact like `compact`, by one of the peers of `bench-peers`; none has a search by words."""
    counter = TokenCounter()
    tokens = counter.total(history)
    keep = int(SHARE * tokens)
    peer.open(shortening_way(peer), trigger=2 * keep, keep_tokens=keep, clear=keep)
    wire = peer.turn(plain(history))["messages"]
    kept, _ = peer.kept()
    files = {path: [said(text.replace("\\n", "\n"))] for path, text in kept.items()}

    def named_in(messages: Iterable[Message]) -> set[str]:
        sent = str(list(messages))
        return {path for path in files if path in sent}

    survival.take(facts, Places.of(wire, files, named_in, index))
    survival.left.append(counter.total(wire) / tokens)


# The table ----------------------------------------------------------------------------------------


def survivals(
    paths: Sequence[Path], peers: Sequence[Peer], failures: dict[str, str] | None = None
) -> dict[str, Survival]:
    """Return what survives, by the name of each program; a peer that fails is left out.

    The reasons of those that fail are added to *failures*.
    """
    done: defaultdict[str, Survival] = defaultdict(Survival)
    failed = {} if failures is None else failures  # may have taken minutes to fail: not asked again
    for number, path in enumerate(paths, 1):
        index = AtomIndex()
        for history, recorded in compactions(path, index):
            facts = facts_in(history, index)
            tokens = TokenCounter().total(history)
            for name, make in makers(tokens).items():
                anyio.run(partial(compact, history, facts, make, index, done[name]))
            if recorded:
                nothing = Held([], index)
                summary = Held([said(recorded)], index)
                done[RECORDED].take(facts, Places(summary, nothing, nothing))
                done[RECORDED].left.append(TokenCounter().text(recorded) / tokens)
            for peer in peers:
                work = partial(compact_by_peer, peer, history, facts, index, done[peer.name])
                if peer.name not in failed and (reason := tried(peer.name, work)):
                    failed[peer.name] = reason
        print(f"\r{number} of {len(paths)} files", end="", flush=True)
    return {name: survival for name, survival in done.items() if name not in failed}


def tried(name: str, work: Callable[[], object]) -> str:
    """Have the peer *name* do its *work*; return the reason if it fails, which is printed too."""
    try:
        work()
    except PeerFailed as error:
        print(f"\n{name} is left out: {error}")
        return str(error)
    return ""


def print_table(done: Mapping[str, Survival]) -> None:
    print(f"\n{'':18} left   {'  '.join(KINDS)}   named  further  found")
    for name, survival in done.items():
        seen = {kind: survival.share(survival.sight, kind) for kind in KINDS}
        named = survival.mean_share(survival.named)
        further = survival.mean_share(survival.reached)
        cells = "  ".join(f"{seen[kind]:{len(kind)}.3f}" for kind in KINDS)
        found = f"{survival.found / survival.asked:.3f}" if survival.asked else "-"
        print(f"{name:18} {mean(survival.left):.3f}  {cells}  {named:.3f}  {further:7.3f}  {found}")
        add_figure(f"{name}: left", mean(survival.left))
        for kind in KINDS:
            add_figure(f"{name}: {kind}", seen[kind])
        add_figure(f"{name}: named", named)
        add_figure(f"{name}: further", further)
        if survival.asked:
            add_figure(f"{name}: found", survival.found / survival.asked)
    first = next(iter(done.values()))
    counts = ", ".join(f"{first.total[kind]:,} {kind}" for kind in KINDS)
    print(f"\n{len(first.left)} compactions: {counts}; {first.asked} questions")
    add_figure("compactions", len(first.left))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sessions", type=int, default=10**6, help="take about so many of them")
    parser.add_argument("--peers", default=",".join(PEERS), help="only these, or none: ''")
    given = parser.parse_args()
    files = sorted(given.folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{given.folder} holds no *.jsonl")
    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        peers: list[Peer] = []

        def start(name: str) -> None:
            peers.append(opened.enter_context(Peer(name, folder=folder)))

        for name in given.peers.split(","):
            if name and name != OURS:
                tried(name, partial(start, name))
        print_table(survivals(files[:: max(1, -(-len(files) // given.sessions))], peers))


if __name__ == "__main__":
    with recording(__file__):
        main()
