"""A device type whose devices register with certificates, besides those of `tests.factories`."""

import datetime as dt
from typing import Any, Final

from broker.services import Services
from tests.certificates import Authority
from tests.factories import LIGHT_MANIFEST, NOW_MS

NOW: Final = dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)
SECURE_TYPE: Final = "dt" + "5e" * 16


def secure_type(authority: Authority, **changes: Any) -> dict[str, Any]:
    """The type's entry in a provision file, with the contents of its `ca`."""
    return {
        "id": SECURE_TYPE,
        "unique_name": "example.secure_board",
        "name": "Secure Board",
        "organization": "Acme",
        "published": True,
        "rsp": True,
        "ca": authority.pem,
        "manifest": dict(LIGHT_MANIFEST),
    } | changes


async def provision_secure_type(services: Services, authority: Authority, **changes: Any) -> None:
    """Provision the type in the organization of `build_world`."""
    await services.provisioning.apply({"device_types": [secure_type(authority, **changes)]})
