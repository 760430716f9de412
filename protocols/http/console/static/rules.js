// The list of rules: what each does now, and turning it on and off.

import { attempt, call, done, get } from "./api.js";
import { $, empty, fill, h, heads, time } from "./dom.js";

const uid = $("meta[name=uid]").content;
const KINDS = { running: "good", failing: "bad", invalid: "bad", stopped: "bad" };

async function load() {
  const { data } = await get(`/users/${uid}/rules`, { count: 100 });
  const shown = data.filter((rule) => rule.name !== undefined);
  if (shown.length === 0) {
    fill($("#rules"), empty("No rules yet", "A rule watches your devices and sends Actions or mails when all its conditions hold.",
      h("a", { class: "button", href: "/console/rules/new" }, "New rule")));
    return;
  }
  fill($("#rules"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Rules"), heads("Name", "State", "Last triggered", ""),
    h("tbody", {}, shown.map(row))));
}

function row(rule) {
  const problem = rule.problems?.[0]?.message ?? rule.stopReason ?? rule.error?.errors?.[0]?.[0]?.messages?.[0];
  return h("tr", {}, h("th", { scope: "row" }, h("a", { href: `/console/rules/${rule.id}` }, rule.name)),
    h("td", { "data-label": "State" }, h("span", { class: `badge ${KINDS[rule.state] ?? ""}` }, rule.state ?? ""), problem && rule.state !== "running" ? h("div", { class: "soft" }, problem) : null),
    h("td", { class: "when", "data-label": "Last triggered" }, rule.lastTriggeredOn ? time(rule.lastTriggeredOn) : "never"),
    h("td", { class: "size" }, h("button", {
      type: "button", class: "quiet small", "aria-label": `Turn ${rule.enabled ? "off" : "on"} ${rule.name}`,
      onclick: (event) => attempt(async () => {
        await call("PUT", `/rules/${rule.id}`, { body: { enabled: !rule.enabled } });
        done(rule.enabled ? "The rule is off." : "The rule is on.");
        await load();
      }, { button: event.target }),
    }, rule.enabled ? "Turn off" : "Turn on")));
}

await attempt(load);
