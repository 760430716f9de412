// The fields and Actions of a device type, flat, as forms and charts need them.

import { get } from "./api.js";

const known = new Map();

export function manifestOf(dtid, version) {
  const key = `${dtid} ${version}`;
  if (!known.has(key)) known.set(key, load(dtid, version));
  return known.get(key);
}

async function load(dtid, version) {
  if (!version) return { fields: new Map(), actions: [] };
  const { data } = await get(`/devicetypes/${dtid}/manifests/${version}/properties`);
  const fields = new Map(leaves(data.properties.fields ?? {}));
  return {
    fields,
    hasResources: [...fields.values(), ...Object.values(data.actions ?? {})].some((one) => one.lwm2m),  // of LWM2M
    actions: Object.entries(data.actions ?? {}).map(([name, one]) => ({
      name, description: one.description ?? "", parameters: [...leaves(one.parameters ?? {})],
    })),
  };
}

// [path, {type, unit, isCollection, …}] of each field; a group has no `type` that is a text
function* leaves(group, prefix = "") {
  for (const [name, one] of Object.entries(group)) {
    if (typeof one !== "object" || one === null) continue;
    if (typeof one.type === "string") yield [prefix + name, one];
    else yield* leaves(one, `${prefix}${name}.`);
  }
}

export const isNumber = (field) => ["Integer", "Long", "Double", "Float"].includes(field.type) && !field.isCollection;
export const isDrawn = (field) => isNumber(field) || (field.type === "Boolean" && !field.isCollection);

export function valueAt(data, path) {
  return path.split(".").reduce((part, name) => (part !== null && typeof part === "object" ? part[name] : undefined), data);
}

export function put(data, path, value) {
  const names = path.split(".");
  const last = names.pop();
  let part = data;
  for (const name of names) part = part[name] ??= {};
  part[last] = value;
}

// Every leaf of a snapshot: [path, {value, ts}]
export function* snapshotLeaves(snapshot, prefix = "") {
  for (const [name, one] of Object.entries(snapshot ?? {})) {
    if (one !== null && typeof one === "object" && "value" in one && "ts" in one && typeof one.ts === "number") {
      yield [prefix + name, one];
    } else if (one !== null && typeof one === "object" && !Array.isArray(one)) {
      yield* snapshotLeaves(one, `${prefix}${name}.`);
    }
  }
}
