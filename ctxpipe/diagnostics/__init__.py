"""Diagnostics of a conversation: why the prompt cache missed, and signs of trouble.

`observers` follow the requests and replies of a session; the modules named ``*_watch`` are the
observers of ctxpipe. `findings` has what they find, as `Session.diagnostics` returns it.

The other modules model the prompt cache of a provider. `prompts` reads a request as the cache sees
it, `prompt_cache` knows which prefixes can be read, `differences` compares two prompts, and
`cache_audit` compares the reported usage with what should have been read; the rest are `misses`.
"""

from __future__ import annotations

from .findings import Diagnostics, Signals
from .misses import CacheMiss, Cause, Tally

__all__ = ["CacheMiss", "Cause", "Diagnostics", "Signals", "Tally"]
