"""Results of the blocks of docs/ that describe, run and watch a gateway."""

import json
import re
import tomllib
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from config.loading import load_settings
from tests.e2e.readme_calls import GARDEN
from tests.e2e.readme_gateway import BLOCKS, ROOT, Gateway, documents, eventually
from tests.postgresql import ENGINE, STATES

yaml: Any = import_module("yaml")  # of amqtt, without types
MORE: Final = """
[[device_types]]
unique_name = "example.meter"
organization = "example"
manifest = { fields = [{ name = "temperature", valueClass = "Double" }] }
"""
METER: Final = {
    "fields": [{"name": "temperature", "valueClass": "Double"}],
    "transform": {"format": "csv", "columns": ["temperature"]},
}
PLAN: Final = {
    "tiers": [{"type": "free", "name": "Free", "messageLimit": 2}, {"type": "paid", "name": "Plus", "cost": "4.99"}]
}


def provisioned(gateway: Gateway, code: str) -> None:
    """With a device type more, which the pages use in other examples."""
    (gateway.folder / "gateway.toml").write_text(
        BLOCKS["provision-file: The provision file 1"].code + MORE, encoding="utf-8"
    )
    (gateway.folder / "trunkline.toml").write_text(gateway.config.read_text(encoding="utf-8"), encoding="utf-8")
    assert "Lamp" in gateway.paste(code)


def planned(gateway: Gateway, code: str) -> None:
    """A part of a provision file, which a run would apply."""
    (gateway.folder / "part.toml").write_text(code, encoding="utf-8")
    assert "created" in gateway.paste(f"trunkline provision part.toml --config {gateway.config} --dry-run")


def manifests(gateway: Gateway, code: str) -> None:
    (gateway.folder / "meter.json").write_text(json.dumps(METER), encoding="utf-8")
    gateway.paste(code, **gateway.state)
    found = gateway.get("/devicetypes/example.meter")
    assert found["latestVersion"] == 2


def simulated(gateway: Gateway, code: str) -> None:
    address, device = gateway.said(r"LWM2M \(DTLS\) (\S+)"), gateway.variables["DEVICE"]
    with gateway.begun(code.replace("127.0.0.1:5686", address)):
        online = {"availability": "online"}
        found = eventually(
            lambda: gateway.get(f"/devices/{device}/status"), lambda status: online.items() <= status.items()
        )
        assert online.items() <= found.items()


def trial(gateway: Gateway, code: str) -> None:
    create, token = code.splitlines()
    (made,) = gateway.answers(create)
    (answer,) = documents(gateway.paste(token, AID=made["aid"], CLIENT_SECRET=made["clientSecret"]))
    assert answer["token_type"] == "bearer"


def money(gateway: Gateway, code: str) -> None:
    listed, approve, payments, accept, refunded = code.splitlines()
    gateway.post("/pricing/devicetypes/example.meter/pricingtiers", PLAN)
    assert "Plus: 4.99" in gateway.paste(listed, **gateway.state)
    gateway.paste(approve, **gateway.state)
    owner, type_ = gateway.get("/users/self")["id"], gateway.get("/devicetypes/example.meter")["id"]
    device = gateway.post("/devices", {"uid": owner, "dtid": type_, "name": "Meter"})["id"]
    press_button(gateway, device)
    reference = gateway.paste(payments, **gateway.state).split()[0]
    gone = httpx.delete(f"{gateway.url}/v1.1/devices/{device}", headers={"Authorization": f"bearer {gateway.token}"})
    assert gone.status_code == 200
    assert "refund_due" in gateway.paste(accept.replace("<reference>", reference), **gateway.state)
    assert "to be refunded" in gateway.paste(payments, **gateway.state)
    assert gateway.paste(refunded.replace("<reference>", reference), **gateway.state).split()[-1] == "refunded"


def press_button(gateway: Gateway, device: str) -> None:
    """The form of the page at which its owner upgrades a device."""
    address = gateway.get(f"/pricing/devices/{device}/revenueshare/upgradepath")["url"]
    form = {"token": urlsplit(address).query.partition("=")[2], "redirect_uri": "http://localhost/"}
    assert httpx.post(address.partition("?")[0], data=form).status_code == 302


