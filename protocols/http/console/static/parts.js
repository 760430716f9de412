// The rows of which rules and scenes are made: a device, and what of it.

import { get } from "./api.js";
import { $, fill, h } from "./dom.js";
import { manifestOf } from "./manifest.js";
import { parameterInputs, parametersIn, unwrapped } from "./parameters.js";

const uid = $("meta[name=uid]").content;
let asked = null;
let number = 0;

// The first 100 devices by name; a device beyond them is chosen by its id.
export function devices() {
  asked ??= get(`/users/${uid}/devices`, { sort: "name", count: 100 }).then(({ data }) => new Map(data.devices.map((one) => [one.id, one])));
  return asked;
}

export const newId = () => `part-${number += 1}`;

export async function manifestOfDevice(did) {
  const known = await devices();
  if (did && !known.has(did)) known.set(did, (await get(`/devices/${did}`)).data);
  const device = known.get(did);
  return device ? manifestOf(device.dtid, device.manifestVersion) : { fields: new Map(), actions: [] };
}

export async function devicePicker(id, name, chosen) {
  if (chosen) await manifestOfDevice(chosen);
  const select = h("select", { id, name }, [...(await devices()).values()].map((one) => h("option", { value: one.id }, one.name)));
  if (chosen) select.value = chosen;
  return select;
}

export function removable(item, what) {
  item.append(h("button", { type: "button", class: "plain small remove", "aria-label": `Remove ${what}`, onclick: () => item.remove() }, "×"));
  return item;
}

async function firstWithActions() {
  for (const did of (await devices()).keys()) if ((await manifestOfDevice(did)).actions.length) return did;
  return undefined;
}

// Sentences of the API name devices by their ids.
export async function withNames(text) {
  let named = text;
  for (const [did, one] of await devices()) named = named.replaceAll(did, one.name);
  return named;
}

const field = (id, words, input) => h("p", {}, h("label", { for: id }, words), input);

// One Action to one device. `nameOf` gives the names under which the API reports findings.
export async function actionRow(given, nameOf) {
  const id = newId();
  const item = h("li", { class: "part" });
  const device = await devicePicker(`${id}-device`, nameOf("ddid"), given?.ddid ?? await firstWithActions());
  const action = h("select", { id: `${id}-action`, name: nameOf("action") });
  const parameters = h("div", { class: "part" });
  let actions = [];
  const ask = (values) => {
    const chosen = actions.find((one) => one.name === action.value);
    fill(parameters, chosen ? parameterInputs(chosen, id, (path) => nameOf(`parameters.${path}`), values) : []);
  };
  const learn = async (values) => {
    ({ actions } = await manifestOfDevice(device.value));
    fill(action, actions.map((one) => h("option", { value: one.name }, one.name)));
    if (values && actions.some((one) => one.name === given.action)) action.value = given.action;
    ask(values);
  };
  device.addEventListener("change", () => learn());
  action.addEventListener("change", () => ask());
  item.append(field(device.id, "Device", device), field(action.id, "Action", action), parameters);
  await learn(given ? unwrapped(given.parameters) : undefined);
  item.read = () => {
    const chosen = actions.find((one) => one.name === action.value);
    return { ddid: device.value, action: action.value, parameters: chosen ? parametersIn(item, chosen, id, true) : {} };
  };
  return removable(item, "this Action");
}

// Whether a row can show this Action: one device, plain values
export const isPlainAction = (one) => typeof one.ddid === "string" && unwrapped(one.parameters) !== undefined;
