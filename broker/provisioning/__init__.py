"""`trunkline provision`: creating and updating what a provision file describes (reference 26)."""

from broker.provisioning.report import Generated, ProvisionReport

__all__ = ["Generated", "ProvisionReport"]
