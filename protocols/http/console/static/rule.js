// One rule: the when/then editor, the result of each condition now and before, and trying the rule.

import { attempt, call, done, get, getText, tagOf } from "./api.js";
import { span } from "./alarm-row.js";
import { conditionRow, isPlainCondition } from "./conditions.js";
import { $, empty, fill, fullTime, h, showText, sure, time, toast, whole, withTruths } from "./dom.js";
import { automations, foreignNotice, problemOf } from "./automations.js";
import { withNames } from "./names.js";
import { actionRow, isMissing, isPlainAction, newId, removable, wantedLeaf, wantRow } from "./parts.js";
import { save } from "./saving.js";
import { follow } from "./sockets.js";
import { _, phrase, plural, worded } from "./texts.js";

const HOUR_MS = 3600000;
const KINDS = { running: "good", failing: "bad", invalid: "bad", stopped: "bad" };
const MAILS = ["sendEmail", "email", "sendMail"];
const form = $("#rule");
const uid = $("meta[name=uid]").content;
let id = form.dataset.id;
let rule = null;
let isJson = false;
let seen = {};  // the form's contents as last loaded or saved
let made = null;  // the application that made it
const LABELS = { name: _("Name"), enabled: _("It runs"), rule: _("When and then") };

const listed = (value, member) => (value && member in value ? value[member] : value === undefined ? [] : [value]).flat();

async function show(body) {
  const conditions = listed(body?.if, "and"), actions = listed(body?.then, "");
  const isPlain = conditions.every(isPlainCondition) && actions.every((one) => isMail(one) || isPlainAction(one) || wantedLeaf(one)) && isPlainAlarm(body?.alarm);
  $("#json").value = JSON.stringify(body ?? { if: { and: [] }, then: [] }, null, 2);
  if (!isPlain) return mode(true, _("This rule has more than the form can show."));
  fill($("#conditions"), await Promise.all(conditions.map((one, at) => conditionRow(one, at))));
  fill($("#then"), await Promise.all(actions.map((one, at) => (isMail(one) ? mailRow(one, at) : (one.want ? wantRow : actionRow)(one, thenName(at))))));
  showAlarm(body?.alarm);
  return mode(false);
}

const alarmText = (alarm) => (typeof alarm.text === "string" ? alarm.text : alarm.text?.value);
const isPlainAlarm = (alarm) => alarm === undefined || alarm === null || typeof alarmText(alarm) === "string";

function showAlarm(alarm) {
  $("#has-alarm").checked = Boolean(alarm);
  if (alarm) {
    $("#alarm-severity").value = alarm.severity;
    $("#alarm-text").value = alarmText(alarm);
    $("#alarm-after").value = alarm.clearAfter ?? "";
  }
  alarmShown();
}

function alarmShown() {
  const has = $("#has-alarm").checked && !isJson;
  $("#alarm").hidden = !has;
  for (const input of $("#alarm").querySelectorAll("input, select")) input.disabled = !has;
}

function alarmBody() {
  if (!$("#has-alarm").checked) return {};
  const after = $("#alarm-after").value;
  return { alarm: { severity: $("#alarm-severity").value, text: $("#alarm-text").value, ...(after ? { clearAfter: Number(after) } : {}) } };
}

$("#has-alarm").addEventListener("change", alarmShown);

const thenName = (at) => (path) => `rule.then.${at}.${path}`;
const isMail = (one) => MAILS.includes(one.action) && Object.values(one.parameters ?? {}).every((value) => typeof value?.value === "string");

function mailRow(given, at) {
  const part = newId();
  const item = h("li", { class: "part" });
  const inputs = [["to", _("To (yourself if empty)"), "email"], ["subject", _("Subject"), "text"], ["body", _("Text"), "text"]].map(([name, words, type]) => {
    const input = h("input", { id: `${part}-${name}`, name: thenName(at)(`parameters.${name}`), type, autocomplete: "off", value: given?.parameters?.[name]?.value ?? "" });
    item.append(h("p", {}, h("label", { for: input.id }, words), input));
    return [name, input];
  });
  item.read = () => ({ action: "sendEmail", parameters: Object.fromEntries(inputs.filter(([, input]) => input.value).map(([name, input]) => [name, { value: input.value }])) });
  return removable(item, _("this mail"));
}

