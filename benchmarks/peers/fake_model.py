"""The model that writes every peer's summaries.

It is deterministic, in process, and as good as what it is given to read.

It answers with what a good summary would name: the paths, identifiers, hashes and numbers of its
prompt, the most frequent first, up to a fixed length. A peer that shows its summarizer less gets
less back. Standard library only: it runs inside each peer's own environment.
"""

from __future__ import annotations

import re
from collections import Counter
from time import perf_counter, process_time, sleep
from types import SimpleNamespace

__all__ = ["MAX_CHARS", "prompts", "reset", "spent", "summary"]

MAX_CHARS = 6_000

_NAME = re.compile(
    r"(?:https?://)?(?:[\w.@+~-]{1,80}/){1,12}[\w.@+-]{1,80}"  # a path
    r"|\b[\w-]{1,80}\.(?:py|go|ts|js|rs|java|md|json|ya?ml|toml|sh|txt|html|css)\b"  # a file
    r"|\b[0-9a-f]{7,40}\b|\b\d+(?:\.\d+)+\b|\b\d{3,12}\b"  # a hash, a version, a number
    r"|\b[A-Za-z][a-z0-9]+(?:[A-Z][A-Za-z0-9]+)+\b|\b[A-Za-z]\w*_\w+\b"  # an identifier
)

prompts: list[str] = []
"""What the model was asked since the last `reset`."""


spent = SimpleNamespace(seconds=0.0, processor=0.0, pause=0.0, asked=0)
"""What it took the model to answer since the last `reset`: a real one takes its time elsewhere.

*seconds* are by the clock, *processor* those of the processor.

With a *pause* it takes so many seconds longer. It was *asked* so often in this conversation.
"""


def reset() -> None:
    """Forget what was asked."""
    prompts.clear()
    spent.seconds = 0.0
    spent.processor = 0.0


def summary(prompt: str) -> str:
    """The summary that *prompt* asks for."""
    begun = perf_counter()
    processor_begun = process_time()
    prompts.append(prompt)
    spent.asked += 1
    sleep(spent.pause)
    named = Counter(match[0] for match in _NAME.finditer(prompt))
    lines, room = ["What matters so far:"], MAX_CHARS
    for name, _ in named.most_common():
        room -= len(name) + 3
        if room < 0:
            break
        lines.append(f"- {name}")
    spent.seconds += perf_counter() - begun
    spent.processor += process_time() - processor_begun
    return "\n".join(lines)
