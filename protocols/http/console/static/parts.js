// The rows of rules and scenes: a device, and its field or Action.

import { get } from "./api.js";
import { finder, LISTED, optionsOf } from "./device-lists.js";
import { $, fill, h } from "./dom.js";
import { nameOf } from "./names.js";
import { manifestOf } from "./manifest.js";
import { parameterInputs, parametersIn, unwrapped } from "./parameters.js";
import { _ } from "./texts.js";

const uid = $("meta[name=uid]").content;
let asked = null;
let total = 0;
let number = 0;

const listed = (search) => get(`/users/${uid}/devices`, { search, sort: "name", count: LISTED });

// The first devices by name, and all devices chosen or found since
export function devices() {
  asked ??= listed("").then((answer) => {
    ({ total } = answer);
    return new Map(answer.data.devices.map((one) => [one.id, one]));
  });
  return asked;
}

export const newId = () => `part-${number += 1}`;

export async function manifestOfDevice(did) {
  const device = did ? await deviceOf(did) : undefined;
  return device && !device.isMissing ? manifestOf(device.dtid, device.manifestVersion) : { fields: new Map(), actions: [] };
}

// A device that was deleted or is no longer shared is shown as missing.
async function deviceOf(did) {
  const known = await devices();
  if (!known.has(did)) {
    const some = /^[0-9a-f]{32}$/.test(did) ? (await get(`/users/${uid}/devices`, { search: did, count: 1 })).data.devices : [];
    const found = some.find((one) => one.id === did);
    const name = found ? "" : (await nameOf(did))?.name;
    known.set(did, found ?? { id: did, name: name ? _("{name} (missing)", { name }) : _("Missing device {id}…", { id: did.slice(0, 8) }), isMissing: true });
  }
  return known.get(did);
}

export const isMissing = async (did) => Boolean(did) && Boolean((await deviceOf(did)).isMissing);

// Notice in a row whose device, field or Action is missing
export const missingNote = (text) => h("p", { class: "finding missing" }, text);
export const NO_DEVICE = _("This device was deleted, or is no longer shared with you. Choose another one, or remove this row.");

export async function devicePicker(id, name, chosen) {
  const missing = chosen && await isMissing(chosen) ? [await deviceOf(chosen)] : [];
  const select = h("select", { id, name }, optionsOf([...missing, ...[...(await devices()).values()].filter((one) => !one.isMissing)]));
  if (chosen) select.value = chosen;
  return select;
}

// The picker with its label, and with a search field if there are more devices than it lists.
export function deviceField(select) {
  const label = h("label", { for: select.id }, _("Device"));
  if (total <= LISTED) return h("p", {}, label, select);
  const show = async (found) => {
    const known = await devices();
    for (const one of found) known.set(one.id, one);
    fill(select, optionsOf(found));
    select.dispatchEvent(new Event("change"));
  };
  return h("p", {}, label, finder(total, listed, show), select);
}

export function removable(item, what) {
  item.append(h("button", { type: "button", class: "plain small remove", "aria-label": _("Remove {what}", { what }), onclick: () => item.remove() }, "×"));
  return item;
}

async function firstWith(has) {
  for (const did of [...(await devices()).keys()]) if (has(await manifestOfDevice(did))) return did;
  return undefined;
}

const field = (id, words, input) => h("p", {}, h("label", { for: id }, words), input);