function mode(json, why) {
  isJson = json;
  $("#json-part").hidden = !json;
  $("#form-parts").hidden = json;
  $("#alarm-part").hidden = json;
  alarmShown();
  for (const input of form.querySelectorAll("#form-parts input, #form-parts select")) input.disabled = json;
  $("#as-json").setAttribute("aria-pressed", String(json));
  $("#as-form").setAttribute("aria-pressed", String(!json));
  if (why) toast(why);
}

function body() {
  if (isJson) return JSON.parse($("#json").value);
  const rows = (list) => [...$(list).children].map((one) => one.read());
  return { if: { and: rows("#conditions") }, then: rows("#then"), ...alarmBody() };
}

$("#as-json").addEventListener("click", () => { $("#json").value = JSON.stringify(body(), null, 2); mode(true); });
$("#as-form").addEventListener("click", () => attempt(async () => {
  try {
    await show(JSON.parse($("#json").value));
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    toast(_("This is no JSON: {message}", { message: error.message }), { bad: true });
  }
}));
const add = (list, make) => async () => { const row = await make($(list).children.length); $(list).append(row); row.querySelector("select, input").focus(); };
$("#add-condition").addEventListener("click", add("#conditions", (at) => conditionRow(undefined, at)));
$("#add-time").addEventListener("click", add("#conditions", (at) => conditionRow({ field: "datetime", operator: "=" }, at)));
$("#add-action").addEventListener("click", add("#then", (at) => actionRow(undefined, thenName(at))));
$("#add-want").addEventListener("click", add("#then", (at) => wantRow(undefined, thenName(at))));
$("#add-mail").addEventListener("click", add("#then", (at) => mailRow(undefined, at)));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  let given;
  try {
    given = { name: form.elements.name.value, enabled: form.elements.enabled.checked, rule: body() };
  } catch (error) {
    toast(_("This is no JSON: {message}", { message: error.message }), { bad: true });
    return;
  }
  attempt(async () => {
    const data = id ? await save("PUT", `/rules/${id}`, given, { seen, labels: LABELS, take: load })
      : (await call("POST", "/rules", { body: { ...given, scope: "allApplications" } })).data;
    if (data === null) return;
    seen = { tag: tagOf(data), data: given };
    if (!id) {
      id = data.id;
      history.replaceState(null, "", `/console/rules/${id}`);
    }
    take(data);
    done(_("The rule is saved."));
    await watch();
    await now();
  }, { form });
});

async function load(data) {
  seen = { tag: tagOf(data), data };
  take(data);
  form.elements.name.value = rule.name;
  form.elements.enabled.checked = rule.enabled;
  await show(data.rule);
  foreign();
}

// A rule that another application made for itself can be read and stopped, and not changed.
function foreign() {
  const isForeign = made !== null && !made.isOfConsole && rule.scope === "thisApplication";
  $("#parts").disabled = isForeign;
  $("#form-end").hidden = isForeign;
  $("#delete").hidden = isForeign;
  if (!isForeign) return void fill($("#foreign"));
  fill($("#foreign"), foreignNotice(made, rule, {
    turnOff: (event) => attempt(async () => {
      take((await call("PUT", `/rules/${id}`, { body: { enabled: !rule.enabled } })).data);
      foreign();
      done(rule.enabled ? _("The rule is on.") : _("The rule is off."));
    }, { button: event.target }),
    revoke: async (event) => {
      if (!await sure(_("Revoke {name}?", { name: made.application.name }), _("It is signed out at once, and its rules stop. It has to ask you again before it sees anything."), _("Revoke"))) return;
      await attempt(async () => {
        await call("DELETE", `/users/${uid}/applications/${made.application.id}`);
        done(_("{name} no longer sees anything of yours.", { name: made.application.name }));
        await now();
      }, { button: event.target });
    },
  }));
}

