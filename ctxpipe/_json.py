"""Names for what JSON is in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = Mapping[str, Any]
"""An object as it was parsed, which is only read."""

JsonDict: TypeAlias = dict[str, Any]
"""An object that is being written."""
