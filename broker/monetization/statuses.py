"""Statuses of payments that operators act on."""

from typing import Final

REFUND_DUE: Final = "refund_due"  # paid, but the device cannot be upgraded any more