function take(data) {
  rule = data;
  $("#title").textContent = rule.name;
  document.title = `${rule.name} · Trunkline`;
  $("#tools").hidden = false;
  $("#why-box").hidden = false;
  $("#test").hidden = !rule.isTestable;
  const problem = problemOf(rule);
  fill($("#standing"), h("span", { class: `badge ${KINDS[rule.state] ?? ""}` }, worded(rule.state ?? "")),
    rule.lastTriggeredOn ? h("span", {}, phrase("triggered {when}", { when: time(rule.lastTriggeredOn) })) : h("span", {}, _("never triggered yet")), problem ? withNames(problem) : null,
    made && !made.isOfConsole ? h("span", { class: "tag" }, _("made by {name}", { name: made.application.name })) : null);
}

// The result of each condition with its values for the newest message, updated with each message

const EACH_MS = 2000;  // explaining counts as a call
const AGAIN_MS = 30000;  // for conditions that change with time only
let stop = null;
let asked = 0;
let due = 0;  // the timer of the newest message that waits to be explained
let newest = "";
const explained = new Set();  // messages already shown above the list

async function watch() {
  stop?.();
  stop = null;
  const named = [...new Set(listed(rule.rule?.if, "and").map((one) => one.sdid).filter((one) => typeof one === "string"))];
  const missing = await Promise.all(named.map(isMissing));
  const sources = named.filter((_, at) => !missing[at]);
  if (sources.length === 0) return;
  stop = follow("live", { sdids: sources.join(",") }, (frame) => {
    if (frame.type === "action") return;
    newest = frame.mid;
    if (!due) due = setTimeout(() => { explain().catch(() => {}); }, Math.max(0, asked + EACH_MS - Date.now()));
  });
}

async function explain() {
  [due, asked] = [0, Date.now()];
  const { data } = await get(`/rules/${id}/explain`, { mid: newest });
  if (data.explanations.length === 0) return;
  const former = [...$("#now").querySelectorAll("section[data-key]")];
  explained.clear();
  for (const one of data.explanations) explained.add(keyOf(one));
  fill($("#now"), data.explanations.map(shown));
  // The previous explanation moves into the list below, if there is one.
  const listed = new Set([...$("#why").querySelectorAll("section[data-key]")].map((one) => one.dataset.key));
  if (listed.size) $("#why").prepend(...former.filter((one) => !listed.has(one.dataset.key)));
  hideExplained();
  if (data.explanations.some((one) => one.triggers)) take((await get(`/rules/${id}`)).data);
}

// Hides the entry above from the list, so that none is shown twice.
function hideExplained() {
  for (const one of $("#why").querySelectorAll("section[data-key]")) one.hidden = explained.has(one.dataset.key);
}

const keyOf = (one) => `${one.mid ?? ""} ${one.ts}`;

setInterval(() => {
  if (document.hidden || !id) return;
  get(`/rules/${id}`).then(({ data }) => { take(data); if (explained.size === 0) waits(data); }).catch(() => {});
}, AGAIN_MS);

async function now() {
  const { data } = await get(`/rules/${id}`);
  take(data);
  explained.clear();
  waits(data);
}

function waits(data) {
  if (data.waitsFor?.length) {
    fill($("#now"), h("ul", { class: "lights" }, data.waitsFor.map((text) => h("li", {}, light(false), inWords(withoutField(text))))));
  } else if ($("#why").querySelector("section")) fill($("#now"));  // the list below explains
  else fill($("#now"), empty(_("Nothing to explain yet"), _("When a device of this rule sends a message, this shows for each condition whether it holds, and the value.")));
}

// Shows the API's times, which are in UTC, in the browser's zone.
const inWords = (text) => withNames(withTruths(text).replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ/g, (at) => fullTime(Date.parse(at))));
const withoutField = (text) => text.replace(/^rule\.if(\.and\.\d+)?: /, "");

function light(held) {
  const [kind, words] = held === null ? ["", _("unknown")] : held ? ["good", _("holds")] : ["bad", _("does not hold")];
  return h("span", { class: `badge ${kind}` }, words);
}

