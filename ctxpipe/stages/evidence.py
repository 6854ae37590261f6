"""What follows a summary because no model may lose it: the settings of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..messages import Message
from ..settings import FUNCTION, SIZE, check_settings


@dataclass(frozen=True, slots=True)
class Evidence:
    """What `Compact` keeps word for word, whatever the summary says.

    A list of paths of up to *tokens* tokens and, in proportion, commands, identifiers and the
    user's requests; paths that exceed this are listed in a file beside the archive. *pin* chooses
    messages to keep as they are. What the model has not answered stays whole as long as the new
    context meets its target; above it the user's words in it are cut to *max_request_chars*
    characters, head and tail.

    Raises SettingsError for settings that are invalid.
    """

    tokens: int = 2000
    max_request_chars: int = 20_000
    pin: Callable[[Message], bool] | None = None

    def __post_init__(self) -> None:
        check_settings(self, tokens=SIZE, max_request_chars=SIZE, pin=FUNCTION.optional)
