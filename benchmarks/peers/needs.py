"""The rows of what long sessions need beside a shorter context.

Pictures that do not make a request too large, a turn that waits for no summary, a search in what
left, and a conversation that can be deleted.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import sleep
from typing import Any

from ctxpipe.messages import Message

from . import conversations
from .driving import files_in
from .processes import Peer
from .rows import Row, Spread, each, listed, variants
from .shared import SETTINGS, way_of

__all__ = ["background_row", "deletion_row", "media_row", "rows", "search_row"]

MOST_BYTES = 32_000_000
"""Of a request to the Messages API."""
PICTURES = 48
SUMMARY_SECONDS = 0.8
TURN_SECONDS = 0.25
ASKED = 20


def media_row(
    peers: Iterable[Peer], count: int = PICTURES, most_bytes: int = MOST_BYTES, side: int = 512
) -> Row:
    """The turns of a loop of screenshots that come before a request that is too large."""
    row = Row(
        "pictures: requests below the limit of bytes",
        (
            f"share of the {count} requests of a loop that takes a screenshot of a megabyte in "
            f"each step, which show it, with {most_bytes / 1e6:g} MB allowed, at each one's "
            "defaults (ours: the coding preset); few tokens, so that no limit of tokens is near"
        ),
        "An agent that looks at a screen ends here: each later request is refused, too",
        least_wins=False,
        remark="the last request, MB",
    )
    turns = list(conversations.turns(conversations.pictures(count, side)))[1:]
    for peer in each(row, peers):
        with listed(row, peer.name):
            peer.open("coding" if "coding" in peer.ways else "default")
            peer.turn([{"role": "user", "content": "Go."}], wire=False)
            sent, good = "", 0
            for new in turns:
                sent = json.dumps(peer.turn(new)["messages"])
                good += len(sent) <= most_bytes and _picture(new) in sent
            row.cells[peer.name] = good / count
            row.remarks[peer.name] = f"{len(sent) / 1e6:.1f}"
    return row


def _picture(new: Sequence[Message]) -> str:
    """The data of the picture in a turn."""
    result: Any = new[-1]["content"]
    data: str = result[0]["content"][0]["source"]["data"]
    return data


def background_row(peers: Iterable[Peer], results: int = 60) -> Row:
    """The longest turn of a loop in which a summary falls due."""
    row = Row(
        "the longest turn while a summary is written",
        (
            f"ms, with a model that takes {SUMMARY_SECONDS:g} s for a summary and "
            f"{TURN_SECONDS:g} s for a turn; (background) is Compact(background=True)"
        ),
        "Half a minute in which the agent stands still and a person waits, in each window",
        absence="it asks no model for a summary",
    )
    history, _ = conversations.facts(results, 1_500, asking=False)
    turns = list(conversations.turns(history))
    for peer in each(row, peers):
        for way, column in variants(peer, "compact"):
            if way not in ("compact", "compact, background"):
                continue
            with listed(row, column):
                peer.open(way, pause=SUMMARY_SECONDS, **SETTINGS)
                seconds, asked = zip(*_waited(peer, turns), strict=True)
                row.cells[column] = Spread((max(seconds),)) if asked[-1] else "no summary"
    return row


def _waited(peer: Peer, turns: Sequence[list[Message]]) -> Iterator[tuple[float, int]]:
    """The seconds of each turn, the summary's included, and how often one was asked for by then."""
    for new in turns:
        told = peer.turn(new, wire=False)
        yield told["waited"], told["asked"]
        sleep(TURN_SECONDS)


def search_row(peers: Iterable[Peer], results: int = 40) -> Row:
    """Return the row of the lines that left the context and that a search by words finds."""
    row = Row(
        "found by words in what has left",
        (
            f"share of up to {ASKED} lines that are out of sight after {results} results; each is "
            "asked for in six words, one of them its name; deepagents' grep takes a literal text, "
            "and is given the name alone"
        ),
        "What the agent knows it has seen, and cannot say where, it need not do again",
        least_wins=False,
        remark="out of sight",
    )
    history, codes = conversations.safes(results, 6_000)
    for peer in each(row, peers):
        if not peer.about["searches"]:
            row.cells[peer.name] = "no tool that searches all that left"
            continue
        with listed(row, peer.name):
            peer.open(way_of(peer), **SETTINGS)
            sent = ""
            for new in conversations.turns(history):
                sent = str(peer.turn(new)["messages"])
            missing = [name for name, code in codes.items() if code not in sent]
            asked = missing[:ASKED]
            found = [codes[name] in peer.search(f"what opens the safe {name}") for name in asked]
            row.cells[peer.name] = sum(found) / max(1, len(found))
            row.remarks[peer.name] = f"{len(missing)} of {results}"
    return row


def deletion_row(peers: Iterable[Peer], results: int = 24) -> Row:
    """Return the row of what is left on disk of a conversation that was deleted."""
    row = Row(
        "a conversation deleted: words that are gone from the disk",
        (
            f"share of the words planted in {results} results and remarks that no file holds any "
            "more once the conversation is deleted by one call of the framework's; – is a peer "
            "that has written none of them"
        ),
        "Whoever must delete what a person has said can show that it is gone",
        least_wins=False,
        remark="words in files before / after",
    )
    history, planted = conversations.facts(results, 9_000, asking=False)
    for peer in each(row, peers):
        with listed(row, peer.name), tempfile.TemporaryDirectory() as folder:
            peer.open(way_of(peer), shared=folder, journal=True, **SETTINGS)
            for new in conversations.turns(history):
                peer.turn(new, wire=False)
            before = _words_in(Path(folder), planted)
            if not before:
                row.cells[peer.name] = "–"
                continue
            if peer.about["forgets"]:
                peer.forget()
            after = _words_in(Path(folder), planted)
            row.cells[peer.name] = 1 - after / before
            row.remarks[peer.name] = f"{before} / {after}"
            if not peer.about["forgets"]:
                row.remarks[peer.name] += ", no such call"
    return row


def _words_in(folder: Path, planted: Sequence[str]) -> int:
    said = "\n".join(files_in(folder).values())
    return sum(word in said for word in planted)


def rows(peers: Sequence[Peer]) -> Iterator[Row]:
    """All of them."""
    yield media_row(peers)
    yield background_row(peers)
    yield search_row(peers)
    yield deletion_row(peers)
