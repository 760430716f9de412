// Rules and scenes that act on the person's devices, with the application or the other person that made them.

import { get } from "./api.js";
import { $, h, heads } from "./dom.js";
import { _ } from "./texts.js";

const uid = $("meta[name=uid]").content;

// Rules or scenes, by id
export async function automations(kind) {
  const { data } = await get(`/users/${uid}/automations`);
  return new Map(data.automations.filter((one) => one.kind === kind).map((one) => [one.id, one]));
}

// The reason why a rule or a scene does not run. Its parts are numbered as on the page.
export function problemOf(one) {
  const errors = one.error?.errors?.flat() ?? [];
  if (errors.length) return [...new Set(errors.map(({ field, messages }) => `${place(field)}${messages.join(", ")}`))].join("; ");
  return one.stopReason ?? (one.state === "failing" ? one.problems?.[0]?.message : undefined);
}

function place(field) {
  const [, kind, at] = /^(?:rule\.)?(if\.and|then|actions)\.(\d+)/.exec(field) ?? [];
  if (kind === undefined) return "";
  return `${kind === "if.and" ? _("Condition") : _("Action")} ${Number(at) + 1}: `;
}

// Rules and scenes of other people, who see a device because it is shared with them. Ending the share stops them.
export function othersBox(found) {
  const others = found.filter((one) => one.user.id !== uid);
  if (others.length === 0) return null;
  return h("section", { class: "box others", "aria-labelledby": "others-title" }, h("h2", { id: "others-title" }, _("Of people with whom you share a device")),
    h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Of other people")), heads(_("Whose"), _("Your devices in it"), _("Made by"), ""),
      h("tbody", {}, others.map((one) => h("tr", {}, h("th", { scope: "row" }, one.kind === "rule" ? _("A rule of {name}", { name: one.user.name }) : _("A scene of {name}", { name: one.user.name })),
        h("td", { "data-label": _("Your devices") }, one.devices.flatMap((device, at) => [at ? ", " : "", h("a", { href: `/console/devices/${device.id}` }, device.name)])),
        h("td", { "data-label": _("Made by") }, one.isOfConsole ? _("the console") : one.application.name),
        h("td", { class: "act" }, h("a", { href: `/console/devices/${one.devices[0].id}#share-box` }, _("Stop sharing…"))))))));
}

// Notice above a rule that another application made for itself: how to stop it
export function foreignNotice(made, rule, { turnOff, revoke }) {
  return h("div", { class: "notice", role: "note" }, h("p", {}, _("{name} made this rule. You see it, and you can stop it; only {name} can change it.", { name: made.application.name })),
    h("div", { class: "row" }, rule.enabled ? h("button", { type: "button", class: "small", onclick: turnOff }, _("Turn it off"))
      : h("button", { type: "button", class: "quiet small", onclick: turnOff }, _("Turn it on")),
    h("button", { type: "button", class: "danger small", onclick: revoke }, _("Revoke {name}", { name: made.application.name }))));
}
