// Monetization plans of a device type: free messages, a price for more, and the operator's decision.

import { call, done, get } from "./api.js";
import { badge, box, field, form, id, page, sameCall, sameTable, show, table } from "./dash.js";
import { tierText, typeShown } from "./dev-shared.js";
import { fill, h, heads, time } from "./dom.js";
import { _ } from "./texts.js";

const KINDS = { APPROVED: "good", REJECTED: "bad" };
const PATH = `/pricing/devicetypes/${id}/pricingtiers`;

async function load() {
  const { type } = await typeShown();
  const { data } = await get(PATH);
  const body = (free, cost) => ({ type: "count", tiers: [{ name: _("Free"), type: "free", messageLimit: free, cost: "0" },
    ...(cost ? [{ name: _("Paid"), type: "paid", messageLimit: -1, cost }] : [])] });
  fill(page, box(_("Plans"), h("p", { class: "row" }, sameCall("POST", PATH, body(100, "2.99")), sameTable(table("plans", { device_type: type.uniqueName, free_messages_per_day: 100, paid_cost: "2.99" }))),
    data.pricingTiers.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Plans")), heads(_("Version"), _("Status"), _("Tiers"), _("Made")), h("tbody", {}, data.pricingTiers.map((one) => h("tr", {},
      h("th", { scope: "row" }, _("Version {version}", { version: one.version })), h("td", { "data-label": _("Status") }, badge(one.status.toLowerCase(), KINDS[one.status] ?? ""), one.comments ? h("div", { class: "soft" }, one.comments) : null),
      h("td", { "data-label": _("Tiers") }, one.tiers.map((tier) => h("div", {}, tierText(tier)))), h("td", { class: "when", "data-label": _("Made") }, time(one.createdOn)))))) : h("p", { class: "hint" }, _("No plan: devices send as much as the organization's quota allows."))),
  box(_("New plan"), h("p", { class: "hint" }, _("A plan is in use once an operator has approved it.")), form(_("New plan"), [h("div", { class: "tools" },
    field("free", _("Free messages a day"), "number", { min: 1, value: "100", required: true }), field("cost", _("Price of unlimited messages, paid once"), "text", { placeholder: "2.99", inputmode: "decimal" }))], _("Propose the plan"), async (elements) => {
    await call("POST", PATH, { body: body(Number(elements.free.value), elements.cost.value.trim()) });
    done(_("The plan waits for the operator's decision."));
    await load();
  })));
}

await show(load);
