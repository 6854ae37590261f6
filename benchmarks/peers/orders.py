"""The rows of texts that an agent has to follow: what of them each peer's context still has.

The texts and their scoring are those of `ctxpipe survive` and benchmarks/bench_orders.py: skills,
plans, to-do lists, rules and corrections of the user, errors that are not resolved, running jobs,
and what the assistant has found.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from benchmarks import scripted_orders
from benchmarks.bench_orders import Orders, compacted
from benchmarks.bench_survival import PRESETS
from ctxpipe.lab.orders import (
    GOVERNING_KINDS,
    Look,
    Survival,
    orders_by_transcript,
    read_orders,
    survival_by_kind,
    transcript_key,
)

from .processes import OURS, Peer
from .rows import Row

__all__ = [
    "FINDING",
    "SCRIPTED",
    "governing_share",
    "looks_at_calls",
    "recorded_rows",
    "scripted_rows",
    "shares_in_words",
]

FINDING = "finding"
SCRIPTED = 4
"""Number of scripted conversations; each is compacted three times."""
WORTH = "A rule, a plan or a task that leaves the context is no longer followed, unnoticed"
NOTE = (
    "share of their lines that are in the context; {} are compacted after 35, 55 and 75 % of their "
    "replies, and asked to leave a quarter. {} compactions, {}. Ours is the coding preset. A peer "
    "that leaves more of the tokens shows more of everything"
)


def scripted_rows(
    peers: Sequence[Peer], count: int = SCRIPTED, calls: int = scripted_orders.CALLS
) -> Iterator[Row]:
    """The rows of *count* conversations of benchmarks/scripted_orders.py, of so many *calls*."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scripted_orders.write(folder, count, calls)
        orders = orders_by_transcript(read_orders(folder / "orders.ndjson"))
        paths = sorted((folder / "recordings").iterdir())
        yield from _rows("scripted conversations", paths, orders, peers)


def recorded_rows(paths: Sequence[Path], orders: Orders, peers: Sequence[Peer]) -> Iterator[Row]:
    """The rows of the recorded sessions at *paths* that have *orders*."""
    chosen = [path for path in paths if transcript_key(path.name) in orders]
    yield from _rows("recorded sessions", chosen, orders, peers)


def _rows(what: str, paths: Sequence[Path], orders: Orders, peers: Sequence[Peer]) -> Iterator[Row]:
    """A row for the texts that govern the agent, and one for its findings."""
    failures: dict[str, str] = {}
    done = compacted(paths, orders, peers, failures)
    first_looks, first_left = next(iter(done.values()), ([], []))
    counts = survival_by_kind(first_looks)
    kinds = [kind for kind in counts if kind in GOVERNING_KINDS]
    looks = sum(counts[kind].looks for kind in kinds)
    governing = Row(
        f"instructions that still apply after a compaction, {what}",
        NOTE.format(f"{len(paths)} {what}", len(first_left), f"{looks} texts; the mean of kinds"),
        WORTH,
        least_wins=False,
        remark=f"{' / '.join(kinds)}; tokens left",
    )
    count = counts.get(FINDING, Survival()).looks
    findings = Row(
        f"findings of the assistant in the context after a compaction, {what}",
        NOTE.format(f"{len(paths)} {what}", len(first_left), f"{count} findings"),
        "What the agent has found out it finds out again, or looks up where that is in a file",
        least_wins=False,
        remark="only in a file that the context leads to; tokens left",
    )
    for name, (peer_looks, left) in done.items():
        column = f"{OURS} ({name})" if name in PRESETS else name
        column = OURS if name == "coding" else column
        by_kind = survival_by_kind(peer_looks)
        share = governing_share(by_kind)
        if share is not None:
            governing.cells[column] = share
            governing.remarks[column] = f"{shares_in_words(by_kind, kinds)}; {mean(left):.3f}"
        finding = by_kind.get(FINDING, Survival())
        if finding.context_share is not None:
            findings.cells[column] = finding.context_share
            findings.remarks[column] = f"{finding.file_share:.3f}; {mean(left):.3f}"
    for row in (governing, findings):
        row.cells.update({name: f"failed: {reason}" for name, reason in failures.items()})
        if row.figures():
            yield row


def governing_share(by_kind: Mapping[str, Survival]) -> float | None:
    """The mean share in the context of the kinds that govern the agent; None without a look."""
    shares = [
        survival.context_share
        for kind, survival in by_kind.items()
        if kind in GOVERNING_KINDS and survival.context_share is not None
    ]
    return mean(shares) if shares else None


def shares_in_words(by_kind: Mapping[str, Survival], kinds: Sequence[str]) -> str:
    """The share in the context of each of *kinds*."""
    shares = [by_kind.get(kind, Survival()).context_share for kind in kinds]
    return " / ".join("–" if share is None else f"{share:.3f}" for share in shares)


def looks_at_calls(looks: Sequence[Look]) -> list[Look]:
    """Return the *looks* that are at the calls of their orders, without those after compactions."""
    return [look for look in looks if not look.after_compaction]
