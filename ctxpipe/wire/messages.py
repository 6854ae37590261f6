"""Anthropic's Messages API, whose messages are ctxpipe's own: nothing is translated."""

from __future__ import annotations

from typing import Any, cast

from ..messages import as_blocks
from .codec import Item, Reading, Side


class MessagesCodec:
    """What a message says."""

    def read(self, item: Item) -> Reading:
        """The blocks of *item*."""
        role = item["role"]
        side: Side = role if role in ("assistant", "system") else "user"
        return Reading(side, cast("list[dict[str, Any]]", as_blocks(item)))
