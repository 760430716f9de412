// The latest refusals: reason and address.

import { get } from "./api.js";
import { box, follow, page, sameCommand, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, time, whole } from "./dom.js";
import { plainNames, withNames } from "./names.js";
import { _, phrase } from "./texts.js";

const refusals = new DataTable(_("Refusals"), [
  { name: _("From"), value: (one) => plainNames(one.source) || _("the service itself"), cell: (one) => withNames(one.source || _("the service itself")), isName: true },
  { name: _("Event"), value: (one) => one.event.replaceAll("_", " ") },
  { name: _("Reason"), value: (one) => one.reason, cell: (one) => h("span", {}, withNames(one.reason), one.account ? h("span", { class: "type" }, phrase("about {name}", { name: withNames(one.account) })) : null) },
  { name: _("Listener"), value: (one) => one.listener },
  { name: _("Times"), value: (one) => one.times, cell: (one) => whole(one.times), isNumber: true },
  { name: _("Last"), value: (one) => one.lastOn, cell: (one) => time(one.lastOn) },
], { empty: _("Nothing was refused since the start."), order: [5, true], file: "refusals.csv" });

async function load() {
  const { data } = await get("/operator/refusals");
  refusals.set(data.refusals);
}

await show(async () => {
  await load();
  fill(page, box(_("The latest refusals since the start"), h("p", {}, sameCommand("audit --outcome refused", _("On the machine of the service: the refusals in the audit log."))), refusals.element));
  follow(load, 5000);
});
