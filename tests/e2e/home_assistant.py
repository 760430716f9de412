"""Home Assistant without its pages: its core and its MQTT integration, for tests/e2e/test_home_assistant.py.

Run by the Python that has the package `homeassistant`, with the folder of its configuration, host, port, user and
password. It reads a line of JSON for each wish, the name of a function below and its arguments, and answers with one.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from homeassistant import bootstrap, config_entries, core, loader  # type: ignore[import-not-found]
from homeassistant.components.sensor.const import (  # type: ignore[import-not-found]
    DEVICE_CLASS_STATE_CLASSES,
    DEVICE_CLASS_UNITS,
)
from homeassistant.helpers import device_registry, entity_registry  # type: ignore[import-not-found]
from homeassistant.setup import async_setup_component  # type: ignore[import-not-found]

_T = TypeVar("_T")


def write_configuration(folder: Path, entry: dict[str, object]) -> None:
    storage = folder / ".storage"
    storage.mkdir(parents=True)
    (folder / "configuration.yaml").write_text("homeassistant:\n")
    document = {"version": 1, "minor_version": 5, "key": "core.config_entries", "data": {"entries": [entry]}}
    (storage / "core.config_entries").write_text(json.dumps(document))


async def started(folder: str, host: str, port: str, user: str, password: str) -> Any:
    entry: dict[str, object] = {
        "domain": "mqtt",
        "entry_id": "01JTRUNKLINE00000000000000",
        "title": "Trunkline",
        "version": 1,
        "minor_version": 2,
        "source": "user",
        "unique_id": None,
        "disabled_by": None,
        "options": {},
        "pref_disable_new_entities": False,
        "pref_disable_polling": False,
        "discovery_keys": {},
        "subentries": [],
        **dict.fromkeys(("created_at", "modified_at"), "2025-01-01T00:00:00+00:00"),
        "data": {"broker": host, "port": int(port), "username": user, "password": password, "discovery": True},
    }
    await asyncio.to_thread(write_configuration, Path(folder), entry)
    hass = core.HomeAssistant(folder)
    hass.config.skip_pip = True
    loader.async_setup(hass)
    hass.config_entries = config_entries.ConfigEntries(hass, {})
    await bootstrap.async_load_base_functionality(hass)
    assert await async_setup_component(hass, "homeassistant", {})
    hass.config.components |= {"http", "file_upload"}  # its pages, which MQTT has no use for
    assert await async_setup_component(hass, "mqtt", {})
    await hass.async_start()
    return hass


class Wishes:
    def __init__(self, hass: Any) -> None:
        self._hass = hass
        self._changed = asyncio.Event()
        for kind in ("state_changed", "device_registry_updated", "entity_registry_updated"):
            hass.bus.async_listen(kind, lambda _event: hass.loop.call_soon_threadsafe(self._changed.set))

    async def _when(self, read: Callable[[], _T | None]) -> _T:
        """The result of `read` once it is not None."""
        async with asyncio.timeout(40):
            while (found := read()) is None:
                await self._changed.wait()
                self._changed.clear()
            return found

    async def sensors(self, count: int) -> dict[str, list[Any]]:
        """By entity id the state, device class and unit of all sensors with a value, and whether Home Assistant has
        this unit and state class for the device class, once there are so many."""
        return await self._when(lambda: found if len(found := self._sensors()) >= count else None)

    def _sensors(self) -> dict[str, list[Any]]:
        found = {}
        for state in self._hass.states.async_all("sensor"):
            if state.state in {"unknown", "unavailable"}:
                continue
            device_class, unit, state_class = (
                state.attributes.get(name) for name in ("device_class", "unit_of_measurement", "state_class")
            )
            fits = device_class is None or (
                unit in DEVICE_CLASS_UNITS.get(device_class, {unit})
                and state_class in DEVICE_CLASS_STATE_CLASSES.get(device_class, {state_class})
            )
            found[state.entity_id] = [state.state, device_class, unit, fits]
        return found

    async def state(self, entity: str, value: str) -> str:
        """Returns once the entity has this state."""
        return await self._when(lambda: value if self._is(entity, value) else None)

    def _is(self, entity: str, value: str) -> bool:
        state = self._hass.states.get(entity)
        return state is not None and state.state == value

    async def call(self, domain: str, service: str, data: dict[str, Any]) -> None:
        await self._hass.services.async_call(domain, service, data, blocking=True)

    async def entities(self, identifier: str, name: str) -> list[str]:
        """The entities of a device, once it has this name."""
        return await self._when(lambda: self._entities(identifier, name))

    def _entities(self, identifier: str, name: str) -> list[str] | None:
        device = device_registry.async_get(self._hass).async_get_device({("mqtt", identifier)})
        if device is None or device.name != name:
            return None
        registry = entity_registry.async_get(self._hass)
        return sorted(one.entity_id for one in entity_registry.async_entries_for_device(registry, device.id))

    async def gone(self, identifier: str) -> bool:
        """Returns once there is no device with this identifier."""
        registry = device_registry.async_get(self._hass)
        return await self._when(lambda: True if registry.async_get_device({("mqtt", identifier)}) is None else None)


async def main(*arguments: str) -> None:
    hass = await started(*arguments)
    wishes = Wishes(hass)
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, *given = json.loads(line)
        sys.stdout.write(json.dumps(await getattr(wishes, name)(*given)) + "\n")
        sys.stdout.flush()
    await hass.async_stop(force=True)


asyncio.run(main(*sys.argv[1:]))
