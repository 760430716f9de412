"""Faults in the layout of a page: broken words, what is cut off or touches its neighbour, endless pages."""

from collections.abc import Sequence
from typing import Final

from tests.browser import PHONE, WIDTHS, Chromium

#: CSS pixels of a page from top to bottom, at any width. /operator in German, with an upstream, has 6,780.
_LONGEST: Final = 7_200
#: Words longer than this are secrets and addresses, and may be broken. An id has 32 characters, or 34.
_WORD: Final = 40
_COLUMNS: Final = 3  # a table with more of them is a list of cards on a phone
_MEASURE: Final = r"""
const measure = async (longestWord, columns, isPhone, width, done) => {
const wrong = [];
const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
while (window.innerWidth !== width) await frame();
await frame();
await frame();  // what the page changes for another width is drawn
const main = document.querySelector("main");
const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
const range = document.createRange();
const lines = () =>
  new Set([...range.getClientRects()].filter((one) => one.width > 0).map((one) => Math.round(one.top))).size;
for (let node; (node = walker.nextNode());) {
  range.selectNodeContents(node);
  if (lines() < 2) continue;
  const parent = node.parentElement;
  if (parent.closest("pre, textarea, option, svg, .unseen")) continue;
  if (!parent.checkVisibility({visibilityProperty: true})) continue;
  for (const found of node.data.matchAll(/\p{L}-\p{L}+|[^\s\-–—/?&]+/gu)) {
    if (found[0].length > longestWord) continue;
    range.setStart(node, found.index);
    range.setEnd(node, found.index + found[0].length);
    if (lines() > 1) wrong.push(`"${found[0]}" is broken into ${lines()} lines`);
  }
}
for (const cell of main.querySelectorAll("td")) {
  const buttons = [...cell.querySelectorAll("button")].filter((one) => one.checkVisibility());
  if (new Set(buttons.map((one) => Math.round(one.getBoundingClientRect().top))).size > 1) {
    wrong.push(`the buttons ${buttons.map((one) => one.innerText).join(", ")} are in two lines`);
  }
}
for (const head of main.querySelectorAll("th button")) {
  const isPlain = getComputedStyle(head).backgroundColor === "rgba(0, 0, 0, 0)";
  if (!isPlain) wrong.push(`the head ${head.innerText} looks like a button`);
}
for (const row of isPhone ? main.querySelectorAll("tbody tr:first-child") : []) {
  if (row.cells.length > columns && row.checkVisibility() && getComputedStyle(row).display === "table-row") {
    wrong.push(`the table ${row.closest("table").caption?.textContent ?? ""} has no cards`);
  }
}
// To ask for a style takes longer than to ask for a size, and few have more than fits.
for (const one of main.querySelectorAll("*")) {
  if (one.scrollWidth <= one.clientWidth + 1 || one.matches("textarea, pre, input") || !one.checkVisibility()) continue;
  if (["auto", "scroll"].includes(getComputedStyle(one).overflowX)) {
    wrong.push(`${one.tagName} ${one.className} ${one.id} scrolls sideways`);
  }
}
const shown = (one) => one.checkVisibility({visibilityProperty: true}) && one.getClientRects().length > 0;
const nameOf = (one) => `${one.tagName} "${(one.innerText || one.id || one.className).slice(0, 40)}"`;
const text = (one) => [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
const leaves = (one) => {
  const box = one.parentElement?.closest("main, td, th, .box, .notice, dialog, pre, header nav");
  if (!box || box.matches("nav") || one.closest("pre") === box) return false;  // they scroll
  const [inner, outer] = [one, box].map((each) => each.getBoundingClientRect());
  return inner.right > outer.right + 1 || inner.left < outer.left - 1;
};
for (const one of document.body.querySelectorAll("*")) {
  const hasText = text(one);
  if (!hasText && !one.matches("button, input, select, textarea, table, canvas")) continue;
  const isCut = hasText && one.scrollWidth > one.clientWidth + 1 && !one.matches("input, select, pre");
  const isOutside = leaves(one);
  if (!isCut && !isOutside) continue;
  if (!shown(one) || one.closest("svg, .unseen, .skip, option, textarea")) continue;
  const {overflowX, textOverflow, fontSize, clipPath} = getComputedStyle(one);
  if (fontSize === "0px" || clipPath !== "none") continue;  // for screen readers
  if (isCut && ["hidden", "clip"].includes(overflowX) && textOverflow !== "ellipsis") {
    wrong.push(`${nameOf(one)} is cut off`);
  }
  if (isOutside) wrong.push(`${nameOf(one)} is wider than its box`);
}
const edged = [...main.querySelectorAll("button, .button, input, select, textarea, table, pre")]
  .filter((one) => shown(one) && parseFloat(getComputedStyle(one).borderTopWidth) > 0 && !one.matches(".copy, .remove"))
  .map((one) => [one, one.getBoundingClientRect()]);
for (const [one, upper] of edged) {
  for (const [other, lower] of edged) {
    const gap = lower.top - upper.bottom;
    if (gap > -3 && gap < 3 && lower.left < upper.right && upper.left < lower.right) {
      wrong.push(`${nameOf(one)} touches ${nameOf(other)}`);
    }
  }
}
const current = document.querySelector("body > header nav:not(.areas) [aria-current]");
if (current) {
  const [inner, outer] = [current, current.closest("ul")].map((each) => each.getBoundingClientRect());
  if (inner.left < outer.left || inner.right > outer.right) wrong.push(`the place ${current.innerText} is not in view`);
}
done([[...new Set(wrong)], document.documentElement.scrollHeight]);
};
measure(...arguments).catch((error) => arguments[4]([[String(error)], 0]));
"""


def measured(browser: Chromium, *, longest: int = _LONGEST, widths: Sequence[tuple[int, int]] = WIDTHS) -> list[str]:
    """The faults at each of the widths. `longest`: how long the page may be, in CSS pixels."""
    wrong = []
    for size in reversed(widths):  # from that of a page that was just opened
        browser.show(size, dark=False)
        found, height = browser.run_async(_MEASURE, _WORD, _COLUMNS, size == PHONE, size[0])
        wrong += [f"at {size[0]} px {one}" for one in found]
        if browser.overhang():
            wrong.append(f"at {size[0]} px it is wider than the screen")
        if height > longest:
            wrong.append(f"at {size[0]} px it is {height} px long")
    return wrong
