// A form for the device's Actions, made from its Manifest.

import { attempt, call, done } from "./api.js";
import { $, fill, h } from "./dom.js";
import { parameterInputs, parametersIn } from "./parameters.js";
import { _ } from "./texts.js";

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
    this.form.append(h("p", {}, h("label", { for: "action" }, _("Action")), this.choice), this.parameters,
      h("div", {}, h("button", { type: "submit" }, _("Send"))));
    this.choice.addEventListener("change", () => this.ask());
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.ask();
  }

  get chosen() {
    return this.actions.find((one) => one.name === this.choice.value);
  }

  ask() {
    fill(this.parameters, parameterInputs(this.chosen, "parameter", (path) => `data.actions.0.parameters.${path}`));
  }

  send() {
    const { name, parameters } = this.chosen;
    const action = parameters.length ? { name, parameters: parametersIn(this.form, this.chosen, "parameter") } : { name };
    attempt(async () => {
      await call("POST", "/actions", { body: { ddid: this.did, data: { actions: [action] } } });
      done(_("{name} is on its way.", { name }));
    }, { form: this.form });
  }
}
