"""Move old images and documents to files."""

from typing import TYPE_CHECKING

from ..._lazy import import_on_use

if TYPE_CHECKING:
    from collections.abc import Callable

# An earlier version had these names here. Importing one raises an ImportError with its module.
_ELSEWHERE = {".stage": "MediaOffload"}
__getattr__: "Callable[[str], object]" = import_on_use(__name__, {}, _ELSEWHERE)
