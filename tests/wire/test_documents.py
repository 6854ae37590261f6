"""Files in the items of OpenAI's APIs: documents that count by pages and come back as sent."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from ctxpipe.tokens import TokenCounter
from ctxpipe.tokens.media import DOCUMENT_TOKENS, PDF_PAGE_TOKENS
from ctxpipe.wire.openai_chat import ChatCodec
from ctxpipe.wire.openai_responses import ResponsesCodec
from ctxpipe.wire.translation import Translation

COUNT = TokenCounter()


def data_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def pdf(pages: int) -> str:
    return data_of(b"%PDF-1.7\n" + b"<</Type /Page>>" * pages + bytes(1_000_000))


FILES: dict[str, tuple[dict[str, Any], int]] = {
    "a data URL": ({"file_data": f"data:application/pdf;base64,{pdf(3)}"}, 3 * PDF_PAGE_TOKENS),
    "bare base64": ({"file_data": pdf(4)}, 4 * PDF_PAGE_TOKENS),
    "an id": ({"file_id": "file-1"}, DOCUMENT_TOKENS),
    "a text": ({"file_data": f"data:text/plain;base64,{data_of(b'hello world')}"}, 2),
    "a spreadsheet": (
        {"file_data": f"data:application/x;base64,{data_of(bytes(10**6))}"},
        DOCUMENT_TOKENS,
    ),
}


def chat_part(file: dict[str, Any]) -> dict[str, Any]:
    return {"type": "file", "file": file}


def responses_part(file: dict[str, Any]) -> dict[str, Any]:
    return {"type": "input_file", **file}


@pytest.mark.parametrize(("file", "tokens"), FILES.values(), ids=FILES)
@pytest.mark.parametrize(
    ("codec", "part_of"),
    [(ChatCodec(), chat_part), (ResponsesCodec(), responses_part)],
    ids=["chat", "responses"],
)
def test_a_file_is_a_document_and_comes_back_as_it_was(
    codec, part_of, file: dict[str, Any], tokens: int
):
    part = part_of({**file, "filename": "contract.pdf"})
    item = {"role": "user", "content": [part, {"type": "text", "text": "?"}]}
    if part["type"] == "input_file":
        item["content"][1]["type"] = "input_text"
    translation = Translation(codec)
    units = translation.read([item])

    content: Any = units.messages[0]["content"]
    document, question = content
    context: Any = [{"role": "user", "content": [question, document]}]

    assert document["type"] == "document"
    assert COUNT.block(document) == tokens + COUNT.text("contract.pdf")
    assert translation.items(units, list(units.messages))[0] is item
    assert translation.items(units, context)[0]["content"][1] is part


@pytest.mark.parametrize("part", [chat_part({}), chat_part({"file_id": 5}), {"type": "file"}])
def test_a_file_part_that_names_nothing_stays_what_it_is(part: dict[str, Any]):
    item = {"role": "user", "content": [part]}
    translation = Translation(ChatCodec())
    units = translation.read([item])

    assert COUNT.message(units.messages[0]) < 50
    assert translation.items(units, list(units.messages)) == [item]


def test_the_address_of_a_file_counts_as_a_document():
    units = Translation(ResponsesCodec()).read(
        [{"role": "user", "content": [responses_part({"file_url": "https://a.b/c.pdf"})]}]
    )

    assert COUNT.message(units.messages[0]) == DOCUMENT_TOKENS
