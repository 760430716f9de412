// A form for the device's Actions, made from its Manifest.

import { attempt, call, done } from "./api.js";
import { $, fill, h } from "./dom.js";
import { isNumber, put } from "./manifest.js";

export class Acting {
  constructor(did, manifest) {
    this.did = did;
    this.actions = manifest.actions;
    if (this.actions.length === 0) return;
    this.form = $("#actions");
    $("#actions-box").hidden = false;
    this.choice = h("select", { id: "action", name: "action" },
      this.actions.map((one) => h("option", { value: one.name }, one.description ? `${one.name}: ${one.description}` : one.name)));
    this.parameters = h("div", { class: "fields" });
    this.form.append(h("p", {}, h("label", { for: "action" }, "Action"), this.choice), this.parameters,
      h("div", {}, h("button", { type: "submit" }, "Send")));
    this.choice.addEventListener("change", () => this.ask());
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.ask();
  }

  get chosen() {
    return this.actions.find((one) => one.name === this.choice.value);
  }

  ask() {
    fill(this.parameters, this.chosen.parameters.map(([path, one], at) => {
      const id = `parameter-${at}`;
      const unit = one.unit ? ` (${one.unit})` : "";
      return h("p", {}, h("label", { for: id }, `${path}${unit}`), this.input(one, { id, name: `data.actions.0.parameters.${path}` }),
        one.description ? h("small", { class: "hint" }, one.description) : null);
    }));
  }

  input(one, names) {
    const bounds = one.metadata ?? {};
    const bound = (which) => Object.entries(bounds).find(([name]) => name.startsWith(which) && !name.endsWith("STRICT"))?.[1];
    const choices = Object.entries(bounds).find(([name]) => name.startsWith("VALUES_"))?.[1];
    if (one.isCollection) return h("input", { ...names, placeholder: "values, separated by commas", autocomplete: "off" });
    if (one.type === "Boolean") return h("select", names, h("option", { value: "true" }, "on"), h("option", { value: "false" }, "off"));
    if (Array.isArray(choices)) return h("select", names, choices.map((value) => h("option", { value: String(value) }, String(value))));
    if (isNumber(one)) {
      const step = one.type === "Integer" || one.type === "Long" ? "1" : "any";
      return h("input", { ...names, type: "number", step, min: bound("MIN_VALUE"), max: bound("MAX_VALUE"), required: true });
    }
    return h("input", { ...names, autocomplete: "off" });
  }

  send() {
    const action = this.chosen;
    const parameters = {};
    action.parameters.forEach(([path, one], at) => {
      const text = $(`#parameter-${at}`, this.form).value;
      const read = (part) => (one.type === "Boolean" ? part === "true" : isNumber({ ...one, isCollection: false }) ? Number(part) : part);
      put(parameters, path, one.isCollection ? text.split(",").map((part) => read(part.trim())) : read(text));
    });
    const data = { actions: [action.parameters.length ? { name: action.name, parameters } : { name: action.name }] };
    attempt(async () => {
      await call("POST", "/actions", { body: { ddid: this.did, data } });
      done(`${action.name} is on its way.`);
    }, { form: this.form });
  }
}
