"""One table: how each provider says that a prompt is too long, and what only looks like it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

__all__ = [
    "FAR_BELOW",
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

MAX_TEXT = 4096  # characters of an answer that are searched; a refusal says so at its beginning
MAX_CAUSES = 5  # frameworks raise their own error from the SDK's
LEAST_WINDOW = 500  # tokens; a smaller number was misread
FAR_BELOW = 0.5  # of the trigger: a context this short is not what an API finds too long
LEAST_SHARE = 0.5  # of the window; a shorter prompt is refused because of the answer's length

REFUSING = frozenset({400, 413, 422, 500})
"""HTTP statuses of a refused prompt; any other means something else, whatever the text says."""
TOO_LARGE = 413


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an answer says that calls a prompt too long.

    *tokens* is the prompt's length as *provider* counts it, *window* the model's, *answer_tokens*
    what the request reserved for the answer; None and 0 where the answer does not name them. It
    *has_code* where a code says that the prompt is too long, and not a sentence alone.
    """

    provider: str
    tokens: int | None = None
    window: int | None = None
    answer_tokens: int = 0
    has_code: bool = False

    @property
    def limit(self) -> int | None:
        """How many tokens a prompt may have; None where the answer does not name it."""
        if self.window is None:
            return None
        return self.window - self.answer_tokens

    @property
    def has_numbers(self) -> bool:
        """Whether the answer says how long the prompt is and how long it may be."""
        return self.tokens is not None and self.window is not None


@dataclass(frozen=True, slots=True)
class Row:
    """What *provider* answers: *pattern* finds it in the text or among the names of an error.

    Where *is_refusal* is False, the text only looks as if a prompt was too long. Where *is_code*,
    the pattern is a word that means nothing else.
    """

    provider: str
    pattern: re.Pattern[str]
    example: str
    is_refusal: bool = True
    is_code: bool = False


def _row(provider: str, pattern: str, example: str) -> Row:
    return Row(provider, _compile(pattern), example)


def _code(provider: str, pattern: str, example: str) -> Row:
    return Row(provider, _compile(pattern), example, is_code=True)


def _lookalike(subject: str, pattern: str, example: str) -> Row:
    return Row(subject, _compile(pattern), example, is_refusal=False)


def _compile(pattern: str) -> re.Pattern[str]:
    """*pattern* with its {tokens}, {window}, {answer} and {total} as groups that hold a number."""
    for name in ("tokens", "window", "answer", "total"):
        number = rf"(?P<{name}>\d[\d,]{{0,14}})"
        pattern = pattern.replace("{" + name + "}", number)
    return re.compile(pattern, re.IGNORECASE)


# The name of a field of the request that holds no prompt, and the end of a path to one.
_FIELD = (
    r"(?:(?:metadata|user_id|safety_identifier|prompt_cache_key|container|tool_choice|mcp_servers|"
    r"response_format|output_config|output_format|service_tier|stop_sequences?|stop sequences?|"
    r"tool_call_id|cachedcontent|guardrail\w*|betas)\b|tools?(?:\.\w|\[)|"
    r"messages?[.\[][^\s:'\"]{1,60}[._](?:id|name|title|url|filename|media_type)\b)"
)

