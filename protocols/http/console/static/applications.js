// The applications with access, and revoking it.

import { attempt, call, done, get } from "./api.js";
import { $, empty, fill, h, heads, sure } from "./dom.js";
import { _, alike } from "./texts.js";

const uid = $("meta[name=uid]").content;
async function load() {
  const { data } = await get(`/users/${uid}/applications`);
  if (data.applications.length === 0) {
    fill($("#applications"), empty(_("No applications"), _("Applications that you sign in to and allow are listed here.")));
    return;
  }
  fill($("#applications"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Applications")),
    heads(_("Name"), _("Made by"), _("May"), ""),
    h("tbody", {}, data.applications.map(row))));
}

function row(one) {
  const what = [h("ul", { class: "may" }, one.sentences.map((text) => h("li", {}, alike(text)))), h("p", { class: "soft" }, alike(one.howLong))];
  return h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { "data-label": _("Made by") }, one.organization),
    h("td", {}, what),
    h("td", { class: "act" }, h("button", { type: "button", class: "danger small", "aria-label": _("Revoke {name}", { name: one.name }), onclick: (event) => revoke(one, event.target) }, _("Revoke"))));
}

async function revoke(one, button) {
  const yes = await sure(_("Revoke {name}?", { name: one.name }), _("It is signed out at once. It has to ask you again before it sees anything."), _("Revoke"));
  if (yes) await attempt(async () => {
    await call("DELETE", `/users/${uid}/applications/${one.aid}`);
    done(_("{name} no longer sees anything of yours.", { name: one.name }));
    await load();
  }, { button });
}

await attempt(load);
