"""Files and folders below a root that stays the same: no link is followed, nothing waits."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..errors import SettingsError, StorageError

try:
    import fcntl
except ImportError:  # Windows, where a LocalStorage refuses
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
"""Real errors. Any other answer to link, chmod or fsync means that this file system has no such
call: file systems disagree about the number (EPERM, ENOTSUP, ENOSYS, EINVAL, EACCES, …)."""

_RELATIVE_CALLS = {"open", "mkdir", "stat", "link", "rename", "unlink", "rmdir"}

# Windows lacks them; there `check_platform` refuses a storage, but the package can be imported.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_WAIT


class RootError(StorageError):
    """The root must not be used: another folder is in its place, or its form is too new."""


def check_platform(what: str) -> None:
    """Raise SettingsError where *what* cannot keep its promises."""
    relative = {call.__name__ for call in os.supports_dir_fd}
    if not (_NO_LINK and relative >= _RELATIVE_CALLS):
        raise SettingsError(
            f"{what} needs Linux or macOS: this system cannot open files relative to a folder "
            "without following links. On Windows run under WSL, or give a storage of your own (see "
            "TextWriter and Archive)"
        )


# Errors -------------------------------------------------------------------------------------------


@contextmanager
def translate_errors(failure: str) -> Iterator[None]:
    """Turn the operating system's errors into StorageError, once, with the cause.

    *failure* says what cannot be done, such as "cannot read a.md".
    """
    try:
        yield
    except StorageError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        number = getattr(error, "errno", None) or errno.EIO
        raise StorageError(number, f"{failure}: {reason}") from error


class ignore_absent(suppress):  # noqa: N801  used as `suppress` is
    """Ignore that a file or folder is not there."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, OSError) and error.errno == errno.ENOENT


@contextmanager
def ignore_unsupported() -> Iterator[None]:
    """Ignore that this file system has no modes, or cannot sync; real errors are raised."""
    try:
        yield
    except OSError as error:
        if error.errno in FAULTS:
            raise


# Opening ------------------------------------------------------------------------------------------


def open_file(name: str, flags: int, *, folder: int | None = None) -> int:
    """A descriptor of the regular file *name*; opening it never waits.

    A file that *flags* create is private. In an open *folder* no link is followed; without one
    *name* is a path that the caller gave. Raises OSError, also for a folder, pipe, device or
    socket.
    """
    with suppress(FileNotFoundError):
        # Before it is opened, because opening a device may have effects.
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
    """What `os.stat` says about *name*, in an open *folder* or a path, or about such a link."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def has_name(descriptor: int, name: str, *, folder: int | None = None) -> bool:
    """Whether an open file or folder still has this *name*, in an open *folder* or as a path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(file_info(folder, name), os.fstat(descriptor))
    return False


def is_file(folder: int, name: str) -> bool:
    """Whether *name* in an open *folder* is a regular file."""
    with suppress(OSError, ValueError):  # a name with a lone surrogate is a ValueError
        return stat.S_ISREG(file_info(folder, name).st_mode)
    return False


def regular_files(
    folder: int, is_wanted: Callable[[str], bool] = bool
) -> Iterator[tuple[str, os.stat_result]]:
    """The regular files in an open *folder*, links left out, whose names *is_wanted*."""
    # Not entry by entry: whoever else lists this descriptor would set it back to the first one.
    for name in filter(is_wanted, os.listdir(folder)):
        with suppress(FileNotFoundError):  # removed meanwhile
            info = file_info(folder, name)
            if stat.S_ISREG(info.st_mode):
                yield name, info


def _refuse_special(info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, no regular file")
    if stat.S_ISLNK(info.st_mode):
        return  # a link fails when it is opened
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")


def enter_folder(name: str, parent: int, *, create: bool = False) -> tuple[int, bool]:
    """A descriptor of the folder *name* in *parent*, and whether this call has made it.

    A folder that is made is private. Raises OSError, also for a link.
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
        os.chmod(name, 0o700, dir_fd=parent)  # the umask removed the owner's rights, too
        folder = os.open(name, _FOLDER | _NO_LINK, dir_fd=parent)
    if is_new:
        with ignore_unsupported():
            os.fchmod(folder, 0o700)
    return folder, is_new


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder; False when that must wait. Raises OSError."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# A root -------------------------------------------------------------------------------------------


class PinnedFolder:
    """The folder at *path*, which may be a link at first, and which must stay the same folder.

    Device and inode are compared each time it is opened: nobody can put a link, or another folder,
    in its place without being noticed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.real: str = ""  # where the folder was when it was first opened, links resolved
        self._identity: tuple[int, int] | None = None

    def open(self) -> int:
        """A descriptor of the folder.

        Raises FileNotFoundError where there is none, RootError when it is another.
        """
        folder = os.open(self.path, _FOLDER)
        try:
            self._compare(folder)
        except OSError:
            os.close(folder)
            raise
        return folder

    def create(self) -> tuple[int, bool]:
        """A descriptor of the folder, and whether this call has made it."""
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
        if self._identity is None:
            self._pin(folder)
        if self._identity != _identity(folder):
            raise self._replacement_error()

    def _pin(self, folder: int) -> None:
        self.real = os.path.realpath(self.path)
        self._identity = _identity(folder)

    def _replacement_error(self) -> RootError:
        return RootError(
            errno.ESTALE,
            f"{self.path} is no longer the folder that it was at first: a link or another folder "
            "is in its place, and nothing was read or written there. Put the folder back, or make "
            "a new object for the new one",
        )


def _identity(folder: int) -> tuple[int, int]:
    info = os.fstat(folder)
    return info.st_dev, info.st_ino


def _enter_path(path: str) -> tuple[int, bool]:
    """A descriptor of the folder at *path*, made with those above it, and whether it is new."""
    above, name = os.path.split(path)
    try:
        parent = os.open(above, _FOLDER)
    except FileNotFoundError:
        parent, _ = _enter_path(above)
    try:
        return enter_folder(name, parent, create=True)
    finally:
        os.close(parent)
