// Decisions of the operator: plans, payments, Advanced Manifests.

import { attempt, call, done, get } from "./api.js";
import { box, button, follow, page, sameCommand, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { tierText } from "./dev-shared.js";
import { fill, h, heads, time } from "./dom.js";
import { named } from "./names.js";
import { _ } from "./texts.js";

let last = "";
let payments = null;
const decide = (path, body, text) => (event) => attempt(async () => {
  await call("POST", path, { body });
  done(text);
  last = "";
  await load();
}, { button: event.target });

const rows = (name, columns, found) => (found.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, name), heads(...columns), h("tbody", {}, found)) : h("p", { class: "hint" }, _("Nothing waits.")));

async function load() {
  const { data } = await get("/operator/waiting");
  const text = JSON.stringify(data);
  if (text === last) return;
  last = text;
  payments ??= new DataTable(_("Payments"), [
    { name: _("Reference"), value: (one) => one.reference, isName: true }, { name: _("Price"), value: (one) => one.price }, { name: _("Tier"), value: (one) => one.tier },
    { name: _("Device"), value: (one) => one.did, cell: (one) => named(one.did) }, { name: _("Since"), value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
    { name: "", value: () => "", cell: (one) => h("span", { class: "acts" }, one.status === "pending" ? [button(_("Accept"), decide("/operator/payments", { reference: one.reference, outcome: "accepted" }, _("The payment is accepted."))),
      button(_("Decline"), decide("/operator/payments", { reference: one.reference, outcome: "declined" }, _("The payment is declined.")))]
      : button(_("Sent back"), decide("/operator/payments", { reference: one.reference, outcome: "refunded" }, _("Noted: the money was sent back.")))) },
  ], { empty: _("Nothing waits."), order: [4, false], file: "payments.csv" });
  payments.set(data.payments);
  fill(page,
    box(_("Plans"), h("p", {}, sameCommand("plans")), rows(_("Plans"), [_("Device type"), `${_("Version")}#`, _("Tiers"), ""], data.plans.map((one) => h("tr", {},
      h("th", { scope: "row" }, named(one.dtid, `/developer/types/${one.dtid}`)), h("td", { class: "size", "data-label": _("Version") }, String(one.version)), h("td", { "data-label": _("Tiers") }, one.tiers.map((each) => h("div", {}, tierText(each)))),
      h("td", { class: "act" }, h("span", { class: "acts" }, button(_("Approve"), decide("/operator/plans", { dtid: one.dtid, version: one.version, decision: "APPROVED" }, _("The plan is approved."))),
        button(_("Reject"), decide("/operator/plans", { dtid: one.dtid, version: one.version, decision: "REJECTED" }, _("The plan is rejected."))))))))),
    box(_("Payments"), h("p", {}, sameCommand("payments")), payments.element),
    box(_("Manifests"), h("p", { class: "hint" }, _("An Advanced Manifest runs its author's expression for each message.")), h("p", {}, sameCommand("type list")),
      rows(_("Manifests"), [_("Device type"), `${_("Version")}#`, ""], data.manifests.map((one) => h("tr", {}, h("th", { scope: "row" }, named(one.dtid), h("span", { class: "type" }, one.uniqueName)), h("td", { class: "size", "data-label": _("Version") }, String(one.version)),
        h("td", { class: "act" }, button(_("Approve"), decide("/operator/manifests", { dtid: one.dtid, version: one.version }, _("The Manifest is approved.")))))))));
}

await show(async () => {
  await load();
  follow(load, 5000);
});
