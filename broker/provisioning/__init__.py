"""What an operator writes down becomes what there is: `trunkline provision` (design/interfaces.md)."""

from broker.provisioning.report import Generated, ProvisionReport
from broker.provisioning.service import Provisioning

__all__ = ["Generated", "ProvisionReport", "Provisioning"]
