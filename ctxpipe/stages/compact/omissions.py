"""Name the content that a compaction does not carry over, and write the file with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...messages import Message, compact_json, without_surrogates
from ...placeholders.summaries import omission_line
from ..reading.carry_candidates import Candidate
from .carry import Selection

_MAX_LINE = 1_000  # characters of the names of all that was left out
_NAMES_OF_A_KIND = 20


def omission_names(candidates: Iterable[Candidate]) -> str:
    """Return the names of *candidates* by kind: "2 container_upload (file_1, file_2)"."""
    targets_by_name: dict[str, list[str]] = {}
    for candidate in candidates:
        targets_by_name.setdefault(candidate.name, []).append(candidate.target)
    phrases: list[str] = []
    for name, all_targets in targets_by_name.items():
        targets = [target for target in all_targets if target]
        names = ", ".join(targets[-_NAMES_OF_A_KIND:])
        if len(targets) > _NAMES_OF_A_KIND:
            names = f"…, {names}"
        count = f"{len(all_targets)} {name}"
        phrases.append(f"{count} ({names})" if names else count)
    text = ", ".join(phrases)
    return text if len(text) <= _MAX_LINE else f"{text[: _MAX_LINE - 2]} …"


OMISSIONS_FORM = 1


def omissions_text(
    candidates: Sequence[Candidate], before: str, as_stored: Callable[[Message], Message]
) -> str:
    """Return the text of the file with *candidates*: a line of JSON for each, after a first line.

    The first line has the version of the format and the path of the file *before* it, if there is
    one. *as_stored* returns a message as it may be stored, without secrets.
    """
    first: dict[str, object] = {"form": OMISSIONS_FORM}
    if before:
        first["before"] = before
    lines = [compact_json(first)]
    for candidate in candidates:
        messages = [as_stored(message) for message in candidate.messages]
        lines.append(compact_json({"name": str(candidate), "messages": messages}))
    return without_surrogates("".join(f"{line}\n" for line in lines))


@dataclass(frozen=True, slots=True)
class OmissionsFile:
    """The file with the pieces of a history that a context does not carry.

    *path* is the path for the model, "" if there is no file. *before* is the path of the file of an
    earlier compaction.
    """

    path: str = ""
    before: str = ""

    def note(self, selection: Selection) -> list[str]:
        """Return the line of the evidence that names the pieces left out, if there are any."""
        if selection.left_out:
            return [omission_line(omission_names(selection.left_out), self.path)]
        if self.before:
            return [omission_line("", self.before)]
        return []
