"""What the blocks of the README about messages, devices, rules, scenes and models do."""

import json
import re
import tomllib
from typing import Final

from config.settings import load_settings
from tests.e2e.readme_gateway import BLOCKS, Gateway, documents, eventually
from tests.programs import require_program


def first_message(gateway: Gateway, code: str) -> None:
    require_program("mosquitto_pub")
    *lines, tail = code.splitlines()
    sent, found, action = gateway.answers("\n".join(lines))
    assert (sent["mid"], found[0]["data"]) == (found[0]["mid"], {"state": True, "intensity": 80})
    assert action["mid"]
    assert gateway.get(f"/messages/last?sdids={gateway.variables['DEVICE']}")[0]["data"]["intensity"] == 40
    with gateway.begun(tail) as printed:
        assert json.loads(printed.readline())["sdid"]


def what_the_demo_prints(gateway: Gateway) -> None:
    """ "`make run` prints these lines", and more of them."""
    lines = [line.strip() for line in gateway.printed.splitlines() if line.startswith("  ")]
    commands = [line for line in lines if re.match(r"(TRUNKLINE_\S+ )?(curl|mosquitto_[ps]ub|\S*trunkline) ", line)]
    endless = [line for line in commands if re.search(r" (tail|receive) ", line)]
    explained = [line for line in commands if " rule explain " in line]
    curls = [line for line in commands if line.startswith("curl ")]
    assert (len(commands), len(endless), len(explained), len(curls)) == (16, 2, 2, 9)
    assert all(gateway.answers("\n".join(curls)))
    gateway.paste("\n".join(line for line in commands if line not in (*curls, *endless)))


def settings_load(gateway: Gateway, code: str) -> None:
    file = gateway.folder / "part.toml"
    file.write_text(f'state_dir = "/var/lib/trunkline"\n{code}', encoding="utf-8")
    load_settings(file, {})


def received(gateway: Gateway, code: str) -> None:
    with gateway.begun(code.replace("9000", "0")) as printed:
        assert json.loads(printed.readline())["data"]


def subscriptions(gateway: Gateway, code: str) -> None:
    create, listed, failed, replayed = code.splitlines()
    nowhere = create.replace("https://app.example.org", "http://localhost:1")  # no test leaves the machine
    assert nowhere != create
    (made,) = gateway.answers(nowhere)
    application = gateway.paste("trunkline token new --app Demo", **gateway.state).split()[-1]
    with gateway.begun(BLOCKS["Messages that come to you 1"].code.replace("9000", "0")) as printed:
        assert printed.readline()
        (known,) = gateway.answers(listed, APPLICATION_TOKEN=application)
        (active,) = [one["id"] for one in known if one["id"] != made["id"]]
        gateway.answers(failed, SUBSCRIPTION=active)
        first, *_ = eventually(lambda: gateway.get(f"/subscriptions/{active}/deliveries?status=DELIVERED"), bool)
        (again,) = gateway.answers(replayed, SUBSCRIPTION=active, NOTIFICATION=first["id"])
        assert again


_PLACEHOLDER: Final = "URL=http://127.0.0.1:8080 TOKEN=…"


def board_names(gateway: Gateway) -> str:
    """What the first block about devices sets for those after it."""
    code = BLOCKS["Managing devices 1"].code
    assert code.startswith(_PLACEHOLDER + "\n")
    return "\n".join(code.splitlines()[1:2]) + "\n"


def board_of(gateway: Gateway) -> str:
    return gateway.said(r"Workshop board +([0-9a-f]{32})")


def firmware(gateway: Gateway) -> str | None:
    properties = gateway.get(f"/devicemgmt/devices/{board_of(gateway)}/properties")
    found: str | None = properties["deviceProperties"].get("device", {}).get("firmwareVersion")
    return found


def succeeds(gateway: Gateway, task: str) -> None:
    def statuses() -> list[str]:
        return [entry["status"] for entry in gateway.get(f"/devicemgmt/tasks/{task}/statuses")["statuses"]]

    assert eventually(statuses, lambda found: found in (["SUCCEEDED"], ["FAILED"])) == ["SUCCEEDED"]


def board(gateway: Gateway, code: str) -> None:
    assert eventually(lambda: firmware(gateway), lambda found: found == "1.0.0") == "1.0.0"
    properties, _, found = gateway.answers(code.replace(_PLACEHOLDER, ""))
    connection = properties["systemProperties"]["connection"]
    assert (connection["connected"], connection["protocol"]) == (True, "LWM2M")
    assert (found["total"], found["properties"][0]["serverProperties"]) == (1, {"site": {"floor": "3"}})
    assert f"BOARD={board_of(gateway)} " in code


def task(gateway: Gateway, code: str) -> None:
    (made,) = gateway.answers(board_names(gateway) + code)
    succeeds(gateway, made["id"])
    properties = gateway.get(f"/devicemgmt/devices/{board_of(gateway)}/properties")
    assert properties["deviceProperties"]["device"]["utcOffset"] == "+01:00"


def update(gateway: Gateway, code: str) -> None:
    (made,) = gateway.answers(board_names(gateway) + code)
    succeeds(gateway, made["id"])
    assert firmware(gateway) == "1.2.0"


def rule(gateway: Gateway, code: str) -> None:
    printed = gateway.paste(code)
    answers, _, provisioned = printed.partition("[[rules]]")
    stands, explained, replayed = documents(answers)
    assert (stands["data"]["name"], explained.keys(), replayed.keys()) == ("Warm", {"data"}, {"data"})
    assert tomllib.loads(f"[[rules]]{provisioned}")["rules"][0]["name"] == "Warm"


def scene(gateway: Gateway, code: str) -> None:
    answers, _, provisioned = gateway.paste(board_names(gateway) + code).partition("[[scenes]]")
    assert [answer.keys() for answer in documents(answers)] == [{"data"}]
    assert tomllib.loads(f"[[scenes]]{provisioned}")["scenes"][0]["name"] == "Good night"


def model(gateway: Gateway, code: str) -> None:
    device = gateway.variables["DEVICE"]
    for number in range(50):
        gateway.post("/messages", {"sdid": device, "data": {"intensity": number}})
    *made, predict = code.splitlines()
    (found,) = gateway.answers("\n".join(made))

    def status() -> str:
        return str(gateway.get(f"/ml/models/{found['id']}")["status"])

    assert eventually(status, lambda now: now == "ready") == "ready"
    (predicted,) = gateway.answers(predict, MODEL=found["id"])
    assert predicted
