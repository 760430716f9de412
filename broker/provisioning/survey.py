"""What the store has and the provision file does not name: provisioning never removes anything (reference 26.3)."""

from typing import Final

from broker.provisioning.run import ProvisioningRun
from storage.provision_marks import NAMED_TABLES

#: Of one table.
_LISTED_MAX: Final = 1_000


def not_in_file(run: ProvisioningRun) -> dict[str, list[str]]:
    """By table: the names of objects for which no entry of this run stands."""
    found = {
        table: [
            name
            for identity, name in run.tx.provision_marks.all_named(table, limit=_LISTED_MAX)
            if not run.has_seen(table, identity)
        ]
        for table in NAMED_TABLES
    }
    return {table: names for table, names in found.items() if names}
