// The latest refusals: reason and address.

import { get } from "./api.js";
import { box, follow, page, sameCommand, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, time, whole } from "./dom.js";
import { plainNames, withNames } from "./names.js";

const refusals = new DataTable("Refusals", [
  { name: "From", value: (one) => plainNames(one.source) || "the service itself", cell: (one) => withNames(one.source || "the service itself"), isName: true },
  { name: "Event", value: (one) => one.event.replaceAll("_", " ") },
  { name: "Reason", value: (one) => one.reason, cell: (one) => h("span", {}, withNames(one.reason), one.account ? h("span", { class: "type" }, "about ", withNames(one.account)) : null) },
  { name: "Listener", value: (one) => one.listener },
  { name: "Times", value: (one) => one.times, cell: (one) => whole(one.times), isNumber: true },
  { name: "Last", value: (one) => one.lastOn, cell: (one) => time(one.lastOn) },
], { empty: "Nothing was refused since the start.", order: [5, true], file: "refusals.csv" });

async function load() {
  const { data } = await get("/operator/refusals");
  refusals.set(data.refusals);
}

await show(async () => {
  await load();
  fill(page, box("The latest refusals since the start", h("p", {}, sameCommand("audit --outcome refused", "On the machine of the service: the refusals in the audit log.")), refusals.element));
  follow(load, 5000);
});
