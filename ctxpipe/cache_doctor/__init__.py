"""Why a prompt was not read from the provider's cache: what was sent against what was billed."""

from .bills import as_bill
from .doctor import CacheDoctor, Sent
from .misses import Bill, CacheMiss, Cause, Tally

__all__ = ["Bill", "CacheDoctor", "CacheMiss", "Cause", "Sent", "Tally", "as_bill"]
