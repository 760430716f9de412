"""Rules and scenes in the console: the pages are there when this version serves their calls."""

from tests.browser import DESKTOP, PHONE
from tests.daemon import LIGHT_TYPE, device_id
from tests.e2e.console.user import User
from tests.e2e.console.world import Site
from tests.properties import in_ci


def choose(user: User, selector: str, text: str) -> None:
    """In the select that this CSS selector finds, as soon as it offers the text."""
    user.browser.choose(selector, text)


def find(user: User, part: str, name: str) -> None:
    """A device of which there are too many to list: by its name."""
    field = f"{part} [type=search]"

    def is_found() -> bool:
        # A page that has just come draws its rows again, without what was typed.
        if user.browser.run("return called(arguments[0])[0]?.value", field) != name:
            user.browser.write(field, name)
        # One that is chosen from the list of before is replaced by the first one that is found.
        return user.browser.texts(f"{part} [id$=-device] option") == [name]

    user.eventually(is_found)
    choose(user, f"{part} [id$=-device]", name)


def test_a_rule_is_made_explained_tried_and_deleted(ada: User, site: Site) -> None:
    ada.open("")
    ada.click("Rules")
    ada.sees("No rules yet")
    ada.click("New rule")
    assert "Light 99" not in ada.browser.texts("#then [id$=-device] option")
    find(ada, "#then", "Light 99")
    find(ada, "#conditions", "Light 13")
    choose(ada, "#conditions [id$=-field]", "intensity")
    choose(ada, "#conditions [id$=-operator]", "is above")
    ada.browser.write("#conditions [id$=-operand]", "80")
    find(ada, "#then", "Light 14")
    ada.browser.fill("Name", "Too bright")
    ada.click("Save")
    ada.sees("The rule is saved")
    site.send(13, intensity=40)
    ada.sees("did not trigger", "#now")
    ada.sees("intensity of Light 13 is 40", "#now")
    ada.sees("Too bright", "h1")
    ada.open("/rules")
    ada.click("Too bright")
    site.send(13, intensity=99)
    ada.eventually(
        lambda: site.of_ada("GET", "/actions", params=last_actions(14))["data"] != [],
    )
    ada.click("The last hour")
    ada.sees("holds", "#why")
    ada.click("Try it on the last day")
    ada.sees("would have triggered", "#why")
    ada.click("As text")
    ada.sees("[[rules]]", "dialog")
    ada.click("Close")
    ada.click("Delete")
    ada.browser.leaving(lambda: ada.click("Undo"))
    ada.sees("Too bright", "h1")


def test_a_rule_raises_an_alarm_that_is_explained_and_acknowledged(ada: User, site: Site) -> None:
    ada.open("/rules/new")
    find(ada, "#conditions", "Light 17")
    choose(ada, "#conditions [id$=-field]", "intensity")
    choose(ada, "#conditions [id$=-operator]", "is above")
    ada.browser.write("#conditions [id$=-operand]", "80")
    ada.browser.click("#has-alarm")
    ada.browser.fill("Text", "Far too bright")
    ada.browser.fill("Name", "Bright alarm")
    find(ada, "#then", "Light 18")
    ada.click("Save")
    ada.sees("The rule is saved")
    site.send(17, intensity=99)
    ada.open("/alarms")
    ada.sees("Far too bright", "#alarms")
    ada.sees("so far", "#alarms")
    ada.browser.click("#alarms summary")
    ada.sees("intensity of Light 17 is 99", "#alarms")
    ada.open("")
    ada.sees("Far too bright", "#alarms")
    ada.open("/alarms")
    ada.click("Acknowledge")
    ada.sees("The alarm is acknowledged")
    site.send(17, intensity=1)  # an event tells the page
    ada.sees("No alarms here", "#alarms")
    choose(ada, "#state", "Ended")
    ada.sees("the conditions do not hold any more", "#alarms")
    ada.browser.until("called(arguments[0]).length", "#telling-parts:enabled")
    choose(ada, "#from", "Critical")
    ada.browser.fill("Topic of ntfy", "https://ntfy.example.org/topic")
    ada.browser.click("#quiet")
    ada.click("Save")
    ada.sees("It is saved")
    ada.open("/alarms")
    ada.eventually(lambda: ada.browser.value("Topic of ntfy") == "https://ntfy.example.org/topic")


