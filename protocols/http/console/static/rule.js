// One rule: the when/then editor, what each condition says now and said before, and trying the rule.

import { attempt, call, done, get, getText, tagOf } from "./api.js";
import { conditionRow, isPlainCondition } from "./conditions.js";
import { $, empty, fill, fullTime, h, showText, time, toast } from "./dom.js";
import { actionRow, isPlainAction, newId, removable, withNames } from "./parts.js";
import { save } from "./saving.js";
import { follow } from "./sockets.js";

const HOUR_MS = 3600000;
const KINDS = { running: "good", failing: "bad", invalid: "bad", stopped: "bad" };
const MAILS = ["sendEmail", "email", "sendMail"];
const form = $("#rule");
const uid = $("meta[name=uid]").content;
let id = form.dataset.id;
let rule = null;
let isJson = false;
let seen = {};  // what is in the form, as it was loaded or saved
const LABELS = { name: "Name", enabled: "It runs", rule: "When and then" };

const listed = (value, member) => (value && member in value ? value[member] : value === undefined ? [] : [value]).flat();

async function show(body) {
  const conditions = listed(body?.if, "and"), actions = listed(body?.then, "");
  const isPlain = conditions.every(isPlainCondition) && actions.every((one) => isMail(one) || isPlainAction(one));
  $("#json").value = JSON.stringify(body ?? { if: { and: [] }, then: [] }, null, 2);
  if (!isPlain) return mode(true, "This rule has more than the form can show.");
  fill($("#conditions"), await Promise.all(conditions.map((one, at) => conditionRow(one, at))));
  fill($("#then"), await Promise.all(actions.map((one, at) => (isMail(one) ? mailRow(one, at) : actionRow(one, thenName(at))))));
  return mode(false);
}

const thenName = (at) => (path) => `rule.then.${at}.${path}`;
const isMail = (one) => MAILS.includes(one.action) && Object.values(one.parameters ?? {}).every((value) => typeof value?.value === "string");

function mailRow(given, at) {
  const part = newId();
  const item = h("li", { class: "part" });
  const inputs = [["to", "To (yourself if empty)", "email"], ["subject", "Subject", "text"], ["body", "Text", "text"]].map(([name, words, type]) => {
    const input = h("input", { id: `${part}-${name}`, name: thenName(at)(`parameters.${name}`), type, autocomplete: "off", value: given?.parameters?.[name]?.value ?? "" });
    item.append(h("p", {}, h("label", { for: input.id }, words), input));
    return [name, input];
  });
  item.read = () => ({ action: "sendEmail", parameters: Object.fromEntries(inputs.filter(([, input]) => input.value).map(([name, input]) => [name, { value: input.value }])) });
  return removable(item, "this mail");
}

function mode(json, why) {
  isJson = json;
  $("#json-part").hidden = !json;
  $("#form-parts").hidden = json;
  for (const input of form.querySelectorAll("#form-parts input, #form-parts select")) input.disabled = json;
  $("#as-json").setAttribute("aria-pressed", String(json));
  $("#as-form").setAttribute("aria-pressed", String(!json));
  if (why) toast(why);
}

function body() {
  if (isJson) return JSON.parse($("#json").value);
  const rows = (list) => [...$(list).children].map((one) => one.read());
  return { if: { and: rows("#conditions") }, then: rows("#then") };
}

$("#as-json").addEventListener("click", () => { $("#json").value = JSON.stringify(body(), null, 2); mode(true); });
$("#as-form").addEventListener("click", () => attempt(async () => {
  try {
    await show(JSON.parse($("#json").value));
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    toast(`This is no JSON: ${error.message}`, { bad: true });
  }
}));
const add = (list, make) => async () => { const row = await make($(list).children.length); $(list).append(row); row.querySelector("select, input").focus(); };
$("#add-condition").addEventListener("click", add("#conditions", (at) => conditionRow(undefined, at)));
$("#add-time").addEventListener("click", add("#conditions", (at) => conditionRow({ field: "datetime", operator: "=" }, at)));
$("#add-action").addEventListener("click", add("#then", (at) => actionRow(undefined, thenName(at))));
$("#add-mail").addEventListener("click", add("#then", (at) => mailRow(undefined, at)));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  let given;
  try {
    given = { name: form.elements.name.value, enabled: form.elements.enabled.checked, rule: body() };
  } catch (error) {
    toast(`This is no JSON: ${error.message}`, { bad: true });
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
    done("The rule is saved.");
    watch();
    await now();
  }, { form });
});

async function load(data) {
  seen = { tag: tagOf(data), data };
  take(data);
  form.elements.name.value = rule.name;
  form.elements.enabled.checked = rule.enabled;
  await show(data.rule);
}

