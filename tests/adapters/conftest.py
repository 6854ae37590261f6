"""What the contract of all adapters asserts is shown as in any test."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("adapter_contract")