@in_ci
def test_what_happened_before_a_rule_is_named_so_and_no_entry_stands_twice(ada: User, site: Site) -> None:
    ada.open("")
    for value in (95, 96):
        site.send(60, intensity=value)
    then = [{"ddid": device_id(61), "action": "setOn", "parameters": {}}]
    body = {"name": "Late", "scope": "allApplications", "rule": {"if": {"and": [bright(device_id(60))]}, "then": then}}
    rule = site.of_ada_at_the_console(ada, "POST", "/rules", body)["id"]
    ada.open(f"/rules/{rule}")
    ada.sees("running", "#standing")
    assert ada.browser.texts("#standing .badge.good") == ["running"]
    ada.sees("Nothing to explain yet", "#now")
    ada.click("The last hour")
    ada.eventually(lambda: len(entries(ada)) == 2)
    ada.sees_no("Nothing to explain yet", "#now")
    for entry in entries(ada):
        assert "would have triggered" in entry
        assert "from before the rule" in entry
    assert ada.browser.texts("#why .good") == ["holds", "holds"], "what would have been is not green"
    seen = {"95", "96"}
    for value in (97, 20, 98):
        site.send(60, intensity=value)
        seen.add(str(value))
        # The newest message comes above the list, and what it replaces goes on below.
        ada.sees(f"is {value}", "#now")
        ada.eventually(lambda: {value_in(entry) for entry in entries(ada)} == seen)
        assert len(entries(ada)) == len(seen), "an entry stands twice"
        told = next(entry for entry in entries(ada) if value_in(entry) == str(value))
        assert ("did not trigger" if value < 80 else "triggered") in told
        assert "would have" not in told
    ada.click("The last hour")
    ada.eventually(lambda: len(entries(ada)) == len(seen))
    assert {value_in(entry) for entry in entries(ada)} == seen
    site.of_ada_at_the_console(ada, "DELETE", f"/rules/{rule}", None)


def entries(user: User) -> list[str]:
    """The explanations on the page of a rule: the newest message, then the list."""
    return [text for text in user.browser.texts("#now section, #why section") if text]


def value_in(entry: str) -> str:
    return entry.partition(" is ")[2].split(",")[0].split(" ")[0]


def last_actions(number: int) -> dict[str, str]:
    return {"ddid": device_id(number), "startDate": "0", "endDate": "9999999999999"}


@in_ci
def test_findings_of_the_api_stand_at_their_fields(ada: User) -> None:
    ada.open("/rules/new")
    ada.browser.fill("Name", "Without a number")
    find(ada, "#conditions", "Light 13")
    choose(ada, "#conditions [id$=-field]", "intensity")
    ada.click("JSON")
    ada.browser.run(
        "document.querySelector('#json').value = JSON.stringify({if: {and: [{sdid: 'x', field: 'state', operator: '=',"
        " operand: {value: true}}]}, then: []})"
    )
    ada.click("Save")
    ada.sees('Device "x" does not exist', ".finding")
    ada.was_refused(400)


def test_a_scene_is_made_activated_and_deleted(ada: User, site: Site) -> None:
    ada.open("")
    ada.click("Scenes")
    ada.sees("No scenes yet")
    ada.click("New scene")
    choose(ada, "#actions [id$=-device]", "Light 15")
    ada.browser.fill("Name", "Good night")
    ada.click("Save")
    ada.sees("The scene is saved")
    ada.click("Activate")
    ada.sees("Good night is activated")
    ada.browser.show(PHONE, dark=False)
    assert ada.browser.overhang() == 0
    ada.browser.show(DESKTOP, dark=False)
    assert len(site.of_ada("GET", "/actions", params=last_actions(15))["data"]) == 1
    ada.click("As text")
    ada.sees("[[scenes]]", "dialog")
    ada.click("Close")
    ada.open("/scenes")
    ada.click("Activate Good night")
    ada.sees("Good night is activated")
    ada.click("Good night")
    ada.click("Delete")
    ada.browser.leaving(lambda: ada.click("Undo"))
    ada.sees("Good night", "h1")


