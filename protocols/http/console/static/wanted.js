// The values that are wanted of the device, and a form to want others, for its settable fields.

import { attempt, call, done, get } from "./api.js";
import { $, fill, h, heads, shown, time } from "./dom.js";
import { withNames } from "./names.js";
import { put } from "./manifest.js";
import { parameterInputs, read } from "./parameters.js";
import { _, phrase, worded } from "./texts.js";

const KINDS = { waiting: "", sent: "", reached: "good", expired: "bad", refused: "bad" };

export class Wanting {
  constructor(did, manifest) {
    this.did = did;
    this.fields = [...manifest.fields].filter(([, one]) => one.settable);
    if (this.fields.length === 0) return;
    this.units = manifest.fields;
    $("#wanted-box").hidden = false;
    $("#wanted").setAttribute("aria-busy", "true");
    this.form = $("#want");
    this.choice = h("select", { id: "wanted-field", name: "data" }, this.fields.map(([path]) => h("option", { value: path }, path)));
    this.value = h("div", { class: "fields" });
    this.form.append(h("p", {}, h("label", { for: "wanted-field" }, _("Field")), this.choice), this.value,
      h("div", {}, h("button", { type: "submit" }, _("Want it"))));
    this.choice.addEventListener("change", () => this.ask());
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.want(); });
    this.ask();
    attempt(() => this.load());
  }

  get chosen() {
    return this.fields.find(([path]) => path === this.choice.value);
  }

  ask() {
    fill(this.value, parameterInputs({ parameters: [this.chosen] }, "wanted", (path) => `data.${path}`));
  }

  async load() {
    if (this.fields.length) this.show((await get(`/devices/${this.did}/wanted`)).data.fields);
  }

  show(fields) {
    const rows = Object.entries(fields).map(([path, one]) => this.row(path, one));
    fill($("#wanted"), rows.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Wanted values")),
      heads(_("Field"), _("Wanted"), _("Reported"), _("State"), ""), h("tbody", {}, rows)) : h("p", { class: "soft" }, _("Nothing is wanted of the device.")));
  }

  row(path, one) {
    const unit = this.units.get(path)?.unit ?? "";
    const isOpen = one.state === "waiting" || one.state === "sent";
    return h("tr", {}, h("th", { scope: "row" }, path),
      h("td", { "data-label": _("Wanted") }, shown(one.wanted, unit, path)),
      h("td", { "data-label": _("Reported") }, one.reported === undefined ? "–" : shown(one.reported, unit, path)),
      h("td", { "data-label": _("State") }, h("span", { class: `badge ${KINDS[one.state]}` }, worded(one.state)),
        h("div", { class: "soft" }, phrase("by {name}, {when}", { name: withNames(one.by), when: time(one.since) })), h("div", { class: "soft" }, one.message)),
      h("td", {}, isOpen ? h("button", { type: "button", class: "quiet small", "aria-label": _("Withdraw {path}", { path }),
        onclick: (event) => this.change(path, null, _("It is wanted no more."), { button: event.target }) }, _("Withdraw")) : null));
  }

  want() {
    const [path, one] = this.chosen;
    this.change(path, read(one, $("#wanted-0").value), _("{path} waits until the device reports it.", { path }), { form: this.form });
  }

  change(path, value, words, where) {
    const data = {};
    put(data, path, value);
    attempt(async () => {
      this.show((await call("PUT", `/devices/${this.did}/wanted`, { body: { data } })).data.fields);
      done(words);
    }, where);
  }
}