function shown(one) {
  const [did, not] = one.counts ? [_("triggered"), _("did not trigger")] : [_("would have triggered"), _("would not have triggered")];
  return h("section", { class: "why", "data-key": keyOf(one) }, h("p", {}, h("b", {}, fullTime(one.ts)), " ",
    h("span", { class: `badge ${one.triggers && one.counts ? "good" : ""}` }, one.triggers ? did : not), ...(one.counts ? [] : [" ", h("small", { class: "tag" }, _("from before the rule"))])),
  h("ul", { class: "lights" }, one.conditions.map((condition) => h("li", {}, light(condition.held), inWords(condition.text)))));
}

$("#explain").addEventListener("click", (event) => attempt(async () => {
  const end = Date.now();
  const { data } = await get(`/rules/${id}/explain`, { startDate: end - HOUR_MS, endDate: end });
  const sections = new Map(data.explanations.reverse().map((one) => [keyOf(one), one]));
  fill($("#why"), sections.size ? [...sections.values()].map(shown) : empty(_("No message in the last hour"), _("Nothing concerned this rule.")),
    data.isComplete ? null : h("p", { class: "hint" }, _("These are the first 100.")));
  hideExplained();
  if (explained.size === 0 && sections.size) $("#now .empty")?.remove();
}, { button: event.target }));

$("#replay").addEventListener("click", (event) => attempt(async () => {
  const end = Date.now();
  const { data } = await call("POST", `/rules/${id}/replay`, { body: { startDate: end - 24 * HOUR_MS, endDate: end }, quiet: true });
  fill($("#why"), h("p", {}, phrase("In the last day, with {messages} messages, this rule would have triggered {times}.", { messages: whole(data.messages), times: h("b", {}, plural("{count} time", "{count} times", data.triggered)) })),
    data.isComplete ? null : h("p", { class: "hint" }, _("Only messages until {until} were tried.", { until: fullTime(data.until) })),
    data.alarms === undefined ? null : h("p", {}, plural("There would have been {count} alarm.", "There would have been {count} alarms.", data.alarmsRaised)),
    data.alarms?.length ? h("ul", { class: "lights" }, data.alarms.map((one) => h("li", {}, h("span", { class: "when" }, fullTime(one.raisedOn)), " ", one.text, " · ", one.durationMs === undefined ? _("not over at the end") : span(one.durationMs)))) : null,
    h("ul", { class: "lights" }, data.triggers.map((one) => h("li", {}, h("span", { class: "when" }, fullTime(one.ts)), (one.actions ?? []).flatMap((sent, at) => [at ? ", " : "", sent.action ?? sent.field, sent.ddid ? [" ", withNames(_("to {device}", { device: sent.ddid }))] : ""])))));
}, { button: event.target }));

$("#test").addEventListener("click", (event) => attempt(async () => {
  await call("POST", `/rules/${id}/actions`);
  done(_("The Actions of this rule are on their way."));
}, { button: event.target }));

$("#as-text").addEventListener("click", (event) => attempt(async () => {
  showText(_("{name} as text", { name: rule.name }), await getText(`/rules/${id}/provision`), _("In a provision file, “trunkline provision” makes or changes this rule."));
}, { button: event.target }));

$("#delete").addEventListener("click", (event) => attempt(async () => {
  await call("DELETE", `/rules/${id}`);
  stop?.();
  const { name, enabled, description, scope, rule: kept } = rule;
  id = "";
  $("#tools").hidden = true;
  $("#why-box").hidden = true;
  $("#title").textContent = _("Deleted rule");
  if (!kept) return void location.assign("/console/rules");
  toast(_("{name} is deleted.", { name }), {
    seconds: 30,
    action: () => attempt(async () => {
      const { data } = await call("POST", "/rules", { body: { name, enabled, description, scope, rule: kept, uid } });
      location.assign(`/console/rules/${data.id}`);
    }),
  });
}, { button: event.target }));

await attempt(async () => {
  if (!id) {
    await show({ if: { and: [] }, then: [] });
    await Promise.all([add("#conditions", (at) => conditionRow(undefined, at))(), add("#then", (at) => actionRow(undefined, thenName(at)))()]);
    $("#name").focus();
    return;
  }
  const [found, all] = await Promise.all([get(`/rules/${id}`, { includeBody: true }), automations("rule")]);
  made = all.get(id) ?? null;
  await load(found.data);
  await watch();
  await now();
});