@in_ci
def test_what_a_rule_and_a_scene_want_is_edited(ada: User, site: Site) -> None:
    body = {
        "if": {"and": [bright(device_id(13))]},
        "then": [{"ddid": device_id(19), "want": {"intensity": {"value": 30}}, "expiresAfter": 5400}],
    }
    ada.open("")
    new = {"name": "Dims", "scope": "allApplications", "rule": body}
    rule = site.of_ada_at_the_console(ada, "POST", "/rules", new)["id"]
    ada.open(f"/rules/{rule}")
    ada.eventually(lambda: ada.browser.texts("#then [id$=-field] option")[:1] == ["intensity"])
    assert not ada.browser.run("return called('#form-parts')[0].hidden"), "the form shows it"
    hours, value = "#then [id$=-hours]", "#then [name='rule.then.0.want.intensity']"
    assert ada.browser.run(f"return [called(`{hours}`)[0].value, called(`{value}`)[0].value]") == ["1.5", "30"]
    ada.browser.write(value, "45")
    ada.browser.write(hours, "2")
    ada.click("Add a wanted value")
    ada.eventually(lambda: len(ada.browser.texts("#then > li")) == 2)
    find(ada, "#then > li:last-child", "Light 20")
    ada.browser.write("#then [name='rule.then.1.want.intensity']", "1")
    ada.click("Save")
    ada.sees("The rule is saved")
    saved = site.of_ada_at_the_console(ada, "GET", f"/rules/{rule}", None)["rule"]["then"]
    assert saved == [
        {"ddid": device_id(19), "want": {"intensity": {"value": 45}}, "expiresAfter": 7200},
        {"ddid": device_id(20), "want": {"intensity": {"value": 1}}, "expiresAfter": 604800},
    ]
    site.of_ada_at_the_console(ada, "DELETE", f"/rules/{rule}", None)
    ada.open("/scenes/new")
    ada.browser.fill("Name", "Dark")
    ada.browser.click("#actions .remove")
    ada.click("Add a wanted value")
    find(ada, "#actions", "Light 23")
    ada.browser.write("#actions [name='actions.0.want.intensity']", "0")
    ada.click("Save")
    ada.sees("The scene is saved")
    ada.click("Activate")
    ada.sees("Dark is activated")
    ada.eventually(lambda: site.of_ada("GET", f"/devices/{device_id(23)}/wanted")["data"]["data"] == {"intensity": 0})
    ada.open("/scenes")
    ada.click("Dark")
    ada.eventually(lambda: ada.browser.texts("#actions [id$=-field] option")[:1] == ["intensity"])


