"""Replace a long history by a summary, and restore the files of the working set."""

from typing import TYPE_CHECKING

from ..._lazy import import_on_use

if TYPE_CHECKING:
    from collections.abc import Callable

# An earlier version had these names here. Importing one raises an ImportError with its module.
_ELSEWHERE = {".stage": "Breaker Compact Evidence Restore"}
__getattr__: "Callable[[str], object]" = import_on_use(__name__, {}, _ELSEWHERE)
