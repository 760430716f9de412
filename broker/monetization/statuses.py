"""Statuses of payments that operators act on. The commands of operators import no more than this (test_imports.py)."""

from typing import Final

REFUND_DUE: Final = "refund_due"  # paid, but the device cannot be upgraded any more
