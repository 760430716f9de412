"""Every block of the README and of docs/ is pasted into a shell on the demo, read by its program, or excused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.readme_calls import (
    answered,
    board,
    changed,
    every_page,
    exposed,
    first_steps,
    handed_over,
    model,
    own_topics,
    received,
    rule,
    scene,
    settings_load,
    shared,
    subscription_to_alarms,
    subscriptions,
    task,
    the_demo_is_short,
    try_it,
    update,
    update_by_coap,
    wanted,
    warned,
    watched,
)
from tests.e2e.readme_data import (
    asked_with_duckdb,
    brought,
    deleted,
    hook_secret,
    read_with_pandas,
    taken,
    topic_devices_load,
)
from tests.e2e.readme_gateway import BLOCKS, ROOT, Gateway, blocks, running_gateway
from tests.e2e.readme_machine import (
    administered,
    backed_up,
    checked,
    credentials,
    every_night,
    examined,
    labelled,
    manifests,
    money,
    planned,
    provisioned,
    restored,
    scraped,
    simulated,
    statistics,
    trial,
)
from tests.e2e.test_guides import GUIDES
from tests.programs import require_dtls, require_program
from tests.properties import in_ci

_PACKAGE: Final = "needs root and an editor; tests/e2e/test_deb.py installs the package in a root of its own"
_SECOND: Final = "needs a second machine; tests/e2e/test_forwarding.py has two stores"
#: Handlers of the blocks, in this order; a text says why a block is not run.
HANDLED: Final[Mapping[str, Callable[[Gateway, str], None] | str]] = {
    "README: Try it 1": "`make run` is the demo of this test",
    "README: Try it 2": try_it,
    "README: Install it on a gateway 1": _PACKAGE,
    "README: Contribute 1": "`make test` runs this test",
    "first-steps: Send and read 1": first_steps,
    "first-steps: Send and read 2": "for the reader's shell; the blocks of this test have the same variables",
    "first-steps: Send and read 3": wanted,
    "first-steps: Send and read 4": warned,
    "first-steps: The rules and the scene of the demo 1": answered,
    "first-steps: The rules and the scene of the demo 2": answered,
    "first-steps: Topics of your own 1": own_topics,
    "devices: MQTT 2": settings_load,
    "people: Sharing a device 1": shared,
    "people: Claiming a device by its label 1": labelled,
    "people: Handing a device over 1": handed_over,
    "my-data: Take it along 1": taken,
    "my-data: Take it along 2": asked_with_duckdb,
    "my-data: Take it along 3": read_with_pandas,
    "my-data: Bring it back 1": brought,
    "my-data: Delete a part 1": deleted,
    "topics-and-hooks: Shelly 1": topic_devices_load,
    "topics-and-hooks: ChirpStack and The Things Stack 1": hook_secret,
    "topics-and-hooks: ChirpStack and The Things Stack 2": topic_devices_load,
    "topics-and-hooks: Your own mapping 1": topic_devices_load,
    "applications: Applications 1": planned,
    "applications: Reading 1": every_page,
    "applications: Reading 2": answered,
    "applications: Changing 1": changed,
    "applications: Watching 1": watched,
    "applications: Subscriptions 1": received,
    "recipes: Prometheus 2": exposed,
    "applications: Subscriptions 2": subscriptions,
    "applications: Subscriptions 3": subscription_to_alarms,
    "device-management: Properties 1": board,
    "device-management: Tasks 1": task,
    "device-management: Firmware 1": update,
    "device-management: Firmware 2": update_by_coap,
    "rules-scenes-models: Rules 1": rule,
    "rules-scenes-models: Alarms 1": answered,
    "rules-scenes-models: Scenes 1": scene,
    "rules-scenes-models: Models 1": model,
    "provision-file: The provision file 1": "it is the file of the next block",
    "provision-file: The provision file 2": provisioned,
    "provision-file: Users 1": planned,
    "provision-file: Manifests 1": manifests,
    "devices: LWM2M 1": simulated,
    "trials-and-money: Trials 1": trial,
    "trials-and-money: Money 1": money,
    "operate/install: On Debian 1": _PACKAGE,
    "operate/install: On other systems with systemd 1": "needs root; tests/test_deploying.py runs it with DESTDIR",
    "operate/install: Configuration 1": checked,
    "operate/install: Configuration 2": settings_load,
    "operate/install: Secrets in the configuration 1": "adds a group and opens an editor",
    "operate/install: Administration 1": administered,
    "operate/tls-and-proxy: The certificate 1": credentials,
    "operate/tls-and-proxy: The certificate 2": settings_load,
    "operate/monitoring: Monitoring 1": scraped,
    "operate/monitoring: Statistics and audit 1": statistics,
    "operate/backup-upgrade: Backup 1": backed_up,
    "operate/backup-upgrade: Backup 2": every_night,
    "operate/backup-upgrade: Restore 1": restored,
    "operate/backup-upgrade: Upgrade 1": "needs an upgrade; tests/storage/test_upgrade.py makes one",
    "operate/backup-upgrade: From SQLite to PostgreSQL, and back 1": "tests/e2e/test_migrate_store.py copies a store",
    "operate/several-machines: The database 1": "makes a role; tests/postgresql.py makes the database",
    "operate/several-machines: The database 2": "makes a role; tests/protocols/cli/test_commands.py runs the demo so",
    "operate/several-machines: Both machines 1": settings_load,
    "operate/several-machines: Both machines 2": "needs root; tests/test_systemd.py checks the file",
    "operate/several-machines: Failover of the database 1": settings_load,
    "operate/several-nodes: Try it 1": "tests/cluster/test_demo.py runs the demo so",
    "operate/several-nodes: Try it 2": "makes a role",
    "operate/several-nodes: Try it 3": "tests/cluster/test_page.py runs it",
    "operate/several-nodes: Try it 4": "tests/cluster/test_page.py runs it",
    "operate/several-nodes: Try it 5": "tests/cluster/test_page.py runs it",
    "operate/upstream: Two machines 1": _SECOND,
    "operate/upstream: Two machines 2": _SECOND,
    "operate/upstream: Two machines 3": settings_load,
    "operate/upstream: Two machines 4": _SECOND,
    "operate/upstream: A broker of MQTT 1": settings_load,
    "operate/upstream: A broker of MQTT 2": "needs a broker elsewhere; tests/e2e/test_forwarding.py has one",
    "operate/troubleshooting: Doctor 1": examined,
}


def test_every_block_is_run_or_excused() -> None:
    assert HANDLED.keys() == BLOCKS.keys()


def test_every_document_with_blocks_is_in_a_list() -> None:
    """Of this test, of test_guides.py, or of a test of its own: test_mcp.py, test_own_devices.py."""
    found = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    with_blocks = {one for one in found if blocks((ROOT / f"docs/{one}.md").read_text(encoding="utf-8"))}
    handled = {name.partition(":")[0] for name in BLOCKS} | {*GUIDES, "assistants", "own-devices"}
    assert with_blocks <= handled


def test_a_block_is_found_below_its_heading() -> None:
    text = "# A\n```sh\none\n```\n```toml\n[two]\n```\n## B\n```sh\n# three\n```\n"
    found = [(block.name, block.language, block.code) for block in blocks(text)]
    assert found == [("A 1", "sh", "one\n"), ("A 2", "toml", "[two]\n"), ("B 1", "sh", "# three\n")]


@in_ci
@pytest.mark.timeout(600)
def test_the_blocks_do_what_the_documents_say(tmp_path: Path) -> None:
    require_dtls()
    require_program("curl")
    with running_gateway(tmp_path) as gateway:
        the_demo_is_short(gateway)
        for name, handle in HANDLED.items():
            if not isinstance(handle, str):
                handle(gateway, BLOCKS[name].code)
