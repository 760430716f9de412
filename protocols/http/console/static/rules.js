// The list of rules: state, application, turning on and off; then the rules of other people.

import { attempt, call, done, get } from "./api.js";
import { automations, othersBox, problemOf } from "./automations.js";
import { DataTable } from "./data-table.js";
import { $, empty, fill, h, time } from "./dom.js";
import { withNames } from "./names.js";
import { _, worded } from "./texts.js";

const uid = $("meta[name=uid]").content;
const KINDS = { running: "good", failing: "bad", invalid: "bad", stopped: "bad" };
const PAGE = 100;
const madeBy = (one) => (one ? (one.isOfConsole ? _("you, here") : one.application.name) : "");
let made = new Map();
const table = new DataTable(_("Rules"), [
  { name: _("Name"), value: (rule) => rule.name, isName: true, cell: (rule) => h("a", { href: `/console/rules/${rule.id}` }, rule.name) },
  { name: _("State"), value: (rule) => rule.state ?? "", cell: state },
  { name: _("Made by"), value: (rule) => madeBy(made.get(rule.id)) },
  { name: _("Last triggered"), value: (rule) => rule.lastTriggeredOn ?? 0, cell: (rule) => (rule.lastTriggeredOn ? time(rule.lastTriggeredOn) : _("never")) },
  { name: "", value: () => "", cell: turn },
], { file: "rules.csv" });

async function load() {
  let rules = [];
  [rules, made] = await Promise.all([all(), automations("rule")]);
  const shown = rules.filter((rule) => rule.name !== undefined);
  fill($("#rules"), shown.length === 0
    ? empty(_("No rules yet"), _("A rule watches your devices and sends Actions or mails when all its conditions hold."),
      h("a", { class: "button", href: "/console/rules/new" }, _("New rule")))
    : table.element, othersBox([...made.values()]));
  table.set(shown);
}

async function all() {
  const found = [];
  for (let total = 1; found.length < total;) {
    const answer = await get(`/users/${uid}/rules`, { scope: "allApplications,thisApplication,otherApplications", count: PAGE, offset: found.length });
    if (answer.data.length === 0) break;
    found.push(...answer.data);
    ({ total } = answer);
  }
  return found;
}

function state(rule) {
  const problem = problemOf(rule);
  return h("div", {}, h("span", { class: `badge ${KINDS[rule.state] ?? ""}` }, worded(rule.state ?? "")),
    problem && rule.state !== "running" ? h("div", { class: "soft" }, withNames(problem)) : null);
}

function turn(rule) {
  return h("button", {
    type: "button", class: "quiet small", "aria-label": rule.enabled ? _("Turn off {name}", { name: rule.name }) : _("Turn on {name}", { name: rule.name }),
    onclick: (event) => attempt(async () => {
      await call("PUT", `/rules/${rule.id}`, { body: { enabled: !rule.enabled } });
      done(rule.enabled ? _("The rule is off.") : _("The rule is on."));
      await load();
    }, { button: event.target }),
  }, rule.enabled ? _("Turn off") : _("Turn on"));
}

await attempt(load);
