"""Home Assistant without its pages: its core and its MQTT integration, for tests/e2e/test_home_assistant.py.

Run by the Python that has the package `homeassistant`, with the folder of its configuration, host, port, user and
password, and how many sensors it is to find. Prints one line of JSON: their values. Then it turns on `switch.lamp`.
"""

import asyncio
import json
import sys
from pathlib import Path

from homeassistant import bootstrap, config_entries, core, loader  # type: ignore[import-not-found]
from homeassistant.setup import async_setup_component  # type: ignore[import-not-found]


def write_configuration(folder: Path, entry: dict[str, object]) -> None:
    storage = folder / ".storage"
    storage.mkdir(parents=True)
    (folder / "configuration.yaml").write_text("homeassistant:\n")
    document = {"version": 1, "minor_version": 5, "key": "core.config_entries", "data": {"entries": [entry]}}
    (storage / "core.config_entries").write_text(json.dumps(document))


async def main(folder: str, host: str, port: str, user: str, password: str, sensors: str) -> None:
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

    def values() -> dict[str, str]:
        found = {state.entity_id: state.state for state in hass.states.async_all("sensor")}
        return {name: value for name, value in found.items() if value not in {"unknown", "unavailable"}}

    def has_all() -> bool:
        return len(values()) == int(sensors) and hass.states.get("switch.lamp") is not None

    changed = asyncio.Event()
    hass.bus.async_listen("state_changed", lambda _event: hass.loop.call_soon_threadsafe(changed.set))
    async with asyncio.timeout(60):
        while not has_all():
            await changed.wait()
            changed.clear()
    sys.stdout.write(json.dumps(values()))
    await hass.services.async_call("switch", "turn_on", {"entity_id": "switch.lamp"}, blocking=True)
    await hass.async_stop(force=True)


asyncio.run(main(*sys.argv[1:]))
