"""Write the files next to an archive: the content that is not carried over, and further paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..._logs import logger
from ..._threads.threads import in_thread
from ...errors import StorageError, safe_text, storage_errors
from ...messages import Message
from ...placeholders.names import session_folder
from ...placeholders.summaries import acknowledged_count, omissions_name
from ...storage import Archive, TextWriter
from ...storage.records import message_redactor_of
from ...storage.references import reference_of, visible_folder, visible_path
from ..protocol import Turn
from .layout import Layout, lay_out
from .omissions import OmissionsFile, omissions_text
from .partition import Replacement

PATHS_INDEX = "compact-paths.txt"
OMISSIONS = "compact-left-out.txt"


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The files of one session next to its archives; none if *archive* is None."""

    archive: Archive | None
    session_id: str

    @property
    def _folder(self) -> str:
        return session_folder(self.session_id)

    def visible_path(self, location: str) -> str:
        """Return the path that the model sees for the file at *location*."""
        return visible_path(reference_of(self.archive), self._folder, location)

    def visible_folder(self) -> str | None:
        """Return the session's folder as the model sees it; None if the archive has no texts."""
        if self.archive is None or not isinstance(self.archive, TextWriter):
            return None
        return visible_folder(self.archive, self._folder)

    def omissions_file(self, rest: Sequence[Message], archive_path: str | None) -> OmissionsFile:
        """Return the file for the pieces of *rest* that are not carried over.

        It has the path for the model, and that of the file of the compaction before. If the archive
        stores no texts, the path is that of the raw messages, *archive_path*.
        """
        if self.archive is None or not isinstance(self.archive, TextWriter):
            return OmissionsFile(self.visible_path(archive_path) if archive_path else "")
        before = ""
        if rest and acknowledged_count(rest):
            before = omissions_name(rest[0])
        if before:
            before = self.visible_path(self.archive.location(f"{self._folder}/{before}"))
        location = self.archive.location(f"{self._folder}/{OMISSIONS}")
        return OmissionsFile(self.visible_path(location), before)

    async def write_omissions(
        self, turn: Turn, replacement: Replacement, layout: Layout, file: OmissionsFile
    ) -> tuple[Layout, OmissionsFile, str]:
        """Write the pieces that *layout* leaves out, and return a layout that names their file.

        *file* is the file as *layout* names it now. Its *before* is the path of the file of an
        earlier compaction, which the new file names.

        Returns the layout, the file with its new path, and "". Nothing is written, and *layout* and
        *file* are returned unchanged, in these cases:

        - No piece is left out, or there is no archive. The third value is "".
        - The archive is no `TextWriter`, or writing raises StorageError. The third value is a
          sentence that says how many pieces are only in the archive. A failed write is also logged.
        """
        pieces = layout.selection.left_out
        if not pieces or self.archive is None:
            return layout, file, ""
        if not isinstance(self.archive, TextWriter):
            return layout, file, f"{len(pieces)} pieces to carry on are in the archive only"
        as_stored = message_redactor_of(self.archive)
        text = await in_thread(omissions_text, pieces, file.before, as_stored)
        try:
            with storage_errors():
                [location] = await self.archive.write([(f"{self._folder}/{OMISSIONS}", text)])
        except StorageError as error:
            reason = f"{len(pieces)} pieces to carry on are in the archive only: {safe_text(error)}"
            logger.warning("%s", reason)
            return layout, file, reason
        written = replace(file, path=self.visible_path(location))
        if written != file:
            layout = await lay_out(turn, replacement, layout, written)
        return layout, written, ""

    async def list_paths(
        self, turn: Turn, replacement: Replacement, layout: Layout, file: OmissionsFile
    ) -> tuple[Layout, str]:
        """Write the paths left out of *layout* to a file, and return a layout that names it.

        The second value is the reason if the file could not be written, otherwise "".
        """
        number = len(layout.omitted_paths)
        if number == 0 or self.archive is None:
            return layout, ""
        if not isinstance(self.archive, TextWriter):
            return layout, f"{number} paths are not listed: the archive stores no texts"
        # One path a line: a name with a line break would add one of its own choosing.
        text = "".join(f"{path}\n" for path in layout.omitted_paths if path.isprintable())
        try:
            with storage_errors():
                [index] = await self.archive.write([(f"{self._folder}/{PATHS_INDEX}", text)])
        except StorageError as error:
            reason = f"{number} paths are not listed: {safe_text(error)}"
            logger.warning("%s", reason)
            return layout, reason
        evidence = replace(replacement.evidence, index=self.visible_path(index))
        return await lay_out(turn, replace(replacement, evidence=evidence), layout, file), ""
