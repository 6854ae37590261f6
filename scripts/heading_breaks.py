"""Let the headings of the reference break behind a dot. A hook of mkdocs.

A heading is an import path, such as "ctxpipe.adapters.anthropic.ctxpipe_middleware", which is wider
than a phone.
"""

from __future__ import annotations

import re

NAME = re.compile(r'(<span class="doc doc-object-name[^>]*>)([\w.]+)(?=</span>)')


def on_post_page(output: str, **_: object) -> str:
    """Return the HTML of a page with a break opportunity behind each dot of a heading's path."""
    return NAME.sub(lambda match: match[1] + match[2].replace(".", ".<wbr>"), output)
