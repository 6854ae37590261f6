"""Wrong set-ups are refused where they are made, in words that name the setting and the way out."""

from __future__ import annotations
