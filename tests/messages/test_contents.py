"""Which text a block holds: one answer for all that measure, store, search and summarize."""

from __future__ import annotations

from typing import Any

import pytest
from histories import PICTURE, text, thinking, tool_result, tool_use

from ctxpipe.messages import block_text, is_text_part, result_text, source_of

FOUND = {
    "type": "search_result",
    "source": "https://a.b",
    "title": "Terms",
    "content": [text("Pay."), text("Sign.")],
}


def document(source: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **others}


PLAIN = {"type": "text", "media_type": "text/plain", "data": "Pay."}


@pytest.mark.parametrize(
    ("block", "held"),
    [
        (text("a"), "a"),
        ({"type": "text", "text": None}, ""),
        (tool_result("t", "a"), "a"),
        (tool_result("t", None), ""),
        (
            tool_result("t", [text("a"), PICTURE, FOUND]),
            "a\n[image]\nTerms (https://a.b)\n\nPay.\n\nSign.",
        ),
        (FOUND, "Terms (https://a.b)\n\nPay.\n\nSign."),
        ({**FOUND, "title": ""}, "https://a.b\n\nPay.\n\nSign."),
        (document(PLAIN), "Pay."),
        (document(PLAIN, title="Terms", context="2026"), "Terms\n\n2026\n\nPay."),
        (document({"type": "content", "content": "Pay."}), "Pay."),
        (document({"type": "content", "content": [text("Pay.")]}), "Pay."),
        ({"type": "opaque", "kind": "x", "json": "{}"}, "{}"),
    ],
)
def test_the_text_of_a_block(block: dict[str, Any], held: str):
    assert block_text(block) == held


@pytest.mark.parametrize(
    ("content", "held"),
    [
        (
            {
                "type": "bash_code_execution_result",
                "stdout": "2 passed",
                "stderr": "a warning",
                "return_code": 0,
                "content": [],
            },
            "2 passed\na warning",
        ),
        ({"type": "text_editor_code_execution_view_result", "content": "import os"}, "import os"),
        (
            [{"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "x"}],
            "T\nu",
        ),
        (
            {"type": "web_fetch_result", "url": "u", "content": document(PLAIN, title="T")},
            "u\nT\n\nPay.",
        ),
        ([text("one"), text("two")], "one\ntwo"),
        ("said", "said"),
        ({"type": "tool_search_tool_search_result", "tool_references": []}, None),
        (None, None),
    ],
)
def test_the_text_of_the_result_of_a_server_tool(content: Any, held: str | None):
    block = {"type": "some_tool_result", "tool_use_id": "srvtoolu_1", "content": content}

    assert block_text(block) == held


@pytest.mark.parametrize(
    "block",
    [
        PICTURE,
        document({"type": "base64", "media_type": "application/pdf", "data": "JVBE"}),
        document({"type": "content", "content": [text("a"), PICTURE]}),
        document({"type": "file", "file_id": "file_1"}),
        {**FOUND, "content": [PICTURE]},
        {"type": "container_upload", "file_id": "file_1"},
        {"type": "tool_reference", "tool_name": "deploy"},
        tool_use("t"),
        thinking(),
        {"type": "mystery", "text": "a"},
    ],
)
def test_other_blocks_have_no_text(block: dict[str, Any]):
    assert block_text(block) is None
    assert not is_text_part(block)


def test_a_result_in_a_result_is_named_only():
    nested: dict[str, Any] = tool_result("t", "deep")
    for _ in range(5_000):
        nested = tool_result("t", [nested])

    assert result_text(nested) == "[tool_result]"


def test_an_opaque_item_is_no_text_that_can_go_to_a_file():
    assert all(is_text_part(part) for part in (text("a"), FOUND, document(PLAIN)))
    assert not is_text_part({"type": "opaque", "kind": "x", "json": "{}"})


def test_the_source_of_a_block_is_its_title_and_address():
    assert source_of(FOUND) == "Terms (https://a.b)"
    assert source_of(document(PLAIN, title="Terms")) == "Terms"
    assert source_of(text("a")) == ""
