"""Paths of POSIX systems and of Windows, as tools receive them.

The agent may work on another system than ctxpipe does, so the form of a path decides which it is.
"""

from __future__ import annotations

import posixpath
import re

# A drive, or a share of another computer.
_ROOTED = re.compile(r"[A-Za-z]:[\\/]|\\\\[\w.$-]+\\[\w.$-]")
# Each backslash comes before a name, or at the end. In a POSIX path it escapes a blank.
_RELATIVE = re.compile(r"[^\\/:\s][^\\/:]*(?:\\[^\\/:\s][^\\/:]*)*\\?")


def is_windows_path(path: str) -> bool:
    r"""Return True if *path* is one of Windows, such as ``C:\src\app.py`` or ``src\app.py``."""
    if _ROOTED.match(path):
        return True
    return "\\" in path and _RELATIVE.fullmatch(path) is not None


def is_rooted_windows_path(path: str) -> bool:
    r"""Return True if *path* begins with a drive, or with the name of another computer."""
    return _ROOTED.match(path) is not None


def is_absolute(path: str) -> bool:
    """Return True if *path* does not depend on a current folder."""
    return posixpath.isabs(path) or is_rooted_windows_path(path)


def split_path(path: str) -> tuple[str, str]:
    """Return the folder of *path*, with the separator at its end, and the name in it.

    The folder is "" if *path* has none. A separator at the end belongs to the name.
    """
    separators = "/\\" if is_windows_path(path) else "/"
    bare = path.rstrip(separators)
    end = 1 + max(bare.rfind(separator) for separator in separators)
    return path[:end], path[end:]


def path_segments(path: str) -> list[str]:
    """Return the names in *path*, without empty ones."""
    if is_windows_path(path):
        path = path.replace("\\", "/")
    return [segment for segment in path.split("/") if segment]
