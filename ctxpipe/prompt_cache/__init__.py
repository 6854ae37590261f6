"""The provider's prompt cache: one model of it, and why a prompt was not read from it."""

from .diagnostics import CacheDiagnostics
from .misses import Bill, CacheMiss, Cause, Tally, as_bill
from .prompts import Sent

__all__ = ["Bill", "CacheDiagnostics", "CacheMiss", "Cause", "Sent", "Tally", "as_bill"]
