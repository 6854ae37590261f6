"""Marks, which show what folders and files are ctxpipe's: without one nothing is deleted.

A mark also says whose session the folder is, and a tombstone outside of the folder that the session
was deleted. A writer shares a lock on the folder from the look at the tombstone to the end of what
it writes, and a deletion holds it alone: so nothing is written after one.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..errors import StorageError
from ..placeholders.names import session_folder
from .atomic import (
    STALE_SECONDS,
    claim,
    discard,
    exists,
    is_temporary,
    read_bytes,
    replace_by_copy,
    sweep,
    temporary_file,
    temporary_name,
)
from .folders import (
    PinnedFolder,
    RootError,
    check_platform,
    enter_folder,
    has_name,
    ignore_absent,
    ignore_unsupported,
    open_file,
    regular_files,
    translate_errors,
    try_lock,
)
from .generations import new_tombstone, running_generation, tombstone_name, tombstone_seconds
from .waiting import Locked

ROOT_MARK = ".ctxpipe-root"
SESSION_MARK = ".ctxpipe-session"
TOMBSTONES = ".ctxpipe-deleted"
JOURNAL = "journal.jsonl"
INDEX = ".ctxpipe-index"
NOTES = ".ctxpipe-notes"
FORM = 1

_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Mark:
    """What shows that a folder is ctxpipe's, and which *files* in it ctxpipe has written.

    *session_id* is whose folder it is, where that is known. With *has_journal* the session keeps a
    journal, wherever it is, and the time of the mark is when the session was used last.
    """

    files: frozenset[str] = frozenset()
    session_id: str | None = None
    has_journal: bool = False


def _parse_mark(lines: Iterable[bytes]) -> Mark:
    """The mark with these *lines* after the first, of which a crash may have torn some."""
    files: set[str] = set()
    session_id = None
    has_journal = False
    for line in lines:
        try:
            value = json.loads(line)
        except _DAMAGED:
            continue
        if isinstance(value, str):
            files.add(value)
        elif isinstance(value, dict):
            if isinstance(value.get("session"), str):
                session_id = value["session"]
            has_journal = has_journal or value.get("journal") is True
    return Mark(frozenset(files), session_id, has_journal)


def write_mark(folder: int, name: str, mark: Mark) -> None:
    """Write *mark* into an open *folder*; one that is there stays."""
    from .. import __version__  # here: the package itself is imported last

    lines: list[object] = [{"form": FORM, "version": __version__}, *sorted(mark.files)]
    if mark.session_id is not None:
        lines.append(_user(mark.session_id, has_journal=mark.has_journal))
    _create_file(folder, name, "\n".join(map(json.dumps, lines)))


def _user(session_id: str, *, has_journal: bool) -> dict[str, object]:
    return {"session": session_id, "journal": has_journal}


def _create_file(folder: int, name: str, text: str) -> None:
    """Write a small file into an open *folder*, whole, unless something has its name."""
    with temporary_file(folder, [text.encode()], synced=False) as temporary:
        claim(folder, temporary, name)


class StorageRoot:
    """The root of a storage: it opens folders without following links, and marks new ones.

    A root that is new or empty is marked itself, and kept out of git. With *marked* False no mark
    is written. Raises SettingsError on Windows.
    """

    def __init__(self, path: str, *, marked: bool = True) -> None:
        check_platform("LocalStorage")
        self.path = path
        self._marked = marked
        self._pinned = PinnedFolder(path)
        self._admitted = False
        self._prepared = False
        self._known: dict[str, bool] = {}  # folders written to, and whether they are marked

    @property
    def real(self) -> str:
        """Where the root really is, links resolved; "" until it has been opened."""
        return self._pinned.real

    def path_of(self, *names: str) -> str:
        """The path of a folder below the root, or of a file in it."""
        return os.path.join(self.path, *names)

    @contextmanager
    def folder(self, name: str, *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder *name* below the root, which is "".

        Raises StorageError. With *create* it is for one who writes, and SessionDeleted is raised
        when the session that runs here was deleted.
        """
        with translate_errors(f"cannot open the folder {self.path_of(name)}"):
            descriptor = self._open_shared(name) if create else self._open(name, create=False)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    # Deletions ------------------------------------------------------------------------------------

    def check(self, name: str) -> None:
        """Raise SessionDeleted when the session that runs here, in the folder *name*, was deleted.

        Raises StorageError.
        """
        generation = running_generation(name)
        if generation is not None:
            generation.check(self, self._tombstone(name))

    @contextmanager
    def deletion(self, name: str) -> Iterator[int]:
        """The session folder *name* without other writers; who wrote there does not write on.

        Raises StorageError, with ENOENT where there is no folder and none may be made.
        """
        with translate_errors(f"cannot delete the session in {self.path_of(name)}"):
            descriptor = self._open_locked(name, create=self._marked)
        try:
            with (
                self.folder(TOMBSTONES, create=True) as graves,
                temporary_file(graves, [new_tombstone().encode()], synced=True) as temporary,
            ):
                os.replace(temporary, tombstone_name(name), src_dir_fd=graves, dst_dir_fd=graves)
            yield descriptor
            self._drop(name, descriptor)
        finally:
            os.close(descriptor)

    def sweep_tombstones(self) -> None:
        """Remove the tombstones that were kept long enough."""
        before = time.time() - tombstone_seconds()
        with suppress(OSError), self.folder(TOMBSTONES) as graves:
            for grave, info in regular_files(graves):
                if grave != SESSION_MARK and info.st_mtime < before:
                    discard(graves, grave)

    def _tombstone(self, name: str) -> str:
        grave = tombstone_name(name)
        path = self.path_of(TOMBSTONES, grave)
        with ignore_absent(), translate_errors(f"cannot read {path}"):
            os.lstat(path)  # costs less than to open what is hardly ever there
            with self.folder(TOMBSTONES) as graves:
                return (read_bytes(graves, grave) or b"").decode("ascii", "replace")
        return ""

    def _open_shared(self, name: str) -> int:
        """The folder for a writer: that of a session is kept from being deleted meanwhile."""
        is_of_session = name != "" and "/" not in name
        if is_of_session:
            descriptor = self._open_locked(name, create=True, shared=True)
        else:
            descriptor = self._open(name, create=True)
        try:
            self.check(name)
            # A folder without a mark is looked at again: it may have got one since.
            if not self._known.get(name):
                self._known[name] = self.read_mark(name, descriptor) is not None
                if self._known[name]:
                    with suppress(OSError):  # one that cannot be swept can still be written to
                        sweep(descriptor, time.time() - STALE_SECONDS)
        except BaseException:
            os.close(descriptor)
            if is_of_session:
                self.drop(name)
            raise
        return descriptor

    def _open_locked(self, name: str, *, create: bool, shared: bool = False) -> int:
        """The folder, locked, which still has its name. Raises Locked, and OSError."""
        while True:
            descriptor = self._open(name, create=create)
            is_ours = False
            try:
                if not _lock(descriptor, shared=shared):
                    raise Locked(self.path_of(name))
                is_ours = has_name(descriptor, self.path_of(name))
            finally:
                if not is_ours:
                    os.close(descriptor)
            if is_ours:
                return descriptor

    def ensure_free(self, name: str) -> None:
        """Raise Locked when the session folder *name* is being deleted; StorageError."""
        with ignore_absent(), self.folder(name) as descriptor:
            if not _lock(descriptor, shared=True):
                raise Locked(self.path_of(name))

    def touch(self, name: str, session_id: str) -> None:
        """Note that the session in the folder *name*, which has a journal, is in use.

        Nothing happens where there is no marked folder. Raises StorageError.
        """
        with (
            ignore_absent(),
            self.folder(name) as folder,
            translate_errors(f"cannot touch {self.path_of(name)}"),
        ):
            mark = self.read_mark(name, folder)
            if mark is not None and mark.has_journal and mark.session_id == session_id:
                os.utime(SESSION_MARK, dir_fd=folder, follow_symlinks=False)
            elif mark is not None:
                self._add_line(name, folder, _user(session_id, has_journal=True))

    def has_journal_elsewhere(self, name: str) -> bool:
        """Whether the session in the folder *name* has a journal which is not in that folder."""
        with suppress(StorageError), self.folder(name) as folder:
            mark = self.read_mark(name, folder)
            return mark is not None and mark.has_journal and JOURNAL not in mark.files
        return False

    def session_ids(self) -> list[str]:
        """The ids of the sessions with a marked folder, as far as known."""
        found: list[str] = []
        for name in self.session_folders():
            with suppress(StorageError), self.folder(name) as descriptor:
                mark = self.read_mark(name, descriptor)
                if mark is None or name == TOMBSTONES or is_temporary(name):
                    continue
                if mark.session_id is not None:
                    found.append(mark.session_id)
                elif session_folder(name) == name:  # a plain name is its own folder
                    found.append(name)
        return found

    def session_folders(self) -> list[str]:
        """The folders directly below the root, links left out; none when there is no root."""
        with ignore_absent(), self.folder("") as root, os.scandir(root) as entries:
            return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
        return []

    def read_mark(self, name: str, folder: int) -> Mark | None:
        """The mark in the open *folder*, which has this *name* below the root, itself "".

        None when there is no valid one. Raises RootError when it was written by a newer version.
        """
        try:
            content = read_bytes(folder, _mark_name(name)) or b""
            header, *lines = content.split(b"\n")
            form = json.loads(header)["form"]
        except (OSError, *_DAMAGED):
            return None
        if type(form) is not int or form < FORM:
            return None
        if form > FORM:
            raise RootError(
                errno.ENOTSUP,
                f"{self.path_of(name)} was made by a newer ctxpipe (form {form}, this one knows "
                f"{FORM}); update ctxpipe",
            )
        return _parse_mark(lines)

    def drop(self, name: str) -> bool:
        """Remove the session folder *name* if nothing but its mark is in it, and nobody writes."""
        with suppress(OSError), self.folder(name) as descriptor:
            return _lock(descriptor) and self._drop(name, descriptor)
        return False

    def _drop(self, name: str, descriptor: int) -> bool:
        files = os.listdir(descriptor)
        mark = self.read_mark(name, descriptor)
        # A killed process has not given it its name, or has deleted all but the folder itself.
        if is_temporary(name) or (not files and self._tombstone(name)):
            sweep(descriptor, time.time())
        elif mark is None or files != [SESSION_MARK]:
            return False
        discard(descriptor, SESSION_MARK)
        try:
            with self.folder("") as root:
                os.rmdir(name, dir_fd=root)
        except OSError:  # somebody has written into it meanwhile
            if mark is not None:
                write_mark(descriptor, SESSION_MARK, mark)
            return False
        return True

    def list_file(self, name: str, folder: int, file: str) -> None:
        """Add *file*, which is about to be made, to the mark of the open *folder* called *name*.

        What is not in the mark is never deleted.
        """
        if self._known.get(name):
            self._add_line(name, folder, file)

    def _add_line(self, name: str, folder: int, value: str | dict[str, object]) -> None:
        """Add a line to the mark of the open *folder*. Raises Locked, and OSError.

        A mark that has a second name, as in a snapshot by hard links, is replaced by a copy first.
        Who does that keeps out those who add lines, since these would be missing in the copy.
        """
        file = _mark_name(name)
        is_written = False
        while not is_written:
            try:
                mark = open_file(file, os.O_RDWR | os.O_APPEND, folder=folder)
            except FileNotFoundError:
                return
            try:
                is_linked = os.fstat(mark).st_nlink > 1
                if not _lock(mark, shared=not is_linked):
                    raise Locked(self.path_of(name, file))
                if not has_name(mark, file, folder=folder):
                    continue  # it was replaced
                if is_linked:
                    replace_by_copy(folder, file, mark)
                    continue
                # The line break comes first: a line that a crash has torn must not swallow this.
                os.write(mark, f"\n{json.dumps(value)}".encode())
                is_written = True
            finally:
                os.close(mark)

    # Opening --------------------------------------------------------------------------------------

    def _open(self, name: str, *, create: bool) -> int:
        descriptor = self._open_root(create=create)
        for depth, part in enumerate(filter(None, name.split("/"))):
            parent = descriptor
            try:
                if create and depth == 0 and self._marked:
                    descriptor = self._enter_marked(part, parent)
                else:
                    descriptor, _ = enter_folder(part, parent, create=create)
            finally:
                os.close(parent)
        return descriptor

    def _enter_marked(self, name: str, root: int) -> int:
        """The folder *name*, made with its mark if it is not there."""
        while True:
            if not exists(root, f"{name}/{SESSION_MARK}"):
                self.drop(name)  # what a killed deletion has left: nothing lists its files
            try:
                return enter_folder(name, root)[0]
            except FileNotFoundError:
                self._make_marked(name, root)

    def _make_marked(self, name: str, root: int) -> None:
        """Make the folder *name* and its mark in one step.

        A folder that is there before its mark is another writer's to use, and what he writes then
        is in no list: nothing would ever delete it.
        """
        temporary = temporary_name()
        folder, _ = enter_folder(temporary, root, create=True)
        try:
            generation = running_generation(name)
            mark = Mark()
            if generation is not None:
                mark = Mark(frozenset(), generation.session_id, generation.has_journal)
            write_mark(folder, SESSION_MARK, mark)
            os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=root)
            self._known[name] = True
        except OSError as error:
            with suppress(OSError):
                discard(folder, SESSION_MARK)
                os.rmdir(temporary, dir_fd=root)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise  # otherwise something else has got the name meanwhile
        finally:
            os.close(folder)

    def _open_root(self, *, create: bool) -> int:
        if create:
            root, is_new = self._pinned.create()
        else:
            root, is_new = self._pinned.open(), False
        try:
            if not self._admitted:
                self._admit(root)
            if is_new or (create and not self._prepared):
                if self._marked and _is_empty(root):
                    write_mark(root, ROOT_MARK, Mark())
                    _create_file(root, ".gitignore", "*\n")
                self._prepared = True
        except OSError:
            os.close(root)
            raise
        return root

    def _admit(self, root: int) -> None:
        """Refuse a root whose form is too new, and a link to a folder that somebody else uses."""
        mark = self.read_mark("", root)
        if self._marked and mark is None and os.path.islink(self.path) and not _is_empty(root):
            raise RootError(
                errno.ELOOP,
                f"{self.path} is a link to {self.real}, which holds files that are not ctxpipe's: "
                f"the link may be somebody's trap. If it is yours, name {self.real} itself",
            )
        self._admitted = True


def _lock(folder: int, *, shared: bool = False) -> bool:
    """Lock an open *folder*; False when that must wait, True also where nothing can be locked."""
    is_ours = True
    with ignore_unsupported():
        is_ours = try_lock(folder, shared=shared)
    return is_ours  # noqa: RET504  it is True still where the error was ignored


def _mark_name(folder: str) -> str:
    """The name of the mark in *folder*, which is "" for the root."""
    return SESSION_MARK if folder else ROOT_MARK


def _is_empty(folder: int) -> bool:
    """Whether nothing is there, except what a process that is marking it has written."""
    return all(is_temporary(name) or name == ROOT_MARK for name in os.listdir(folder))
