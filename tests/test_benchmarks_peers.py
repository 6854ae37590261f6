"""The comparison's judges, on small conversations and ctxpipe's own driver: the peers' environments are not needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from histories import assistant, chat, conversation, step, user

from benchmarks.peers import conversations
from benchmarks.peers.processes import OURS, PEERS, Peer, PeerFailed
from benchmarks.peers.recorded import NONE, Recorded
from benchmarks.peers.rows import Row, Spread, active_rows, quiet_row, share_row, validity_row
from benchmarks.peers.run import table
from benchmarks.peers.scoring import PeerPipeline, cost, found, refused, seen
from ctxpipe.lab.atoms import AtomIndex
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.recall import Cut
from ctxpipe.lab.transcripts import Transcript
from ctxpipe.messages import Message
from ctxpipe.tokens import as_counter

ROOT = Path(__file__).resolve().parents[1]
PLACE = "src/engine/turbine_control.py"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with Peer(OURS, folder=str(tmp_path_factory.mktemp("peer"))) as peer:
        yield peer


def recorded() -> Transcript:
    """A session that comes back at its end to what it saw first."""
    shown = f"{PLACE} keeps maximum_blade_pitch at 1417.25\n" + conversations.prose(1, 4000)
    steps = (step(f"t{i}", result=conversations.prose(i, 3000)) for i in range(2, 14))
    history = conversation(user("Go."), step("t1", result=shown), *steps)
    return Transcript("small", [*history, assistant(f"Set maximum_blade_pitch in {PLACE}.")], "Anthropic messages")


# Judges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "sound"),
    [
        (chat(3), True),
        ([{"role": "system", "content": "Be brief."}, *chat(3)], True),
        (chat(4)[1:], False),  # the assistant would speak first
        (conversation(user("Go."), step("t1"), step("t2"))[:-1], False),  # a call without its result
        ([], False),
    ],
)
def test_a_request_is_judged_by_the_rules_of_the_api(wire: list[Any], sound: bool) -> None:
    assert (not refused(wire)) is sound


def test_a_fact_that_the_summariser_was_not_shown_counts_against_it() -> None:
    assert seen(["alpha", "beta", "gamma"], ["it told of alpha"], chat(1)) == pytest.approx(1 / 3)


def test_a_fact_that_still_stands_in_the_context_does_not_count() -> None:
    assert seen(["alpha", "beta"], ["it told of alpha"], [user("beta")]) == 1.0
    assert seen(["beta"], [], [user("beta")]) is None


def test_what_stands_in_a_file_counts_as_reachable_only_when_its_path_is_shown() -> None:
    transcript = recorded()
    cut = Cut(transcript, transcript.calls - 1, AtomIndex(), as_counter(None))
    files = {"store/t1.md": f"{PLACE} keeps maximum_blade_pitch"}

    hidden = found(cut, [user("Go on.")], files, [])
    shown = found(cut, [user("Look into store/t1.md.")], files, [])

    assert (hidden.visible, hidden.pointer) == (0, 0)
    assert hidden.raw == shown.raw == shown.pointer == 1
    assert shown.tokens < 0.01


def test_the_winner_has_the_best_figure_and_the_lead_is_over_the_fastest_peer() -> None:
    row = Row("a turn", "ms")
    row.cells = {OURS: Spread((0.002, 0.001)), "slow": Spread((0.009,)), "fast": Spread((0.004,)), "gone": "failed: x"}

    assert row.winners() == [OURS]
    assert row.lead() == pytest.approx(4)
    assert "| **ctxpipe** | 1 / 1.5 / 2 | 1 × |" in table(row)
    assert "| gone | failed: x | – |" in table(row)


def test_a_session_that_failed_for_one_policy_leaves_it_without_a_sum() -> None:
    bills, _ = anyio.run(partial(cost, recorded(), Policy(NONE)))
    told = Recorded(bills={NONE: {"a": bills, "b": bills}, "whole": {"a": bills, "b": bills}, "half": {"a": bills}})

    assert told.relative("whole", 0.1) == 1
    assert told.relative("half", 0.1) is None


# Conversations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [False, True])
def test_odd_histories_are_sound_and_broken_ones_mostly_are_not(broken: bool) -> None:
    sound = [not refused(conversations.odd(seed, broken=broken)) for seed in range(40)]

    assert sum(sound) < 15 if broken else all(sound)


def test_each_fact_is_planted_once() -> None:
    history, planted = conversations.facts(5, 500, asking=True)

    assert len(planted) == len(set(planted)) == 10
    assert all(str(history).count(fact) == 1 for fact in planted)


# The driver ---------------------------------------------------------------------------------------------------


def test_every_peer_has_a_driver_and_pinned_requirements() -> None:
    folder = ROOT / "benchmarks" / "peers"
    for name in PEERS:
        assert (folder / "drivers" / f"{name}.py").is_file()
        if name != OURS:
            pinned = (folder / "requirements" / f"{name}.txt").read_text().split("\n")
            assert all("==" in line for line in pinned if line)


def test_a_peer_without_an_environment_says_so() -> None:
    with pytest.raises(PeerFailed, match="environment"):
        Peer("nobody")


def test_an_error_of_the_driver_is_an_answer_and_the_next_conversation_goes_on(ours: Peer) -> None:
    with pytest.raises(PeerFailed, match="TypeError"):
        ours.open("default", window="wide")

    ours.open("default")

    assert ours.turn(chat(1))["messages"] == chat(1)


def test_a_peer_that_was_given_up_begins_anew() -> None:
    with Peer(OURS) as peer:
        peer.close()

        peer.open("default")

        assert peer.turn(chat(1))["messages"] == chat(1)


def test_the_timed_rows_tell_each_repetition(ours: Peer) -> None:
    rows = [quiet_row(20, [ours], 3), *active_rows([ours], 1, results=12, chars=900)]

    spreads = [cell for row in rows for cell in row.cells.values()]

    assert [len(cast("Spread", cell).times) for cell in spreads] == [3, 1, 1, 1, 1, 1, 1]


def test_our_requests_are_valid_whatever_was_broken_and_however_much_is_taken_out(ours: Peer) -> None:
    for broken in (False, True):
        for shortened in (False, True):
            assert validity_row([ours], 4, broken=broken, shortened=shortened).cells == {OURS: 1.0}


def test_a_summary_request_in_the_conversation_itself_shows_all_of_it(ours: Peer) -> None:
    row = share_row([ours], asking=False, results=12, chars=4900, trigger=5000)

    assert row.cells[f"{OURS} (inline)"] == 1.0


def test_a_peer_is_replayed_and_billed_like_a_policy(ours: Peer) -> None:
    transcript = recorded()
    none, whole = anyio.run(partial(cost, transcript, Policy(NONE)))
    bills, recall = anyio.run(partial(cost, transcript, PeerPipeline(ours, "free", {})))

    assert whole == 1
    assert bills[0.1].refetches == 1
    assert recall < 1
    assert bills[0.1].prompt_tokens < none[0.1].prompt_tokens


def test_our_files_and_archives_are_found_again(ours: Peer) -> None:
    history: list[Message] = recorded().messages[:-1]
    ours.open("compact, extractive", trigger=2000)
    ours.turn(history)

    files, _ = ours.kept()

    assert any(PLACE in text for text in files.values())
