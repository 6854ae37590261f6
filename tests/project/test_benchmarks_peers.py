"""The comparison's judges, on small conversations and ctxpipe's own driver.

The peers' environments are not needed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from histories import assistant, chat, conversation, step, user
from places import ROOT
from recorded import NIGHTLY

from benchmarks.peers import conversations
from benchmarks.peers.gateways import GATEWAYS, Gateway, expanded, gateway_rows, play
from benchmarks.peers.needs import background_row, deletion_row, media_row, search_row
from benchmarks.peers.orders import scripted_rows
from benchmarks.peers.processes import OURS, PEERS, Peer, PeerFailed
from benchmarks.peers.reasons import NO_REASON, REASONS
from benchmarks.peers.recorded import NONE, Recorded, recorded
from benchmarks.peers.rows import (
    SAME,
    Row,
    Spread,
    active_rows,
    agent_row,
    bound_row,
    quiet_row,
    share_row,
    validity_row,
)
from benchmarks.peers.run import session_tables, table, tables
from benchmarks.peers.scoring import (
    PeerPipeline,
    continues,
    cost,
    found,
    refused,
    seen,
    signed,
    unbound,
)
from benchmarks.peers.shared import agents_row, chat_row, processes_row, resume_row
from benchmarks.peers.summary import behind, summary
from benchmarks.recall import Cut
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.prefix import PREFIX_TOKENS
from ctxpipe.lab.transcripts import Transcript
from ctxpipe.messages import Message
from ctxpipe.messages.thinking import BINDING_BETA
from ctxpipe.stages.reading.atoms import AtomIndex
from ctxpipe.tokens import as_counter

PLACE = "src/engine/turbine_control.py"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """ctxpipe as one of the peers, in a process of its own."""
    if not NIGHTLY:
        pytest.skip("it starts processes of the benchmark, in the nightly profile")
    with Peer(OURS, folder=str(tmp_path_factory.mktemp("peer"))) as peer:
        yield peer


DRIVER = """
COUNTER, ORIGINALS = "none", {}
WAYS = {"default": "never ends", "compact": "drops the first three of nine messages"}


def VERSIONS():
    return {}


class Peer:
    def __init__(self, way, folder, **_):
        self.way, self.messages = way, []

    def convert(self, new):
        return new

    def append(self, native):
        self.messages += native

    async def shape(self):
        if self.way == "default":
            while True:
                pass
        if len(self.messages) == 9:
            self.messages = [{"role": "user", "content": "All went well."}, *self.messages[3:]]
        return self.messages

    def wire(self, shaped):
        return list(shaped)
"""
AGAIN = """
    def again(self, refusal):
        drop = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        return {"thinking": drop, "betas": ["thinking-binding-controls-2026-08-01"]}
"""
FORGETFUL = """
    async def shape(self):
        self.messages = [{"role": "user", "content": "All went well."}]
        return self.messages

    def kept(self):
        return {}, []
