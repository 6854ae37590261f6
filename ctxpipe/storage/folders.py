"""Access to files and folders below a root, without following links and without waiting."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..errors import SettingsError, StorageError

try:
    import fcntl
except ImportError:  # Windows, where `check_platform` refuses a LocalStorage
    fcntl = None  # type: ignore[assignment]

FAULTS = frozenset(
    {
        errno.EIO,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.ESTALE,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    }
)
"""Error numbers of real errors. Any other error of link, chmod or fsync means that the file system
does not support the call; file systems use different numbers (EPERM, ENOTSUP, ENOSYS, …)."""

_HAS_EFFECTIVE_IDS = os.access in os.supports_effective_ids
_RELATIVE_CALLS = {"open", "mkdir", "stat", "link", "rename", "unlink", "rmdir"}

# Windows lacks these flags. The package can be imported there, but has no LocalStorage.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_WAIT


class RootError(StorageError):
    """The root must not be used: another folder is in its place, or its form is too new."""


def check_platform(class_name: str) -> None:
    """Raise SettingsError if this system lacks calls that *class_name* needs."""
    relative = {call.__name__ for call in os.supports_dir_fd}
    if not (_NO_LINK and relative >= _RELATIVE_CALLS):
        raise SettingsError(
            f"{class_name} needs Linux or macOS: this system cannot open files relative to a "
            "folder without following links. On Windows run under WSL, or give a storage of your "
            "own (see TextWriter and Archive)"
        )


def check_root(path: str) -> None:
    """Raise SettingsError if the folder at the absolute *path* cannot be created or written to.

    Nothing is created: a root begins to exist with the first text. If the disk cannot be read now,
    the first use reports it.
    """
    place = path  # the root, or the folder above it in which it will be created
    info = _info_of(place)
    while info is None and place != os.path.dirname(place):
        if os.path.islink(place):
            raise SettingsError(f"the root is {path!r}, but {place!r} is a link to nothing")
        place = os.path.dirname(place)
        info = _info_of(place)
    if info is None:
        return
    if not stat.S_ISDIR(info.st_mode):
        raise SettingsError(f"the root is {path!r}, but {place!r} is a file; give a folder")
    if not may_write(place):
        raise SettingsError(
            f"the root is {path!r}, but this process may not write to {place!r}; "
            "give a folder to which it may, or change the permissions"
        )


def _info_of(path: str) -> os.stat_result | None:
    """Return `os.stat` of *path*, or None if it does not exist or cannot be read now."""
    try:
        return os.stat(path)
    except OSError:
        return None


def may_write(folder: str) -> bool:
    """Return True if this process may create files in *folder*."""
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=_HAS_EFFECTIVE_IDS)


# Errors -------------------------------------------------------------------------------------------


@contextmanager
def translate_errors(failure: str) -> Iterator[None]:
    """Raise StorageError for an error of the operating system, with that as its cause.

    *failure* is the operation that has failed, such as "cannot read a.md".
    """
    try:
        yield
    except StorageError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        number = getattr(error, "errno", None) or errno.EIO
        raise StorageError(number, f"{failure}: {reason}") from error


class ignore_absent(suppress):  # noqa: N801  a context manager like `suppress`
    """Ignore the error that a file or folder does not exist."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, OSError) and error.errno == errno.ENOENT


@contextmanager
def ignore_unsupported() -> Iterator[None]:
    """Ignore every OSError of link, chmod or fsync except those with a number in `FAULTS`.

    File systems report with many different numbers, also EPERM and EACCES, that they have no modes
    or cannot sync. Errors in `FAULTS`, such as a full disk or a missing file, are raised.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FAULTS:
            raise


# Opening ------------------------------------------------------------------------------------------


def open_file(name: str, flags: int, *, folder: int | None = None) -> int:
    """Open the regular file *name* without waiting; return its descriptor.

    A file that *flags* create is private. In an open *folder* no link is followed; without *folder*
    the *name* is a path of the caller. Raises OSError, also for a folder, pipe, device or socket.
    """
    with suppress(FileNotFoundError):
        # Checked before opening, because opening a device may have effects.
        _refuse_special(os.stat(name, dir_fd=folder, follow_symlinks=folder is None))
    flags |= _NO_WAIT
    if folder is not None:
        flags |= _NO_LINK
    file = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        _refuse_special(os.fstat(file))
    except OSError:
        os.close(file)
        raise
    return file


def file_info(folder: int | None, name: str) -> os.stat_result:
    """Return `os.stat` of *name*, in an open *folder* or as a path, without following a link."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def has_name(descriptor: int, name: str, *, folder: int | None = None) -> bool:
    """Return True if an open file still has this *name*, in an open *folder* or as a path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(file_info(folder, name), os.fstat(descriptor))
    return False


def is_file(folder: int, name: str) -> bool:
    """Return True if *name* in an open *folder* is a regular file."""
    with suppress(OSError, ValueError):  # a name with a lone surrogate is a ValueError
        return stat.S_ISREG(file_info(folder, name).st_mode)
    return False


def regular_files(
    folder: int, is_wanted: Callable[[str], bool] = bool
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and `os.stat` of the regular files in an open *folder* whose names *is_wanted*.

    Links are left out.
    """
    # `os.scandir` would share the position in this descriptor with other threads that list it.
    for name in os.listdir(folder):
        if not is_wanted(name):
            continue
        with suppress(FileNotFoundError):  # removed meanwhile
            info = file_info(folder, name)
            if stat.S_ISREG(info.st_mode):
                yield name, info