@in_ci
def test_a_rule_whose_device_was_deleted_opens_whole_and_is_mended(ada: User, site: Site) -> None:
    """It names the device that is missing; what was wanted of it is kept for the one in its place."""
    ada.open("")
    lamp = site.of_ada_at_the_console(ada, "POST", "/devices", {"dtid": LIGHT_TYPE, "name": "Old lamp"})["id"]
    body = {
        "if": {"and": [bright(lamp), bright(device_id(13))]},
        "then": [{"ddid": lamp, "action": "setOn", "parameters": {}}],
    }
    new = {"name": "Broken", "scope": "allApplications", "rule": body}
    rule = site.of_ada_at_the_console(ada, "POST", "/rules", new)["id"]
    site.of_ada_at_the_console(ada, "DELETE", f"/devices/{lamp}", None)
    ada.eventually(lambda: site.of_ada_at_the_console(ada, "GET", f"/rules/{rule}", None)["state"] == "invalid")
    ada.open(f"/rules/{rule}")
    ada.sees("Broken", "h1")
    ada.eventually(lambda: len(ada.browser.texts("#conditions > li")) == 2)
    ada.sees("Old lamp", "#conditions [id$=-device] option")
    ada.eventually(lambda: len(ada.browser.texts(".finding.missing")) == 2)
    assert ada.browser.traffic().complaints == (), "opening it asks for nothing that is refused"
    ada.click("JSON")
    assert lamp in ada.browser.run("return called('#json')[0].value")
    ada.click("Form")
    ada.eventually(lambda: len(ada.browser.texts("#conditions > li")) == 2)
    ada.click("Save")
    ada.eventually(lambda: any('"Old lamp (deleted)" does not exist' in one for one in ada.browser.texts(".finding")))
    assert not any(lamp in one for one in ada.browser.texts(".finding")), "a refusal names the device"
    ada.was_refused(400)
    find(ada, "#conditions > li:first-child", "Light 21")
    find(ada, "#then", "Light 22")
    ada.eventually(lambda: ada.browser.texts(".finding.missing") == [])
    ada.click("Save")
    ada.sees("The rule is saved")
    mended = site.of_ada_at_the_console(ada, "GET", f"/rules/{rule}", None)
    assert mended["state"] == "running"
    assert mended["rule"]["if"]["and"] == [bright(device_id(21)), bright(device_id(13))]
    assert mended["rule"]["then"] == [{"ddid": device_id(22), "action": "setOn", "parameters": {}}]
    site.of_ada_at_the_console(ada, "DELETE", f"/rules/{rule}", None)


def bright(device: str) -> dict[str, object]:
    return {"sdid": device, "field": "intensity", "operator": ">", "operand": {"value": 80}}


@in_ci
def test_a_scene_whose_device_was_deleted_opens_whole(ada: User, site: Site) -> None:
    ada.open("")
    lamp = site.of_ada_at_the_console(ada, "POST", "/devices", {"dtid": LIGHT_TYPE, "name": "Old lamp"})["id"]
    actions: list[dict[str, object]] = [
        {"ddid": one, "action": "setOn", "parameters": {}} for one in (lamp, device_id(15))
    ]
    new = {"name": "Bright", "actions": actions}
    scene = site.of_ada_at_the_console(ada, "POST", "/scenes", new)["id"]
    site.of_ada_at_the_console(ada, "DELETE", f"/devices/{lamp}", None)
    ada.open(f"/scenes/{scene}")
    ada.eventually(lambda: len(ada.browser.texts("#actions > li")) == 2)
    ada.sees("Old lamp", "#actions [id$=-device] option")
    ada.click("Remove this Action")  # the last one
    assert ada.browser.traffic().complaints == ()
    site.of_ada_at_the_console(ada, "DELETE", f"/scenes/{scene}", None)


@in_ci
def test_rules_of_other_applications_are_listed_and_stopped(ada: User, site: Site) -> None:
    body = {
        "if": {"and": [bright(device_id(13))]},
        "then": [{"ddid": device_id(14), "action": "setOn", "parameters": {}}],
    }
    rule = site.of_ada("POST", "/rules", json={"name": "Of the dashboard", "rule": body})["data"]["id"]
    ada.open("/rules")
    ada.sees("Of the dashboard", "#rules")
    ada.sees("Dashboard", "#rules td[data-label='Made by']")
    ada.click("Of the dashboard")
    ada.sees("Dashboard made this rule", "#foreign")
    assert ada.browser.count("#name:disabled") == 1
    ada.click("Turn it off")
    ada.sees("The rule is off")
    ada.sees("disabled", "#standing")
    assert site.of_ada("GET", f"/rules/{rule}")["data"]["enabled"] is False
    site.of_ada("DELETE", f"/rules/{rule}")
