// The alarms: which are open, how long each lasted and why, acknowledging and clearing them; and how the person is told.

import { attempt, call, done, get } from "./api.js";
import { alarmRow } from "./alarm-row.js";
import { $, empty, fill, h, heads, whole } from "./dom.js";
import { follow } from "./sockets.js";
import { _ } from "./texts.js";

const PAGE = 25;
const AGAIN_MS = 60000;  // of rules of other applications come no events
const uid = $("meta[name=uid]").content;
const form = $("#find");
const telling = $("#telling");
let offset = 0;
let newest = 0;

async function load() {
  const mine = newest += 1;
  const given = new FormData(form);
  const answer = await get("/alarms", { state: given.get("state"), severity: given.get("severity"), count: PAGE, offset });
  if (mine !== newest) return;
  if (answer.data.length === 0 && offset > 0 && answer.total > 0) {
    offset = Math.floor((answer.total - 1) / PAGE) * PAGE;
    return void load();
  }
  fill($("#alarms"), answer.data.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Alarms")),
    heads(_("Alarm"), _("Raised"), _("Lasted"), _("State"), ""), h("tbody", {}, answer.data.map((one) => alarmRow(one, change))))
    : empty(_("No alarms here"), _("A rule raises one when it has an alarm and its conditions hold."),
      h("a", { class: "button", href: "/console/rules/new" }, _("New rule"))));
  const count = answer.data.length;
  $("#range").textContent = count ? _("{first}–{last} of {total}", { first: whole(offset + 1), last: whole(offset + count), total: whole(answer.total) }) : "";
  $("#earlier").disabled = offset === 0;
  $("#later").disabled = offset + count >= answer.total;
  $("#pages").hidden = answer.total <= PAGE;
}

function change(alarm, state, button) {
  attempt(async () => {
    await call("PUT", `/alarms/${alarm.id}`, { body: { state } });
    done(state === "cleared" ? _("The alarm is cleared.") : _("The alarm is acknowledged."));
    await load();
  }, { button });
}

form.addEventListener("change", () => { offset = 0; attempt(load); });
form.addEventListener("submit", (event) => event.preventDefault());
$("#earlier").addEventListener("click", () => { offset = Math.max(0, offset - PAGE); attempt(load); });
$("#later").addEventListener("click", () => { offset += PAGE; attempt(load); });

// How the person is told

function quietShown() {
  $("#quiet-part").hidden = !$("#quiet").checked;
  for (const input of $("#quiet-part").querySelectorAll("input")) input.disabled = !$("#quiet").checked;
}

function show(data) {
  $("#from").value = data.severity;
  $("#mail").checked = data.mail;
  $("#ntfy").value = data.ntfy?.url ?? "";
  $("#token").placeholder = data.ntfy?.hasToken ? _("It is set") : "";
  $("#token").value = "";
  $("#apprise-part").hidden = data.appriseSchemes.length === 0;
  $("#apprise").placeholder = data.apprise.length ? data.apprise.join("\n") : data.appriseSchemes.map((one) => `${one}://…`).join("\n");
  $("#apprise").value = "";
  $("#no-apprise-part").hidden = data.apprise.length === 0;
  $("#no-apprise").checked = false;
  $("#quiet").checked = data.quiet !== undefined;
  $("#begin").value = data.quiet?.begin ?? "22:00";
  $("#end").value = data.quiet?.end ?? "07:00";
  $("#zone").value = data.quiet?.timeZone ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
  $("#critical").checked = data.quiet?.critical ?? true;
  const again = $("#again");
  if (![...again.options].some((one) => one.value === String(data.againMinutes))) again.append(h("option", { value: data.againMinutes }, whole(data.againMinutes)));
  again.value = String(data.againMinutes);
  $("#telling-problem").textContent = data.problem ?? "";
  $("#telling-parts").disabled = false;
  quietShown();
}

function wanted() {
  const ntfy = $("#ntfy").value.trim(), token = $("#token").value;
  const apprise = $("#apprise").value.split("\n").map((one) => one.trim()).filter(Boolean);
  return {
    severity: $("#from").value, mail: $("#mail").checked, againMinutes: Number($("#again").value),
    ...(apprise.length ? { apprise } : $("#no-apprise").checked ? { apprise: [] } : {}),
    ...(ntfy ? { ntfy: { url: ntfy, ...(token ? { token } : {}) } } : {}),
    ...($("#quiet").checked ? { quiet: { begin: $("#begin").value, end: $("#end").value, timeZone: $("#zone").value, critical: $("#critical").checked } } : {}),
  };
}

$("#quiet").addEventListener("change", quietShown);
telling.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    show((await call("PUT", `/users/${uid}/telling`, { body: wanted() })).data);
    done(_("It is saved."));
  }, { form: telling });
});
$("#test").addEventListener("click", (event) => attempt(async () => {
  show((await call("POST", `/users/${uid}/telling/test`)).data);
  done(_("A test is on its way."));
}, { button: event.target }));

await attempt(async () => {
  const [, shown] = await Promise.all([load(), get(`/users/${uid}/telling`)]);
  show(shown.data);
  follow("events", { uid, events: "alarm.*" }, () => { attempt(load); });
  setInterval(() => { if (!document.hidden) load().catch(() => {}); }, AGAIN_MS);
});
