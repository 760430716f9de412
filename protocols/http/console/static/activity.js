// Account activity: the entries of the audit log about this person.

import { attempt, get } from "./api.js";
import { $, detailWords, empty, fill, h, heads, time, whole } from "./dom.js";
import { withNames } from "./names.js";
import { _, alike } from "./texts.js";

const uid = $("meta[name=uid]").content;
const PAGE = 6;
const BAD = { refused: _("refused"), failed: _("failed") };
let offset = 0;

const words = (event) => {
  const text = event.replaceAll("_", " ");
  return alike(text[0].toUpperCase() + text.slice(1));
};

// An entry without an actor comes from a caller without credentials.
const actor = (one) => one.actor === `user ${uid}` ? _("you") : one.actor || (one.outcome === "done" ? _("the service") : _("a stranger"));
const about = (one) => [`account ${uid}`, `user ${uid}`].includes(one.object) ? "" : one.object;

const details = (one) => detailWords(Object.fromEntries(Object.entries(one.details).filter(([, value]) => value !== uid)));

export async function loadActivity() {
  const { data, total } = await get(`/users/${uid}/audit`, { count: PAGE, offset });
  if (total === 0) {
    fill($("#activity"), empty(_("Nothing yet"), _("Sign-ins, consents, tokens and changes will be listed here.")));
    return;
  }
  fill($("#activity"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Account activity")),
    heads(_("Event"), _("When"), _("By"), _("From"), _("About")),
    h("tbody", {}, data.entries.map(row))));
  $("#activity-pages").hidden = total <= PAGE;
  $("#activity-range").textContent = _("{first} to {last} of {total}", { first: whole(offset + 1), last: whole(offset + data.entries.length), total: whole(total) });
  $("#activity-newer").disabled = offset === 0;
  $("#activity-older").disabled = offset + PAGE >= total;
}

function row(one) {
  return h("tr", {}, h("th", { scope: "row" }, words(one.event), BAD[one.outcome] ? h("small", { class: "tag bad" }, BAD[one.outcome]) : null),
    h("td", { class: "when", "data-label": _("When") }, time(one.ts)),
    h("td", { "data-label": _("By") }, withNames(actor(one))),
    h("td", { "data-label": _("From") }, one.address || "–"),
    h("td", { "data-label": _("About") }, withNames([about(one), details(one)].filter(Boolean).join(": ") || "–")));
}

const turn = (by) => (event) => attempt(async () => {
  offset = Math.max(0, offset + by);
  await loadActivity();
}, { button: event.target });

$("#activity-newer").addEventListener("click", turn(-PAGE));
$("#activity-older").addEventListener("click", turn(PAGE));
