"""Why a prompt was not read from the provider's cache: what was sent against what was billed."""

from ..prompt_cache.prompts import Sent
from .doctor import CacheDoctor
from .misses import Bill, CacheMiss, Cause, Tally, as_bill

__all__ = ["Bill", "CacheDoctor", "CacheMiss", "Cause", "Sent", "Tally", "as_bill"]
