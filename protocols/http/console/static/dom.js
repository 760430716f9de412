// Elements, texts, times and short messages. Everything from the API becomes text: nothing here parses HTML.

import { _, locale } from "./texts.js";

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  const isCode = tag === "pre" || tag === "option";
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).flatMap((child) => (isCode ? [child] : breakable(child))));
  return element;
}

// Addresses and paths may break after their punctuation, and nowhere else.
const ENDLESS = /\S{41,}/;
const LONG = /[^\s<>]{16,}/;
const BEHIND = /(?<=[^\s][@._/:?&=+,])(?=[^\s@._/:?&=+,])|(?<=[a-z])(?=[A-Z][a-z])|(?<=\d{8})(?=T\d)/;
// Digests and secrets may break anywhere: no word and no id is as long.
function ending(part) {
  if (!ENDLESS.test(part)) return part;
  const span = document.createElement("span");
  span.className = "anywhere";
  span.textContent = part;
  return span;
}

function breakable(child) {
  if (typeof child !== "string" || !LONG.test(child)) return [child];
  return child.split(BEHIND).flatMap((part, at) => (at ? [document.createElement("wbr"), ending(part)] : [ending(part)]));
}

export const $ = (selector, root = document) => root.querySelector(selector);

// A navigation without enough room scrolls. Scrolls the current place into view.
for (const current of document.querySelectorAll(".console > header nav [aria-current]")) {
  const places = current.closest("ul");
  new ResizeObserver(() => { places.scrollLeft = current.offsetLeft + current.offsetWidth + 32 - places.offsetLeft - places.clientWidth; }).observe(places);
}

export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined).flatMap(breakable));
  parent.removeAttribute("aria-busy");
}

// Times, in the browser's zone and language

const FULL = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const RELATIVE = new Intl.RelativeTimeFormat(locale, { numeric: "auto" });
const STEPS = [[60, "second", 1], [3600, "minute", 60], [86400, "hour", 3600], [2592000, "day", 86400],
  [31536000, "month", 2592000], [Infinity, "year", 31536000]];

export const fullTime = (ms) => FULL.format(ms);
export const clockTime = (ms) => CLOCK.format(ms);

export function ago(ms) {
  const seconds = (ms - Date.now()) / 1000;
  if (Math.abs(seconds) < 5) return _("just now");
  const [, unit, size] = STEPS.find(([below]) => Math.abs(seconds) < below);
  return RELATIVE.format(Math.round(seconds / size), unit);
}

export function time(ms) {
  return h("time", { datetime: new Date(ms).toISOString(), title: fullTime(ms), "data-ms": ms }, ago(ms));
}

setInterval(() => {
  for (const one of document.querySelectorAll("time[data-ms]")) {
    const text = ago(Number(one.dataset.ms));
    if (one.textContent !== text) one.textContent = text;
  }
}, 5000);

// Numbers and values

const NUMBER = new Intl.NumberFormat(locale, { maximumSignificantDigits: 6 });
const WHOLE = new Intl.NumberFormat(locale);
const UNITS = [_("bytes"), "KB", "MB", "GB"];

export const whole = (number) => WHOLE.format(number);

// A switch is on or off, any other Boolean yes or no. The last name of the path decides.
const SWITCH = /^(on|isOn|onOff|state|switch|switchedOn|power|powered|enabled|relay|outlet|output|light|lamp|heater|heating|cooling|pump|fan|valve|mode)\d*$|(Switch|Power|Relay|Enabled|On)\d*$/;
export const truth = (value, path = "") => {
  const [yes, no] = SWITCH.test(path.split(".").at(-1)) ? [_("on"), _("off")] : [_("yes"), _("no")];
  return value ? yes : no;
};

// The same in the API's sentence about a condition: "open = true", "open of <id> is true".
export const withTruths = (text) => text.replace(/(\S+)( (?:=|!=) | of [0-9a-f]{32} is )(true|false)\b/g,
  (_, path, between, value) => `${path}${between}${truth(value === "true", path)}`);

export function shown(value, unit = "", path = "") {
  if (typeof value === "number") return `${NUMBER.format(value)}${unit ? `\u00a0${unit}` : ""}`;
  if (typeof value === "boolean") return truth(value, path);
  if (Array.isArray(value)) return value.map((one) => shown(one, "", path)).join(", ");
  if (value !== null && typeof value === "object") return JSON.stringify(value);
  return `${value}${unit ? `\u00a0${unit}` : ""}`;
}

// Further details of an entry of the audit log
export const detailWords = (details) => Object.entries(details).filter(([, value]) => value !== "" && value !== null).map(([name, value]) => {
  const text = Array.isArray(value) ? value.map((one) => (typeof one === "object" ? `(${detailWords(one)})` : one)).join(", ")
    : value !== null && typeof value === "object" ? `(${detailWords(value)})` : value;
  return `${name.replaceAll("_", " ")} ${text}`;
}).join(", ");

