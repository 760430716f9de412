"""What is wrong with the layout of a page: broken words, buttons of a row in two lines, endless pages."""

from typing import Final

from tests.browser import Chromium

#: CSS pixels: a phone, a tablet, a desktop.
WIDTHS: Final = ((390, 844), (768, 1024), (1280, 800))
_LONGEST: Final = 12_000  # CSS pixels from top to bottom
#: Words longer than this are secrets, and may be broken; so may ids of 32 hexadecimal digits, and code.
_WORD: Final = 40
_MEASURE: Final = r"""
const [longestWord] = arguments, wrong = [];
const main = document.querySelector("main");
const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) {
  const parent = node.parentElement;
  if (parent.closest("pre, code, textarea, option, svg, .unseen")) continue;
  if (!parent.checkVisibility({visibilityProperty: true})) continue;
  for (const found of node.data.matchAll(/[^\s\-–—/?&]+/g)) {
    if (found[0].length > longestWord || /^[0-9a-f]{32}[.,:;)]?$/.test(found[0])) continue;
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
return [wrong, document.documentElement.scrollHeight];
"""


def measured(browser: Chromium) -> list[str]:
    """What is wrong at each of the widths."""
    wrong = []
    for size in WIDTHS:
        browser.show(size, dark=False)
        found, height = browser.driver.execute_script(_MEASURE, _WORD)
        wrong += [f"at {size[0]} px {one}" for one in found]
        if browser.overhang():
            wrong.append(f"at {size[0]} px it is wider than the screen")
        if height > _LONGEST:
            wrong.append(f"at {size[0]} px it is {height} px long")
    return wrong
