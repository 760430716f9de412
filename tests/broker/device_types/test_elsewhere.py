"""Device types that another node has changed."""

import pytest
import trio

from broker.cluster.kinds import TYPE_CHANGED
from broker.device_types.elsewhere import TypesElsewhere
from broker.facts import DeviceTypeChanged
from broker.services import Services
from storage.keys import DeviceTypeKey


async def test_a_type_that_changes_again_while_types_are_read_is_told_again(
    services: Services, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """Who hears of the first change may keep what was read before the second one."""
    news, router, catalog = services.core.news, services.core.router, services.device_types.catalog
    told, both, key = list[DeviceTypeKey](), trio.Event(), DeviceTypeKey(1)

    def note(fact: DeviceTypeChanged) -> None:
        told.append(fact.device_type)
        if len(told) == 2:
            both.set()

    router.subscribe(DeviceTypeChanged, note)
    known = catalog.reload

    async def reload() -> None:
        await known()
        if not told:
            news.heard_elsewhere((TYPE_CHANGED, key, None))

    monkeypatch.setattr(catalog, "reload", reload)
    await nursery.start(TypesElsewhere(catalog, news, router).read_forever)
    news.heard_elsewhere((TYPE_CHANGED, key, None))
    with trio.fail_after(10):
        await both.wait()
    assert told == [key, key]
