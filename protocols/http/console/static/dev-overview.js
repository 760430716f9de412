// Failing rules, subscriptions, roll-outs and connectors, each with a link.

import { attempt } from "./api.js";
import { problemOf } from "./automations.js";
import { boardBox, boards } from "./dev-boards.js";
import { address, badge, box, everything, figures, follow, organizations, page, pause, sameCall, show, uid } from "./dash.js";
import { fill, fullTime, h, whole } from "./dom.js";
import { withNames } from "./names.js";
import { follow as hear } from "./sockets.js";
import { _, worded } from "./texts.js";

const AGAIN_MS = 60000;
const SOON_MS = 500;
const GAP_MS = 5000;
let painted = "";
const NAMED = 3;

async function typesOf(members) {
  const mine = new Set(members.map((one) => one.id));
  const found = await everything(`/users/${uid}/devicetypes`, { includeOrganization: true }, (answer) => answer.data.deviceTypes);
  return found.filter((one) => mine.has(one.oid));
}

const alarm = (what, name, text, href) => ({ what, name, text, href });

async function rules() {
  const found = await everything(`/users/${uid}/rules`, {}, (answer) => answer.data);
  return found.filter((one) => ["failing", "invalid", "stopped"].includes(one.state)).map((one) => alarm(_("Rule"), one.name ?? one.id,
    problemOf(one) ?? _("It is {state}.", { state: worded(one.state) }), `/console/rules/${one.id}`));
}

async function subscriptions(members) {
  const lists = await Promise.all(members.map((one) => everything(`/developer/organizations/${one.id}/subscriptions`, {}, (answer) => answer.data)));
  return lists.flat().filter((one) => one.status === "SUSPENDED" || one.problem).map((one) => alarm(_("Subscription"),
    one.description ?? one.callbackUrl ?? one.id, one.problem ?? _("It is suspended."), one.uid === uid ? `/developer/subscriptions/${one.id}` : "/developer/subscriptions"));
}

// Tasks are for administrators.
async function rollouts(members, types) {
  const names = new Map(types.map((one) => [one.id, one.name]));
  const lists = await Promise.all(members.filter((one) => one.role === "administrator").map((one) =>
    everything(`/developer/organizations/${one.id}/tasks`, {}, (answer) => answer.data)));
  return lists.flat().map((one) => alarm(one.property === "akc.update" ? _("Roll-out") : _("Task"), _("{property} on {type}", { property: one.property, type: names.get(one.dtid) ?? one.dtid }),
    _("{failed} of {total} devices failed. Last changed: {when}.", { failed: whole(one.statusCounts.numFailed), total: whole(one.statusCounts.totalDevices), when: fullTime(one.modifiedOn) }), `/developer/tasks/${one.id}`));
}

async function connectors(members) {
  const lists = await Promise.all(members.map((one) => everything(`/developer/organizations/${one.id}/connectors`, {}, (answer) => answer.data)));
  return lists.flat().filter((one) => one.status === "FAILING").map((one) => alarm(_("Connector"), one.name,
    one.lastOn ? _("{problem} Last: {when}.", { problem: one.problem, when: fullTime(one.lastOn) }) : one.problem, `/developer/types/${one.dtid}/connector`));
}

async function unlinked(types) {
  const found = types.filter((one) => one.hasCloudConnector);
  const lists = await Promise.all(found.map(async (type) => {
    const devices = await everything(`/users/${uid}/devices`, { dtid: type.id }, (answer) => answer.data.devices);
    const without = devices.filter((one) => one.needProviderAuth);
    if (without.length === 0) return null;
    const names = without.slice(0, NAMED).map((one) => one.name).join(", ");
    return alarm(_("Connector"), _("{name}, devices without a link", { name: type.name }), without.length > NAMED
      ? _("No reading comes from {names} and {count} others: not linked to an account at the third party.", { names, count: whole(without.length - NAMED) })
      : _("No reading comes from {names}: not linked to an account at the third party.", { names }),
      without.length === 1 ? `/console/devices/${without[0].id}` : `/developer/types/${type.id}/connector`);
  }));
  return lists.filter(Boolean);
}

async function load() {
  const members = await organizations();
  const types = await typesOf(members);
  const [offering, ...lists] = await Promise.all([boards(members), rules(), subscriptions(members), rollouts(members, types), connectors(members), unlinked(types)]);
  const found = lists.flat();
  const now = JSON.stringify([found, members, types.length, offering]);
  if (now === painted) return;  // an equal list is not drawn again: the focus stays
  painted = now;
  fill(page,
    box(_("Needs attention"), found.length ? h("ul", { class: "alarms" }, found.map((one) => h("li", {},
      h("div", {}, h("p", {}, h("b", {}, `${one.what}: `, address(one.name))), h("p", {}, withNames(one.text))), h("a", { href: one.href, "aria-label": _("Open {name}", { name: one.name }) }, _("Open")))))
      : h("ul", { class: "alarms" }, h("li", { class: "calm" }, h("p", {}, _("No rule, subscription, roll-out or connector of yours fails."))))),
    boardBox(offering, load),
    box(_("Your organizations"), h("p", {}, sameCall("GET", "/developer/organizations")), ...members.map((one) => h("div", {}, h("h3", {}, one.name, " ", badge(one.role)), figures(
      [_("Messages this month"), whole(one.usage.used)],
      [_("Limit"), one.usage.limit < 0 ? _("unlimited") : whole(one.usage.limit), one.usage.limit >= 0 && one.usage.used >= one.usage.limit],
      [_("Device types"), whole(types.filter((type) => type.oid === one.id).length)])))),
    box(_("Where to begin"), h("ul", {},
      h("li", {}, h("a", { href: "/developer/applications" }, _("Applications")), ": ", _("ids, secrets, redirect URIs, methods")),
      h("li", {}, h("a", { href: "/developer/types" }, _("Device types")), ": ", _("Manifests, approved lists, devices, firmware, plans, errors")),
      h("li", {}, h("a", { href: "/developer/subscriptions" }, _("Subscriptions")), ": ", _("the delivery log and replay")),
      h("li", {}, h("a", { href: "/developer/trials" }, _("Trials")), ": ", _("people who try your devices")),
      h("li", {}, h("a", { href: "/developer/usage" }, _("Usage")), ": ", _("quotas, and units by day")))));
}

// Events of rules and subscriptions show at once; events during a lost connection are read when it is back.
function listen() {
  let soon = 0, last = 0;
  const again = () => {
    // A rule may fail each second: one reading serves many events.
    soon ||= setTimeout(() => {
      [soon, last] = [0, Date.now()];
      attempt(load);
    }, Math.max(SOON_MS, last + pause(GAP_MS) - Date.now()));
  };
  hear("events", { uid, events: "rule.*,subscription.*" }, again, again);
}

await show(async () => {
  await load();
  listen();
});
follow(load, AGAIN_MS);
