// The latest entries of the audit log: event, actor, address.

import { attempt, get } from "./api.js";
import { box, field, follow, form, page, sameCommand, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { detailWords, fill, fullTime, h } from "./dom.js";
import { plainNames, withNames } from "./names.js";
import { _, worded } from "./texts.js";

const HOURS = [["1", _("The last hour")], ["24", _("The last day")], ["168", _("The last week")], ["", _("Everything")]];
const entries = new DataTable(_("Entries"), [
  { name: _("Time"), value: (one) => new Date(one.at).toISOString(), cell: (one) => h("span", { class: "when" }, fullTime(one.at)) },
  { name: _("Event"), value: (one) => one.event, cell: (one) => one.event.replaceAll("_", " "), isName: true },
  { name: _("By"), value: (one) => plainNames(one.actor) || _("a stranger or the service"), cell: (one) => withNames(one.actor || _("a stranger or the service")) },
  { name: _("From"), value: (one) => one.address },
  { name: _("About"), value: (one) => plainNames(one.object), cell: (one) => withNames(one.object) },
  { name: _("Outcome"), value: (one) => one.outcome, cell: (one) => h("span", { class: `badge ${one.outcome === "done" ? "" : "bad"}` }, worded(one.outcome)) },
  { name: _("Details"), value: (one) => plainNames(detailWords(one.details)), cell: (one) => withNames(detailWords(one.details)) },
], { empty: _("No entry fits."), file: "audit.csv" });

async function find(elements) {
  const hours = Number(elements.hours.value);
  const { data } = await get("/operator/audit", { since: hours ? Date.now() - hours * 3600000 : undefined, actor: elements.actor.value.trim(),
    object: elements.object.value.trim(), event: elements.event.value.trim(), outcome: elements.outcome.value, count: 10000 });
  entries.set(data.entries);
}

const asked = form(_("Find entries"), [h("div", { class: "tools" }, field("hours", _("When"), HOURS, { value: "24" }), field("actor", _("By"), "text", { placeholder: _("E-mail address or id") }),
  field("object", _("About"), "text", { placeholder: _("E-mail address or id") }), field("event", _("Event"), "text", { placeholder: "sign_in" }),
  field("outcome", _("Outcome"), [["", _("any")], ["done", worded("done")], ["refused", worded("refused")], ["failed", worded("failed")]]))], _("Find"), find);

await show(async () => {
  fill(page, box(_("Audit log"), h("p", {}, sameCommand("audit --since 1d")), asked, entries.element));
  asked.elements.hours.value = "24";
  await find(asked.elements);
  follow(() => get("/operator/waiting"), 5000);  // whether the person is still an operator
});
