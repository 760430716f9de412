// The subscriptions of the organization's applications.

import { address, badge, box, everything, follow, organizations, page, sameClient, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, time } from "./dom.js";
import { named, plainNames, withNames } from "./names.js";

const KINDS = { ACTIVE: "good", SUSPENDED: "bad", FAILING: "bad" };
const stateOf = (one) => (one.status === "ACTIVE" && one.problem ? "FAILING" : one.status);

async function load(table, members) {
  const lists = await Promise.all(members.map((one) => everything(`/developer/organizations/${one.id}/subscriptions`, {}, (answer) => answer.data)));
  table.set(lists.flat());
}

await show(async () => {
  const members = await organizations();
  const table = new DataTable("Subscriptions", [
    { name: "To", value: (one) => one.description ?? one.callbackUrl ?? one.subscriptionType, isName: true, cell: (one) =>
      h("span", {}, h("a", { href: `/developer/subscriptions/${one.id}` }, address(one.description || one.callbackUrl || one.subscriptionType)), h("span", { class: "type" }, one.messageType)) },
    { name: "Status", value: stateOf, cell: (one) => badge(stateOf(one).toLowerCase().replaceAll("_", " "), KINDS[stateOf(one)] ?? "") },
    { name: "What went wrong last", value: (one) => plainNames(one.problem), cell: (one) => withNames(one.problem ?? "") },
    { name: "Application", value: (one) => plainNames(one.aid), cell: (one) => named(one.aid) },
    { name: "Created", value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
  ], { empty: "No application of yours has a subscription. An application makes one with POST /subscriptions.", order: [1, true], file: "subscriptions.csv" });
  fill(page, box("Subscriptions", h("p", {}, sameClient("receive --port 9000", "A callback on your own machine that prints what it gets and validates its subscription.")), table.element));
  await load(table, members);
  follow(() => load(table, members), 5000);
});
