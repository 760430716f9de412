"""What an operator writes down becomes what there is: `trunkline provision` (reference 26)."""

from broker.provisioning.report import Generated, ProvisionReport
from broker.provisioning.service import Provisioning

__all__ = ["Generated", "ProvisionReport", "Provisioning"]
