"""The values that CompactBench asks for, in the context after a compaction without a model.

    pip download --no-deps --no-binary compactbench compactbench   # the suites are in its source
    python benchmarks/bench_compactbench.py compactbench-0.1.0/benchmarks/public/elite_practice

Needs `compactbench` beside ctxpipe; it asks no model here. Of each
template of the suite so many cases are generated as --cases says, by CompactBench's own engine and
its own seeds. The turns of a case stand at the beginning of an agent's run of --calls calls that
read files; then the context is compacted by force, with a summary that asks no model. What the
scorer of CompactBench would look for is searched in the context: the locked decisions, the facts,
the acts that are forbidden, the open items and the names. A value that the turns of the case do not
hold is left out, and is counted.

This is evidence in the context, not CompactBench's score: its questions need a model to answer
them, and a forbidden act counts here when the context still names it.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from benchmarks.figures import add_figure, recording
from benchmarks.scripted_orders import Script
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message
from ctxpipe.stages.reports import Compacted
from ctxpipe.testing.whereabouts import WordIndex, has_words, words_of

POLICIES = ("compact", "coding", "lean")
SEED_GROUP = "default"
"""Name of the suite that `compactbench run` uses by default."""


def cases(suite: Path, count: int, difficulty: str) -> Iterator[Any]:
    """The cases of *suite*, so many of each template, as `compactbench run` generates them."""
    dsl = import_module("compactbench.dsl")
    engine = import_module("compactbench.engine")
    level = dsl.DifficultyLevel(difficulty)
    templates = dsl.load_suite(suite)
    versions = {template.version for template in templates}
    version = versions.pop() if len(versions) == 1 else "mixed"
    for template in templates:
        for slot in range(count):
            seed = engine.derive_case_seed(f"{suite.name}@{version}", SEED_GROUP, slot)
            yield engine.generate_case(template, seed, level)


def values(case: Any) -> dict[str, list[str]]:
    """Return the values of *case* that a compaction must keep, by kind."""
    truth = case.ground_truth
    return {
        "locked decisions": truth.locked_decisions,
        "facts": truth.immutable_facts,
        "forbidden acts": truth.forbidden_behaviors,
        "open items": truth.unresolved_items,
        "names": list(truth.entity_map),
    }


def run_of(case: Any, number: int, calls: int) -> list[Message]:
    """An agent's run that begins with the turns of *case*, and has so many *calls* after them."""
    turns: list[Message] = []
    for turn in case.transcript.turns:
        if turn.role == "assistant":
            turns.append({"role": "assistant", "content": turn.content})
        else:
            turns.append({"role": "user", "content": turn.content})
    script = Script(case.case_id, random.Random(number), calls, turns)
    for _ in range(calls):
        script.view()
    return script.messages


async def context_of(policy: str, history: list[Message]) -> Sequence[Message]:
    bench = Workbench()
    bench.files.learn(history)
    result = await Policy(policy)(bench).session("compactbench").run(history, force=True)
    if not any(isinstance(report.detail, Compacted) for report in result.reports):
        raise SystemExit(f"{policy} did not compact: {result}")
    return result.messages


def holds(words: WordIndex, messages: Sequence[Message], value: str) -> bool:
    """Return True if *messages* contain *value*, ignoring case as the scorer does."""
    needle = words_of(value).lower()
    return any(needle in words.words(message).lower() for message in messages)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path)
    parser.add_argument("--cases", type=int, default=2, help="of each template")
    parser.add_argument("--calls", type=int, default=58)
    parser.add_argument("--difficulty", default="elite")
    given = parser.parse_args()
    totals: Counter[str] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    absent = 0
    count = 0
    for number, case in enumerate(cases(given.suite, given.cases, given.difficulty)):
        count += 1
        history = run_of(case, number, given.calls)
        words = WordIndex()
        said = {
            kind: [v for v in dict.fromkeys(listed) if has_words(v) and holds(words, history, v)]
            for kind, listed in values(case).items()
        }
        absent += sum(len(set(listed)) for listed in values(case).values())
        absent -= sum(map(len, said.values()))
        for kind, listed in said.items():
            totals[kind] += len(listed)
        for policy in POLICIES:
            context = anyio.run(partial(context_of, policy, history))
            for kind, listed in said.items():
                found[policy, kind] += sum(holds(words, context, value) for value in listed)
        print(f"\r{count} cases", end="", flush=True)
    print(f"\n{'':20} {'n':>5}  " + "  ".join(f"{policy:>8}" for policy in POLICIES))
    for kind, total in totals.items():
        cells = "  ".join(f"{found[policy, kind]:8}" for policy in POLICIES)
        print(f"{kind:20} {total:5}  {cells}")
    sums = {p: sum(n for (name, _), n in found.items() if name == p) for p in POLICIES}
    cells = "  ".join(f"{sums[p]:8}" for p in POLICIES)
    print(f"{'all':20} {totals.total():5}  {cells}")
    print(f"{count} cases; {absent} values that the turns of their case do not hold")
    add_figure("cases", count)
    add_figure("values", totals.total())
    for policy in POLICIES:
        add_figure(f"{policy}: values", sums[policy])


if __name__ == "__main__":
    with recording(__file__):
        main()
