// Quotas, and how much of them is used.

import { bars, box, figures, organizations, page, sameCall, sameTable, show, table } from "./dash.js";
import { fill, fullTime, h, whole } from "./dom.js";

await show(async () => {
  const members = await organizations();
  fill(page, ...members.map((one) => {
    const { used, limit, resetsOn, days } = one.usage;
    return box(one.name, h("p", { class: "row" }, sameCall("GET", "/developer/organizations"), sameTable(table("organizations", { name: one.name, monthly_messages: limit }))), limit > 0 ? h("p", {}, h("meter", { class: "meter", min: 0, max: limit, high: limit * 0.8, optimum: 0, value: String(Math.min(used, limit)), "aria-label": `Used of the quota of ${one.name}` })) : null,
      figures(["Used this month", whole(used), limit >= 0 && used >= limit], ["Quota", limit < 0 ? "unlimited" : whole(limit)], ["Left", limit < 0 ? "unlimited" : whole(Math.max(0, limit - used))], ["Resets on", fullTime(resetsOn)]),
      !days.some((day) => day.units) ? h("p", { class: "hint" }, "Nothing was counted in the last 31 days. Where the operator has turned quotas off, nothing is counted.") : h("div", {}, h("h3", {}, "Units by UTC day"), bars(`Units of ${one.name} by UTC day`, days.map((day) => [day.on, day.units]), (at, value) => `${new Date(at).toISOString().slice(0, 10)}: ${whole(value)}`),
        h("p", { class: "hint" }, `From ${new Date(days[0].on).toISOString().slice(0, 10)} to ${new Date(days.at(-1).on).toISOString().slice(0, 10)}, days of UTC.`)),
      h("p", { class: "hint" }, "A unit is every started 1,024 bytes of a message, an Action or its delivery."));
  }));
});
