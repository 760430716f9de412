// Inputs for the parameters of an Action, from its Manifest, and their values.

import { h, truth } from "./dom.js";
import { isNumber, put, valueAt } from "./manifest.js";
import { _ } from "./texts.js";

const isNumeric = (one) => isNumber({ ...one, isCollection: false });

// `nameOf` gives the name of an input, under which the API reports a finding; `given` are present values.
export function parameterInputs(action, id, nameOf, given = {}) {
  return action.parameters.map(([path, one], at) => {
    const value = valueAt(given, path);
    const names = { id: `${id}-${at}`, name: nameOf(path) };
    return h("p", {}, h("label", { for: names.id }, one.unit ? `${path} (${one.unit})` : path), input(path, one, names, value),
      one.description ? h("small", { class: "hint" }, one.description) : null);
  });
}

function input(path, one, names, value) {
  const bounds = one.metadata ?? {};
  const bound = (which) => Object.entries(bounds).find(([name]) => name.startsWith(which) && !name.endsWith("STRICT"))?.[1];
  const choices = Object.entries(bounds).find(([name]) => name.startsWith("VALUES_"))?.[1];
  const text = value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value);
  const chosen = (options) => {
    const select = h("select", names, options.map(([key, words]) => h("option", { value: key }, words)));
    if (text) select.value = text;
    return select;
  };
  if (one.isCollection) return h("input", { ...names, placeholder: _("values, separated by commas"), autocomplete: "off", value: text });
  if (one.type === "Boolean") return chosen([["true", truth(true, path)], ["false", truth(false, path)]]);
  if (Array.isArray(choices)) return chosen(choices.map((choice) => [String(choice), String(choice)]));
  if (isNumeric(one)) {
    const step = one.type === "Integer" || one.type === "Long" ? "1" : "any";
    return h("input", { ...names, type: "number", step, min: bound("MIN_VALUE"), max: bound("MAX_VALUE"), required: true, value: text });
  }
  return h("input", { ...names, autocomplete: "off", value: text });
}

// The value of an input, in the type of the field or parameter
export function read(one, text) {
  const part = (words) => (one.type === "Boolean" ? words === "true" : isNumeric(one) ? Number(words) : words);
  return one.isCollection ? text.split(",").map((words) => part(words.trim())) : part(text);
}

// The parameters from the inputs, nested by group; `wrap` makes the value objects of rules and scenes.
export function parametersIn(root, action, id, wrap = false) {
  const parameters = {};
  action.parameters.forEach(([path, one], at) => {
    const value = read(one, root.querySelector(`#${CSS.escape(`${id}-${at}`)}`).value);
    put(parameters, path, wrap ? { value } : value);
  });
  return wrap ? wrapped(parameters) : parameters;
}

// A group is a value object that contains value objects.
function wrapped(parameters) {
  return Object.fromEntries(Object.entries(parameters).map(([name, one]) => {
    const isValue = Object.keys(one).length === 1 && "value" in one && (typeof one.value !== "object" || Array.isArray(one.value));
    return [name, isValue ? one : { value: wrapped(one) }];
  }));
}

// The inverse: plain values, or undefined if there are other than plain values.
export function unwrapped(parameters) {
  const plain = {};
  for (const [name, one] of Object.entries(parameters ?? {})) {
    if (one === null || typeof one !== "object" || Object.keys(one).join() !== "value") return undefined;
    const isGroup = one.value !== null && typeof one.value === "object" && !Array.isArray(one.value);
    plain[name] = isGroup ? unwrapped(one.value) : one.value;
    if (plain[name] === undefined) return undefined;
  }
  return plain;
}