def _refuse_special(info: os.stat_result) -> None:
    """Raise OSError for a folder, pipe, device or socket; accept regular files and links."""
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a regular file")
    if stat.S_ISLNK(info.st_mode):
        return  # a link fails when it is opened
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def open_folder(name: str, parent: int, *, create: bool = False) -> tuple[int, bool]:
    """Return a descriptor of the folder *name* in *parent*, and True if this call has created it.

    A created folder is private. Raises OSError, also for a link.
    """
    is_new = False
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
            is_new = True
    try:
        folder = os.open(name, _FOLDER | _NO_LINK, dir_fd=parent)
    except PermissionError:
        if not is_new:
            raise
        os.chmod(name, 0o700, dir_fd=parent)  # the umask has removed the owner's rights
        folder = os.open(name, _FOLDER | _NO_LINK, dir_fd=parent)
    if is_new:
        with ignore_unsupported():
            os.fchmod(folder, 0o700)
    return folder, is_new


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder; return False if another process has it. Raises OSError."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# A root -------------------------------------------------------------------------------------------


class PinnedFolder:
    """Folder at *path* that must stay the same folder after its first use; *path* may be a link.

    Device and inode are compared each time the folder is opened, so that a link or another folder
    in its place is detected.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.real: str = ""  # path without links, after the folder was opened first
        self._identity: tuple[int, int] | None = None

    def open(self) -> int:
        """Open the folder; return its descriptor.

        Raises FileNotFoundError if it does not exist, RootError if it is another folder.
        """
        folder = os.open(self.path, _FOLDER)
        try:
            self._compare(folder)
        except OSError:
            os.close(folder)
            raise
        return folder

    def create(self) -> tuple[int, bool]:
        """Return a descriptor of the folder, and True if this call has created it.

        Raises RootError if another folder or a link is at the path, OSError if it cannot be
        created.
        """
        try:
            return self.open(), False
        except FileNotFoundError:
            pass
        if self.real and os.path.realpath(self.path) != self.real:
            raise self._replacement_error()
        folder, is_new = _enter_path(self.path)
        try:
            if is_new:
                self._pin(folder)
            self._compare(folder)
        except OSError:
            os.close(folder)
            raise
        return folder, is_new

    def _compare(self, folder: int) -> None:
        """Raise RootError if the open *folder* is another one than at the first access.

        The first folder that is compared is recorded.
        """
        if self._identity is None:
            self._pin(folder)
        if self._identity != _identity(folder):
            raise self._replacement_error()

    def _pin(self, folder: int) -> None:
        """Record the real path of the folder, and the device and inode of the open *folder*.

        A later access fails if another folder is at the path. Raises OSError.
        """
        self.real = os.path.realpath(self.path)
        self._identity = _identity(folder)

    def _replacement_error(self) -> RootError:
        """Return the error for another folder at the path of this one."""
        return RootError(
            errno.ESTALE,
            f"{self.path} is no longer the folder that it was at first: a link or another folder "
            "is in its place, and nothing was read or written there. Put the folder back, or make "
            "a new object for the new one",
        )


def _identity(folder: int) -> tuple[int, int]:
    """Return the device and inode of the open *folder*. Raises OSError."""
    info = os.fstat(folder)
    return info.st_dev, info.st_ino


def _enter_path(path: str) -> tuple[int, bool]:
    """Open the folder at *path*; create it and its parents if they are missing.

    Return its descriptor, and True if this call has created it.
    """
    above, name = os.path.split(path)
    try:
        parent = os.open(above, _FOLDER)
    except FileNotFoundError:
        parent, _ = _enter_path(above)
    try:
        return open_folder(name, parent, create=True)
    finally:
        os.close(parent)