# The first row that matches decides. A gap in a pattern is bounded, so that a search stays linear.
ROWS: tuple[Row, ...] = (
    # The answer is what is too long, unless the numbers say that it is the prompt.
    _row(
        "vLLM",
        r"max_(?:completion_)?tokens'? is too large: {answer}\. This model's maximum context "
        r"length is {window} tokens and your request has {tokens} input tokens",
        "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's maximum context "
        "length is 8192 tokens and your request has 7900 input tokens (1000 > 8192 - 7900).",
    ),
    _row(
        "vLLM",
        r"passed \d[\d,]{0,14} input characters and requested {answer} output tokens.{0,60}? "
        r"context length is only {window} tokens",
        "You passed 600001 input characters and requested 1000 output tokens. However, the model's "
        "context length is only 8192 tokens, resulting in a maximum input length of 7192 tokens "
        "(at most 575360 characters).",
    ),
    # What only looks like a refusal.
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
        r"max_(?:completion_|output_|new_)?tokens[`'\"]{0,3} (?:is|are|was|value is) too (?:large|"
        r"big|high|long)",
        "max_tokens is too large: 300000. This model supports at most 64000 completion tokens",
    ),
    _lookalike(
        "the length of the answer",
        r"maximum allowed number of output tokens|at most \d[\d,]{0,14} (?:completion|"
        r"output) tokens|maximum tokens you requested exceeds the model limit|"
        r"(?<!\+ )(?<!\+ [`'\"])max_(?:completion_|output_|"
        r"new_)?tokens[`'\" ]{0,3}(?:\(\d[\d,]{0,14}\) )?(?:must be|exceeds)\b",
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
        "a field of the request",
        r"too (?:long|large|big|many)[^.\n]{0,30}? (?:for|in) (?:the )?(?:request )?(?:field|"
        r"parameter|property|attribute|argument|header)s?[ :]{1,2}[`'\"]?"
        r"(?!(?:messages?|prompts?|inputs?|contents?|input_?text)\b(?![.\[]\w))\w",
        "Input is too long for field metadata.user_id",
    ),
    _lookalike(
        "a field of the request",
        rf"too (?:long|large|big|many)(?: \w{{1,12}})? (?:for|in) (?:the )?[`'\"]?{_FIELD}",
        "Input is too long for `stop_sequences`",
    ),
    _lookalike(
        "a field of the request",
        rf"(?<![\w.]){_FIELD}[^\s:'\"`]{{0,60}}[`'\"]?"
        r"(?::| is| are| was| were| has| value| (?=exceed))"
        r"[^.\n]{0,40}?\b(?:too (?:long|large|big|many)|exceeds?\b)",
        "tools.0.name: Input is too long",
    ),
    _lookalike(
        "a field of the request",
        rf"[`'\"](?:param|parameter|field|loc)[`'\"]: ?\[?(?:[`'\"]body[`'\"], ?)?[`'\"]"
        rf"(?:{_FIELD}|user[`'\"])",
        "{'message': 'Input is too long', 'param': 'metadata.user_id'}",
    ),
    _lookalike(
        "the budget of the thinking",
        r"(?:thinking[ _.]budget|budget_tokens)\b[^.\n]{0,40}?\b(?:exceeds?|too|must|greater)\b",
        "Thinking budget exceeds context window",
    ),
    _lookalike(
        "a queue of batches",
        r"\benqueued (?:tokens?|requests?)\b|\bbatch(?:es)? queue\b|\bbatch (?:is )?too large",
        "Enqueued token limit reached for m: tokens_limit_reached",
    ),
    _lookalike(
        "a picture or a document",
        r"\b(?:images?|files?|documents?|audio|video|attachments?)\b[^.\n]{0,60}?"
        r"(?:too (?:large|big|long|many)|exceeds?\b)|too much media|too many images|\bpdf pages",
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes",
    ),
    # Anthropic, also through Bedrock and Vertex.
    _row(
        "Anthropic",
        r"prompt is too long: {tokens} tokens > {window}",
        "prompt is too long: 200251 tokens > 200000 maximum",
    ),
    _row(
        "Anthropic",
        r"input length and `?max_tokens`? exceed context limit: {tokens} \+ {answer} > {window}",
        "input length and `max_tokens` exceed context limit: 143653 + 64000 > 200000, decrease "
        "input length or `max_tokens` and try again",
    ),
    _row(
        "Fireworks",
        r"prompt is too long: {tokens}, model maximum context length: {window}",
        "The prompt is too long: 140000, model maximum context length: 131072",
    ),
    _row("Anthropic", r"\bprompt is too long\b", "Prompt is too long"),
    _code(
        "Anthropic", r"model_context_window_exceeded", "stop_reason: model_context_window_exceeded"
    ),
    _row(
        "Bedrock",
        r"too many input tokens\. max input tokens: {window}, request input token count: {tokens}",
        "ValidationException: 400 Bad Request: Too many input tokens. Max input tokens: 8192, "
        "request input token count: 9279",
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
    # OpenAI, and those that use its words: Azure, vLLM, SGLang, DeepSeek, OpenRouter, LiteLLM.
    _row(
        "OpenAI",
        r"maximum context length is {window} tokens.{0,40}? you requested (?:about )?{total} "
        r"tokens \({tokens} (?:in the messages|in your prompt|"
        r"of text input)[^)]{0,80}?[,;] {answer} (?:in|for) the (?:completion|output)",
        "This model's maximum context length is 131072 tokens. However, you requested 131134 "
        "tokens (122942 in the messages, 8192 in the completion). Please reduce the length of the "
        "messages.",
    ),
    _row(
        "OpenRouter",
        r"maximum context length is {window} tokens.{0,40}? you requested about {total} tokens",
        "This endpoint's maximum context length is 131072 tokens. However, you requested about "
        "140000 tokens. Please reduce the length of either one.",
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
        r"input tokens exceed the configured limit of {window} tokens.{0,60}? resulted "
        r"in {tokens} tokens",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
        "300000 tokens. Please reduce the length of the messages.",
    ),
    _row(
        "vLLM",
        r"maximum context length is {window} tokens.{0,60}? you requested {answer} output tokens "
        r"and your prompt contains at least {tokens} input tokens",
        "This model's maximum context length is 131072 tokens. However, you requested 8192 output "
        "tokens and your prompt contains at least 122881 input tokens, for a total of at least "
        "131073 tokens.",
    ),
    _row(
        "SGLang",
        r"input length \({tokens} tokens\) exceeds the maximum allowed length \({window} tokens\)",
        "Input length (9000 tokens) exceeds the maximum allowed length (8192 tokens). Use a "
        "shorter input.",
    ),
    _row(
        "SiliconFlow",
        r"prompt_tokens \({tokens}\) must be less than max_seq_len \({window}\)",
        "length of prompt_tokens (140000) must be less than max_seq_len (131072).",
    ),
    _row(
        "Cohere",
        r"\(prompt and prediction\) cannot exceed {window}",
        "too many tokens: total number of tokens (prompt and prediction) cannot exceed 4081 - "
        "received 4143.",
    ),
    _row(
        "LM Studio",
        r"reached context length of {window} tokens|n_keep \({tokens}\) >= n_ctx \({total}\)",
        "Reached context length of 4096 tokens with this model, but this model needs more.",
    ),
    _row(
        "SambaNova",
        r"requested generation length \d[\d,]{0,14} is not possible! the provided prompt",
        "Requested generation length 1000 is not possible! The provided prompt is 9000 tokens "
        "long.",
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
        r"maximum context length is {window} tokens.{0,60}? (?:request has|contains at "
        r"least) {tokens} input tokens",
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
        "This model's maximum context length is 8192 tokens. Please reduce the length of the "
        "prompt",
    ),
    _row(
        "vLLM",
        r"passed {tokens} input tokens and requested {answer} output tokens.{0,40}? context length "
        r"is only {window} tokens",
        "You passed 8000 input tokens and requested 1000 output tokens. However, the model's "
        "context length is only 8192 tokens, resulting in a maximum input length of 7192 tokens.",
    ),
    _row(
        "OpenAI",
        r"\binput exceeds the context window of this model",
        "Your input exceeds the context window of this model. Please adjust your input and try "
        "again.",
    ),
    _row(
        "OpenAI",
        r"exceeds? (?:the |this )?(?:model'?s? )?(?:maximum |allowed ){0,2}context (?:length|"
        r"window)(?: \(?(?:of )?{window})?",
        "The prompt exceeds the model's maximum context length of 8192 tokens.",
    ),
    _row(
        "OpenAI",
        r"exceeds (?:the )?maximum (?:allowed )?input length of {window} tokens",
        "Input exceeds the maximum allowed input length of 8192 tokens.",
    ),
    _code(
        "OpenAI",
        r"context[_ ]length[_ ]exceeded",
        '{"error": {"message": "Too long.", "code": "context_length_exceeded"}}',
    ),
    # Google.
    _row(
        "Gemini",
        r"input token count \(?{tokens}\)? exceeds the maximum number of tokens allowed "
        r"\(?{window}",
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
        "Unable to submit request because the input token count is 40000 but model only supports "
        "up to 32768. Reduce the input token count and try again.",
    ),
    # Other providers.
    _row(
        "Mistral",
        r"prompt contains {tokens} tokens.{0,60}? too large for model with {window} maximum "
        r"context length",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
        "context length",
    ),
    _row(
        "xAI",
        r"maximum prompt length is {window} but the request contains {tokens} tokens",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    ),
    _row(
        "Cohere",
        r"too many tokens: total number of tokens in the prompt cannot exceed {window} - "
        r"received {tokens}",
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
        r"inputs`? tokens \+ `?max_new_tokens`? must be <= {window}\. Given: {tokens} `?inputs`? "
        r"tokens and {answer} `?max_new_tokens",
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
        r"reduce the length of the messages or completion\. Current length is {tokens} while "
        r"limit is {window}",
        "Please reduce the length of the messages or completion. Current length is 10000 while "
        "limit is 8192",
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
    _code("Copilot", r"model_max_prompt_tokens_exceeded", "code: model_max_prompt_tokens_exceeded"),
    _row(
        "GitHub Models",
        r"request body too large for \S{1,80} model\. max size: {window} tokens",
        "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    ),
    _code("GitHub Models", r"tokens_limit_reached", "code: tokens_limit_reached"),
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
        r"estimated number of input and maximum output tokens \({total}\) exceeded this model "
        r"context window limit \({window}\)",
        "The estimated number of input and maximum output tokens (9000) exceeded this model "
        "context window limit (8192).",
    ),
    # Local models.
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
        r"exceeds? the available context size|exceed_context_size_error|context size has been "
        r"exceeded",
        "the request exceeds the available context size, try increasing it",
    ),
    _row(
        "LM Studio",
        r"keep the first {tokens} tokens when context the overflows.{0,80}? context length of "
        r"only {window} tokens",
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
        r"prompt too long; exceeded (?:max )?context length|input length exceeds (?:the "
        r")?(?:maximum )?context length",
        "prompt too long; exceeded max context length by 123 tokens",
    ),
    # The names of frameworks' errors.
    _code(
        "LiteLLM", r"ContextWindowExceeded", "litellm.ContextWindowExceededError: BadRequestError"
    ),
    _code("LangChain", r"ContextOverflow", "ContextOverflowError"),
    _code("Strands", r"ContextWindowOverflow", "ContextWindowOverflowException"),
    _code("CrewAI", r"ContextLengthExceeded", "LLMContextLengthExceededException"),
    _code("OpenHands", r"ContextWindowExceed", "LLMContextWindowExceedError"),
)


