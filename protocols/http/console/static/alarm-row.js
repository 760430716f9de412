// One alarm in a table, and how long something lasted.

import { fullTime, h, time, withTruths } from "./dom.js";
import { named, withNames } from "./names.js";
import { _, locale, phrase } from "./texts.js";

const KINDS = { critical: "bad", warning: "warn", info: "" };
const SEVERITIES = { critical: _("critical"), warning: _("warning"), info: _("info") };
const STATES = { raised: _("raised"), acknowledged: _("acknowledged"), cleared: _("over") };
const ENDS = { condition: _("the conditions do not hold any more"), time: _("the rule has not triggered for a time"), rule: _("its rule has changed"), device: _("its device is gone") };
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

// A length of time in its two largest units: 3 min, 20 s
export function span(ms) {
  let rest = Math.round(ms / 1000);
  const found = [];
  for (const [unit, seconds] of UNITS) {
    const count = Math.floor(rest / seconds);
    rest -= count * seconds;
    if (count || (unit === "second" && found.length === 0)) found.push(new Intl.NumberFormat(locale, { style: "unit", unit, unitDisplay: "short" }).format(count));
    else if (found.length) break;
    if (found.length === 2) break;
  }
  return found.join(" ");
}

export const severity = (one) => h("span", { class: `badge ${KINDS[one.severity] ?? ""}` }, SEVERITIES[one.severity] ?? one.severity);

export function alarmRow(one, change) {
  const why = one.conditions?.length ? h("details", {}, h("summary", {}, _("Why")), h("ul", { class: "lights" }, one.conditions.map(({ text }) => h("li", {}, withNames(withTruths(text)))))) : null;
  const buttons = one.state === "cleared" ? [] : [
    one.state === "raised" ? h("button", { type: "button", class: "small", onclick: (event) => change(one, "acknowledged", event.target) }, _("Acknowledge")) : null, " ",
    h("button", { type: "button", class: "quiet small", onclick: (event) => change(one, "cleared", event.target) }, _("Clear"))];
  return h("tr", {},
    h("th", { scope: "row" }, severity(one), " ", one.text ?? "–",
      h("div", { class: "soft" }, h("a", { href: `/console/rules/${one.rid}` }, one.ruleName), ...(one.did ? [" · ", named(one.did, `/console/devices/${one.did}`, true)] : [])), why),
    h("td", { "data-label": _("Raised") }, time(one.raisedOn), h("div", { class: "soft" }, fullTime(one.raisedOn))),
    h("td", { "data-label": _("Lasted") }, one.durationMs === undefined ? _("{time} so far", { time: span(Date.now() - one.raisedOn) }) : span(one.durationMs),
      one.count > 1 ? h("div", { class: "soft" }, _("triggered {count} times", { count: one.count })) : null),
    h("td", { "data-label": _("State") }, h("span", { class: `badge ${one.state === "cleared" ? "good" : ""}` }, STATES[one.state]),
      one.acknowledgedOn ? h("div", { class: "soft" }, phrase("acknowledged {when}", { when: time(one.acknowledgedOn) })) : null,
      one.clearedBy && ENDS[one.clearedBy] ? h("div", { class: "soft" }, ENDS[one.clearedBy]) : null),
    h("td", { class: "act" }, buttons));
}
