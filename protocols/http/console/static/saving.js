// Saving an object. If somebody else has changed it since it was loaded, the page shows both versions to choose from.

import { call, Refused, tagOf } from "./api.js";
import { h } from "./dom.js";
import { _ } from "./texts.js";

// The order of members has no meaning
const sorted = (name, value) => (value !== null && typeof value === "object" && !Array.isArray(value)
  ? Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1))) : value);
const json = (value, space) => JSON.stringify(value ?? null, sorted, space);
const same = (one, other) => json(one) === json(other);
const text = (value) => (value === undefined || value === null || value === "" ? "–" : typeof value === "string" ? value
  : typeof value === "boolean" ? (value ? _("yes") : _("no")) : json(value, 2));

// Sends `body`, an edit of `seen`: {tag, data}. Resolves to the answer's data, or to null if the person continues to
// edit, or takes the other version, which `take` then puts into the form. `labels` names the members in their order.
export async function save(method, path, body, { seen, labels, take, read = (present) => present }) {
  let { tag } = seen, before = seen.data;
  for (;;) {
    try {
      return (await call(method, path, { body, tag })).data;
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 412 || !error.present) throw error;
      const present = read(error.present);
      const choice = await choose(before, present, body, labels);
      if (choice === "theirs") await take(error.present);
      if (choice !== "mine") return null;
      [tag, before] = [tagOf(error.present), present];
    }
  }
}

function choose(before, present, mine, labels) {
  const changed = Object.entries(labels).filter(([name]) => !same(before?.[name], present[name]) || (name in mine && !same(mine[name], present[name])));
  const version = (title, value) => h("div", {}, h("dt", {}, title), h("dd", {}, h("pre", { tabindex: "0" }, text(value))));
  const rows = changed.map(([name, label]) => h("section", { class: "versions", "aria-label": label }, h("h3", {}, label),
    h("dl", {}, version(_("As you opened it"), before?.[name]), version(_("As it is now"), present[name]), version(_("Yours"), name in mine ? mine[name] : before?.[name]))));
  return new Promise((resolve) => {
    const dialog = h("dialog", { class: "wide", "aria-labelledby": "versions-title" },
      h("form", { method: "dialog" }, h("h2", { id: "versions-title" }, _("Somebody else has changed this")),
        h("p", {}, _("Nothing of yours is saved yet.")), rows.length ? rows : h("p", {}, _("Both versions say the same now.")),
        h("div", { class: "row end" }, h("button", { class: "quiet", value: "" }, _("Go on editing")), h("button", { class: "quiet", value: "theirs" }, _("Take the other version")),
          h("button", { value: "mine" }, _("Save mine")))));
    dialog.addEventListener("close", () => { resolve(dialog.returnValue); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
