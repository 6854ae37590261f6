"""The services that several gateways share their journals in."""

from __future__ import annotations

from services import postgres, redis

__all__ = ["postgres", "redis"]