def as_refusal(error: BaseException | None) -> Refusal | None:
    """What *error* of any SDK says of a prompt that is too long; None if it means something else.

    Its text, its type's name, its codes, and those of its causes are searched.
    """
    for part in _causes(error):
        text = "\n".join(_texts(part))
        refusal = read_refusal(status_of(part), text)
        if refusal is not None:
            return refusal
    return None


def read_refusal(status: int | None, text: str) -> Refusal | None:
    """The same for an answer with this *text* and this HTTP *status*, None where it has none."""
    if status is not None and status >= 400 and status not in REFUSING:
        return None
    text = text[:MAX_TEXT]
    for row in ROWS:
        match = row.pattern.search(text)
        if match is None:
            continue
        if not row.is_refusal:
            return None
        refusal = _refusal(row.provider, match.groupdict())
        if refusal is not None and any(code.pattern.search(text) for code in ROWS if code.is_code):
            return replace(refusal, has_code=True)
        return refusal
    if status == TOO_LARGE:
        return Refusal("a gateway")
    return None


def _refusal(provider: str, named: Mapping[str, str | None]) -> Refusal | None:
    """The refusal with the *named* numbers; None when they show that the prompt is not too long."""
    numbers: dict[str, int] = {}
    for name, text in named.items():
        if text:
            numbers[name] = int(text.replace(",", ""))
    tokens = numbers.get("tokens")
    window = numbers.get("window")
    answer = numbers.get("answer", 0)
    if answer and "total" in numbers:
        tokens = numbers["total"] - answer  # includes tools and pictures
    if window is None or window < LEAST_WINDOW:
        return Refusal(provider, tokens)
    if tokens is not None:
        is_short = tokens < LEAST_SHARE * window
        if is_short or tokens + answer <= window:
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
    """The HTTP status of *error*, wherever its provider's SDK keeps it."""
    response = getattr(error, "response", None)
    places = (
        (error, "status_code"),
        (error, "http_status"),
        (error, "code"),
        (error, "status"),
        (response, "status_code"),
    )
    for holder, name in places:
        value = getattr(holder, name, None)
        if isinstance(value, int) and 100 <= value < 600:  # else a number of the provider's own
            return value
    return _boto3_status(response)


