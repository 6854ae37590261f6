"""How providers say that a prompt is too long: a test a row, and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from ctxpipe.providers.refusals import (
    MAX_TEXT,
    ROWS,
    Refusal,
    RefusalPattern,
    as_refusal,
    read_refusal,
)

REFUSALS = [row for row in ROWS if row.is_refusal]


class ApiError(Exception):
    def __init__(self, status: int | None, text: str, **attributes: object):
        super().__init__(text)
        self.status_code = status
        vars(self).update(attributes)


WINDOW_IS = "This model's maximum context length is"


def named(row: RefusalPattern) -> str:
    return f"{row.provider}: {row.example[:50]}"


@pytest.mark.parametrize("row", REFUSALS, ids=named)
def test_each_providers_refusal_is_understood(row: RefusalPattern):
    for status in (400, 413, 422, 500, None):
        refusal = as_refusal(ApiError(status, row.example))

        assert refusal is not None, status
        assert refusal.provider == row.provider


@pytest.mark.parametrize("row", [row for row in ROWS if not row.is_refusal], ids=named)
def test_what_only_looks_like_one_is_none(row: RefusalPattern):
    for status in (400, 413, 422, None):
        assert as_refusal(ApiError(status, row.example)) is None, status


@pytest.mark.parametrize("status", [401, 403, 404, 408, 409, 429, 502, 503, 529])
def test_a_status_that_means_something_else_decides(status):
    assert (
        as_refusal(ApiError(status, "prompt is too long: 200251 tokens > 200000 maximum")) is None
    )


NUMBERS = {
    "prompt is too long: 200251 tokens > 200000 maximum": (200_251, 200_000, 200_000),
    "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)": (15_028, 7_424, 7_424),
    "prompt is too long: 1,200,251 tokens > 1,000,000 maximum": (1_200_251, 1_000_000, 1_000_000),
    "input length and `max_tokens` exceed context limit: 143653 + 64000 > 200000, decrease": (
        143_653,
        200_000,
        136_000,
    ),
    "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens "
    "(122942 in the "
    "messages, 8192 in the completion).": (122_942, 131_072, 122_880),
    "This model's maximum context length is 8191 tokens, however you requested 10346 tokens (10341 "
    "in your prompt; "
    "5 for the completion).": (10_341, 8_191, 8_186),
    "The input token count (1196265) exceeds the maximum number of tokens allowed (1048576).": (
        1_196_265,
        1_048_576,
        1_048_576,
    ),
    "Range of input length should be [1, 129024]": (None, 129_024, 129_024),
    "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 "
    "tokens (138000 of "
    "text input, 2000 in the output).": (138_000, 131_072, 129_072),
    "Input is too long for requested model.": (None, None, None),
}


@pytest.mark.parametrize("text", NUMBERS)
def test_the_numbers_are_read_where_they_are_named(text: str):
    refusal = read_refusal(400, text)

    assert refusal is not None
    assert (refusal.tokens, refusal.window, refusal.limit) == NUMBERS[text]
    assert refusal.has_numbers == (refusal.tokens is not None)


@pytest.mark.parametrize(
    "text",
    [
        "input length and `max_tokens` exceed context limit: 4000 + 199000 > 200000",
        (
            f"max_tokens is too large: 9000. {WINDOW_IS} 8192 tokens and your request has 500 "
            "input tokens"
        ),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 100 `inputs` tokens and "
            "8100 `max_new_tokens`"
        ),
        "prompt is too long: 5 tokens > 200000 maximum",
    ],
)
def test_a_short_prompt_is_not_to_blame_for_a_long_answer(text):
    assert read_refusal(400, text) is None


@pytest.mark.parametrize("window", [0, 1, 499])
def test_a_window_that_no_model_has_is_not_believed(window):
    assert read_refusal(400, f"prompt is too long: 9000 tokens > {window} maximum") == Refusal(
        "Anthropic", 9000
    )


FIELDS = [
    "Input is too long for field metadata.user_id",
    "Input is too long for field 'tools.0.name'",
    "Input is too long for parameter stop_sequences[2].",
    "input is too long for the property `container`",
    "Input is too long for tool_choice.name",
    "Input is too long for messages.3.content.0.tool_use_id",
    "tools.0.custom.name: Input is too long",
    "stop_sequences.1: input is too long",
    "container: Input is too long",
    "metadata: prompt is too long",
    "The value of 'safety_identifier' is too long: input is too long",
    "messages.2.content.1.id: Input is too long",
    "Error code: 400 - {'error': {'message': 'Input is too long', 'param': 'user'}}",
    '{"detail": [{"loc": ["body", "metadata", "user_id"], "msg": "Input is too long"}]}',
    "response_format.json_schema.name exceeds the maximum context length",
    "Too many input tokens for the header x-session: input is too long for header: x-session",
]
PROMPTS = [
    "Input is too long for requested model.",
    "Input is too long for field messages",
    "Input is too long for field 'prompt': shorten it",
    "Input is too long for the field `inputText`.",
    "messages: Input is too long",
    "messages.0.content: prompt is too long: 200251 tokens > 200000 maximum",
    "The user prompt is too long: 9000 tokens > 8000 maximum",
    "Your input, tools included, is too long: input is too long for model claude.3_5",
    "{'error': {'message': 'prompt is too long', 'param': 'messages'}}",
    "{'message': 'This model maximum context length is 8192 tokens', 'param': 'input_tokens'}",
]


@pytest.mark.parametrize("text", PROMPTS)
def test_the_fields_that_hold_the_prompt_may_be_named(text: str):
    assert as_refusal(ApiError(400, text)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "messages: at least one message is required",
        "tools.0.custom.name: String should have at most 128 characters",
        "tool name too long",
        "metadata.user_id too long",
        "Too many tokens per minute",
        "Image too large",
        (
            "messages.4.content.0: at least one of the image dimensions exceed max allowed size: "
            "8000 pixels"
        ),
        "Uploaded file is too large",
        "invalid content-length header",
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got 200.",
        "The maximum tokens you requested exceeds the model limit of 8192.",
        "max_output_tokens value is too high",
        "stop sequence is too long",
        *FIELDS,
        "thinking.budget_tokens must be less than the context window: it exceeds context window",
        "The batch queue is full: tokens_limit_reached",
        "",
    ],
)
def test_other_errors_do_not_pass_for_a_refusal(text):
    for status in (400, 422, None):
        assert as_refusal(ApiError(status, text)) is None, status


def test_a_413_is_a_refusal_without_numbers_whatever_it_says():
    assert read_refusal(413, "<html>Payload Too Large</html>") == Refusal(
        "a gateway", is_media=True
    )


def error_type(name: str) -> type[Exception]:
    return type(name, (Exception,), {})


@pytest.mark.parametrize(
    "name",
    [
        "ContextWindowExceededError",
        "ContextOverflowError",
        "ContextWindowOverflowException",
        "LLMContextLengthExceededException",
        "LLMContextWindowExceedError",
    ],
)
def test_the_type_of_a_frameworks_error_tells_it_without_a_status(name):
    derived = type("Own", (error_type(name),), {})

    assert as_refusal(error_type(name)("it did not fit")) is not None
    assert as_refusal(derived("it did not fit")) is not None


@pytest.mark.parametrize(
    "attributes",
    [
        {"code": "context_length_exceeded"},
        {"body": {"message": "no", "code": "context_length_exceeded"}},
        {
            "body": {
                "type": "error",
                "error": {"type": "exceed_context_size_error", "message": "no"},
            }
        },
        {"body": "prompt is too long: 200251 tokens > 200000 maximum"},
        {"message": "Your input exceeds the context window of this model."},
        {
            "response": type(
                "Response",
                (),
                {"content": b'{"message": "Prompt is too long"}', "status_code": 400},
            )()
        },
    ],
)
def test_codes_and_bodies_are_looked_at(attributes: dict[str, object]):
    assert as_refusal(ApiError(400, "Error code: 400", **attributes)) is not None


@pytest.mark.parametrize(
    ("text", "has_code"),
    [
        ('{"message": "Too long.", "code": "context_length_exceeded"}', True),
        ("Your input exceeds the context window of this model. context_length_exceeded", True),
        ("Your input exceeds the context window of this model.", False),
        ("Request payload size exceeds the limit: 20 MB.", False),
    ],
)
def test_a_code_is_more_than_a_sentence(text, has_code):
    refusal = read_refusal(400, text)
    assert refusal is not None
    assert refusal.has_code == has_code


def test_an_error_raised_from_a_refusal_is_one():
    error = RuntimeError("the model could not be asked")
    error.__cause__ = ApiError(400, "prompt is too long: 200251 tokens > 200000 maximum")

    assert as_refusal(error) == Refusal("Anthropic", 200_251, 200_000)


def test_errors_that_cannot_be_looked_at_are_no_refusal():
    class Odd(Exception):
        response: Any

        def __str__(self) -> str:
            raise RuntimeError

    odd = Odd()
    odd.response = type("Unread", (), {"content": property(lambda _: 1 / 0)})()
    looped = RuntimeError("a")
    looped.__cause__ = looped

    assert as_refusal(odd) is None
    assert as_refusal(looped) is None
    assert as_refusal(None) is None


def test_only_the_beginning_of_a_long_answer_is_searched():
    assert read_refusal(400, " " * MAX_TEXT + "prompt is too long") is None
    assert read_refusal(400, "prompt is too long" + " " * 10**7) is not None


@pytest.mark.parametrize("number", [1261, 2013, 7])
def test_a_number_of_the_providers_own_is_no_http_status(number):
    error = type("Refused", (Exception,), {"code": number})("Prompt is too long")

    assert as_refusal(error) is not None
