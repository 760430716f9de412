"""Handing a device over, the archive and leaving, two people at one rule, and a session that ends while typing."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.browser import WIDTHS
from tests.daemon import ADA_EMAIL, command_output, device_id
from tests.e2e.console.user import PASSWORD, User
from tests.e2e.console.world import Site
from tests.properties import in_ci

EVE: Final = "eve@example.org"
GIVEN: Final = "d" * 32  # a light of Ada's


def provision(site: Site, folder: Path, tables: str) -> None:
    file = folder / "more.toml"
    file.write_text(tables, encoding="utf-8")
    command_output("provision", file, "--config", site.daemon.config)


@pytest.fixture
def eve(ada: User, site: Site, tmp_path: Path) -> User:
    """Another person, with a light of their own."""
    provision(
        site,
        tmp_path,
        f'[[users]]\nemail = "{EVE}"\nfull_name = "Eve"\npassword = "{PASSWORD}"\n'
        f'[[devices]]\nid = "{"e" * 32}"\nowner = "{EVE}"\ntype = "example.light"\nname = "Lamp of Eve"\n'
        f'[[devices]]\nid = "{GIVEN}"\nowner = "{ADA_EMAIL}"\ntype = "example.light"\nname = "Lamp to give"\n',
    )
    ada.take_session(EVE)
    return ada


def rule_of_ada(ada: User, site: Site, name: str) -> str:
    warm = {"sdid": device_id(1), "field": "intensity", "operator": ">", "operand": {"value": 25}}
    on = {"ddid": device_id(2), "action": "setOn", "parameters": {}}
    body = {"name": name, "rule": {"if": {"and": [warm]}, "then": [on]}}
    return str(site.of_ada_at_the_console(ada, "POST", "/rules", body | {"scope": "allApplications"})["id"])


@in_ci
def test_a_device_is_offered_taken_and_then_its_new_owner_leaves(
    eve: User, site: Site, screenshots: Path | None
) -> None:
    user = eve
    user.take_session()
    user.open(f"/devices/{GIVEN}")
    user.now(lambda: user.browser.fill("E-mail address of the new owner", EVE))
    user.click("Offer")
    user.click("Hand it over")
    user.sees(f"Offered to {EVE}", "#handed")
    pictures(user, screenshots, "handing-over")
    user.take_session(EVE)
    user.open("")
    user.sees("Lamp to give over to you", "#offers")
    pictures(user, screenshots, "offer")
    user.click("Take Lamp to give")
    user.sees("Lamp to give is yours")
    user.sees("Lamp to give", "#devices")
    user.open("/account")
    user.click("Make the archive")
    user.sees("Make a new one", "#archive")
    pictures(user, screenshots, "leaving")
    user.click("Delete my account")
    user.click("Go on")
    user.now(lambda: user.browser.fill("E-mail address", EVE))
    pictures(user, screenshots, "sure")
    user.browser.leaving(lambda: user.click("Delete for good"))
    user.sees("Sign in")
    listed = command_output("user", "list", "--config", site.daemon.config)
    assert EVE not in listed


def test_the_later_of_two_who_edit_a_rule_sees_both_and_chooses(
    ada: User, site: Site, screenshots: Path | None
) -> None:
    ada.open("")
    rule = rule_of_ada(ada, site, "Two people")
    open_rule(ada, rule)
    for choice, name, other in (("Save mine", "Mine", "Theirs"), ("Take the other version", "Last", "Last")):
        site.of_ada_at_the_console(ada, "PUT", f"/rules/{rule}", {"name": other})
        ada.browser.fill("Name", "Mine")
        ada.click("Save")
        ada.sees("Somebody else has changed this", "dialog")
        ada.sees(other, "dialog")
        if name == "Mine":
            pictures(ada, screenshots, "versions")
        ada.sees("Mine", "dialog")
        ada.click(choice)
        ada.sees(name, "h1")
        assert site.of_ada("GET", f"/rules/{rule}")["data"]["name"] == name
    ada.was_refused(412)
    site.of_ada_at_the_console(ada, "DELETE", f"/rules/{rule}", None)


def open_rule(ada: User, rule: str) -> None:
    """Until its form is whole: what is saved before lacks conditions, and is refused."""
    ada.open(f"/rules/{rule}")
    ada.sees("triggered", "#standing")
    ada.browser.until("called('#then > li').length")


def scene(ada: User, site: Site) -> tuple[str, str, str]:
    on = {"ddid": device_id(2), "action": "setOn", "parameters": {}}
    made = site.of_ada_at_the_console(ada, "POST", "/scenes", {"name": "Evening", "actions": [on]})
    return f"/scenes/{made['id']}", f"/console/scenes/{made['id']}", ""


def trial(ada: User, site: Site) -> tuple[str, str, str]:
    made = site.of_ada_at_the_console(ada, "POST", "/trials", {"name": "Sleep"})
    return f"/trials/{made['id']}", f"/developer/trials/{made['id']}", "Change"


def application(ada: User, site: Site) -> tuple[str, str, str]:
    body = {"name": "Zebra", "methods": ["pkce"], "redirectUris": [], "permissions": []}
    path = f"/developer/organizations/{organization(ada, site)}/applications"
    made = site.of_ada_at_the_console(ada, "POST", path, body)
    return f"/developer/applications/{made['id']}", "/developer/applications", "Change"


def choose_among_many(ada: User, name: str) -> None:
    """Other tests make applications of the same organization, which then are a table."""
    ada.sees("New application")
    if "Filter applications" in ada.browser.text:
        ada.browser.fill("Filter applications", name)
        ada.click(name)


def organization(ada: User, site: Site) -> str:
    (found,) = site.of_ada_at_the_console(ada, "GET", "/developer/organizations", None)["organizations"]
    return str(found["id"])


@in_ci
@pytest.mark.parametrize("make", [scene, trial, application])
def test_every_form_that_changes_something_shows_both_versions(
    ada: User, site: Site, make: Callable[[User, Site], tuple[str, str, str]]
) -> None:
    ada.open("")
    path, page, button = make(ada, site)
    ada.browser.open(f"{site.origin}{page}")
    if make is application:
        choose_among_many(ada, "Zebra")
    if button:
        ada.click(button)
        if make is application:  # until then, the only name is that of a new application
            ada.sees("Save", 'form[aria-label="Change Zebra"]')
    else:
        ada.sees("Evening", "h1")
    ada.now(lambda: ada.browser.fill("Name", "Mine"))
    site.of_ada_at_the_console(ada, "PUT", path, {"name": "Theirs"})
    ada.click("Save")
    ada.sees("Theirs", "dialog .versions")
    ada.sees("Mine", "dialog .versions")
    ada.click("Save mine")
    if make is application:
        ada.sees("The application is changed")
    else:
        ada.sees("Mine", "#title")
    ada.eventually(lambda: site.of_ada_at_the_console(ada, "GET", path, None)["name"] == "Mine")
    ada.was_refused(412)
    if make is not application:  # which cannot be deleted
        ada.open("")  # the page no longer reads the deleted object
        site.of_ada_at_the_console(ada, "DELETE", path, None)


@in_ci
def test_an_upload_of_a_manifest_shows_both_versions(ada: User, site: Site) -> None:
    ada.open("")
    body = {"uniqueName": "example.two_editors", "name": "Two editors"}
    path = f"/developer/organizations/{organization(ada, site)}/devicetypes"
    dtid = site.of_ada_at_the_console(ada, "POST", path, body)["id"]
    fields = [{"name": "theirs", "valueClass": "Integer"}]
    ada.browser.open(f"{site.origin}/developer/types/{dtid}/manifest")
    ada.sees("None yet")
    site.of_ada_at_the_console(ada, "POST", f"/devicetypes/{dtid}/manifests", {"manifest": {"fields": fields}})
    ada.click("Upload as the next version")
    ada.sees("theirs", "dialog .versions")
    ada.sees("temperature", "dialog .versions")
    ada.click("Take the other version")
    ada.sees("Version 1")
    ada.eventually(lambda: "theirs" in ada.browser.value("The Manifest as JSON"))
    ada.was_refused(412)


def test_what_was_typed_is_saved_after_signing_in_again(ada: User, site: Site, screenshots: Path | None) -> None:
    ada.open("")
    rule = rule_of_ada(ada, site, "Before")
    open_rule(ada, rule)
    ada.browser.fill("Name", "Typed before the session ended")
    end_sessions(ada)  # the page learns of it when its feed closes
    ada.sees("Sign in again", "dialog")
    pictures(ada, screenshots, "sign-in-again")
    with ada.browser.opened_window(lambda: ada.click("Sign in")):
        ada.browser.write("[name=email]", "ada@example.org")
        ada.browser.fill("Password", PASSWORD)
        ada.browser.click("form button:not([formaction])")
    ada.click("Save")
    ada.sees("The rule is saved")
    assert site.of_ada("GET", f"/rules/{rule}")["data"]["name"] == "Typed before the session ended"
    site.of_ada_at_the_console(ada, "DELETE", f"/rules/{rule}", None)
    ada.browser.traffic()  # has the refusals of the session that ended


def pictures(user: User, folder: Path | None, name: str) -> None:
    """Nothing sticks out on a phone, a tablet and a desktop. With SCREENSHOTS, it takes pictures."""
    for size in WIDTHS:
        user.browser.show(size, dark=False)
        if folder is not None:
            user.browser.screenshot(folder / f"{name}.{size[0]}.png")
        assert user.browser.overhang() == 0, (name, size)


def end_sessions(user: User) -> None:
    """Sign out in another browser of every one: the page learns of it with its next call."""
    user.browser.run_async(
        "const done = arguments[0]; const form = document.querySelector('form.who');"
        "fetch(form.action, {method: 'POST', body: new URLSearchParams(new FormData(form)), redirect: 'manual'})"
        ".then(() => done());"
    )
