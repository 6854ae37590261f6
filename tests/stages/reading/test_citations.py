"""Citations point to documents by their number: they go when the document goes."""

from __future__ import annotations

from typing import Any

from histories import assistant, step, text, user

from ctxpipe.messages import Message
from ctxpipe.stages.reading.citations import without_dangling_citations

LAW = {
    "type": "document",
    "source": {"type": "text", "data": "law"},
    "citations": {"enabled": True},
}
BOOK = {**LAW, "source": {"type": "text", "data": "book"}}
HIT = {"type": "search_result", "source": "s", "title": "t", "content": [text("found")]}


def reply(*citations: dict[str, Any]) -> Message:
    return assistant({**text("It says so."), "citations": list(citations)})


def cites(number: int) -> dict[str, Any]:
    return {"type": "char_location", "cited_text": "x", "document_index": number}


FINDS = {"type": "search_result_location", "cited_text": "x", "search_result_index": 0}
PAGE = {"type": "web_search_result_location", "url": "https://example.com", "cited_text": "x"}


def test_a_citation_goes_with_its_document_and_the_text_stays():
    before = [user(LAW, "Check."), reply(cites(0))]

    after = without_dangling_citations(before, [user("Summary."), before[1]])

    assert after == [user("Summary."), assistant(text("It says so."))]
    assert before[1] == reply(cites(0))


def test_a_citation_stays_with_its_document():
    before = [user(LAW, "Check."), reply(cites(0)), user("Go on.")]
    after = [user(LAW), before[1]]

    assert without_dangling_citations(before, after) is after


def test_a_citation_that_would_point_to_another_document_goes():
    before = [user(LAW, BOOK, "Check."), reply(cites(0), cites(1))]

    after = without_dangling_citations(before, [user(BOOK), before[1]])

    assert after[1] == assistant(text("It says so."))


def test_only_the_citations_of_what_is_gone_go():
    before = [user(LAW, BOOK, "Check."), reply(cites(0), cites(1), PAGE)]

    after = without_dangling_citations(before, [user(LAW), before[1]])

    assert after[1] == reply(cites(0), PAGE)


def test_search_results_count_also_inside_the_results_of_tools():
    before = [user("Find."), *step("t", "search", {}, [HIT]), reply(FINDS)]

    assert without_dangling_citations(before, [*before]) == before
    assert without_dangling_citations(before, before[3:])[0] == assistant(text("It says so."))


def test_a_citation_of_what_was_never_there_is_left_alone():
    before = [user("Check."), reply(cites(3))]
    after = [user("Summary."), before[1]]

    assert without_dangling_citations(before, after) is after
