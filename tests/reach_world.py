"""A world for tests of reach (reference 4.7): devices of three types and three holders, and what Ada may have granted.

The expectations are computed here from the rules as the reference words them, not from `Reach`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

from broker.facts import GrantsChanged
from broker.services import Services
from storage.keys import DeviceTypeKey
from storage.records import GrantRecord
from storage.transaction import Transaction
from tests.factories import ADA_TOKEN, APPLICATION_TOKEN, BOB, LIGHT_MANIFEST, LIGHT_TYPE, World

Need = Literal["READ", "WRITE", "nothing"]
Place = tuple[str, str]  # the holder and the type of a device

#: Whose the device is, as Ada sees it.
HOLDERS: Final = ("own", "shared", "foreign")
#: Whose the type is, as Ada's application sees it.
TYPES: Final = ("ours", "theirs", "protected")
TYPE_IDS: Final = {"ours": LIGHT_TYPE, "theirs": "dt-theirs", "protected": "dt-protected"}
TOKENS: Final = {"user": ADA_TOKEN, "application": APPLICATION_TOKEN}

#: Ada's grants to her application: type, READ, WRITE. With `trials`, it manages her trials.
GRANTS: Final[Mapping[str, tuple[tuple[str, bool, bool], ...]]] = {
    "none": (),
    "own organization": (("sign-in", False, False),),
    "READ": (("theirs", True, False),),
    "WRITE": (("sign-in", False, False), ("theirs", False, True)),
    "READ and WRITE": (("theirs", True, True),),
    "* READ": (("*", True, False),),
    "* WRITE": (("*", False, True),),
    "*": (("*", True, True),),
    "protected": (("sign-in", False, False), ("protected", True, True)),
    "trials": (("trials", False, False),),
}
_THEIRS: Final[Mapping[str, frozenset[Need]]] = {
    "READ": frozenset({"READ"}),
    "WRITE": frozenset({"WRITE"}),
    "READ and WRITE": frozenset({"READ", "WRITE"}),
    "* READ": frozenset({"READ"}),
    "* WRITE": frozenset({"WRITE"}),
    "*": frozenset({"READ", "WRITE"}),
}


def is_granted(grants: str, type_: str, need: Need) -> bool:
    """Whether Ada granted her application this on devices of this type."""
    if need == "nothing" or grants == "none" or type_ == "protected":
        return need == "nothing"
    return type_ == "ours" or need in _THEIRS.get(grants, ())


@dataclass(frozen=True)
class ReachWorld:
    """The ids of the devices, and of one share of each: Ada's own, or one to Carol."""

    services: Services
    world: World
    types: Mapping[str, DeviceTypeKey]
    devices: Mapping[Place, str]
    shares: Mapping[Place, str]

    async def grant(self, grants: str) -> None:
        """Replace all that Ada granted her application."""
        user, application = self.world.ada, self.world.application

        def work(tx: Transaction) -> tuple[GrantRecord, ...]:
            tx.accounts.remove_grants(user, application)
            for one in GRANTS[grants]:
                tx.accounts.put_grant(self._record(*one))
            return tuple(tx.accounts.grants(application, user))

        fact = GrantsChanged(user, application, await self.services.core.database.write(work))
        self.services.core.router.publish(fact)

    def _record(self, type_: str, read: bool, write: bool) -> GrantRecord:
        key = None if type_ in {"sign-in", "*", "trials"} else self.types[type_]
        return GrantRecord(self.world.ada, self.world.application, key, read, write, trials=type_ == "trials")

    def readable(self, grants: str, *holders: str) -> set[str]:
        """The ids of the devices of these holders that Ada's application may read."""
        return {
            id_
            for (holder, type_), id_ in self.devices.items()
            if holder in holders and is_granted(grants, type_, "READ")
        }


#: Each kind of grant with each kind of token.
CASES: Final = tuple(product(GRANTS, TOKENS))


async def build_reach_world(services: Services, world: World) -> ReachWorld:
    """Beta owns two types that are foreign to Ada's application. Bob granted Ada's application nothing."""
    ids = {place: f"{0xD0 + number:032x}" for number, place in enumerate(product(HOLDERS, TYPES))}
    await services.provisioning.apply(
        {
            "organizations": [{"name": "Beta"}],
            "users": [{"email": "carol@example.org", "password": "correct horse battery staple"}],
            "device_types": [
                {
                    "id": TYPE_IDS[name],
                    "unique_name": f"example.{name}",
                    "organization": "Beta",
                    "published": True,
                    "protected": name == "protected",
                    "manifest": LIGHT_MANIFEST,
                }
                for name in ("theirs", "protected")
            ],
            "devices": [
                {
                    "id": id_,
                    "owner": "ada@example.org" if holder == "own" else BOB,
                    "type": TYPE_IDS[type_],
                    "name": f"{holder} {type_}",
                }
                for (holder, type_), id_ in ids.items()
            ],
            "shares": [
                {"device": id_, "with": "ada@example.org"} for (holder, _), id_ in ids.items() if holder == "shared"
            ],
        }
    )
    shares = {}
    for (holder, type_), id_ in ids.items():
        device = await services.devices.registry.find(id_)
        if holder == "shared":
            share = await services.devices.shares.accepted_by(world.ada, device)
        else:
            share = await services.devices.shares.offer(device, email="carol@example.org")
        assert share is not None
        await services.devices.transfers.offer(
            device, email="ada@example.org" if holder == "shared" else "carol@example.org"
        )
        shares[holder, type_] = share.id
    types = {name: (await services.device_types.catalog.find(id_)).key for name, id_ in TYPE_IDS.items()}
    return ReachWorld(services, world, types, ids, shares)
