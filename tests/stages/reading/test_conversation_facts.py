"""The facts of a conversation that an archive keeps."""

from __future__ import annotations

from ctxpipe.stages.reading.conversation_facts import ConversationFacts, facts_to_keep


def test_of_very_many_facts_an_archive_keeps_the_latest_the_first_request_and_every_order():
    facts = ConversationFacts(
        {f"{number}.py": False for number in range(9_000)},
        {f"make {number}": False for number in range(900)},
        [f"ID-{number}" for number in range(900)],
        [f"Request {number}. " + "x" * 5_000 for number in range(100)],
        orders=["<command>x</command>"],
    )

    kept = facts_to_keep(facts)

    assert (len(kept.paths), [*kept.paths][-1]) == (5_000, "8999.py")
    assert (len(kept.commands), [*kept.commands][-1]) == (500, "make 899")
    assert (len(kept.identifiers), kept.identifiers[-1]) == (500, "ID-899")
    assert kept.requests == [facts.requests[0], *facts.requests[-39:]]
    assert kept.orders == facts.orders
