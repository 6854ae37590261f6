"""Why a prompt was not read from the provider's cache: what was sent against what was billed."""

from .doctor import CacheDoctor, Sent
from .misses import Bill, CacheMiss, Cause, Tally, as_bill

__all__ = ["Bill", "CacheDoctor", "CacheMiss", "Cause", "Sent", "Tally", "as_bill"]
