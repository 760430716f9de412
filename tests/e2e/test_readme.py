"""Every block of the README is pasted into a shell on the demo, read by the program that it is for, or excused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.readme_calls import (
    board,
    first_message,
    model,
    received,
    rule,
    scene,
    settings_load,
    subscriptions,
    task,
    update,
    what_the_demo_prints,
)
from tests.e2e.readme_gateway import BLOCKS, Gateway, blocks, running_gateway
from tests.e2e.readme_machine import (
    administered,
    backed_up,
    credentials,
    every_night,
    examined,
    installed,
    manifests,
    money,
    provisioned,
    restored,
    scraped,
    simulated,
    trial,
    watched,
)
from tests.programs import require_dtls, require_program

#: What is done with each block, in their order; a text says why nothing is.
HANDLED: Final[Mapping[str, Callable[[Gateway, str], None] | str]] = {
    "Two commands 1": "`make run` is the demo of this test; `make test` runs this test",
    "Two commands 2": "`make check` runs other tests",
    "The first message 1": first_message,
    "How devices speak to it 1": settings_load,
    "Messages that come to you 1": received,
    "Messages that come to you 2": subscriptions,
    "Managing devices 1": board,
    "Managing devices 2": task,
    "Managing devices 3": update,
    "Rules 1": rule,
    "Scenes and models 1": scene,
    "Scenes and models 2": model,
    "Describing a gateway 1": "it is the file of the next block",
    "Describing a gateway 2": provisioned,
    "Describing a gateway 3": manifests,
    "Describing a gateway 4": simulated,
    "Describing a gateway 5": trial,
    "Describing a gateway 6": money,
    "On a gateway 1": "needs root and an editor; tests/e2e/test_deb.py installs the package in a root of its own",
    "On a gateway 2": installed,
    "On a gateway 3": "adds a group and opens an editor: untried",
    "On a gateway 4": credentials,
    "On a gateway 5": settings_load,
    "On a gateway 6": watched,
    "On a gateway 7": administered,
    "Backup, upgrade, roll-back 1": backed_up,
    "Backup, upgrade, roll-back 2": every_night,
    "Backup, upgrade, roll-back 3": restored,
    "When something is wrong 1": examined,
    "Watching it 1": scraped,
}


def test_every_block_of_the_readme_is_run_or_excused() -> None:
    assert HANDLED.keys() == BLOCKS.keys()


def test_a_block_is_found_below_its_heading() -> None:
    text = "# A\n```sh\none\n```\n```toml\n[two]\n```\n## B\n```sh\n# three\n```\n"
    found = [(block.name, block.language, block.code) for block in blocks(text)]
    assert found == [("A 1", "sh", "one\n"), ("A 2", "toml", "[two]\n"), ("B 1", "sh", "# three\n")]


@pytest.mark.timeout(600)
def test_the_blocks_of_the_readme_do_what_it_says(tmp_path: Path) -> None:
    require_dtls()
    require_program("curl")
    with running_gateway(tmp_path) as gateway:
        what_the_demo_prints(gateway)
        for name, handle in HANDLED.items():
            if not isinstance(handle, str):
                handle(gateway, BLOCKS[name].code)
