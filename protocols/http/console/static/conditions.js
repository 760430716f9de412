// The conditions of a rule, as rows of a form.

import { fill, h, truth } from "./dom.js";
import { isNumber } from "./manifest.js";
import { read } from "./parameters.js";
import { deviceField, devicePicker, isMissing, manifestOfDevice, missingNote, newId, NO_DEVICE, removable } from "./parts.js";
import { _ } from "./texts.js";

const WORDS = {
  "=": _("is"), "!=": _("is not"), "<": _("is below"), "<=": _("is at most"), ">": _("is above"), ">=": _("is at least"), contains: _("contains"),
  "does not contain": _("does not contain"), "is in message": _("is in the message"), "is not in message": _("is not in the message"),
};
const OF_TIME = { "=": _("it is"), "<": _("it is before"), ">": _("it is after") };
const WITHOUT_OPERAND = ["is in message", "is not in message"];
const field = (id, words, input) => h("p", {}, h("label", { for: id }, words), input);

function operatorsOf(one) {
  const compared = isNumber(one) || (one.type === "String" && !one.isCollection) ? ["<", "<=", ">", ">="] : [];
  const parts = one.type === "String" || one.isCollection ? ["contains", "does not contain"] : [];
  return ["=", "!=", ...compared, ...parts, ...WITHOUT_OPERAND];
}

// Whether a row can show this condition: a device by its id, a plain operand, no model
export function isPlainCondition(one) {
  const operand = WITHOUT_OPERAND.includes(one.operator) || (one.operand && Object.keys(one.operand).join() === "value");
  const device = one.field === "datetime" ? OF_TIME[one.operator] !== undefined : typeof one.sdid === "string";
  return device && operand && !one.transformer && (one.duration === undefined || one.duration.acceptUpdate !== false);
}

export async function conditionRow(given, at) {
  return given?.field === "datetime" ? timeRow(given, at) : valueRow(given, at);
}

const nameOf = (at, path) => `rule.if.and.${at}.${path}`;

async function valueRow(given, at) {
  const id = newId();
  const item = h("li", { class: "part" });
  const device = await devicePicker(`${id}-device`, nameOf(at, "sdid"), given?.sdid);
  const what = h("select", { id: `${id}-field`, name: nameOf(at, "field") });
  const operator = h("select", { id: `${id}-operator`, name: nameOf(at, "operator") });
  const operand = h("div", {});
  const duration = h("input", { id: `${id}-duration`, name: nameOf(at, "duration.value"), type: "number", min: 1, max: 31536000, placeholder: _("at once"), value: given?.duration?.value ?? "" });
  const note = h("div", {});
  let fields = new Map();
  // The type of a missing field is that of its operand.
  const chosen = () => fields.get(what.value) ?? typeOf(given?.operand?.value);
  const ask = (value) => {
    const one = chosen();
    const names = { id: `${id}-operand`, name: nameOf(at, "operand.value"), required: true };
    const isItem = ["contains", "does not contain"].includes(operator.value);
    const input = one.type === "Boolean" && !one.isCollection
      ? h("select", names, h("option", { value: "true" }, truth(true, what.value)), h("option", { value: "false" }, truth(false, what.value)))
      : h("input", { ...names, type: isNumber(one) ? "number" : "text", step: "any", autocomplete: "off" });
    if (value !== undefined) input.value = Array.isArray(value) ? value.join(", ") : String(value);
    fill(operand, WITHOUT_OPERAND.includes(operator.value) ? [] : field(names.id, one.unit ? _("Value ({unit})", { unit: one.unit }) : _("Value"), input));
    item.isItem = isItem;
  };
  const operators = (wanted) => {
    fill(operator, operatorsOf(chosen()).map((one) => h("option", { value: one }, WORDS[one])));
    if (wanted) operator.value = wanted;
  };
  const learn = async () => {
    ({ fields } = await manifestOfDevice(device.value));
    const lacks = given && !fields.has(given.field) ? [given.field] : [];
    fill(what, [...lacks, ...fields.keys()].map((path) => h("option", { value: path }, path)));
    if (given) what.value = given.field;
    operators(given?.operator);
    ask(given?.operand?.value);
    const isGone = lacks.length > 0 && await isMissing(device.value);
    fill(note, lacks.length ? missingNote(isGone ? NO_DEVICE : _("The type of this device has no field {field}. Choose another one.", { field: given.field })) : []);
  };
  // The condition of a missing device is kept for the device that replaces it.
  device.addEventListener("change", () => { if (!note.childElementCount) given = undefined; learn(); });
  what.addEventListener("change", () => { given = undefined; fill(note); operators(); ask(); });
  operator.addEventListener("change", () => ask());
  item.append(deviceField(device), field(what.id, _("Field"), what), field(operator.id, _("Compared"), operator), operand,
    field(duration.id, _("For seconds"), duration), note);
  await learn();
  item.read = () => {
    const condition = { sdid: device.value, field: what.value, operator: operator.value };
    if (!WITHOUT_OPERAND.includes(operator.value)) {
      const one = chosen();
      condition.operand = { value: read({ ...one, isCollection: one.isCollection && !item.isItem }, operand.querySelector("input, select").value) };
    }
    if (duration.value) condition.duration = { value: Number(duration.value), acceptUpdate: true };
    return condition;
  };
  return removable(item, _("this condition"));
}

function typeOf(value) {
  const [one] = [value].flat();
  return { type: { boolean: "Boolean", number: "Double" }[typeof one] ?? "String", isCollection: Array.isArray(value) };
}

function timeRow(given, at) {
  const id = newId();
  const item = h("li", { class: "part" });
  const operator = h("select", { id: `${id}-operator`, name: nameOf(at, "operator") },
    Object.entries(OF_TIME).map(([value, words]) => h("option", { value }, words)));
  if (given?.operator) operator.value = given.operator;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const operand = h("input", { id: `${id}-operand`, name: nameOf(at, "operand.value"), required: true, autocomplete: "off", value: given?.operand?.value ?? `30 7 * * mon-fri * TZ ${zone}` });
  item.append(field(operator.id, _("When"), operator), field(operand.id, _("Minute, hour, day, month, weekday, year, TZ and zone"), operand));
  item.classList.add("time");
  item.read = () => ({ field: "datetime", operator: operator.value, operand: { value: operand.value } });
  return removable(item, _("this time"));
}
