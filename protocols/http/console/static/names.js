// Names beside ids. Ids shown at the same time are resolved in one call. Ids that the person may not see stay ids.

import { get } from "./api.js";
import { h } from "./dom.js";
import { _ } from "./texts.js";

const IDS = /\b(?:dt)?[0-9a-f]{32}\b/g;
const ASKED = 100;
const known = new Map();  // by id: {kind, name, isGone}, or null
const asking = new Map();  // by id: a promise of the same
let waiting = [];

export function nameOf(id) {
  if (known.has(id)) return Promise.resolve(known.get(id));
  if (!asking.has(id)) {
    asking.set(id, new Promise((resolve) => waiting.push([id, resolve])));
    if (waiting.length === 1) setTimeout(ask);
  }
  return asking.get(id);
}

async function ask() {
  const some = waiting;
  waiting = [];
  for (let at = 0; at < some.length; at += ASKED) {
    const part = some.slice(at, at + ASKED);
    let found = new Map();
    try {
      const { data } = await get("/names", { ids: part.map(([id]) => id).join(",") });
      found = new Map(data.names.map((one) => [one.id, one]));
    } catch { /* the ids stay */ }
    for (const [id, resolve] of part) {
      known.set(id, found.get(id) ?? null);
      asking.delete(id);
      resolve(known.get(id));
    }
  }
}

const short = (id) => `${id.replace(/^dt/, "").slice(0, 6)}…`;
const textOf = (one) => (one.isGone ? _("{name} (deleted)", { name: one.name }) : one.name);

// An id with its name: the whole id shows on hovering, and is used for copying and filtering.
export function named(id, href, isBrief = false) {
  const name = h("span", {}, known.get(id) ? textOf(known.get(id)) : h("code", { class: "id" }, short(id)));
  const rest = h("code", { class: "id", title: id, hidden: isBrief || !known.get(id) }, short(id));
  if (!known.has(id)) {
    nameOf(id).then((one) => {
      if (one === null) return;
      name.textContent = textOf(one);
      rest.hidden = isBrief;
    });
  }
  return h("span", { class: "named", title: id }, href ? h("a", { href, title: id }, name) : name, ...(isBrief ? [] : [" "]), rest);
}

// A sentence with names in place of ids, which show on hovering
export function withNames(text) {
  const parts = [];
  let from = 0;
  for (const found of String(text).matchAll(IDS)) {
    parts.push(text.slice(from, found.index), named(found[0], undefined, true));
    from = found.index + found[0].length;
  }
  return h("span", {}, ...parts, String(text).slice(from));
}

// The same as plain text, with the names known so far, for the filter and the CSV
export const plainNames = (text) => String(text ?? "").replace(IDS, (id) => (known.get(id) ? `${textOf(known.get(id))} ${id}` : id));
