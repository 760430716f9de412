// LWM2M boards that are registered and offer resources which the Manifest of their type lacks.

import { attempt, done, get, tagOf } from "./api.js";
import { box, everything, sameCall } from "./dash.js";
import { h } from "./dom.js";
import { save } from "./saving.js";
import { _ } from "./texts.js";

const pathOf = (oid) => `/developer/organizations/${oid}/boards`;

// Of all types of these organizations, or of one type
export async function boards(members, dtid) {
  const lists = await Promise.all(members.map(async (one) => (await everything(pathOf(one.id), {}, (answer) => answer.data)).map((board) => ({ ...board, oid: one.id }))));
  return lists.flat().filter((one) => dtid === undefined || one.dtid === dtid);
}

// The tag is asked for before the document: a version that is made in between is noticed.
async function use(board, again) {
  const path = `/devicetypes/${board.dtid}/manifests`;
  const { data } = await get(path, { count: 1 });
  const [present] = await boards([{ id: board.oid }], board.dtid);
  if (!present) return again();
  const made = await save("POST", path, { manifest: present.manifest }, { seen: { tag: tagOf(data), data: { manifest: data[0]?.manifest } },
    labels: { manifest: _("The Manifest") }, take: again });
  if (made === null) return undefined;
  done(_("Version {version} is in use: the values come as messages from now on.", { version: made.version }));
  return again();
}

export function boardBox(found, again, { isNamed = true } = {}) {
  if (found.length === 0) return null;
  return box(_("Registered boards"), h("ul", { class: "alarms" }, found.map((one) => h("li", { class: "calm" },
    h("div", {}, isNamed ? h("p", {}, h("b", {}, one.name)) : null, h("p", {}, one.offers.sentence),
      one.offers.actions.length ? h("p", { class: "hint" }, _("Actions: {names}", { names: one.offers.actions.join(", ") })) : null),
    h("button", { type: "button", class: "small", "aria-label": isNamed ? _("Use these for {name}", { name: one.name }) : undefined,
      onclick: (event) => attempt(() => use(one, again), { button: event.currentTarget }) }, _("Use these"))))),
  h("p", {}, sameCall("GET", pathOf(found[0].oid))));
}
