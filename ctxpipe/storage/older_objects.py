"""Texts in an object store, as development versions until November 2026 stored them.

```text
<session>/names/<name>       JSON with the SHA-256 of a text
<session>/texts/<SHA-256>    the text, once for all names that it has
```

They can be read, and are never overwritten. New texts are stored as `objects` says.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re

from .._threads.threads import in_thread
from ..errors import StorageError
from .buckets import Bucket
from .generations import remember

NAMES = "names"
_SHA256 = re.compile("[0-9a-f]{64}")


class OlderTexts:
    """The texts of this layout in *bucket*.

    A text is found by its *folder*, the prefix of the objects of its session, and its *name*.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._folders: dict[str, bool] = {}

    async def exist(self, folder: str) -> bool:
        """Return True if the session has such texts. Asks the store once for each session.

        Raises StorageError.
        """
        if folder not in self._folders:
            has_names = False
            async for _ in self._bucket.list(f"{folder}/{NAMES}/"):
                has_names = True
                break
            remember(self._folders, folder, has_names)
        return self._folders.get(folder, False)

    async def digest(self, folder: str, name: str) -> str | None:
        """Return the SHA-256 of the text with this name, None if there is none.

        Raises StorageError if the store fails, or if the object was changed.
        """
        content = await self._bucket.get(f"{folder}/{NAMES}/{name}")
        if content is None:
            return None
        try:
            digest = str(json.loads(content)["text"])
        except (ValueError, TypeError, LookupError) as error:
            raise StorageError(errno.EILSEQ, f"{folder}/{name} was changed") from error
        if not is_digest(digest):
            raise StorageError(errno.EILSEQ, f"{folder}/{name} was changed")
        return digest

    async def read(self, folder: str, name: str) -> str | None:
        """Return the text with this name, None if there is none.

        Raises StorageError if the store fails, or if the text was changed.
        """
        digest = await self.digest(folder, name)
        if digest is None:
            return None
        content = await self._bucket.get(f"{folder}/texts/{digest}")
        if content is None:
            return None
        actual_digest = await in_thread(lambda: hashlib.sha256(content).hexdigest())
        if actual_digest != digest:
            raise StorageError(errno.EILSEQ, f"{folder}/{name} was changed")
        return content.decode()

    async def has(self, folder: str, name: str) -> bool:
        """Return True if there is a text with this name. Raises StorageError."""
        digest = await self.digest(folder, name)
        if digest is None:
            return False
        return await self._bucket.head(f"{folder}/texts/{digest}") is not None


def is_digest(name: str) -> bool:
    """Return True if *name* is that of a text in this layout."""
    return _SHA256.fullmatch(name) is not None
