"""The clouds' forms of the Messages API, in front of a scripted one."""

from __future__ import annotations

import base64
import json
import struct
import urllib.parse
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
from starlette.requests import Request
from starlette.responses import Response

from ctxpipe.testing.running import start

AWS: dict[str, Any] = {"aws_access_key": "AK", "aws_secret_key": "SK", "aws_region": "us-east-1"}
GOOGLE: dict[str, Any] = {"region": "us-east5", "project_id": "p", "access_token": "t"}


@dataclass(frozen=True)
class Cloud:
    """A cloud: its clients' class without "Async", what they are given, and the path they ask."""

    client: str
    given: dict[str, Any]
    path: str
    suffix: str = ""
    """What a client adds to the base URL."""

    def connect(self, url: str, *, is_async: bool, **settings: Any) -> Any:
        """A client of the cloud at *url*."""
        make = getattr(anthropic, f"Async{self.client}" if is_async else self.client)
        return make(base_url=url + self.suffix, max_retries=0, **self.given, **settings)


CLOUDS = {
    "api": Cloud("Anthropic", {"api_key": "k"}, "/v1/messages"),
    "bedrock": Cloud("AnthropicBedrock", AWS, "/model/m/invoke"),
    "mantle": Cloud("AnthropicBedrockMantle", AWS, "/v1/messages"),
    "aws": Cloud("AnthropicAWS", {**AWS, "workspace_id": "w"}, "/v1/messages"),
    "vertex": Cloud("AnthropicVertex", GOOGLE, "/models/m:rawPredict", "/v1"),
    "foundry": Cloud("AnthropicFoundry", {"api_key": "k"}, "/v1/messages"),
}


@dataclass
class Front:
    """A server that takes what the clouds' clients send, and asks the API at *upstream*."""

    upstream: str
    url: str = ""
    paths: list[str] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        """The upstream's answer, in the form of the cloud that was asked."""
        path = urllib.parse.unquote(request.url.path)
        self.paths.append(path)
        self.signatures.append(request.headers.get("authorization", ""))
        body = json.loads(await request.body())
        is_bedrock = path.startswith("/model/")
        if is_bedrock:
            body["model"] = path.split("/")[2]
            body["stream"] = path.endswith("-stream")
        elif ":" in path:
            body["model"] = path.rpartition("/")[2].partition(":")[0]
        body.pop("anthropic_version", None)
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        if betas := request.headers.get("anthropic-beta"):
            headers["anthropic-beta"] = betas
        if betas := body.pop("anthropic_beta", None):  # Bedrock reads them in the body
            headers["anthropic-beta"] = ",".join(betas)
        async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
            told = await client.post(f"{self.upstream}/v1/messages", json=body, headers=headers)
        kind = told.headers["content-type"]
        content = told.content
        if is_bedrock and kind.startswith("text/event-stream"):
            kind = "application/vnd.amazon.eventstream"
            content = b"".join(_frame(event) for event in _events(told.text))
        return Response(content, told.status_code, media_type=kind)


@asynccontextmanager
async def fronting(upstream: str) -> AsyncIterator[Front]:
    """A server on a free port, for every cloud's client."""
    front = Front(upstream)
    running = await start({"/{path:path}": front.answer})
    front.url = running.url
    try:
        yield front
    finally:
        await running.stop()


def _events(text: str) -> list[str]:
    """The data of server-sent events."""
    beginning = "data: "
    lines = text.splitlines()
    return [line.removeprefix(beginning) for line in lines if line.startswith(beginning)]


def _frame(event: str) -> bytes:
    """A binary frame of AWS with *event*: lengths and check sums around headers and payload."""
    encoded = base64.b64encode(event.encode()).decode()
    payload = json.dumps({"bytes": encoded}).encode()
    names = ((b":event-type", b"chunk"), (b":message-type", b"event"))
    headers = b"".join(_header(name, value) for name, value in names)
    size: Callable[[int], bytes] = struct.Struct(">I").pack
    beginning = size(16 + len(headers) + len(payload)) + size(len(headers))
    beginning += size(zlib.crc32(beginning))
    frame = beginning + headers + payload
    return frame + size(zlib.crc32(frame))


def _header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(value)) + value
