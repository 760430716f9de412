// Decisions of the operator: plans, payments, Advanced Manifests.

import { attempt, call, done, get } from "./api.js";
import { box, button, follow, page, sameCommand, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { tierText } from "./dev-shared.js";
import { fill, h, heads, time } from "./dom.js";
import { named } from "./names.js";

let last = "";
let payments = null;
const decide = (path, body, text) => (event) => attempt(async () => {
  await call("POST", path, { body });
  done(text);
  last = "";
  await load();
}, { button: event.target });

const rows = (name, columns, found) => (found.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, name), heads(...columns), h("tbody", {}, found)) : h("p", { class: "hint" }, "Nothing waits."));

async function load() {
  const { data } = await get("/operator/waiting");
  const text = JSON.stringify(data);
  if (text === last) return;
  last = text;
  payments ??= new DataTable("Payments", [
    { name: "Reference", value: (one) => one.reference, isName: true }, { name: "Price", value: (one) => one.price }, { name: "Tier", value: (one) => one.tier },
    { name: "Device", value: (one) => one.did, cell: (one) => named(one.did) }, { name: "Since", value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
    { name: "", value: () => "", cell: (one) => h("span", { class: "acts" }, one.status === "pending" ? [button("Accept", decide("/operator/payments", { reference: one.reference, outcome: "accepted" }, "The payment is accepted.")),
      button("Decline", decide("/operator/payments", { reference: one.reference, outcome: "declined" }, "The payment is declined."))]
      : button("Sent back", decide("/operator/payments", { reference: one.reference, outcome: "refunded" }, "Noted: the money was sent back."))) },
  ], { empty: "Nothing waits.", order: [4, false], file: "payments.csv" });
  payments.set(data.payments);
  fill(page,
    box("Plans", h("p", {}, sameCommand("plans")), rows("Plans", ["Device type", "Version#", "Tiers", ""], data.plans.map((one) => h("tr", {},
      h("th", { scope: "row" }, named(one.dtid, `/developer/types/${one.dtid}`)), h("td", { class: "size", "data-label": "Version" }, String(one.version)), h("td", { "data-label": "Tiers" }, one.tiers.map((each) => h("div", {}, tierText(each)))),
      h("td", { class: "act" }, h("span", { class: "acts" }, button("Approve", decide("/operator/plans", { dtid: one.dtid, version: one.version, decision: "APPROVED" }, "The plan is approved.")),
        button("Reject", decide("/operator/plans", { dtid: one.dtid, version: one.version, decision: "REJECTED" }, "The plan is rejected.")))))))),
    box("Payments", h("p", {}, sameCommand("payments")), payments.element),
    box("Manifests", h("p", { class: "hint" }, "An Advanced Manifest runs its author's expression for each message."), h("p", {}, sameCommand("type list")),
      rows("Manifests", ["Device type", "Version#", ""], data.manifests.map((one) => h("tr", {}, h("th", { scope: "row" }, named(one.dtid), h("span", { class: "type" }, one.uniqueName)), h("td", { class: "size", "data-label": "Version" }, String(one.version)),
        h("td", { class: "act" }, button("Approve", decide("/operator/manifests", { dtid: one.dtid, version: one.version }, "The Manifest is approved."))))))));
}

await show(async () => {
  await load();
  follow(load, 5000);
});
