"""The service that several gateways share their journals in."""

from __future__ import annotations

from services import postgres

__all__ = ["postgres"]