// One Action to one device. `nameOf` gives the names under which the API reports findings.
export async function actionRow(given, nameOf) {
  const id = newId();
  const item = h("li", { class: "part" });
  const device = await devicePicker(`${id}-device`, nameOf("ddid"), given?.ddid ?? await firstWith((one) => one.actions.length));
  const action = h("select", { id: `${id}-action`, name: nameOf("action") });
  const parameters = h("div", { class: "part" });
  let actions = [];
  let isGone = false;  // the device or its Action is missing: the given values are kept until another one is chosen
  const ask = (values) => {
    const chosen = actions.find((one) => one.name === action.value);
    isGone = !chosen && given !== undefined;
    const wanted = JSON.stringify(unwrapped(given?.parameters) ?? {});
    const why = isGone && (actions.length ? _("The type of this device has no Action {action}. Choose another one.", { action: given.action }) : NO_DEVICE);
    fill(parameters, chosen ? parameterInputs(chosen, id, (path) => nameOf(`parameters.${path}`), values)
      : isGone ? [wanted === "{}" ? null : h("p", {}, h("code", {}, wanted)), missingNote(why)] : []);
  };
  const learn = async (values) => {
    ({ actions } = await manifestOfDevice(device.value));
    const lacks = values && !actions.some((one) => one.name === given.action) ? [{ name: given.action }] : [];
    fill(action, [...lacks, ...actions].map((one) => h("option", { value: one.name }, one.name)));
    if (values) action.value = given.action;
    ask(values);
  };
  device.addEventListener("change", () => learn(isGone ? unwrapped(given.parameters) ?? {} : undefined));
  action.addEventListener("change", () => ask());
  item.append(deviceField(device), field(action.id, _("Action"), action), parameters);
  await learn(given ? unwrapped(given.parameters) : undefined);
  item.read = () => {
    const chosen = actions.find((one) => one.name === action.value);
    if (!chosen && given) return { ...given, ddid: device.value };
    return { ddid: device.value, action: action.value, parameters: chosen ? parametersIn(item, chosen, id, true) : {} };
  };
  return removable(item, _("this Action"));
}

const HOUR = 3600;
const WEEK_HOURS = 168;  // what the API takes without expiresAfter
const settable = (manifest) => [...manifest.fields].filter(([, one]) => one.settable);

// A value that is wanted of one device, for some hours
export async function wantRow(given, nameOf) {
  const id = newId();
  const item = h("li", { class: "part" });
  const device = await devicePicker(`${id}-device`, nameOf("ddid"), given?.ddid ?? await firstWith((one) => settable(one).length));
  const choice = h("select", { id: `${id}-field`, name: nameOf("want") });
  const value = h("div", { class: "part" });
  const hours = h("input", { id: `${id}-hours`, name: nameOf("expiresAfter"), type: "number", min: "0", step: "any", required: true,
    value: String(given?.expiresAfter === undefined ? WEEK_HOURS : given.expiresAfter / HOUR) });
  const present = given && unwrapped(given.want);
  const [path] = given ? wantedLeaf(given) : [];
  let fields = [];
  const chosen = () => fields.find(([one]) => one === choice.value);
  // A field that is missing is kept with its value until another one is chosen.
  const missing = () => (fields.length ? _("The type of this device has no field {field} of which values can be wanted. Choose another one.", { field: choice.value })
    : _("No value can be wanted of this device. Choose another one, or remove this row."));
  const ask = (values) => fill(value, chosen() ? parameterInputs({ parameters: [chosen()] }, id, (one) => nameOf(`want.${one}`), values)
    : [given ? h("p", {}, h("code", {}, JSON.stringify(present))) : null, missingNote(missing())]);
  const learn = async (values) => {
    fields = settable(await manifestOfDevice(device.value));
    const lacks = path && !fields.some(([one]) => one === path) ? [path] : [];
    fill(choice, [...lacks, ...fields.map(([one]) => one)].map((one) => h("option", { value: one }, one)));
    if (values && path) choice.value = path;
    ask(values);
  };
  device.addEventListener("change", () => learn(chosen() ? undefined : present));
  choice.addEventListener("change", () => ask());
  item.append(deviceField(device), field(choice.id, _("Wanted field"), choice), value, field(hours.id, _("Wanted for (hours)"), hours));
  await learn(present);
  item.read = () => {
    const expiresAfter = Math.round(Number(hours.value) * HOUR);
    const want = chosen() ? parametersIn(item, { parameters: [chosen()] }, id, true) : given?.want ?? {};
    return { ddid: device.value, want, expiresAfter };
  };
  return removable(item, _("this wanted value"));
}

function* valuesIn(group, prefix = "") {
  for (const [name, one] of Object.entries(group)) {
    if (one !== null && typeof one === "object" && !Array.isArray(one)) yield* valuesIn(one, `${prefix}${name}.`);
    else yield [prefix + name, one];
  }
}

// The path and the value, where one plain value is wanted of one device: then a row can show it.
export function wantedLeaf(one) {
  const values = typeof one.ddid === "string" && one.want ? unwrapped(one.want) : undefined;
  const found = values === undefined ? [] : [...valuesIn(values)];
  return found.length === 1 ? found[0] : undefined;
}

// Whether a row can show this Action: one device, plain values
export const isPlainAction = (one) => one.want === undefined && typeof one.ddid === "string" && unwrapped(one.parameters) !== undefined;
