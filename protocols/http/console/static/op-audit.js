// The latest entries of the audit log: event, actor, address.

import { attempt, get } from "./api.js";
import { box, field, follow, form, page, sameCommand, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { detailWords, fill, fullTime, h } from "./dom.js";
import { plainNames, withNames } from "./names.js";

const HOURS = [["1", "The last hour"], ["24", "The last day"], ["168", "The last week"], ["", "Everything"]];
const entries = new DataTable("Entries", [
  { name: "Time", value: (one) => new Date(one.at).toISOString(), cell: (one) => h("span", { class: "when" }, fullTime(one.at)) },
  { name: "Event", value: (one) => one.event, cell: (one) => one.event.replaceAll("_", " "), isName: true },
  { name: "By", value: (one) => plainNames(one.actor) || "a stranger or the service", cell: (one) => withNames(one.actor || "a stranger or the service") },
  { name: "From", value: (one) => one.address },
  { name: "About", value: (one) => plainNames(one.object), cell: (one) => withNames(one.object) },
  { name: "Outcome", value: (one) => one.outcome, cell: (one) => h("span", { class: `badge ${one.outcome === "done" ? "" : "bad"}` }, one.outcome) },
  { name: "Details", value: (one) => plainNames(detailWords(one.details)), cell: (one) => withNames(detailWords(one.details)) },
], { empty: "No entry fits.", file: "audit.csv" });

async function find(elements) {
  const hours = Number(elements.hours.value);
  const { data } = await get("/operator/audit", { since: hours ? Date.now() - hours * 3600000 : undefined, actor: elements.actor.value.trim(),
    object: elements.object.value.trim(), event: elements.event.value.trim(), outcome: elements.outcome.value, count: 10000 });
  entries.set(data.entries);
}

const asked = form("Find entries", [h("div", { class: "tools" }, field("hours", "When", HOURS, { value: "24" }), field("actor", "By", "text", { placeholder: "E-mail address or id" }),
  field("object", "About", "text", { placeholder: "E-mail address or id" }), field("event", "Event", "text", { placeholder: "sign_in" }),
  field("outcome", "Outcome", [["", "any"], ["done", "done"], ["refused", "refused"], ["failed", "failed"]]))], "Find", find);

await show(async () => {
  fill(page, box("Audit log", h("p", {}, sameCommand("audit --since 1d")), asked, entries.element));
  asked.elements.hours.value = "24";
  await find(asked.elements);
  follow(() => get("/operator/waiting"), 5000);  // whether the person is still an operator
});