def _boto3_status(response: object) -> int | None:
    if not isinstance(response, Mapping):
        return None
    metadata = response.get("ResponseMetadata")
    if not isinstance(metadata, Mapping):
        return None
    status = metadata.get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def _texts(error: BaseException) -> Iterator[str]:
    """The names and texts of *error*, each no longer than what is searched."""
    for kind in type(error).__mro__:
        if kind not in (Exception, BaseException, object):
            yield kind.__name__
    with suppress(Exception):  # somebody else's error may fail even here
        yield str(error)[:MAX_TEXT]
    for name in ("code", "type", "message"):
        value = getattr(error, name, None)
        if isinstance(value, str):
            yield value[:MAX_TEXT]
    yield from _body_texts(getattr(error, "body", None))
    with suppress(Exception):  # the answer's content may not have been read yet
        content = getattr(getattr(error, "response", None), "content", None)
        if isinstance(content, bytes):
            yield content[:MAX_TEXT].decode("utf-8", "replace")


def _body_texts(body: object, depth: int = 0) -> Iterator[str]:
    """The first few texts in the answer's *body*, where the SDK has kept it."""
    if isinstance(body, str):
        yield body[:MAX_TEXT]
    elif isinstance(body, Mapping) and depth < 4:
        for name in ("message", "code", "type", "detail", "error"):
            yield from _body_texts(body.get(name), depth + 1)
