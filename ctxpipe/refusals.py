"""How each provider says that a prompt is too long, and what only looks like it: one table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

__all__ = [
    "LEAST_SHARE",
    "MAX_TEXT",
    "REFUSING",
    "ROWS",
    "Refusal",
    "Row",
    "as_refusal",
    "read_refusal",
    "status_of",
]

MAX_TEXT = 4096  # characters of an answer that are looked at; a refusal says so at its beginning
MAX_CAUSES = 5  # frameworks raise their own error from the SDK's
LEAST_WINDOW = 500  # tokens; a smaller one is a misunderstanding
LEAST_SHARE = 0.5  # of the window: a shorter prompt is refused for the answer's sake

REFUSING = frozenset({400, 413, 422, 500})
"""HTTP statuses with which a prompt is refused; others mean something else, whatever is said."""
TOO_LARGE = 413


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an answer tells that calls a prompt too long.

    *tokens* are the prompt's as *provider* counts them, *window* is the model's, *answer_tokens* what
    the request wanted to keep free for the answer; None and 0 where they are not named.
    """

    provider: str
    tokens: int | None = None
    window: int | None = None
    answer_tokens: int = 0

    @property
    def limit(self) -> int | None:
        """How many tokens a prompt may have, None where that is not named."""
        return None if self.window is None else self.window - self.answer_tokens

    @property
    def has_numbers(self) -> bool:
        """Whether it says how long the prompt is and how long it may be."""
        return self.tokens is not None and self.window is not None


@dataclass(frozen=True, slots=True)
class Row:
    """What *provider* answers: *pattern* finds it in the text or among the names of an error.

    Not *is_refusal*, the text only looks as if a prompt was too long.
    """

    provider: str
    pattern: re.Pattern[str]
    example: str
    is_refusal: bool = True


def _row(provider: str, pattern: str, example: str) -> Row:
    return Row(provider, _compiled(pattern), example)


def _lookalike(subject: str, pattern: str, example: str) -> Row:
    return Row(subject, _compiled(pattern), example, is_refusal=False)


def _compiled(pattern: str) -> re.Pattern[str]:
    """*pattern* with its {tokens}, {window}, {answer} and {total} as groups that hold a number."""
    names = ("tokens", "window", "answer", "total")
    numbers = {name: rf"(?P<{name}>\d[\d,]{{0,14}})" for name in names}
    for name, group in numbers.items():
        pattern = pattern.replace("{" + name + "}", group)
    return re.compile(pattern, re.IGNORECASE)


