"""A model of the provider's prompt cache, and the reasons why a prompt was not read from it."""

from .diagnostics import CacheDiagnostics
from .misses import CacheMiss, CacheUsage, Cause, Tally, cache_usage
from .prompts import SentRequest

__all__ = [
    "CacheDiagnostics",
    "CacheMiss",
    "CacheUsage",
    "Cause",
    "SentRequest",
    "Tally",
    "cache_usage",
]
