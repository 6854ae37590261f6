"""How the gateway reaches its upstream, and how long it waits for its clients."""

import _ssl
import asyncio
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from gateways import TASK, Upstream, http, post, serving

from ctxpipe.errors import SettingsError
from ctxpipe.gateway import upstream
from ctxpipe.gateway.app import Gateway
from ctxpipe.gateway.settings import GatewaySettings

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\n{"id": "msg"}'


@pytest.fixture(autouse=True)
def certificates(monkeypatch):
    """The reading of certificates, which other tests do without."""
    read = _ssl._SSLContext.load_verify_locations
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", read)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Path:
    """A folder with a self-signed certificate for ``localhost``, and its key."""
    folder: Path = tmp_path_factory.mktemp("authority")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.pem")]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*new, *files, *names], check=True, capture_output=True)
    return folder


@contextmanager
def company(authority: Path) -> Iterator[str]:
    """The URL of an upstream whose certificate is that of the company, in threads of its own."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self):
            with suppress(ssl.SSLError), context.wrap_socket(self.request, server_side=True) as tls:
                tls.recv(1 << 16)
                tls.sendall(ANSWER)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "ca.pem", authority / "key.pem")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"https://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


async def status_of(upstream: str, root: Path, **settings: object) -> int:
    async with serving(upstream, root, **settings) as gateway, http() as client:
        return (await client.get(gateway.url + "/v1/models")).status_code


async def test_an_upstream_with_a_certificate_of_the_company_needs_the_ca_file(tmp_path, authority):
    with company(authority) as upstream:
        without = await status_of(upstream, tmp_path)
        with_file = await status_of(upstream, tmp_path, ca_file=authority / "ca.pem")
    assert (without, with_file) == (502, 200)


async def test_certificates_of_the_environment_are_read_only_if_that_is_asked(
    tmp_path, authority, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    with company(authority) as upstream:
        without = await status_of(upstream, tmp_path)
        with_flag = await status_of(upstream, tmp_path, environment_certificates=True)
    assert (without, with_flag) == (502, 200)


def test_a_file_without_certificates_is_refused_at_the_start(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("no certificate\n")
    with pytest.raises(SettingsError, match="PEM format"):
        Gateway(GatewaySettings({"": "https://a"}, tmp_path / "root", ca_file=file))


def test_the_flag_for_certificates_needs_a_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    settings = GatewaySettings({"": "https://a"}, tmp_path / "root", environment_certificates=True)
    with pytest.raises(SettingsError, match="SSL_CERT_FILE"):
        Gateway(settings)


async def test_requests_go_through_the_proxy_with_its_user(tmp_path):
    async with Upstream() as proxy:
        url = proxy.url.replace("http://", "http://me:secret@")
        async with serving("http://api.example:81", tmp_path, proxy=url) as gateway:
            reply = await post(gateway, {"messages": [TASK]})
    assert reply.status_code == 200
    assert proxy.targets == ["POST http://api.example:81/v1/messages"]
    assert proxy.headers[0]["proxy-authorization"].startswith("Basic ")


def test_an_invalid_proxy_is_refused_without_its_password():
    with pytest.raises(SettingsError, match=r"http://proxy\.example:3128") as refusal:
        GatewaySettings({"": "http://a"}, proxy="me:secret@proxy")
    assert "secret" not in str(refusal.value)


# Waiting for clients ------------------------------------------------------------------------------


def half_a_request(path: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    return head.encode() + b"{"


async def test_a_connection_that_is_not_made_in_time_is_tried_once_more(tmp_path, monkeypatch):
    monkeypatch.setattr(upstream, "CONNECT_SECONDS", 0.3)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(ANSWER)
        writer.close()

    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        # A connection fills the queue, even a closed one: the system ignores the next for a second.
        socket.create_connection(address).close()
        async with serving(f"http://127.0.0.1:{address[1]}", tmp_path) as gateway:
            asked = asyncio.create_task(post(gateway, {"messages": [TASK]}))
            await asyncio.sleep(0.15)
            async with await asyncio.start_server(answer, sock=listener):
                reply = await asked
    assert reply.status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/files"], ids=["shaped", "passed"])
async def test_a_body_that_stops_arriving_is_refused_in_the_form_of_the_api(tmp_path, path):
    async with Upstream() as api, serving(api.url, tmp_path, timeout_body=0.05) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway.url))
        writer.write(half_a_request(path))
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"type":"timeout_error"' in answer


async def test_a_body_may_arrive_slowly(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path, timeout_body=2) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway.url))
        writer.write(half_a_request("/v1/files"))
        for _ in range(8):
            await asyncio.sleep(0.4)
            writer.write(b" ")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 30)
        writer.close()


async def test_an_answer_may_take_longer_than_a_body(tmp_path):
    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.5)
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer_late, "127.0.0.1", 0) as api:
        upstream = f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}"
        async with serving(upstream, tmp_path, timeout_body=0.1) as gateway:
            reply = await post(gateway, {"messages": [TASK]})
    assert reply.status_code == 200


async def test_an_idle_connection_stays_open_for_the_time_that_is_set(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path, timeout_keep_alive=1) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway.url))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 30)  # until the gateway closes it
        writer.close()
        config = gateway._server.config
    assert b'"status":"ok"' in answer
    assert config.timeout_keep_alive == 1
    assert GatewaySettings({"": "http://a"}).timeout_keep_alive == 75


@pytest.mark.parametrize(("idle_seconds", "connection_count"), [(30, 1), (0.05, 2)])
async def test_a_connection_that_was_idle_too_long_is_not_used_for_another_request(
    tmp_path, monkeypatch, idle_seconds, connection_count
):
    monkeypatch.setattr("ctxpipe.gateway.upstream.IDLE_SECONDS", idle_seconds)
    connections = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER.replace(b"connection: close\r\n", b""))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as api:
        upstream = f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}"
        async with serving(upstream, tmp_path) as gateway, http() as client:
            for _ in range(2):
                reply = await client.get(gateway.url + "/v1/models")
                await asyncio.sleep(0.2)
    assert reply.status_code == 200
    assert len(connections) == connection_count


@pytest.mark.parametrize(("drain_seconds", "is_complete"), [(0, False), (30, True)])
async def test_open_replies_get_the_time_that_is_set_at_the_end(
    tmp_path, monkeypatch, drain_seconds, is_complete
):
    monkeypatch.setattr("ctxpipe.gateway.serving.QUIET_SECONDS", 0.5)
    may_end = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\nbegin,")
        await writer.drain()
        await may_end.wait()
        writer.write(b" end.\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as api:
        upstream = f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}"
        async with serving(upstream, tmp_path, drain_seconds=drain_seconds) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway.url))
            writer.write(b"GET /v1/files/1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"begin,")
            gateway.stop()
            if is_complete:
                await asyncio.sleep(0.3)  # the gateway notices the end within 0.1 s
                may_end.set()
            rest = await asyncio.wait_for(reader.read(), 30)
            writer.close()
        may_end.set()
    assert (rest == b" end.\n") == is_complete


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])
