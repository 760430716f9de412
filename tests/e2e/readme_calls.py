"""Results of the blocks of the README and docs/ about messages, devices, rules, scenes and models."""

import json
import tomllib
from typing import Final

from config.loading import load_settings
from tests.e2e.readme_gateway import BLOCKS, Gateway, documents, eventually
from tests.programs import require_program

GARDEN: Final = "d0" * 15 + "02"
BOARD: Final = "d0" * 15 + "05"


def try_it(gateway: Gateway, code: str) -> None:
    """The README's lines, which the demo prints, too."""
    require_program("mosquitto_pub")
    assert code in gateway.printed
    sent, found = gateway.answers(code)
    assert (sent["mid"], found[0]["data"]) == (found[0]["mid"], {"state": True, "intensity": 80})
    assert gateway.get(f"/messages/last?sdids={gateway.variables['DEVICE']}")[0]["data"]["intensity"] == 40


def first_steps(gateway: Gateway, code: str) -> None:
    *lines, tail = code.splitlines()
    sent, found, action = gateway.answers("\n".join(lines))
    assert (sent["mid"], found[0]["data"]) == (found[0]["mid"], {"state": True, "intensity": 80})
    assert action["mid"]
    watched(gateway, tail)


def watched(gateway: Gateway, code: str) -> None:
    with gateway.begun(code) as printed:
        assert json.loads(printed.readline())["sdid"]


def exposed(gateway: Gateway, code: str) -> None:
    assert "\ntrunkline_value_" in gateway.paste(code)


def warned(gateway: Gateway, code: str) -> None:
    (answer,) = documents(gateway.paste(code))
    assert "intensty" in str(answer["warnings"])


def wanted(gateway: Gateway, code: str) -> None:
    put, _ = documents(gateway.paste(code))
    path = f"/devices/{put['data']['did']}/wanted"
    assert eventually(lambda: gateway.get(path)["fields"]["intensity"]["state"], "reached".__eq__) == "reached"


def answered(gateway: Gateway, code: str) -> None:
    assert gateway.answers(code)


def own_topics(gateway: Gateway, code: str) -> None:
    assert gateway.paste(code) == "home/kitchen/lamp on\n"


def the_demo_is_short(gateway: Gateway) -> None:
    """The link to the console comes first and last."""
    lines = gateway.printed.strip().splitlines()[1:]  # behind the ready line
    assert len(lines) <= 30
    links = [line.split()[1] for line in lines if "console/enter" in line]
    assert len(links) == 2
    assert len(set(links)) == 1
    assert "console/enter" in lines[-1]


def settings_load(gateway: Gateway, code: str) -> None:
    file = gateway.folder / "part.toml"
    file.write_text(f'state_dir = "/var/lib/trunkline"\n{code}', encoding="utf-8")
    load_settings(file, {})


def shared(gateway: Gateway, code: str) -> None:
    (answer,) = documents(gateway.paste(code))
    assert answer["data"]["email"] == "bob@example.org"


def handed_over(gateway: Gateway, code: str) -> None:
    offered, open_, withdrawn = gateway.answers(code)
    assert offered == open_ == withdrawn
    assert offered["email"] == "bob@example.org"


def every_page(gateway: Gateway, code: str) -> None:
    """More messages than a page has, each found once."""
    device = gateway.variables["DEVICE"]
    for number in range(3):
        gateway.post("/messages", {"sdid": device, "data": {"state": True, "intensity": number}})
    found = [message["mid"] for page in documents(gateway.paste(code)) for message in page["data"]]
    assert len(found) == len(set(found)) > 2


def changed(gateway: Gateway, code: str) -> None:
    first, second = documents(gateway.paste(code))
    assert first["data"]["description"] == second["data"]["description"] == "Every light off"
    assert second["error"]["code"] == 412


def received(gateway: Gateway, code: str) -> None:
    with gateway.begun(code.replace("9000", "0")) as printed:
        assert json.loads(printed.readline())["data"]


def subscriptions(gateway: Gateway, code: str) -> None:
    create, listed, failed, replayed = code.splitlines()
    nowhere = create.replace("https://app.example.org", "http://localhost:1")  # no test leaves the machine
    assert nowhere != create
    (made,) = gateway.answers(nowhere)
    application = gateway.paste("trunkline token new --app Demo", **gateway.state).split()[-1]
    with gateway.begun(BLOCKS["applications: Subscriptions 1"].code.replace("9000", "0")) as printed:
        assert printed.readline()
        (known,) = gateway.answers(listed, APPLICATION_TOKEN=application)
        (active,) = [one["id"] for one in known if one["id"] != made["id"]]
        gateway.answers(failed, SUBSCRIPTION=active)
        first, *_ = eventually(lambda: gateway.get(f"/subscriptions/{active}/deliveries?status=DELIVERED"), bool)
        (again,) = gateway.answers(replayed, SUBSCRIPTION=active, NOTIFICATION=first["id"])
        assert again


