"""Results of the blocks of docs/ about one's own data, and about what comes over topics and hooks."""

import hashlib
import re
import shlex
from contextlib import chdir
from typing import Final

import duckdb

from broker.topic_devices.entries import entries_of
from config.loading import load_settings
from tests.e2e.readme_gateway import Gateway, documents, eventually

_ANY_PORT: Final = re.compile(r"(?m)^(trunkline (?:export|import)) ")


def taken(gateway: Gateway, code: str) -> None:
    """Both folders have a file of the lights, of which the first one is for the next blocks."""
    printed = _data(gateway, code).split()
    assert [one for one in printed if re.fullmatch(r"my-data/Smart-Light-[0-9a-z]+\.csv", one)], printed
    assert [one for one in printed if one.startswith("light/") and one.endswith(".jsonl")], printed


def asked_with_duckdb(gateway: Gateway, code: str) -> None:
    """The program comes from elsewhere; its library answers the same question."""
    program, option, question = shlex.split(code)
    assert (program, option) == ("duckdb", "-c")
    with chdir(gateway.folder), duckdb.connect() as db:
        found = dict(db.execute(question).fetchall())
    assert found["Your light"] > 0


def read_with_pandas(gateway: Gateway, code: str) -> None:
    found: dict[str, object] = {}
    with chdir(gateway.folder):
        exec(code, found)  # noqa: S102 - the example
    light = found["light"]
    assert str(light["time [UTC]"].dtype).startswith("datetime64")  # type: ignore[index]


def brought(gateway: Gateway, code: str) -> None:
    """All that was taken is there already; what was written by hand is stored once."""
    printed = _data(gateway, code)
    again, mine = re.findall(r"(?m)^\S+: (\d+) stored, (\d+) present, 0 wrong$", printed)
    assert again[0] == "0"
    assert int(again[1]) > 0
    assert mine == ("1", "0")
    (answer,) = documents(printed[printed.index("{") :])
    state = eventually(lambda: gateway.get(f"/messages/import/{answer['data']['id']}/status"), _has_ended)
    assert (state["stored"], state["present"]) == (0, 1)


def deleted(gateway: Gateway, code: str) -> None:
    (answer,) = gateway.answers(code)
    assert eventually(lambda: gateway.get(f"/messages/deletions/{answer['id']}"), _has_ended)["status"] == "Success"


def topic_devices_load(gateway: Gateway, code: str) -> None:
    file = gateway.folder / "part.toml"
    before = "" if "[mqtt]" in code else '[mqtt]\ntopics = "open"\n'
    file.write_text(f'state_dir = "/var/lib/trunkline"\n{before}{code}', encoding="utf-8")
    (entry,) = entries_of(load_settings(file, {}))
    assert f'name = "{entry.name}"' in code


def hook_secret(gateway: Gateway, code: str) -> None:
    shown, address = gateway.paste(code).splitlines()
    secret = address.rpartition("/")[2]
    assert shown.split()[0] == hashlib.sha256(secret.encode()).hexdigest()


def _data(gateway: Gateway, code: str) -> str:
    here = _ANY_PORT.sub(rf"\1 --url {gateway.url} ", code)
    return gateway.paste(here, TRUNKLINE_TOKEN=gateway.token)


def _has_ended(state: dict[str, object]) -> bool:
    return state["status"] != "InProgress"
