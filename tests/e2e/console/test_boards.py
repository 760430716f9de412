"""A board: things pinned on one page, live; and its read-only link in a browser that nobody is signed in with."""

from pathlib import Path

from tests.browser import DESKTOP, WIDTHS
from tests.daemon import device_id
from tests.e2e.console.measures import measured
from tests.e2e.console.user import User
from tests.e2e.console.world import Site


def pin(ada: User, kind: str, title: str, acting: str = "", **choices: str) -> None:
    ada.click("Pin something")
    ada.browser.choose("#kind", kind)
    for selector, words in choices.items():
        path = f"#{selector.replace('_', '-')}"
        ada.browser.until("called(arguments[0]).length > 0 && called(arguments[0])[0].options.length > 0", path)
        ada.browser.choose(path, words)
    if acting:
        ada.browser.choose("#what [id$=-device]", acting)
        ada.browser.until("texts('#what option').includes('setOn')")
    ada.now(lambda: ada.browser.write("#pin-title", title))
    ada.click("Pin it")
    ada.sees(title, "#tiles h2")


def pictures(ada: User, folder: Path | None, name: str) -> None:
    if folder is None:
        return
    for size in WIDTHS:
        ada.browser.show(size, dark=False)
        ada.browser.screenshot(folder / f"{name}.{size[0]}.png")
    ada.browser.show(DESKTOP, dark=False)


def test_a_board_is_made_and_a_screen_on_the_wall_shows_it_until_the_link_is_revoked(
    ada: User, site: Site, screenshots: Path | None
) -> None:
    ada.open("")
    on = {"ddid": device_id(2), "action": "setOn", "parameters": {}}
    site.of_ada_at_the_console(ada, "POST", "/scenes", {"name": "Good evening", "actions": [on]})
    name = site.of_ada("GET", f"/devices/{device_id(1)}")["data"]["name"]
    ada.open("/board")
    ada.click("Make a board")
    ada.sees("Nothing is pinned yet")
    pin(ada, "A value", "Brightness", pin_device=name, pin_field="intensity")
    pin(ada, "A chart", "Brightness of the hour", pin_device=name, pin_field="intensity", pin_range="Hour")
    pin(ada, "An Action", "Light on", acting=name)
    pin(ada, "A scene", "Evening", pin_scene="Good evening")
    site.send(1, intensity=41)
    ada.sees("41", "#tiles .figure")
    ada.click("setOn")
    ada.sees("setOn is on its way.", "#toasts")
    ada.click("Activate")
    ada.sees("Good evening is activated.", "#toasts")
    ada.click("Arrange")
    ada.click("Move Evening earlier")
    ada.browser.until("texts('#tiles h2')[2] === 'Evening'")
    assert measured(ada.browser) == []
    pictures(ada, screenshots, "board_arranged")
    ada.click("Remove Light on")
    ada.sees_no("Light on", "#tiles h2")
    ada.click("Arrange")
    ada.click("Read-only link")
    ada.click("Make a link")
    ada.sees("/console/kiosk#", "#link-state code")
    link = ada.browser.texts("#link-state code")[0]
    pictures(ada, screenshots, "board")

    wall = User(ada.browser, ada.origin)
    wall.browser.fresh()  # no cookie, no session
    wall.browser.open(link)
    wall.sees("41", "#tiles .figure")
    assert wall.browser.texts("#tiles h2") == ["Brightness", "Brightness of the hour"]
    assert wall.browser.count("button") == 0
    site.send(1, intensity=57)
    wall.sees("57", "#tiles .figure")
    assert measured(wall.browser) == []
    pictures(wall, screenshots, "kiosk")

    ada.take_session()
    ada.open("/board")
    ada.click("Read-only link")
    ada.sees("There is a link", "#link-state")
    ada.click("Revoke the link")
    ada.sees("The link is revoked.", "#toasts")
    wall.browser.open(link)
    wall.sees("This link is no longer valid", "#tiles")
    wall.was_refused(404)