def subscription_to_alarms(gateway: Gateway, code: str) -> None:
    (made,) = gateway.answers(code.replace("https://app.example.org", "http://localhost:1"))
    assert made["messageType"] == "alarm"


def board_names() -> str:
    """The variables that the first block about devices sets for the later ones."""
    return BLOCKS["device-management: Properties 1"].code.partition("\n")[0] + "\n"


def firmware(gateway: Gateway) -> str | None:
    properties = gateway.get(f"/devicemgmt/devices/{BOARD}/properties")
    found: str | None = properties["deviceProperties"].get("device", {}).get("firmwareVersion")
    return found


def succeeds(gateway: Gateway, task: str) -> None:
    def statuses() -> list[str]:
        return [entry["status"] for entry in gateway.get(f"/devicemgmt/tasks/{task}/statuses")["statuses"]]

    assert eventually(statuses, lambda found: found in (["SUCCEEDED"], ["FAILED"])) == ["SUCCEEDED"]


def board(gateway: Gateway, code: str) -> None:
    assert eventually(lambda: firmware(gateway), lambda found: found == "1.0.0") == "1.0.0"
    properties, _, found = gateway.answers(code)
    connection = properties["systemProperties"]["connection"]
    assert (connection["connected"], connection["protocol"]) == (True, "LWM2M")
    assert (found["total"], found["properties"][0]["serverProperties"]) == (1, {"site": {"floor": "3"}})
    assert f"BOARD={BOARD} " in code


def task(gateway: Gateway, code: str) -> None:
    (made,) = gateway.answers(board_names() + code)
    succeeds(gateway, made["id"])
    properties = gateway.get(f"/devicemgmt/devices/{BOARD}/properties")
    assert properties["deviceProperties"]["device"]["utcOffset"] == "+01:00"


def update(gateway: Gateway, code: str) -> None:
    (made,) = gateway.answers(board_names() + code)
    succeeds(gateway, made["id"])
    assert firmware(gateway) == "1.2.0"


def update_by_coap(gateway: Gateway, code: str) -> None:
    """The board gets an address that it cannot fetch from; tests/e2e/test_firmware_by_coap.py has clients that can.

    With an image of its own: the board has the one of the block before.
    """
    image = "echo 1.3.0 > image.bin\n" + BLOCKS["device-management: Firmware 1"].code.splitlines()[1]
    (made,) = gateway.answers(f"{board_names()}{image.replace('1.2.0', '1.3.0')}\n{code}")

    def reasons() -> list[str]:
        statuses = gateway.get(f"/devicemgmt/tasks/{made['id']}/statuses")["statuses"]
        return [entry.get("errorMessage", "") for entry in statuses]

    (said,) = eventually(reasons, any)
    assert "the address of the image is invalid" in said


def rule(gateway: Gateway, code: str) -> None:
    printed = gateway.paste(code)
    answers, _, provisioned = printed.partition("[[rules]]")
    stands, explained, replayed = documents(answers)
    assert (stands["data"]["name"], explained.keys(), replayed.keys()) == ("Warm", {"data"}, {"data"})
    assert tomllib.loads(f"[[rules]]{provisioned}")["rules"][0]["name"] == "Warm"


def scene(gateway: Gateway, code: str) -> None:
    answers, _, provisioned = gateway.paste(code).partition("[[scenes]]")
    assert [answer.keys() for answer in documents(answers)] == [{"data"}]
    assert tomllib.loads(f"[[scenes]]{provisioned}")["scenes"][0]["name"] == "Good night"


def model(gateway: Gateway, code: str) -> None:
    device = gateway.variables["DEVICE"]
    gateway.post(
        "/messages/batch", {"messages": [{"sdid": device, "data": {"intensity": number}} for number in range(50)]}
    )
    *made, predict = code.splitlines()
    (found,) = gateway.answers("\n".join(made))

    def status() -> str:
        return str(gateway.get(f"/ml/models/{found['id']}")["status"])

    assert eventually(status, lambda now: now == "ready") == "ready"
    (predicted,) = gateway.answers(predict, MODEL=found["id"])
    assert predicted