# The first row that matches decides. A gap in a pattern is bounded, so that a search stays linear.
ROWS: tuple[Row, ...] = (
    # The length of the answer is to blame unless the numbers say that the prompt is.
    _row(
        "vLLM",
        r"max_(?:completion_)?tokens'? is too large: {answer}\. This model's maximum context length is "
        r"{window} tokens and your request has {tokens} input tokens",
        "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's maximum context "
        "length is 8192 tokens and your request has 7900 input tokens (1000 > 8192 - 7900).",
    ),
    _row(
        "vLLM",
        r"passed \d[\d,]{0,14} input characters and requested {answer} output tokens.{0,60}? context length is "
        r"only {window} tokens",
        "You passed 600001 input characters and requested 1000 output tokens. However, the model's context length "
        "is only 8192 tokens, resulting in a maximum input length of 7192 tokens (at most 575360 characters).",
    ),
    # What only looks like it.
    _lookalike(
        "a rate limit",
        r"\btokens per (?:min|hour|day)|\((?:TPM|TPD)\)|rate[ _-]?limit|too many requests|throttl|"
        r"\bquota\b",
        "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 12000, "
        "please reduce your message size and try again.",
    ),
    _lookalike(
        "a rate limit",
        r"too many tokens, please wait",
        "Too many tokens, please wait before trying again.",
    ),
    _lookalike(
        "the length of the answer",
        r"max_(?:completion_|output_|new_)?tokens[`'\"]{0,3} (?:is|are|was|value is) too (?:large|big|high|long)",
        "max_tokens is too large: 300000. This model supports at most 64000 completion tokens",
    ),
    _lookalike(
        "the length of the answer",
        r"maximum allowed number of output tokens|at most \d[\d,]{0,14} (?:completion|output) tokens|"
        r"maximum tokens you requested exceeds the model limit|"
        r"(?<!\+ )(?<!\+ [`'\"])max_(?:completion_|output_|new_)?tokens[`'\" ]{0,3}(?:\(\d[\d,]{0,14}\) )?"
        r"(?:must be|exceeds)\b",
        "max_tokens: 300000 > 64000, which is the maximum allowed number of output tokens for m",
    ),
    _lookalike(
        "a field of the request",
        r"string too long|string_above_max_length|array too long|array_above_max_length|"
        r"at most \d[\d,]{0,14} (?:characters|items)|(?:tool|function|user_id|metadata)\S{0,40}"
        r"(?: name| id)? (?:is )?too long",
        "Invalid 'metadata.user_id': string too long. Expected a string with maximum length 64.",
    ),
    _lookalike(
        "a picture or a document",
        r"\b(?:images?|files?|documents?|audio|video|attachments?)\b[^.\n]{0,60}?"
        r"(?:too (?:large|big|long|many)|exceeds?\b)|too much media|too many images|\bpdf pages",
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes",
    ),
    # Anthropic, also behind Bedrock and Vertex.
    _row(
        "Anthropic",
        r"prompt is too long: {tokens} tokens > {window}",
        "prompt is too long: 200251 tokens > 200000 maximum",
    ),
    _row(
        "Anthropic",
        r"input length and `?max_tokens`? exceed context limit: {tokens} \+ {answer} > {window}",
        "input length and `max_tokens` exceed context limit: 143653 + 64000 > 200000, decrease input "
        "length or `max_tokens` and try again",
    ),
    _row(
        "Fireworks",
        r"prompt is too long: {tokens}, model maximum context length: {window}",
        "The prompt is too long: 140000, model maximum context length: 131072",
    ),
    _row("Anthropic", r"\bprompt is too long\b", "Prompt is too long"),
    _row(
        "Anthropic", r"model_context_window_exceeded", "stop_reason: model_context_window_exceeded"
    ),
    _row(
        "Bedrock",
        r"too many input tokens\. max input tokens: {window}, request input token count: {tokens}",
        "ValidationException: 400 Bad Request: Too many input tokens. Max input tokens: 8192, request "
        "input token count: 9279",
    ),
    _row(
        "Bedrock",
        r"\binput is too long\b",
        "An error occurred (ValidationException) when calling the Converse operation: Input is too "
        "long for requested model.",
    ),
    _row(
        "Bedrock",
        r"number of input tokens exceeds (?:the )?maximum",
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length.",
    ),
    # OpenAI, and who speaks as it does: Azure, vLLM, SGLang, DeepSeek, OpenRouter, LiteLLM.
    _row(
        "OpenAI",
        r"maximum context length is {window} tokens.{0,40}? you requested (?:about )?{total} tokens "
        r"\({tokens} (?:in the messages|in your prompt|of text input)[^)]{0,80}?[,;] "
        r"{answer} (?:in|for) the (?:completion|output)",
        "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens "
        "(122942 in the messages, 8192 in the completion). Please reduce the length of the messages.",
    ),
    _row(
        "OpenRouter",
        r"maximum context length is {window} tokens.{0,40}? you requested about {total} tokens",
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 "
        "tokens. Please reduce the length of either one.",
    ),
    _row(
        "SGLang",
        r"maximum context length of {window} tokens\. you requested a total of {total} tokens: "
        r"{tokens} tokens from the input messages and {answer} tokens for the completion",
        "Requested token count exceeds the model's maximum context length of 8192 tokens. You "
        "requested a total of 9000 tokens: 8000 tokens from the input messages and 1000 tokens for "
        "the completion.",
    ),
    _row(
        "SGLang",
        r"input \({tokens} tokens\) is longer than the model'?s context length \({window} tokens\)",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    ),
    _row(
        "OpenAI",
        r"maximum context length is {window} tokens.{0,60}? resulted in {tokens} tokens",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in "
        "131072 tokens. Please reduce the length of the messages.",
    ),
    _row(
        "OpenAI",
        r"input tokens exceed the configured limit of {window} tokens.{0,60}? resulted in {tokens} tokens",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 "
        "tokens. Please reduce the length of the messages.",
    ),
    _row(
        "vLLM",
        r"maximum context length is {window} tokens.{0,60}? you requested {answer} output tokens and your prompt "
        r"contains at least {tokens} input tokens",
        "This model's maximum context length is 131072 tokens. However, you requested 8192 output tokens and your "
        "prompt contains at least 122881 input tokens, for a total of at least 131073 tokens.",
    ),
    _row(
        "SGLang",
        r"input length \({tokens} tokens\) exceeds the maximum allowed length \({window} tokens\)",
        "Input length (9000 tokens) exceeds the maximum allowed length (8192 tokens). Use a shorter input.",
    ),
    _row(
        "SiliconFlow",
        r"prompt_tokens \({tokens}\) must be less than max_seq_len \({window}\)",
        "length of prompt_tokens (140000) must be less than max_seq_len (131072).",
    ),
    _row(
        "Cohere",
        r"\(prompt and prediction\) cannot exceed {window}",
        "too many tokens: total number of tokens (prompt and prediction) cannot exceed 4081 - received 4143.",
    ),
    _row(
        "LM Studio",
        r"reached context length of {window} tokens|n_keep \({tokens}\) >= n_ctx \({total}\)",
        "Reached context length of 4096 tokens with this model, but this model needs more.",
    ),
    _row(
        "SambaNova",
        r"requested generation length \d[\d,]{0,14} is not possible! the provided prompt",
        "Requested generation length 1000 is not possible! The provided prompt is 9000 tokens long.",
    ),
    _row(
        "TensorRT-LLM",
        r"prompt length \({tokens}\) exceeds maximum input length \({window}\)",
        "Prompt length (9000) exceeds maximum input length (8192). Set log level to info for more.",
    ),
    _row(
        "Gemini",
        r"request payload size exceeds the limit",
        "Request payload size exceeds the limit: 20 MB.",
    ),
    _row(
        "vLLM",
        r"maximum context length is {window} tokens.{0,60}? (?:request has|contains at least) {tokens} input tokens",
        "This model's maximum context length is 8192 tokens. However, your request has 9000 input "
        "tokens. Please reduce the length of the input messages.",
    ),
    _row(
        "vLLM",
        r"prompt \((?:total )?length {tokens}\) is (?:longer than the maximum model length of|"
        r"too long to fit into the model \(context length) {window}",
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    ),
    _row(
        "OpenAI",
        r"maximum context length is {window} tokens",
        "This model's maximum context length is 8192 tokens. Please reduce the length of the prompt",
    ),
    _row(
        "vLLM",
        r"passed {tokens} input tokens and requested {answer} output tokens.{0,40}? context length is "
        r"only {window} tokens",
        "You passed 8000 input tokens and requested 1000 output tokens. However, the model's context "
        "length is only 8192 tokens, resulting in a maximum input length of 7192 tokens.",
    ),
    _row(
        "OpenAI",
        r"\binput exceeds the context window of this model",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    _row(
        "OpenAI",
        r"exceeds? (?:the |this )?(?:model'?s? )?(?:maximum |allowed ){0,2}context (?:length|window)"
        r"(?: \(?(?:of )?{window})?",
        "The prompt exceeds the model's maximum context length of 8192 tokens.",
    ),
    _row(
        "OpenAI",
        r"exceeds (?:the )?maximum (?:allowed )?input length of {window} tokens",
        "Input exceeds the maximum allowed input length of 8192 tokens.",
    ),
    _row(
        "OpenAI",
        r"context[_ ]length[_ ]exceeded",
        '{"error": {"message": "Too long.", "code": "context_length_exceeded"}}',
    ),
    # Google.
    _row(
        "Gemini",
        r"input token count \(?{tokens}\)? exceeds the maximum number of tokens allowed \(?{window}",
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048576).",
    ),
    _row(
        "Gemini",
        r"input token count exceeds the maximum number of tokens allowed \(?{window}",
        "The input token count exceeds the maximum number of tokens allowed 1048575.",
    ),
    _row(
        "Vertex",
        r"input token count is {tokens} but (?:the )?model only supports up to {window}",
        "Unable to submit request because the input token count is 40000 but model only supports up "
        "to 32768. Reduce the input token count and try again.",
    ),
    # Other providers.
    _row(
        "Mistral",
        r"prompt contains {tokens} tokens.{0,60}? too large for model with {window} maximum context length",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    ),
    _row(
        "xAI",
        r"maximum prompt length is {window} but the request contains {tokens} tokens",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    ),
    _row(
        "Cohere",
        r"too many tokens: total number of tokens in the prompt cannot exceed {window} - received {tokens}",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4394. "
        "Try using a shorter prompt.",
    ),
    _row(
        "Cohere",
        r"too many tokens: size limit exceeded by {total} tokens",
        "too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs.",
    ),
    _row(
        "Together",
        r"inputs`? tokens \+ `?max_new_tokens`? must be <= {window}\. Given: {tokens} `?inputs`? tokens "
        r"and {answer} `?max_new_tokens",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 "
        "`inputs` tokens and 512 `max_new_tokens`",
    ),
    _row(
        "TGI",
        r"inputs`? must have less than {window} tokens\. Given: {tokens}",
        "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
    ),
    _row(
        "Cerebras",
        r"reduce the length of the messages or completion\. Current length is {tokens} while limit is {window}",
        "Please reduce the length of the messages or completion. Current length is 10000 while limit is 8192",
    ),
    _row(
        "Groq",
        r"reduce the length of the messages",
        "Please reduce the length of the messages or completion.",
    ),
    _row(
        "Moonshot",
        r"exceeded model token limit: {window} \(requested: {total}\)",
        "Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)",
    ),
    _row("Moonshot", r"exceeded model token limit", "Your request exceeded model token limit"),
    _row(
        "Qwen",
        r"range of input length should be \[\d{1,6}, ?{window}\]",
        "InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    ),
    _row("Zhipu", r"prompt exceeds max length|prompt 超长", "Prompt exceeds max length"),
    _row(
        "MiniMax",
        r"context window exceeds limit",
        "invalid params, context window exceeds limit (2013)",
    ),
    _row(
        "Copilot",
        r"prompt token count of {tokens} exceeds the limit of {window}",
        "prompt token count of 150000 exceeds the limit of 128000",
    ),
    _row("Copilot", r"model_max_prompt_tokens_exceeded", "code: model_max_prompt_tokens_exceeded"),
    _row(
        "GitHub Models",
        r"request body too large for \S{1,80} model\. max size: {window} tokens",
        "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    ),
    _row("GitHub Models", r"tokens_limit_reached", "code: tokens_limit_reached"),
    _row(
        "watsonx",
        r"number of input tokens {tokens} cannot exceed the total tokens limit {window}",
        "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
    ),
    _row(
        "Databricks",
        r"prompt token count \({tokens}\) cannot exceed {window}",
        "BAD_REQUEST: prompt token count (5000) cannot exceed 4096.",
    ),
    _row(
        "Cloudflare",
        r"estimated number of input and maximum output tokens \({total}\) exceeded this model context "
        r"window limit \({window}\)",
        "The estimated number of input and maximum output tokens (9000) exceeded this model context "
        "window limit (8192).",
    ),
    # Models on one's own machine.
    _row(
        "llama.cpp",
        r"request \({tokens} tokens\) exceeds the available context size \({window} tokens\)",
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    ),
    _row(
        "llama.cpp",
        r"prompt has {tokens} tokens?, but the configured context size is {window} tokens?",
        "prompt has 9,000 tokens, but the configured context size is 8,192 tokens",
    ),
    _row(
        "llama.cpp",
        r"n_prompt_tokens\"?: ?{tokens}, ?\"?n_ctx\"?: ?{window}",
        '{"type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096}',
    ),
    _row(
        "llama.cpp",
        r"exceeds? the available context size|exceed_context_size_error|context size has been exceeded",
        "the request exceeds the available context size, try increasing it",
    ),
    _row(
        "LM Studio",
        r"keep the first {tokens} tokens when context the overflows.{0,80}? context length of only {window} tokens",
        "Trying to keep the first 5000 tokens when context the overflows. However, the model is "
        "loaded with context length of only 4096 tokens",
    ),
    _row(
        "LM Studio",
        r"greater than the context length",
        "The number of tokens to keep from the initial prompt is greater than the context length",
    ),
    _row(
        "Ollama",
        r"prompt too long; exceeded (?:max )?context length|input length exceeds (?:the )?(?:maximum )?context length",
        "prompt too long; exceeded max context length by 123 tokens",
    ),
    # What frameworks call it: the names of their errors.
    _row(
        "LiteLLM", r"ContextWindowExceeded", "litellm.ContextWindowExceededError: BadRequestError"
    ),
    _row("LangChain", r"ContextOverflow", "ContextOverflowError"),
    _row("Strands", r"ContextWindowOverflow", "ContextWindowOverflowException"),
    _row("CrewAI", r"ContextLengthExceeded", "LLMContextLengthExceededException"),
    _row("OpenHands", r"ContextWindowExceed", "LLMContextWindowExceedError"),
)


def as_refusal(error: BaseException | None) -> Refusal | None:
    """What *error* says if it says that the prompt does not fit, whichever SDK raised it; else
    None.

    Its text, its type's name, its codes, and those of its causes are looked at.
    """
    for part in _causes(error):
        refusal = read_refusal(status_of(part), "\n".join(_texts(part)))
        if refusal is not None:
            return refusal
    return None


def read_refusal(status: int | None, text: str) -> Refusal | None:
    """The same for an answer with this HTTP *status*, None where there is none, and this *text*."""
    if status is not None and status >= 400 and status not in REFUSING:
        return None
    text = text[:MAX_TEXT]
    for row in ROWS:
        match = row.pattern.search(text)
        if match is not None:
            return _refusal(row.provider, match.groupdict()) if row.is_refusal else None
    return Refusal("a gateway") if status == TOO_LARGE else None


def _refusal(provider: str, named: Mapping[str, str | None]) -> Refusal | None:
    """What the numbers say; None when they say that the prompt is not what is too long."""
    numbers = {name: int(text.replace(",", "")) for name, text in named.items() if text}
    tokens, window = numbers.get("tokens"), numbers.get("window")
    answer = numbers.get("answer", 0)
    if answer and "total" in numbers:
        tokens = numbers["total"] - answer  # with what tools and pictures take
    if window is None or window < LEAST_WINDOW:
        return Refusal(provider, tokens)
    if tokens is not None and (tokens < LEAST_SHARE * window or tokens + answer <= window):
        return None
    if window - answer < LEAST_WINDOW:
        return Refusal(provider, tokens)
    return Refusal(provider, tokens, window, answer)


# What an error shows ------------------------------------------------------------------------------


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(MAX_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__


def status_of(error: object) -> int | None:
    """The HTTP status that *error* tells of, as the SDKs of providers keep it."""
    response = getattr(error, "response", None)
    places = [(error, "status_code"), (error, "http_status"), (error, "code"), (error, "status")]
    for holder, name in [*places, (response, "status_code")]:
        value = getattr(holder, name, None)
        if isinstance(value, int) and 100 <= value < 600:  # else a number of the provider's own
            return value
    metadata = (
        response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    )  # of boto3
    value = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
    return value if isinstance(value, int) else None


def _texts(error: BaseException) -> Iterator[str]:
    """The names and texts of *error*, each no longer than what is looked at."""
    for kind in type(error).__mro__:
        if kind is not Exception and kind is not BaseException and kind is not object:
            yield kind.__name__
    with suppress(Exception):  # an error of others may fail even at this
        yield str(error)[:MAX_TEXT]
    for name in ("code", "type", "message"):
        value = getattr(error, name, None)
        if isinstance(value, str):
            yield value[:MAX_TEXT]
    yield from _body_texts(getattr(error, "body", None))
    with suppress(Exception):  # an answer that was not read yet
        content = getattr(getattr(error, "response", None), "content", None)
        if isinstance(content, bytes):
            yield content[:MAX_TEXT].decode("utf-8", "replace")


def _body_texts(body: object, depth: int = 0) -> Iterator[str]:
    """What the answer's *body* says, where the SDK has kept it: the first few texts in it."""
    if isinstance(body, str):
        yield body[:MAX_TEXT]
    elif isinstance(body, Mapping) and depth < 4:
        for name in ("message", "code", "type", "detail", "error"):
            yield from _body_texts(body.get(name), depth + 1)
