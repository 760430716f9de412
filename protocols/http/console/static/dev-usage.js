// Quotas, and how much of them is used.

import { bars, box, figures, organizations, page, sameCall, sameTable, show, table } from "./dash.js";
import { fill, fullTime, h, whole } from "./dom.js";
import { _ } from "./texts.js";

await show(async () => {
  const members = await organizations();
  fill(page, ...members.map((one) => {
    const { used, limit, resetsOn, days } = one.usage;
    return box(one.name, h("p", { class: "row" }, sameCall("GET", "/developer/organizations"), sameTable(table("organizations", { name: one.name, monthly_messages: limit }))), limit > 0 ? h("p", {}, h("meter", { class: "meter", min: 0, max: limit, high: limit * 0.8, optimum: 0, value: String(Math.min(used, limit)), "aria-label": _("Used of the quota of {name}", { name: one.name }) })) : null,
      figures([_("Used this month"), whole(used), limit >= 0 && used >= limit], [_("Quota"), limit < 0 ? _("unlimited") : whole(limit)], [_("Left"), limit < 0 ? _("unlimited") : whole(Math.max(0, limit - used))], [_("Resets on"), fullTime(resetsOn)]),
      !days.some((day) => day.units) ? h("p", { class: "hint" }, _("Nothing was counted in the last 31 days. Where the operator has turned quotas off, nothing is counted.")) : h("div", {}, h("h3", {}, _("Units by UTC day")), bars(_("Units of {name} by UTC day", { name: one.name }), days.map((day) => [day.on, day.units]), (at, value) => `${new Date(at).toISOString().slice(0, 10)}: ${whole(value)}`),
        h("p", { class: "hint" }, _("From {first} to {last}, days of UTC.", { first: new Date(days[0].on).toISOString().slice(0, 10), last: new Date(days.at(-1).on).toISOString().slice(0, 10) }))),
      h("p", { class: "hint" }, _("A unit is every started 1,024 bytes of a message, an Action or its delivery.")));
  }));
});