function take(data) {
  rule = data;
  $("#title").textContent = rule.name;
  document.title = `${rule.name} · Trunkline`;
  $("#tools").hidden = false;
  $("#why-box").hidden = false;
  $("#test").hidden = !rule.isTestable;
  const problem = rule.error?.errors?.flat().map((one) => `${one.field}: ${one.messages.join(", ")}`).join("; ") ?? rule.stopReason ?? rule.problems?.[0]?.message;
  fill($("#standing"), h("span", { class: `badge ${KINDS[rule.state] ?? ""}` }, rule.state ?? ""),
    rule.lastTriggeredOn ? h("span", {}, "triggered ", time(rule.lastTriggeredOn)) : h("span", {}, "never triggered yet"), problem ? h("span", {}, problem) : null);
}

// What each condition says, with the values that were seen: for the newest message, again with each message that comes

let stop = null;
let asked = 0;

function watch() {
  stop?.();
  const sources = [...new Set(listed(rule.rule?.if, "and").map((one) => one.sdid).filter((one) => typeof one === "string"))];
  if (sources.length === 0) return;
  stop = follow("live", { sdids: sources.join(",") }, (frame) => {
    if (frame.type === "action" || Date.now() - asked < 2000) return;  // two seconds: explaining counts as a call
    asked = Date.now();
    explain(frame.mid).catch(() => {});
  });
}

async function explain(mid) {
  const { data } = await get(`/rules/${id}/explain`, { mid });
  if (data.explanations.length) fill($("#now"), await Promise.all(data.explanations.map(shown)));
}

async function now() {
  const { data } = await get(`/rules/${id}`);
  take(data);
  if (data.waitsFor?.length) {
    const waiting = data.waitsFor.map(async (text) => h("li", {}, light(false), withoutField(await withNames(text))));
    fill($("#now"), h("ul", { class: "lights" }, await Promise.all(waiting)));
  } else fill($("#now"), empty("Nothing to explain yet", "As soon as a device of this rule sends a message, each condition stands here: whether it holds, and what was seen."));
}

const withoutField = (text) => text.replace(/^rule\.if(\.and\.\d+)?: /, "");

function light(held) {
  const [kind, words] = held === null ? ["", "unknown"] : held ? ["good", "holds"] : ["bad", "does not hold"];
  return h("span", { class: `badge ${kind}` }, words);
}

async function shown(one) {
  return h("section", { class: "why" }, h("p", {}, h("b", {}, fullTime(one.ts)), " ", h("span", { class: `badge ${one.triggers ? "good" : ""}` }, one.triggers ? "triggered" : "did not trigger"),
    one.counts ? null : h("small", { class: "tag" }, "from before the rule")),
  h("ul", { class: "lights" }, await Promise.all(one.conditions.map(async (condition) => h("li", {}, light(condition.held), await withNames(condition.text))))));
}

$("#explain").addEventListener("click", (event) => attempt(async () => {
  const end = Date.now();
  const { data } = await get(`/rules/${id}/explain`, { startDate: end - HOUR_MS, endDate: end });
  fill($("#why"), data.explanations.length ? await Promise.all(data.explanations.reverse().map(shown)) : empty("No message in the last hour", "Nothing concerned this rule."),
    data.isComplete ? null : h("p", { class: "hint" }, "These are the first 100."));
}, { button: event.target }));

$("#replay").addEventListener("click", (event) => attempt(async () => {
  const end = Date.now();
  const { data } = await call("POST", `/rules/${id}/replay`, { body: { startDate: end - 24 * HOUR_MS, endDate: end }, quiet: true });
  fill($("#why"), h("p", {}, `In the last day, with ${data.messages} messages, this rule would have triggered `, h("b", {}, `${data.triggered} times`), "."),
    data.isComplete ? null : h("p", { class: "hint" }, `Only messages until ${fullTime(data.until)} were tried.`),
    h("ul", { class: "lights" }, data.triggers.map((one) => h("li", {}, h("span", { class: "when" }, fullTime(one.ts)), (one.actions ?? []).map((sent) => sent.action ?? sent.field).join(", ")))));
}, { button: event.target }));

$("#test").addEventListener("click", (event) => attempt(async () => {
  await call("POST", `/rules/${id}/actions`);
  done("The Actions of this rule are on their way.");
}, { button: event.target }));

$("#as-text").addEventListener("click", (event) => attempt(async () => {
  showText(`${rule.name} as text`, await getText(`/rules/${id}/provision`), "In a provision file, “trunkline provision” makes or changes this rule.");
}, { button: event.target }));

$("#delete").addEventListener("click", (event) => attempt(async () => {
  await call("DELETE", `/rules/${id}`);
  stop?.();
  const { name, enabled, description, scope, rule: kept } = rule;
  id = "";
  $("#tools").hidden = true;
  $("#why-box").hidden = true;
  $("#title").textContent = "Deleted rule";
  if (!kept) return void location.assign("/console/rules");
  toast(`${name} is deleted.`, {
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
  await load((await get(`/rules/${id}`, { includeBody: true })).data);
  watch();
  await now();
});
