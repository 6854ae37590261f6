"""The services that several gateways share their journals in."""

from __future__ import annotations

from services import postgres, redis, s3

__all__ = ["postgres", "redis", "s3"]
