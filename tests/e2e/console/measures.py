"""Faults in the layout of a page: broken words, buttons of a row in two lines, endless pages."""

from typing import Final

from tests.browser import Chromium

#: CSS pixels: a phone, a tablet, a desktop.
WIDTHS: Final = ((390, 844), (768, 1024), (1280, 800))
_LONGEST: Final = 6_000  # CSS pixels of a page from top to bottom, at any width
#: Words longer than this are secrets and addresses, and may be broken. An id has 32 characters, or 34.
_WORD: Final = 40
_COLUMNS: Final = 3  # a table with more of them is a list of cards on a phone
_MEASURE: Final = r"""
const measure = async (longestWord, columns, isPhone, done) => {
const wrong = [];
const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
await frame();
await frame();  // what the page changes for another width is drawn
const main = document.querySelector("main");
const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) {
  const parent = node.parentElement;
  if (parent.closest("pre, textarea, option, svg, .unseen")) continue;
  if (!parent.checkVisibility({visibilityProperty: true})) continue;
  for (const found of node.data.matchAll(/[^\s\-–—/?&]+/g)) {
    if (found[0].length > longestWord) continue;
    const range = document.createRange();
    range.setStart(node, found.index);
    range.setEnd(node, found.index + found[0].length);
    const lines = new Set([...range.getClientRects()].filter((one) => one.width > 0).map((one) => Math.round(one.top)));
    if (lines.size > 1) wrong.push(`"${found[0]}" is broken into ${lines.size} lines`);
  }
}
for (const cell of main.querySelectorAll("td")) {
  const buttons = [...cell.querySelectorAll("button")].filter((one) => one.checkVisibility());
  if (new Set(buttons.map((one) => Math.round(one.getBoundingClientRect().top))).size > 1) {
    wrong.push(`the buttons ${buttons.map((one) => one.innerText).join(", ")} are in two lines`);
  }
}
for (const row of isPhone ? main.querySelectorAll("tbody tr:first-child") : []) {
  if (row.cells.length > columns && row.checkVisibility() && getComputedStyle(row).display === "table-row") {
    wrong.push(`the table ${row.closest("table").caption?.textContent ?? ""} has no cards`);
  }
}
for (const one of main.querySelectorAll("*")) {
  const style = one.checkVisibility() ? getComputedStyle(one) : null;
  const isScrolled = style && ["auto", "scroll"].includes(style.overflowX) && !one.matches("textarea, pre, input");
  if (isScrolled && one.scrollWidth > one.clientWidth + 1) {
    wrong.push(`${one.tagName} ${one.className} ${one.id} scrolls sideways`);
  }
}
done([[...new Set(wrong)], document.documentElement.scrollHeight]);
};
measure(...arguments).catch((error) => arguments[3]([[String(error)], 0]));
"""


def measured(browser: Chromium) -> list[str]:
    """The faults at each of the widths."""
    wrong = []
    for size in WIDTHS:
        browser.show(size, dark=False)
        found, height = browser.driver.execute_async_script(_MEASURE, _WORD, _COLUMNS, size == WIDTHS[0])
        wrong += [f"at {size[0]} px {one}" for one in found]
        if browser.overhang():
            wrong.append(f"at {size[0]} px it is wider than the screen")
        if height > _LONGEST:
            wrong.append(f"at {size[0]} px it is {height} px long")
    return wrong
