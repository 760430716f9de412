"""Any sequence of offers, answers and removals of a share gives the permissions of a simple model."""

from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.accounts.permissions import Permission
from broker.devices.shares import ANSWERS, ShareStatus
from broker.errors import Conflict, DomainError, NotFound, PermissionDenied
from broker.facts import SharesChanged
from broker.mail.kinds import DeviceShareInvitation
from broker.services import Services
from storage.records import ShareRecord
from tests.builders import opener_in
from tests.factories import BOB_TOKEN, KITCHEN, build_world
from tests.properties import examples

pytestmark = pytest.mark.slow


STEPS = st.lists(st.sampled_from(["offer", "accept", "reject", "stranger", "owner removes", "delete"]), max_size=12)


class Model:
    """The expected status of the share, and the expected number of facts."""

    def __init__(self) -> None:
        self.status: ShareStatus | None = None
        self.told = 0

    def expects(self, step: str) -> type[DomainError] | None:
        """The expected refusal of a step; without one, the model takes the step."""
        match step:
            case "offer":
                if self.status in {ShareStatus.PENDING, ShareStatus.ACCEPTED}:
                    return Conflict
                self.status = ShareStatus.PENDING
            case "accept" | "reject":
                wanted = ShareStatus.ACCEPTED if step == "accept" else ShareStatus.REJECTED
                if self.status is None:
                    return NotFound
                if wanted not in ANSWERS[self.status]:
                    return Conflict
                self.told += wanted is ShareStatus.ACCEPTED is not self.status
                self.status = wanted
            case "stranger":
                return NotFound if self.status is None else PermissionDenied
            case "owner removes":
                if self.status is None:
                    return NotFound
                self.told += self.status is ShareStatus.ACCEPTED
                self.status = None
        return None


async def follow(services: Services, steps: list[str]) -> None:
    world = await build_world(services.core.database, services.core.vault)
    device = await services.devices.registry.find(KITCHEN)
    reach = await services.accounts.permissions.reach(await services.accounts.tokens.caller(BOB_TOKEN))
    told: list[SharesChanged] = []
    services.core.router.subscribe(SharesChanged, told.append)
    model, share = Model(), ShareRecord("ff" * 16, device.key, "", None, "PENDING", 0)
    for step in steps:
        if step == "delete":
            await services.devices.inventory.delete(device)
            assert not reach.allows(device, Permission.READ)
            return
        refusal = model.expects(step)
        try:
            match step:
                case "offer":
                    share = await services.devices.shares.offer(device, email="bob@example.org")
                case "accept":
                    share = await services.devices.shares.answer(share.id, world.bob, ShareStatus.ACCEPTED)
                case "reject":
                    share = await services.devices.shares.answer(share.id, world.bob, ShareStatus.REJECTED)
                case "stranger":
                    await services.devices.shares.answer(share.id, world.ada, ShareStatus.ACCEPTED)
                case "owner removes":
                    await services.devices.shares.remove(share.id)
        except DomainError as error:
            assert type(error) is refusal, step  # noqa: PT017 - refusals are what is tested
        else:
            assert refusal is None, step
        accepted = model.status is ShareStatus.ACCEPTED
        assert reach.allows(device, Permission.READ) is reach.allows(device, Permission.WRITE) is accepted
        assert not reach.allows(device, Permission.MANAGE)
        assert device.record == await services.core.database.read(lambda tx: tx.devices.device(device.key))
        assert len(told) == model.told


async def run(folder: Path, steps: list[str]) -> None:
    async with opener_in(folder)() as services:
        await follow(services, steps)


def test_any_history_of_a_share_matches_the_model(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = DeviceShareInvitation.per_recipient._replace(minute=100)  # mails are not what is tested
    monkeypatch.setattr(DeviceShareInvitation, "per_recipient", often)

    @settings(max_examples=examples(40), deadline=None)
    @given(STEPS)
    def check(steps: list[str]) -> None:
        trio.run(run, tmp_path_factory.mktemp("share"), steps)

    check()
