"""What nobody means well with: refused in the API's form, or sent on as it came, and never more."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from anyio import to_thread
from gateways import (
    Upstream,
    answer_to,
    conversation,
    http,
    key,
    post,
    replies,
    request,
    serving,
    serving_beside,
)

from ctxpipe.gateway import guard
from ctxpipe.gateway.guard import MAX_HEAD
from ctxpipe.gateway.serving import Serving
from ctxpipe.testing import MessagesServer
from ctxpipe.wire.body import MAX_ITEMS

HELLO = [{"role": "user", "content": "hello"}]
TOKEN = "a token of the gateway"  # noqa: S105
CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"


def chunked(*lines: str, body: bytes = CHUNKS, length: bool = False) -> bytes:
    """A request with these header *lines* whose *body* is written in chunks."""
    return request("POST /v1/messages", *lines, body=body, length=length)


def said(length: str) -> bytes:
    """A request that says this *length*."""
    return request("POST /v1/messages", f"Content-Length: {length}", length=False)


def host(value: str) -> bytes:
    return request(host=f"Host: {value}")


def body(messages: bytes, more: bytes = b"") -> bytes:
    """The JSON of a request, written by hand."""
    return b'{"model":"m","max_tokens":9,"messages":' + messages + more + b"}"


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def too_much() -> bytes:
    """A body above the limit in chunks, which say no length."""
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    return chunk * (guard.MAX_BODY // 2**20 + 1) + b"0\r\n\r\n"


# Refused ------------------------------------------------------------------------------------------

HOSTS = (
    *("evil.example", "192.168.0.7:80", "0.0.0.0:80", ""),
    *("127.0.0.1.evil.example", "127.0.0.1@evil.example", "localhost:80@evil.example"),
    *("127.0.0.1/v1/messages?", "127.0.0.1, evil.example", "127.0.0.1 evil", "127.0.0.1#"),
    *("[::1", "[::1]evil.example", "[::1%evil]", "[", "[]", "2130706433", "127.1"),
    *("0177.0.0.1", "0x7f.0.0.1", "127.0.0.1\xe9", "localhost\\evil"),
)
ENCODINGS = (
    *("xchunked", "identity", "identity, chunked", "chunked, identity", "chunked, chunked"),
    *("\x0bchunked", "chunked\x00", "", "gzip, chunked", "chunked;q=1"),
)
LENGTHS = (
    *("-2", "+2", "2, 3", "2 2", "0x2", "", "2_0", "2.0", "2;x", "\xb2"),
    *("9" * 30, "9" * 5_000),
)
TARGETS = (
    *("//evil.example/v1/messages", "/\\evil.example/v1/messages", "/v1/messages#@evil.example"),
    *("/../v1/messages", "/v1/../admin", "/v1/messages/..", "/v1/./messages", "/..;/admin"),
    *("/%2e%2e/admin", "/.%2E/admin", "/..%2fadmin", "/%2e%2e%5cadmin", "/v1/%2e%2e;x/admin"),
    *("/v1/messages%00", "/v1/messages\x00", "/v1/\xff", "/%ff"),
    *("/v1/messages x", "/" + "a" * MAX_HEAD, "/v1/messages?" + "a" * MAX_HEAD),
)
NOWHERE = (
    *("http://evil.example/v1/messages", "https:evil.example", "evil.example:443", "*", "?x"),
    *("\\\\evil.example", "v1/messages", "/v1/messages%0d%0aX-Evil:%201"),
)
DEEP = {
    "lists": body(nested(10_000)),
    "lists that never end": body(b"[" * 10_000),
    "objects": body(b'[{"role":"user","content":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "a key of its own": body(b"[]", b',"x":' + nested(10_000)),
    "one level too many": body(b"[]", b',"x":' + nested(201)),
    "no object": nested(10_000),
}

REFUSED: Mapping[str, tuple[int, bytes]] = {
    **{f"Host {value!r}": (403, host(value)) for value in HOSTS},
    "no Host": (400, request(host=None)),
    "no Host, and HTTP/1.0": (403, request(host=None).replace(b"HTTP/1.1", b"HTTP/1.0")),
    "two Hosts": (400, request("POST /v1/messages", "Host: evil.example")),
    "two equal Hosts": (400, request("POST /v1/messages", "Host: 127.0.0.1")),
    "a page in a browser": (403, request("POST /v1/messages", "Origin: https://evil.example")),
    "a page of this machine": (403, request("POST /v1/messages", "Origin: http://127.0.0.1")),
    "a page without an origin": (403, request("POST /v1/messages", "Origin: null")),
    "an empty Origin": (403, request("POST /v1/messages", "Origin:")),
    "an image on a page": (403, request("GET /v1/models", "Sec-Fetch-Site: cross-site")),
    # Lengths and encodings
    **{f"{it!r} and a length": (400, chunked(f"Transfer-Encoding: {it}", length=True))
       for it in ("chunked", "Chunked", " chunked ", "\r\n chunked", *ENCODINGS)},
    **{f"Transfer-Encoding {it!r}": (400, chunked(f"Transfer-Encoding: {it}")) for it in ENCODINGS},
    "a blank before the colon": (400, chunked("Transfer-Encoding : chunked")),
    "two encodings": (400, chunked(CHUNKED, CHUNKED)),
    **{f"Content-Length {it[:40]!r}": (400, said(it)) for it in LENGTHS},
    "two lengths": (400, request("POST /v1/messages", "Content-Length: 3")),
    "a chunk without a size": (400, chunked(CHUNKED, body=b"zz\r\n{}\r\n0\r\n\r\n")),
    "a chunk of a negative size": (400, chunked(CHUNKED, body=b"-2\r\n{}\r\n0\r\n\r\n")),
    "a chunk of an endless size": (400, chunked(CHUNKED, body=b"f" * 40 + b"\r\n{}")),
    "a chunk longer than its size": (400, chunked(CHUNKED, body=b"2\r\n{}xx0\r\n\r\n")),
    "the same on a path that passes": (
        400,
        request("POST /v1/files", CHUNKED, body=b"2\r\n{}xx0\r\n\r\n", length=False),
    ),
    # Targets and methods
    **{f"target {it[:40]!r}": (400, request(f"POST {it}")) for it in TARGETS},
    **{f"target {it!r}": (404, request(f"POST {it}")) for it in NOWHERE},
    "CONNECT": (404, request("CONNECT evil.example:443")),
    **{f"{it} of a path": (405, request(f"{it} /v1/messages"))
       for it in ("CONNECT", "TRACE", "TRACK", "PROPFIND", "post")},
    "a method that is none": (400, request("PO\x00ST /v1/messages")),
    "HTTP/2 unasked": (404, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9": (400, b"GET /\r\n\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 99 + b"\r\n\r\n"),
    # Headers
    "a header of 100 KB": (400, request("POST /v1/messages", "X-A: " + "a" * 100_000)),
    "10,000 headers": (400, request("POST /v1/messages", *(f"X-{n}: a" for n in range(10_000)))),
    "NUL in a header": (400, request("POST /v1/messages", "X-A: a\x00b")),
    "a bare carriage return": (400, request("POST /v1/messages", "X-A: a\rX-B: b")),
    "a header without a name": (400, request("POST /v1/messages", ": a")),
    "a line that is no header": (400, request("POST /v1/messages", "a line")),
    "a continued line before any": (400, request("POST /v1/messages", host=" X-A: a")),
    # Bodies
    "512 MB": (413, said("536870912")),
    **{f"too deep: {name}": (400, request(body=it)) for name, it in DEEP.items()},
}  # fmt: skip


@pytest.fixture(scope="module")
def open_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Upstream, Serving]]:
    """An upstream, and a gateway before it that takes whoever is on this machine."""
    with serving_beside(tmp_path_factory.mktemp("root")) as both:
        yield both


@pytest.mark.parametrize("what", REFUSED)
def test_a_hostile_request_is_refused_in_the_api_s_form_and_reaches_no_upstream(open_gateway, what):
    check_refusal(open_gateway, *REFUSED[what])


def test_so_is_a_body_above_the_limit_that_says_no_length(open_gateway, monkeypatch):
    monkeypatch.setattr(guard, "MAX_BODY", 4 * 2**20)  # the real limit takes a second
    check_refusal(open_gateway, 413, chunked(CHUNKED, body=too_much()))


def check_refusal(open_gateway: tuple[Upstream, Serving], status: int, raw: bytes):
    api, gateway = open_gateway
    before = len(api.targets)
    found, answer = answer_to(gateway, raw)
    assert found == status, answer
    assert json.loads(answer)["type"] == "error"
    assert json.loads(answer)["error"]["message"].startswith("ctxpipe gateway: ")
    assert len(api.targets) == before


def test_an_openai_client_is_refused_in_its_own_form(open_gateway):
    _, gateway = open_gateway
    _, answer = answer_to(gateway, request("POST /v1/chat/completions", "Origin: null"))
    assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "path",
    [
        "/v1beta/models/gemini-3-pro:generateContent",
        "/v1beta/models/gemini-3-pro:countTokens",
        "/v1/projects/p/locations/l/endpoints/7:streamGenerateContent",
    ],
)
def test_a_client_of_gemini_is_refused_in_its_own_form(open_gateway, path):
    _, gateway = open_gateway
    status, answer = answer_to(gateway, request(f"POST {path}", "Origin: null"))
    error = json.loads(answer)["error"]
    assert (status, error["code"], error["status"]) == (403, 403, "PERMISSION_DENIED")


# Sent on as it came -------------------------------------------------------------------------------

BODIES: Mapping[str, bytes] = {
    "no JSON": b'{"messages": [}',
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "more after it": body(b'[{"role":"user","content":"a"}]') + b"{}",
    "a key twice": b'{"messages":[],"messages":[{"role":"user","content":"a"}]}',
    "NaN and Infinity": body(b'[{"role":"user","content":NaN}]', b',"x":-Infinity,"y":1e999'),
    "bad UTF-8": body(b'[{"role":"user","content":"\xff\xfe"}]'),
    "a surrogate in UTF-8": body(b'[{"role":"user","content":"\xed\xa0\x80"}]'),
    "a byte order mark": b"\xef\xbb\xbf" + body(b'[{"role":"user","content":"a"}]'),
    "UTF-16": body(b'[{"role":"user","content":"a"}]').decode().encode("utf-16"),
    "a number of 5,000 digits": body(b'[{"role":"user","content":"a"}]', b',"x":' + b"9" * 5_000),
    "messages that are none": body(b'["a", 1, null]'),
    "a role that is none": body(b'[{"role":1,"content":"a"}]'),
    "contents that are none": body(b'[{"role":"user","content":5}]'),
    "tools that are none": body(b'[{"role":"user","content":"a"}]', b',"tools":"x","system":5'),
    "too many messages": body(b"[" + b"{}," * MAX_ITEMS + b"{}]"),
    "a name that nests": body(
        b'[{"role":"user","content":"a"}]',
        b',"metadata":{"user_id":' + json.dumps('{"a":[' * 9_000).encode() + b"}",
    ),
}


@pytest.mark.parametrize("what", BODIES)
def test_what_is_wrong_with_a_body_is_the_upstream_s_to_refuse(open_gateway, what):
    api, gateway = open_gateway
    status, _ = answer_to(gateway, request(body=BODIES[what]))
    assert status == 200
    assert api.bodies[-1] == BODIES[what]


def test_a_compressed_body_that_decodes_to_too_much_is_sent_on_as_it_came(open_gateway):
    api, gateway = open_gateway
    packed = gzip.compress(b" " * 2**26)
    encoding = "Content-Encoding: gzip"
    status, _ = answer_to(gateway, request("POST /v1/messages", encoding, body=packed))
    assert status == 200
    assert api.bodies[-1] == packed
    assert api.headers[-1]["content-encoding"] == "gzip"


def test_a_compressed_body_that_nests_too_deep_is_refused_as_a_plain_one_is(open_gateway):
    packed = gzip.compress(body(nested(10_000)))
    encoding = "Content-Encoding: gzip"
    status, _ = answer_to(open_gateway[1], request("POST /v1/messages", encoding, body=packed))
    assert status == 400


HEADERS = (
    *("X-Forwarded-Host: evil.example", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: https"),
    *("Forwarded: host=evil.example;proto=https", "X-Host: evil.example", "Via: 1.1 evil"),
    *("X-Original-URL: http://evil.example/", "X-Rewrite-URL: /admin", "X-Forwarded-Prefix: /x"),
    *("X-HTTP-Method-Override: DELETE", "X-Headroom-Base-Url: http://evil.example"),
    *("x-ctxpipe-upstream: http://evil.example", "X-A: a\r\n b", "X-A: caf\xe9"),
    *("Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",),
    *("Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13",),
    # Two that are equal are one, by RFC 9110, and go on as one.
    *("Content-Length: 2", CHUNKED),
)


@pytest.mark.parametrize("line", HEADERS)
def test_no_header_changes_where_a_request_goes_or_how_it_ends(open_gateway, line):
    api, gateway = open_gateway
    raw = chunked(line) if line == CHUNKED else request("POST /v1/messages", line)
    status, _ = answer_to(gateway, raw)
    assert status == 200
    assert api.targets[-1] == "POST /v1/messages"
    sent = api.headers[-1]
    assert sent["host"] == api.url.removeprefix("http://")
    assert sent["content-length"] == "2"
    assert not {"transfer-encoding", "upgrade", "x-ctxpipe-upstream"} & set(sent)


async def test_a_redirect_is_handed_back_and_not_followed(tmp_path):
    async with (
        Upstream() as other,
        Upstream(status=307, location=f"{other.url}/x") as api,
        serving(api.url, tmp_path) as gateway,
    ):
        reply = await post(gateway, {"messages": HELLO})
    assert reply.status_code == 307
    assert reply.headers["location"] == f"{other.url}/x"
    assert len(api.bodies) == 1
    assert other.bodies == []


async def test_no_path_leads_out_of_the_upstream_s_folder(tmp_path):
    async with Upstream() as api, serving(f"{api.url}/team/v1", tmp_path) as gateway:
        for target in TARGETS:
            await to_thread.run_sync(answer_to, gateway, request(f"POST {target}"))
        status, _ = await to_thread.run_sync(answer_to, gateway, request("POST /messages"))
    assert status == 200
    assert api.targets == ["POST /team/v1/messages"]


NAMES = ("../../x", "/etc/x", "a\\..\\b", "\xe9\xff", "x" * 9_000, "CON", ".", "..", "a\tb")


@pytest.mark.parametrize("name", NAMES)
async def test_no_name_of_a_session_leads_out_of_the_root(tmp_path, name):
    root = tmp_path / "folder" / "root"
    data = json.dumps({"model": "m", "max_tokens": 9, "messages": conversation(1)}).encode()
    raw = request("POST /v1/messages", f"x-ctxpipe-session: {name}", body=data)
    async with Upstream() as api, serving(api.url, root) as gateway:
        status, _ = await to_thread.run_sync(answer_to, gateway, raw)
    assert status == 200
    assert len(api.bodies[0]) < len(data) / 2
    assert [path for path in tmp_path.rglob("*.md") if not path.is_relative_to(root)] == []
    assert len(list(root.rglob("*.md"))) == 1


# Tokens and keys ----------------------------------------------------------------------------------

SHOWN: Mapping[str, str] = {
    "none": "x-a: 1",
    "an empty one": "x-ctxpipe-token:",
    "a shorter one": f"x-ctxpipe-token: {TOKEN[:-1]}",
    "a longer one": f"x-ctxpipe-token: {TOKEN}s",
    "another": "x-ctxpipe-token: a token of nobody's...",
    "one in other letters": f"x-ctxpipe-token: {TOKEN.upper()}",
    "bytes that are no text": "x-ctxpipe-token: \xff\xfe",
    "the right one as a key": f"x-api-key: {TOKEN}",
    "the right one as a password": "authorization: Basic bWU6YSB0b2tlbiBvZiB0aGUgZ2F0ZXdheQ==",
}


@pytest.fixture(scope="module")
def closed_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Upstream, Serving]]:
    """An upstream, and a gateway before it that takes those who show its token."""
    with serving_beside(tmp_path_factory.mktemp("root"), tokens=[TOKEN]) as both:
        yield both


@pytest.mark.parametrize("what", SHOWN)
def test_without_its_token_nobody_gets_in(closed_gateway, what):
    api, gateway = closed_gateway
    status, answer = answer_to(gateway, request("POST /v1/messages", SHOWN[what]))
    assert status == 401
    assert json.loads(answer)["error"]["type"] == "authentication_error"
    assert api.targets == []


def test_a_token_in_a_query_lets_nobody_in(closed_gateway):
    api, gateway = closed_gateway
    target = "POST /v1/messages?x-ctxpipe-token=" + TOKEN.replace(" ", "+")
    status, _ = answer_to(gateway, request(target))
    assert status == 401
    assert api.targets == []


async def test_with_its_token_a_request_gets_in_and_the_token_no_further(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path, tokens=[TOKEN]) as gateway:
        reply = await post(gateway, {"messages": HELLO}, {"x-ctxpipe-token": TOKEN})
    assert reply.status_code == 200
    assert TOKEN not in str(api.headers[0])


@pytest.mark.parametrize("journal", [None, "sqlite"])
async def test_no_key_is_in_a_log_a_file_an_error_or_the_page(tmp_path, caplog, journal):
    keys = [key(), "sk-a-bearer-of-nobody-s", "AIza-a-key-in-an-address", TOKEN]
    given = {"authorization": f"Bearer {keys[1]}", "x-ctxpipe-token": TOKEN}
    settings: dict[str, Any] = {"tokens": [TOKEN], "show_texts": True}
    if journal is not None:
        settings["journal"] = f"sqlite:///{tmp_path}/journal.db"
    texts: list[str] = []
    with caplog.at_level(logging.DEBUG):
        async with (
            MessagesServer(replies(2)) as api,
            serving(api.url, tmp_path / "root", **settings) as gateway,
            http() as client,
        ):
            for number in (1, 2):
                await post(gateway, {"messages": conversation(number)}, given)
            for wrong in (b'{"messages": [}', body(nested(300)), body(b'[{"role":1}]')):
                texts.append((await post(gateway, wrong, given)).text)
            texts.append((await post(gateway, b"{}", given, f"/v1/models?key={keys[2]}")).text)
            texts.append((await post(gateway, b"{}", {"x-ctxpipe-token": f"{TOKEN}s"})).text)
            texts.append((await client.get(gateway.url + "/", headers=given)).text)
            texts.append((await client.get(gateway.url + "/healthz", headers=given)).text)
        await api_is_down(tmp_path, given, texts, keys[2])
    written = list(tmp_path.rglob("*"))
    assert len(written) > 4
    for secret in keys:
        assert secret not in caplog.text
        assert not [text for text in texts if secret in text]
        for path in written:
            assert secret not in str(path)
            assert not path.is_file() or secret.encode() not in path.read_bytes()


async def api_is_down(tmp_path: Any, given: Mapping[str, str], texts: list[str], secret: str):
    """Collect what is said where nobody answers."""
    async with serving("http://127.0.0.1:9", tmp_path / "root", tokens=[TOKEN]) as gateway:
        texts.append((await post(gateway, {"messages": HELLO}, given)).text)
        texts.append((await post(gateway, b"{}", given, f"/v1/models?key={secret}")).text)
