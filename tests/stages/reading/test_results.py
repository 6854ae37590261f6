"""The content of tool results: text, size, placeholder."""

from __future__ import annotations

import pytest
from anthropic.types import TextBlock
from histories import text

from ctxpipe.messages import compact_json
from ctxpipe.placeholders.placeholders import BATCH, placeholder
from ctxpipe.stages.reading.results import (
    is_placeholder,
    result_characters,
    sources_in,
    stored_text,
    text_of,
    with_placeholder,
)

IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K" * 99},
}


DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "x" * 999},
}


FOUND = {"type": "search_result", "title": "t", "source": "s", "content": [text("x" * 200)]}


TOOL = {"type": "tool_reference", "tool_name": "deploy"}


POINTER = placeholder(BATCH, "./s/tool-result-a.md")


def test_the_size_of_a_block_list_is_that_of_its_json():
    content = [text('"quoted"\n'), text("é")]

    assert result_characters(content) == len(compact_json(content))


def test_text_is_stored_as_it_is_and_blocks_as_json():
    assert stored_text("a\n", indent=2) == "a\n"
    assert stored_text([text("é")], indent=None) == '[{"type":"text","text":"é"}]'
    assert (
        stored_text([text("é")], indent=2) == '[\n  {\n    "type": "text",\n    "text": "é"\n  }\n]'
    )


def test_what_is_no_text_is_not_stored():
    assert stored_text([text("a"), IMAGE, text("b")], indent=None) == compact_json(
        [text("a"), text("b")]
    )


def test_search_results_and_text_documents_are_stored_as_their_texts_with_their_sources():
    terms = {**DOCUMENT, "title": "Terms", "context": "of 2026"}
    content = [text("a"), IMAGE, FOUND, terms]

    stored = f"a\n\nt (s)\n\n{'x' * 200}\n\nTerms\n\nof 2026\n\n{'x' * 999}"
    assert stored_text(content, indent=2) == stored
    assert text_of(content) == stored_text(content, indent=None)
    assert with_placeholder(content, "P") == [text("P"), IMAGE]
    assert sources_in(content) == ["t (s)", "Terms"]


def test_sdk_objects_are_stored_as_their_dicts():
    assert '"text": "hi"' in stored_text([TextBlock(type="text", text="hi")], indent=2)


def test_images_and_unknown_blocks_stay_behind_the_placeholder():
    assert with_placeholder([text("a"), IMAGE, text("b"), TOOL], "P") == [text("P"), IMAGE, TOOL]


def test_text_alone_is_replaced_by_text_alone():
    assert (
        with_placeholder("a", "P")
        == with_placeholder([text("a"), text("b")], "P")
        == with_placeholder(None, "P")
        == "P"
    )


def test_a_mark_for_the_cache_goes_with_the_text_it_stood_on():
    marked = {**text("b"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}

    assert with_placeholder([text("a"), marked], "P") == [
        {**text("P"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ]


def test_what_a_result_says_is_its_text():
    assert text_of("a") == text_of([text("a")]) == text_of([IMAGE, text("a")]) == "a"
    assert text_of([text("a"), text("b"), {"type": "text"}]) == "ab"
    assert text_of(None) == text_of([]) == text_of([IMAGE]) == ""


@pytest.mark.parametrize(
    "content",
    [POINTER, [text(POINTER)], [text(POINTER), IMAGE], [TextBlock(type="text", text=POINTER)]],
)
def test_a_placeholder_is_recognised_alone_and_before_images(content: str | list[object]):
    assert is_placeholder(content)


@pytest.mark.parametrize(
    "content", ["", POINTER + "!", None, [], [IMAGE, text(POINTER)], [{"type": "text"}]]
)
def test_other_content_is_no_placeholder(content: str | list[object] | None):
    assert not is_placeholder(content)
