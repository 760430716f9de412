// The list of rules: what each does now, which application made it, and turning it on and off; then those of other people.

import { attempt, call, done, get } from "./api.js";
import { automations, othersBox } from "./automations.js";
import { $, empty, fill, h, heads, time } from "./dom.js";
import { withNames } from "./names.js";

const uid = $("meta[name=uid]").content;
const KINDS = { running: "good", failing: "bad", invalid: "bad", stopped: "bad" };
const PAGE = 100;

async function load() {
  const [rules, made] = await Promise.all([all(), automations("rule")]);
  const shown = rules.filter((rule) => rule.name !== undefined);
  fill($("#rules"), shown.length === 0
    ? empty("No rules yet", "A rule watches your devices and sends Actions or mails when all its conditions hold.",
      h("a", { class: "button", href: "/console/rules/new" }, "New rule"))
    : h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Rules"), heads("Name", "State", "Made by", "Last triggered", ""),
      h("tbody", {}, shown.map((rule) => row(rule, made.get(rule.id))))), othersBox([...made.values()]));
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

function row(rule, made) {
  const problem = rule.problems?.[0]?.message ?? rule.stopReason ?? rule.error?.errors?.[0]?.[0]?.messages?.[0];
  return h("tr", {}, h("th", { scope: "row" }, h("a", { href: `/console/rules/${rule.id}` }, rule.name)),
    h("td", { "data-label": "State" }, h("span", { class: `badge ${KINDS[rule.state] ?? ""}` }, rule.state ?? ""),
      problem && rule.state !== "running" ? h("div", { class: "soft" }, withNames(problem)) : null),
    h("td", { "data-label": "Made by" }, made ? (made.isOfConsole ? "you, here" : made.application.name) : ""),
    h("td", { class: "when", "data-label": "Last triggered" }, rule.lastTriggeredOn ? time(rule.lastTriggeredOn) : "never"),
    h("td", { class: "act" }, h("button", {
      type: "button", class: "quiet small", "aria-label": `Turn ${rule.enabled ? "off" : "on"} ${rule.name}`,
      onclick: (event) => attempt(async () => {
        await call("PUT", `/rules/${rule.id}`, { body: { enabled: !rule.enabled } });
        done(rule.enabled ? "The rule is off." : "The rule is on.");
        await load();
      }, { button: event.target }),
    }, rule.enabled ? "Turn off" : "Turn on")));
}

await attempt(load);
