"""A hook of MkDocs that writes ``llms.txt``: the list of all pages, for language models.

The form is that of llmstxt.org: the site's name, its description, and for each section of the
navigation the pages with a link and their first sentence. Links are relative to the file, since
the project names no address of its site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

_descriptions: dict[str, str] = {}


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: object) -> None:
    """Remember the first sentence of *page*."""
    del config, files
    _descriptions[page.file.src_uri] = first_sentence(markdown)


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: object) -> None:
    """Remember the navigation."""
    del files
    config.extra["navigation"] = nav


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write ``llms.txt`` into the built site."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for heading, pages in sections(config.extra["navigation"]):
        lines += ["", f"## {heading}", ""]
        for page in pages:
            description = _descriptions[page.file.src_uri]
            entry = f"- [{page.title}]({page.file.dest_uri})"
            lines.append(f"{entry}: {description}" if description else entry)
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


def sections(navigation: Navigation) -> Iterator[tuple[str, list[Page]]]:
    """Yield each top section of *navigation* with its pages; a page alone is a section."""
    for item in navigation.items:
        if isinstance(item, Section):
            yield item.title, list(pages_below(item))
        elif isinstance(item, Page):
            yield str(item.title), [item]


def pages_below(section: Section) -> Iterator[Page]:
    """Yield the pages of *section* and of the sections in it, in their order."""
    for item in section.children:
        if isinstance(item, Section):
            yield from pages_below(item)
        elif isinstance(item, Page):
            yield item


def first_sentence(markdown: str) -> str:
    """Return the first sentence of *markdown* that follows its heading, without links."""
    for paragraph in re.split(r"\n\s*\n", markdown):
        text = " ".join(paragraph.split())
        if not text or text.startswith(("#", "<", "|", "```", "::", "!", "-")):
            continue
        text = re.sub(r"^\*\*[^*]+\*\*\s*", "", text)  # a label such as "**Decision.**"
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
        match = re.match(r".*?[.!?:](?=\s|$)", text)
        return (match.group() if match else text).rstrip(":")
    return ""