"""
MARKED = """
    def wire(self, shaped):
        content = shaped[-1]["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        marked = [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]
        return [*shaped[:-1], {**shaped[-1], "content": marked}]
"""


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Callable[[str], Peer]]:
    """A peer that is driven by the given code."""
    if not NIGHTLY:
        pytest.skip("it starts processes of the benchmark, in the nightly profile")
    with ExitStack() as opened:

        def start(code: str) -> Peer:
            driver = tmp_path / "forgetful.py"
            driver.write_text(code)
            return opened.enter_context(Peer("forgetful", seconds=2, driver=driver))

        yield start


def session() -> Transcript:
    """A session that comes back at its end to what it saw first."""
    shown = f"{PLACE} keeps maximum_blade_pitch at 1417.25\n" + conversations.prose(1, 4000)
    steps = (step(f"t{i}", result=conversations.prose(i, 3000)) for i in range(2, 14))
    history = conversation(user("Go."), step("t1", result=shown), *steps)
    return Transcript(
        "small", [*history, assistant(f"Set maximum_blade_pitch in {PLACE}.")], "Anthropic messages"
    )


def thoughtful_reply() -> Message:
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    return assistant(thought, {"type": "text", "text": "So."})


# Judges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "sound"),
    [
        (chat(3), True),
        ([{"role": "system", "content": "Be brief."}, *chat(3)], True),
        (chat(4)[1:], False),  # the assistant would speak first
        (
            conversation(user("Go."), step("t1"), step("t2"))[:-1],
            False,
        ),  # a call without its result
        ([], False),
    ],
)
def test_a_request_is_judged_by_the_rules_of_the_api(wire: list[Any], sound):
    assert (not refused(wire)) is sound


def test_a_fact_that_the_summarizer_was_not_shown_counts_against_it():
    assert seen(["alpha", "beta", "gamma"], ["it told of alpha"], chat(1)) == pytest.approx(1 / 3)


def test_what_stands_in_a_file_counts_as_reachable_only_when_its_path_is_shown():
    transcript = session()
    cut = Cut(transcript, transcript.calls - 1, AtomIndex(), as_counter(None))
    files = {"store/t1.md": f"{PLACE} keeps maximum_blade_pitch"}

    hidden = found(cut, [user("Go on.")], files, [])
    shown = found(cut, [user("Look into store/t1.md.")], files, [])

    assert (hidden.visible, hidden.pointer) == (0, 0)
    assert hidden.raw == shown.raw == shown.pointer == 1
    assert shown.tokens < 0.01


def test_the_winner_has_the_best_figure_and_the_lead_is_over_the_fastest_peer():
    row = Row("a turn", "ms", "little")
    row.cells = {
        OURS: Spread((0.002, 0.001)),
        "slow": Spread((0.009,)),
        "fast": Spread((0.004,)),
        "gone": "failed: x",
    }

    assert row.winners() == [OURS]
    assert row.lead() == pytest.approx(4)
    assert "| **ctxpipe** | 1 / 1.5 / 2 | 1 × |" in table(row)
    assert table(row).endswith("| gone | failed: x | – |")


def test_a_peer_that_keeps_less_stands_apart_and_does_not_win():
    row = Row("a turn", "ms", "little", remark="originals afterwards")
    row.cells = {OURS: Spread((0.004,)), "same": Spread((0.002,)), "less": Spread((0.001,))}
    row.remarks = {OURS: SAME, "same": SAME, "less": "nowhere"}

    assert row.winners() == ["same"]
    assert row.lead() == pytest.approx(0.5)
    shown = [line.split(" |")[0] for line in table(row).splitlines() if line.startswith("| ")][1:]
    assert shown == ["| **same**", "| ctxpipe", "| less"]
    assert "| less | 1 / 1 / 1 | 0.25 × | nowhere |" in table(row)


def test_the_summary_compares_with_those_that_do_the_same_and_names_the_others_beside():
    row = Row("a turn", "ms", "little", remark="originals afterwards")
    row.cells = {
        OURS: Spread((0.004,)),
        "same": Spread((0.002,)),
        "less (bare)": Spread((0.001,)),
        "gone": "failed: x",
    }
    row.remarks = {OURS: SAME, "same": SAME, "less (bare)": "nowhere", "gone": SAME}
    share = Row("a share", "share", "much", least_wins=False)
    share.cells = {OURS: 1.0, "even": 1.0, "worse": 0.5}

    lines = summary([row, share]).splitlines()[-2:]

    assert lines == [
        "| a turn | 4 ms | **2 ms** same | 1 ms less |",
        "| a share | **1.000** | **1.000** even | – |",
    ]


def test_a_row_in_which_a_peer_is_ahead_comes_first_with_its_reason():
    ahead = Row("a share", "share", "much", least_wins=False)
    ahead.cells = {OURS: 0.5, f"{OURS} (lean)": 0.9, "better": 0.8, "worse": 0.1}
    even = Row("another share", "share", "much", least_wins=False)
    even.cells = {OURS: 1.0, "even": 1.0}

    lines = summary([even, ahead]).splitlines()

    assert behind([even, ahead]) == [ahead]
    assert lines[0] == "## Where ctxpipe is not first"
    assert lines[4] == f"| a share | 0.500 | 0.800 better | {NO_REASON} |"
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| a share", "| another share"]
    assert [shown.splitlines()[0] for shown in tables([even, ahead])] == [
        "## A share",
        "## Another share",
    ]


def test_a_peer_without_a_figure_has_the_reason_in_its_place():
    row = Row("a turn", "ms", "little", absence="it has no such setting")
    row.cells = {f"{OURS} (inline)": Spread((0.001,))}

    row.complete([OURS, "lacks", "gone"], {"gone": "its environment could not be made"})

    assert row.cells["lacks"] == "it has no such setting"
    assert row.cells["gone"] == "its environment could not be made"
    assert OURS not in row.cells


def test_thinking_is_judged_against_what_was_sent_before_it():
    sent = [user("Go.")]
    reply = signed(sent, thoughtful_reply())
    kept, changed = [*sent, reply, user("On.")], [user("Go!"), reply, user("On.")]

    assert not unbound(kept, {})
    assert "bound to a different conversation" in unbound(changed, {})[0]
    assert not refused(changed)


@pytest.mark.parametrize(
    "header", [{"betas": [BINDING_BETA]}, {"extra_headers": {"anthropic-beta": BINDING_BETA}}]
)
@pytest.mark.parametrize("name", ["thinking", "extra_body"])
def test_a_request_that_asks_for_broken_thinking_to_be_dropped_is_accepted(
    name, header: dict[str, Any]
):
    drop = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    options = {"thinking": drop} if name == "thinking" else {"extra_body": {"thinking": drop}}
    changed = [user("Go!"), signed([user("Go.")], thoughtful_reply()), user("On.")]

    assert not unbound(changed, {**options, **header})
    assert "beta header" in unbound(changed, options)[0]


def test_a_cache_mark_or_another_way_to_write_a_text_does_not_make_a_request_another_one():
    marked = {"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}

    assert continues([user("Go.")], [user(marked), user("On.")])
    assert not continues([user("Go.")], [user("Go!"), user("On.")])
    assert not continues(chat(2), chat(2)[:-1])


def test_a_session_that_failed_for_one_policy_leaves_it_without_a_sum():
    bills, _ = anyio.run(partial(cost, session(), Policy(NONE)))
    told = Recorded(
        bills={
            NONE: {"a": bills, "b": bills},
            "whole": {"a": bills, "b": bills},
            "half": {"a": bills},
        }
    )

    assert told.relative("whole", 0.1) == 1
    assert told.relative("half", 0.1) is None


# Conversations ------------------------------------------------------------------------------------


# The driver ---------------------------------------------------------------------------------------


def test_every_peer_has_a_driver_and_pinned_requirements():
    folder = ROOT / "benchmarks" / "peers"
    for name in PEERS:
        assert (folder / "drivers" / f"{name}.py").is_file()
        if name != OURS:
            pinned = (folder / "requirements" / f"{name}.txt").read_text().split("\n")
            assert all("==" in line for line in pinned if line)


def test_a_peer_without_an_environment_says_so():
    with pytest.raises(PeerFailed, match="environment"):
        Peer("nobody")


def test_an_error_of_the_driver_is_an_answer_and_the_next_conversation_goes_on(ours):
    with pytest.raises(PeerFailed, match="TypeError"):
        ours.open("default", window="wide")

    ours.open("default")

    assert ours.turn(chat(1))["messages"] == chat(1)


def test_the_timed_rows_tell_each_repetition(ours):
    rows = [quiet_row(20, [ours], 3), *active_rows([ours], 1, results=12, chars=900)]

    spreads = [cell for row in rows for cell in row.cells.values()]

    assert [len(cast("Spread", cell).times) for cell in spreads] == [3, 1, 1, 1, 1, 1, 1]


def test_a_turn_with_what_agents_send_is_timed_and_says_how_much_is_sent(ours):
    row = agent_row([ours], 2, messages=6)
    spread = cast("Spread", row.cells[OURS])

    assert len(spread.times) == len(spread.clock) == 2
    assert float(row.remarks[OURS]) < 0.1


def test_our_instructions_stay_after_a_compaction_and_those_of_a_forgetful_peer_do_not(driven):
    governing, findings = scripted_rows([driven(DRIVER + FORGETFUL)], 1, calls=40)

    assert governing.cells[OURS] == 1.0
    assert cast("float", governing.cells["forgetful"]) < 0.5
    assert set(findings.cells) == set(governing.cells)


def test_our_requests_are_valid_whatever_was_broken_and_however_much_is_taken_out(
    ours,
):
    for broken in (False, True):
        for shortened in (False, True):
            assert validity_row([ours], 4, broken=broken, shortened=shortened).cells == {OURS: 1.0}


@pytest.mark.parametrize("shortened", [False, True])
def test_our_requests_with_bound_thinking_are_accepted_at_once(ours, shortened):
    row = bound_row([ours], 2, shortened=shortened)
    rewritten, unbound, unsound, requests = map(int, row.remarks[OURS].split(" / "))

    assert row.cells == {OURS: 1.0}
    assert (unbound, unsound) == (0, 0)
    assert requests > 20
    assert rewritten > 0


@pytest.mark.parametrize(("code", "accepted"), [(DRIVER, 0.0), (DRIVER + AGAIN, 1.0)])
def test_a_peer_that_breaks_the_bond_is_refused_unless_its_adapter_sends_the_request_again(
    driven, code, accepted
):
    row = bound_row([driven(code)], 2, shortened=True)
    _, refused_for_thinking, refused_else, _ = row.remarks["forgetful"].split(" / ")

    assert row.cells == {"forgetful": accepted}
    assert (refused_for_thinking, refused_else) == ("2", "0")


def test_a_peer_that_takes_too_long_is_listed_and_asked_again_in_the_next_row(driven, ours):
    peers = [driven(DRIVER), ours]

    slow = quiet_row(20, peers, 1)
    after = share_row(peers, asking=False, results=4, chars=300, trigger=100)

    assert slow.cells["forgetful"] == "failed: no answer within 2 s of processor time"
    assert isinstance(slow.cells[OURS], Spread)
    assert after.cells["forgetful"] == 0.0


def test_a_peer_that_fails_in_a_session_is_listed_and_the_others_are_billed(tmp_path):
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(json.dumps(message) for message in session().messages))

    told = next(recorded([str(path)], ["nobody", OURS], 1))

    assert "environment" in told.failed["nobody"]
    assert told.relative(f"{OURS}, defaults", 0.1) is not None
    assert "- nobody failed: " in "".join(session_tables(told, 1, ["nobody", OURS]))
    assert "| dollars at equal recall, of no management, a cached token at 0.1 | **" in summary(
        [], told
    )


def test_a_summary_request_in_the_conversation_itself_shows_all_of_it(ours):
    row = share_row([ours], asking=False, results=12, chars=4900, trigger=5000)

    assert row.cells[f"{OURS} (inline)"] == 1.0


def test_a_peer_is_replayed_and_billed_like_a_policy(ours):
    transcript = session()
    none, whole = anyio.run(partial(cost, transcript, Policy(NONE)))
    bills, recall = anyio.run(partial(cost, transcript, PeerPipeline(ours, "free", {})))

    assert whole == 1
    assert bills[0.1].refetches == 1
    assert recall < 1
    # A refetch is a request more, with a system prompt and tools of its own.
    refetched_prefix = bills[0.1].refetches * PREFIX_TOKENS
    assert bills[0.1].prompt_tokens - refetched_prefix < none[0.1].prompt_tokens


def test_a_peer_that_moves_its_cache_mark_is_billed_like_one_without(
    driven,
):
    transcript = session()
    bare, _ = anyio.run(partial(cost, transcript, PeerPipeline(driven(DRIVER), "compact", {})))
    marked, _ = anyio.run(
        partial(cost, transcript, PeerPipeline(driven(DRIVER + MARKED), "compact", {}))
    )

    # A mark divides the last message, which moves one or two tokens to the other side of it.
    for read_price, bill in bare.items():
        assert dataclasses.astuple(marked[read_price]) == pytest.approx(
            dataclasses.astuple(bill), rel=1e-4
        )


def test_our_files_and_archives_are_found_again(ours):
    history: list[Message] = session().messages[:-1]
    ours.open("compact, extractive", trigger=2000)
    ours.turn(history)

    files, _ = ours.kept()

    assert any(PLACE in text for text in files.values())


# Several conversations and processes --------------------------------------------------------------


@pytest.mark.skipif(not NIGHTLY, reason="it starts several processes, in the nightly profile")
def test_our_sub_agents_keep_their_words_apart(ours):
    row = agents_row([ours])

    assert row.cells == {OURS: 1.0}
    assert row.remarks[OURS] == "1.000 / 0"


def test_our_loops_of_chat_completions_are_valid(ours):
    row = chat_row([ours], 4, broken=True, shortened=True)

    assert row.cells == {OURS: 1.0}


@pytest.mark.skipif(not NIGHTLY, reason="it starts several processes, in the nightly profile")
@pytest.mark.parametrize("make", [resume_row, processes_row])
def test_another_process_goes_on_with_our_session_and_pays_no_summary_twice(
    make: Callable[[list[Peer]], Row], tmp_path
):
    with Peer(OURS, folder=str(tmp_path)) as peer:
        row = make([peer])

    one, other, *at_once = row.remarks[OURS].split(" / ")
    assert row.cells == {OURS: 1.0}
    assert int(other) <= int(one) + bool(at_once)  # paths of another length move a compaction
    # Whether the requests are equal is chance: what each knows of the bill moves a compaction.
    assert [paid.partition(";")[0] for paid in at_once] in ([], ["1"])


@pytest.mark.parametrize("make", [resume_row, processes_row, partial(chat_row, count=1)])
def test_a_driver_that_cannot_say_it_is_listed_and_not_asked(driven, make: Callable[..., Row]):
    options = {"broken": False, "shortened": False} if isinstance(make, partial) else {}

    cell = make([driven(DRIVER)], **options).cells["forgetful"]

    assert isinstance(cell, str)


# What long sessions need --------------------------------------------------------------------------


def test_our_requests_with_pictures_stay_below_a_limit_that_the_bare_ones_exceed(ours, driven):
    bare = driven(DRIVER.replace("while True:\n                pass", "return self.messages"))
    row = media_row([ours, bare], 110, 465_000, side=32)  # ours counts pictures, too: a hundred

    assert row.cells[OURS] == 1
    assert 0.8 < cast("float", row.cells["forgetful"]) < 1


def test_what_left_is_found_by_words_and_a_peer_without_a_search_says_so(ours, driven):
    row = search_row([ours, driven(DRIVER)], 24)

    assert cast("float", row.cells[OURS]) > 0.9
    assert row.cells["forgetful"] == "no tool that searches all that left"


def test_a_deleted_conversation_leaves_no_word_on_the_disk(ours, driven):
    row = deletion_row([ours, driven(DRIVER)], 24)

    assert row.cells == {OURS: 1.0, "forgetful": "–"}


@pytest.mark.skipif(not NIGHTLY, reason="it waits for a slow summary, in the nightly profile")
def test_our_turns_wait_for_a_summary_unless_it_is_written_in_the_background(ours):
    row = background_row([ours])
    spreads = [cast("Spread", row.cells[name]) for name in (f"{OURS} (background)", OURS)]

    assert spreads[0].least < spreads[1].least / 2


# Gateways -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not NIGHTLY, reason="it starts several processes, in the nightly profile")
async def test_our_gateway_costs_less_than_the_bare_client_and_hides_nothing():
    bare = await play(None, 200_000, 20)
    ours = await play(GATEWAYS[0], 200_000, 20)

    assert bare.done == ours.done == 20
    assert ours.dollars < bare.dollars
    assert (ours.refused, ours.reached) == (0, 1.0)


def test_a_range_of_paths_names_each_of_them():
    assert expanded("whole in /r/s{1..3}.md").split("\n")[1:] == [
        "/r/s1.md",
        "/r/s2.md",
        "/r/s3.md",
    ]


@pytest.mark.skipif(not NIGHTLY, reason="it starts several processes, in the nightly profile")
def test_a_proxy_that_cannot_start_is_listed():
    gone = Gateway("gone", Path("/nowhere/python"), ())

    cost, _, unnamed = gateway_rows(2, [gone])

    assert "environment" in str(cost.cells["gone"]) + str(unnamed.cells["gone"])


# The page -----------------------------------------------------------------------------------------

RESULTS = (ROOT / "benchmarks" / "peers" / "results.md").read_text("utf-8")


def cells_of(section: str) -> list[list[str]]:
    """The rows of the table below the heading *section*, without its head."""
    body = RESULTS.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in body.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def test_the_page_has_every_peer_in_every_table():
    sections = re.findall(r"^## (.*)$", RESULTS, re.MULTILINE)
    missing = []
    for section in set(sections) - {"Where ctxpipe is not first", "In short"}:
        body = RESULTS.split(f"\n## {section}\n")[1].split("\n## ")[0]
        peers = {re.split(r"[ ,:]", row[0].strip("* "))[0] for row in cells_of(section)}
        peers |= set(re.findall(r"^- (\w+)", body, re.MULTILINE))
        missing += [(section, peer) for peer in PEERS if peer not in peers]

    assert missing == []
    assert len(sections) > 25


def test_the_page_begins_with_the_rows_in_which_ctxpipe_is_not_first_and_their_reasons():
    first = cells_of("Where ctxpipe is not first")
    names = [name for name, *_ in first]

    assert RESULTS.index("\n## Where ctxpipe is not first\n") == RESULTS.index("\n## ")
    assert {name: reason for name, *_, reason in first} == {name: REASONS[name] for name in names}
    assert [name for name, *_ in cells_of("In short")][: len(names)] == names