def checked(gateway: Gateway, code: str) -> None:
    gateway.paste(code)


def credentials(_gateway: Gateway, code: str) -> None:
    """The credentials of the unit are the ones that the next block names."""
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(code)
    names = re.findall(r"(?m)^LoadCredential=([^:]+):/", code)
    tls = tomllib.loads(BLOCKS["operate/tls-and-proxy: The certificate 2"].code)["tls"]
    assert unit.sections() == ["Service"]
    assert {f"/run/credentials/trunkline.service/{name}" for name in names} == set(tls.values())


def statistics(gateway: Gateway, code: str) -> None:
    counters, audit, history, tail = code.splitlines()
    assert "edges" in (shown := gateway.paste(counters))
    assert "name edge, " in shown  # the edge of the demo
    assert "provisioned" in gateway.paste(audit)
    token = f"TRUNKLINE_TOKEN={gateway.token}"
    history = history.replace("TRUNKLINE_TOKEN=…", token).replace("<device id>", GARDEN)
    assert "temperature" in gateway.paste(f"{history} --url {gateway.url}")
    live, comment = f"--live ws{gateway.url[4:]}/v1.1/live", tail.index("#")
    with gateway.begun(f"{tail[:comment].replace('TRUNKLINE_TOKEN=…', token)} {live}") as printed:
        assert printed.readline().strip()


def administered(gateway: Gateway, code: str) -> None:
    printed = gateway.paste(code)
    for said in ("Your light", "ada@example.org"):
        assert said in printed


def labelled(gateway: Gateway, code: str) -> None:
    head, *devices = gateway.paste(code, **gateway.state).splitlines()
    assert head == "id,name,type,token,code,link"
    assert [line.split(",")[1] for line in devices] == ["Lamp 1", "Lamp 2"]
    assert (gateway.folder / "labels.svg").read_text(encoding="utf-8").count("<path") == 2


def backed_up(gateway: Gateway, code: str) -> None:
    gateway.paste(code)
    assert (gateway.root / "root/trunkline.tar.gz").stat().st_mode & 0o777 == 0o600


def every_night(gateway: Gateway, code: str) -> None:
    gateway.paste(code)
    made = (gateway.root / "var/lib/private/trunkline-backups").iterdir()
    assert [path.suffixes for path in made] == [[".tar", ".gz"]]


def restored(gateway: Gateway, code: str) -> None:
    """The daemon that is started afterwards has what was there before."""
    before = gateway.get(f"/messages/last?sdids={gateway.variables['DEVICE']}")
    stop, *others = code.splitlines()
    gateway.paste(stop)
    if ENGINE == "postgresql":  # the store does not go away with the state directory
        STATES.empty(gateway.state_dir)
    gateway.paste("\n".join(others))
    address = re.search(r" http=(\S+)", (gateway.folder / "ready").read_text(encoding="utf-8"))
    assert address is not None
    url = f"http://{address[1]}/v1.1/messages/last?sdids={gateway.variables['DEVICE']}"
    after = httpx.get(url, headers={"Authorization": f"bearer {gateway.token}"}).raise_for_status().json()["data"]
    assert after == before


def examined(gateway: Gateway, code: str) -> None:
    """Its exit status says whether there is something to do, which depends on the machine."""
    printed = gateway.paste(f"set +e\n{code}true")
    assert re.search(r"(?m)^daemon +ok: runs as process", printed)
    assert re.search(r"(?m)^store +ok: ", printed)


def scraped(_gateway: Gateway, code: str) -> None:
    (job,) = yaml.safe_load(code)["scrape_configs"]
    (rules,) = yaml.safe_load(code)["rule_files"]
    http = load_settings(ROOT / "config/example.toml", {}).http.bind
    assert job["static_configs"] == [{"targets": [str(http)]}]
    assert (ROOT / "config/prometheus" / Path(rules).name.removeprefix("trunkline-")).exists()
    assert f'job="{job["job_name"]}"' in (ROOT / "config/prometheus/alerts.yml").read_text(encoding="utf-8")
