// Copy buttons, and the search over /docs/search.json. Without scripts, pages have all but these two.
"use strict";

for (const block of document.querySelectorAll("main pre")) {
  const frame = document.createElement("div");
  const button = document.createElement("button");
  frame.className = "copyable";
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(block); // no clipboard without TLS: the reader presses Ctrl-C
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.replaceWith(frame);
  frame.append(block, button);
}

const MOST_FOUND = 12;
const field = document.getElementById("search");
const list = document.getElementById("found");
const docs = new URL(".", document.currentScript ? document.currentScript.src : location.href);
let index;

async function loadIndex() {
  index ??= fetch(new URL("../search.json", docs)).then((answer) => (answer.ok ? answer.json() : []));
  return index;
}

// The number of words that are in the text and not in the title: smaller is better.
function rank(entry, words) {
  const title = `${entry.title} ${entry.of}`.toLowerCase();
  const text = entry.text.toLowerCase();
  let missed = 0;
  for (const word of words) {
    if (title.includes(word)) continue;
    if (!text.includes(word)) return null;
    missed += 1;
  }
  return missed;
}

async function search() {
  const asked = field.value;
  const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) {
    list.replaceChildren();
    return;
  }
  const entries = await loadIndex();
  if (field.value !== asked) return; // the reader has typed more
  const found = entries
    .map((entry) => ({ entry, missed: rank(entry, words) }))
    .filter(({ missed }) => missed !== null)
    .sort((a, b) => a.missed - b.missed)
    .slice(0, MOST_FOUND)
    .map(({ entry }) => {
      const link = document.createElement("a");
      const where = document.createElement("small");
      const item = document.createElement("li");
      link.href = entry.href;
      link.textContent = entry.title;
      if (entry.of !== entry.title) {
        where.textContent = entry.of;
        link.append(where);
      }
      item.append(link);
      return item;
    });
  if (!found.length) {
    const nothing = document.createElement("li");
    nothing.textContent = "Nothing found.";
    found.push(nothing);
  }
  list.replaceChildren(...found);
}

field.closest(".search").hidden = false;

// On a phone the menu is closed, so that the page begins with its text.
const phone = matchMedia("(max-width: 52rem)");
const menu = document.querySelector(".menu");
const place = () => {
  menu.open = !phone.matches;
  if (menu.open) menu.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
};
phone.addEventListener("change", place);
place();

field.addEventListener("focus", loadIndex, { once: true });
field.addEventListener("input", search);
field.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    field.value = "";
    list.replaceChildren();
  }
});
