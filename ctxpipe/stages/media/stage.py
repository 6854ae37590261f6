"""Move old images and documents into files, before the request has too many bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..._text import short_repr
from ..._threads.threads import in_thread
from ..._values import JsonDict
from ...errors import SettingsError
from ...settings import COUNT, SIZE, check_settings
from ...storage import TextWriter
from ...storage.records import redactor_of
from ..moves import Act, FileOrError, Moving, pair_written
from ..protocol import Change, Skip, Stored, Turn
from ..reading.citations import without_dangling_citations
from ..reports import Offloaded
from . import selection as media
from .selection import Weight

NOTHING = Skip("there are no images or documents")


@dataclass(frozen=True, slots=True, repr=False)
class MediaOffload(Moving):
    """Move old images and documents into files, all at once, if they are too much to send.

    APIs limit the bytes of a request, its images and its pages, independent of its tokens:
    Anthropic 32 MB, 100 images, 600 pages; others 20 MB. If all images and documents have more than
    *max_bytes* bytes of base64, more than *max_images* images or more than *max_pages* pages, the
    older ones leave, those in tool results too. The newest stay, up to *keep_bytes* bytes and the
    same share (*keep_bytes* / *max_bytes*) of the other two limits. With ``Turn.force``, as after a
    refusal because of the length, none of the old ones stay. Media that the model has not answered
    yet always stay, and so do documents with citations and media that are named by a URL or an id
    only.

    A placeholder says what it replaces, its size, and the file. The file is named by a hash of its
    content: the same picture is in one file, however often it occurs. `read_offloaded` returns it
    unchanged. Media that the storage's ``redact`` would change stay in the context.

    Raises SettingsError if a setting is invalid.
    """

    storage: TextWriter
    max_bytes: int = 18_000_000
    keep_bytes: int = 4_000_000
    max_images: int = 100
    max_pages: int = 600

    __repr__ = short_repr

    def __post_init__(self) -> None:
        self._pointers.check()
        check_settings(self, max_bytes=COUNT, keep_bytes=SIZE, max_images=COUNT, max_pages=COUNT)
        if self.keep_bytes >= self.max_bytes:
            raise SettingsError(
                f"keep_bytes is {self.keep_bytes:,}, and max_bytes {self.max_bytes:,}: "
                "give less to keep, or every turn would rewrite the context"
            )

    async def _propose(self, turn: Turn, act: Act) -> Change | Skip:
        """Move images and documents to files with *act*, the oldest first, if there are too many.

        The newest within ``keep_bytes``, protected messages, and messages that the model has not
        answered stay. Returns Skip if nothing has to or may leave. Raises StorageError if nothing
        can be written.
        """
        fact_sums = await turn.fact_sums()
        if not fact_sums.media:  # the usual turn: skip it at little cost
            return NOTHING
        weights = await in_thread(
            media.weights_of, turn.messages, list(fact_sums.messages_with_media())
        )
        total = Weight()
        for weight in weights.values():
            total = total.plus(weight)
        if total.fits(Weight(self.max_bytes, self.max_images, self.max_pages)) and not turn.force:
            return Skip(f"{total.chars:,} bytes of images and documents are not too much")
        keep = Weight()
        if not turn.force:
            share = self.keep_bytes / self.max_bytes
            keep = Weight(
                self.keep_bytes, int(share * self.max_images), int(share * self.max_pages)
            )
        end = fact_sums.recent_from(1)
        older = media.older_than_budget(weights, keep)
        places = [place for place in older if turn.protected <= place < end]
        leaving = await in_thread(self._find, turn, places)
        if not leaving:
            return Skip("no image or document may leave yet")
        files = await act(self.storage, [(self._key(turn, text), text) for text in leaving])
        return await in_thread(self._point_to_files, turn, places, leaving, files)

    def _find(self, turn: Turn, places: Sequence[int]) -> dict[str, JsonDict]:
        """Return the images and documents at *places* by their stored texts.

        Those that the storage would redact are left out.
        """
        redact = redactor_of(self.storage)
        leaving: dict[str, JsonDict] = {}
        for place in places:
            for block in media.media_in(turn.messages[place]):
                text = media.stored_text(block)
                if redact(text) == text:
                    leaving[text] = block
        return leaving

    def _key(self, turn: Turn, text: str) -> str:
        return self._pointers.key(turn.session_id, media.file_name(text))

    def _point_to_files(
        self,
        turn: Turn,
        places: Sequence[int],
        leaving: Mapping[str, JsonDict],
        files: Sequence[FileOrError],
    ) -> Change:
        """Return the context with placeholders for the blocks that were written to *files*."""
        pairs, failed = pair_written(leaving, files)
        placeholders: dict[str, str] = {}
        for text, file in pairs:
            path = self._pointers.visible_path(self._key(turn, text), file)
            placeholders[text] = media.placeholder_of(leaving[text], path)
        messages = list(turn.messages)
        count = 0
        for place in places:
            rewritten = media.with_placeholders(messages[place], placeholders)
            moved_count = len(media.media_in(messages[place])) - len(media.media_in(rewritten))
            if moved_count:
                messages[place] = rewritten
                count += moved_count
        messages = without_dangling_citations(turn.messages, messages)
        chars = sum(len(text) for text in placeholders)
        saved_chars = chars - sum(len(placeholder) for placeholder in placeholders.values())
        written_files = tuple(file for _, file in pairs)
        detail = Offloaded(written_files, chars, saved_chars, media=count, failed=failed)
        # It saves bytes: a placeholder may have more tokens than a small image.
        return Change(messages, detail, may_grow=True, stored=Stored(self.storage, dict(pairs)))
