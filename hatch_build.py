"""The page of the package index: the README, with links that work there.

In the README links are relative, as a clone and every host of repositories want them. The index
knows no repository: a link becomes absolute, below `Source` of `[project.urls]` in pyproject.toml,
the one place that names where the project is. Without it a link becomes its text and the name of
the file, which the source distribution has, and a picture goes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^]]*)\]\((?!https?:)([^)]+)\)\n*")
LABEL = r"\[((?:[^][]|\[[^]]*\])*)\]"  # one level of brackets inside
LINK = re.compile(LABEL + r"\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def index_page(readme: str, source: str | None) -> str:
    """*readme* with its relative links below *source*, or without them where that is None."""
    if source is None:
        return LINK.sub(r"\1 (\2)", PICTURE.sub("", readme))
    base = source.rstrip("/")
    readme = PICTURE.sub(rf"![\1]({base}/raw/main/\2)\n\n", readme)
    return LINK.sub(rf"[\1]({base}/blob/main/\2\3)", readme)


class IndexPage(MetadataHookInterface):
    """Makes the page when a wheel or an sdist is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set *metadata*'s readme."""
        readme = Path(self.root, "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": index_page(readme, source),
        }