export function fileSize(bytes) {
  let size = bytes, step = 0;
  while (size >= 1000 && step < UNITS.length - 1) [size, step] = [size / 1000, step + 1];
  return `${NUMBER.format(Math.round(size * 10) / 10)} ${UNITS[step]}`;
}

// The head of a table. "" names a column of buttons.
export function heads(...texts) {
  const cells = texts.map((text) => {
    const isNumber = text.endsWith("#");
    const name = isNumber ? text.slice(0, -1) : text;
    return h("th", { scope: "col", class: isNumber ? "size" : undefined }, name || h("span", { class: "unseen" }, _("Actions")));
  });
  return h("thead", {}, h("tr", {}, cells));
}

// Saves a file in the browser

export function saveFile(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Short messages, with undo or another button

export function toast(text, { action, label = _("Undo"), bad = false, seconds = 8 } = {}) {
  const box = $("#toasts");
  const close = () => note.remove();
  const note = h("div", { class: bad ? "toast bad" : "toast", role: bad ? "alert" : "status" }, h("span", {}, text),
    action ? h("button", { type: "button", class: "quiet small", onclick: () => { close(); action(); } }, label) : null,
    h("button", { type: "button", class: "plain small", "aria-label": _("Close this message"), onclick: close }, "×"));
  box.append(note);
  while (box.children.length > 3) box.firstChild.remove();
  const wait = () => setTimeout(close, seconds * 1000);
  let timer = wait();
  note.addEventListener("focusin", () => clearTimeout(timer));
  note.addEventListener("mouseenter", () => clearTimeout(timer));
  note.addEventListener("mouseleave", () => { timer = wait(); });
  return close;
}

export function copyButton(text, what) {
  const button = h("button", { type: "button", class: "quiet small copy", "aria-label": _("Copy {what}", { what }) }, _("Copy"));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      button.textContent = _("Copied");
    } catch {
      // Without TLS browsers allow no clipboard: the line is selected instead, for Ctrl-C.
      const line = button.parentElement.querySelector("code, pre");
      if (line) getSelection().selectAllChildren(line);
      button.textContent = _("Press Ctrl+C");
    }
    setTimeout(() => { button.textContent = _("Copy"); }, 2000);
  });
  return button;
}

// Asks before an action that cannot be undone. Resolves to whether the person agreed.
export function sure(title, text, label) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "sure-title" },
      h("form", { method: "dialog" }, h("h2", { id: "sure-title" }, title), h("p", {}, text),
        h("div", { class: "row end" }, h("button", { class: "quiet", value: "no" }, _("Cancel")),
          h("button", { class: "danger", value: "yes" }, label))));
    dialog.addEventListener("close", () => { resolve(dialog.returnValue === "yes"); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// Shows the reason of a refusal.
export function told(title, text) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "told-title" }, h("form", { method: "dialog" }, h("h2", { id: "told-title" }, title), h("p", {}, text),
      h("div", { class: "row end" }, h("button", {}, _("Close")))));
    dialog.addEventListener("close", () => { resolve(); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// The second confirmation: the person types `word`. `more` is shown between the text and the field.
export function typed(title, text, label, { word, name, kind = "text", more = null }) {
  return new Promise((resolve) => {
    const input = h("input", { id: "typed-word", type: kind, autocomplete: "off", spellcheck: "false", required: true });
    const button = h("button", { class: "danger", value: "yes", disabled: true }, label);
    input.addEventListener("input", () => { button.disabled = input.value.trim().toLowerCase() !== word.toLowerCase(); });
    const dialog = h("dialog", { "aria-labelledby": "typed-title" }, h("form", { method: "dialog" }, h("h2", { id: "typed-title" }, title),
      h("p", {}, text), more, h("p", {}, h("label", { for: input.id }, name), input),
      h("div", { class: "row end" }, h("button", { class: "quiet", value: "no", formnovalidate: true }, _("Cancel")), button)));
    dialog.addEventListener("close", () => { resolve(dialog.returnValue === "yes"); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}

export const showLine = (line) => showText(_("The same from a shell"), line, _("Put an access token into the variable TRUNKLINE_TOKEN first."));

export function showText(title, line, hint) {
  const dialog = h("dialog", { "aria-labelledby": "line-title" },
    h("form", { method: "dialog" }, h("h2", { id: "line-title" }, title),
      h("div", { class: "line" }, h("pre", { tabindex: "0" }, h("code", {}, line)), copyButton(line, _("the text"))),
      h("p", { class: "hint" }, hint),
      h("div", { class: "row end" }, h("button", { class: "quiet" }, _("Close")))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// Text in place of an empty list: a title, and what to do
export const empty = (title, text, ...more) => h("div", { class: "empty" }, h("p", {}, h("b", {}, title)), h("p", {}, text), ...more);

export const skeleton = (rows) => Array.from({ length: rows }, () => h("p", { class: "skeleton", "aria-hidden": "true" }));
