// The list of scenes, each with the button that activates it.

import { attempt, call, done, get } from "./api.js";
import { automations, othersBox, problemOf } from "./automations.js";
import { DataTable } from "./data-table.js";
import { $, empty, fill, h } from "./dom.js";
import { withNames } from "./names.js";
import { _ } from "./texts.js";

const uid = $("meta[name=uid]").content;
const madeBy = (one) => (one ? (one.isOfConsole ? _("you, here") : one.application.name) : "");
let made = new Map();
const table = new DataTable(_("Scenes"), [
  { name: _("Name"), value: (scene) => scene.name, isName: true, cell: (scene) => h("span", {}, h("a", { href: `/console/scenes/${scene.id}` }, scene.name),
    scene.description ? h("span", { class: "type" }, scene.description) : null) },
  { name: _("Actions"), value: (scene) => scene.actions?.length ?? 0, isNumber: true },
  { name: _("State"), value: (scene) => (problemOf(scene) ? _("invalid") : _("ready")), cell: state },
  { name: _("Made by"), value: (scene) => madeBy(made.get(scene.id)) },
  { name: "", value: () => "", cell: activate },
], { file: "scenes.csv" });

async function load() {
  let scenes = [];
  [scenes, made] = await Promise.all([all(), automations("scene")]);
  const others = othersBox([...made.values()]);
  if (scenes.length === 0) {
    fill($("#scenes"), empty(_("No scenes yet"), _("A scene sends Actions to several devices at once, such as “Good night”."),
      h("a", { class: "button", href: "/console/scenes/new" }, _("New scene"))), others);
    return;
  }
  fill($("#scenes"), table.element, others);
  table.set(scenes);
}

async function all() {
  const found = [];
  for (let total = 1; found.length < total;) {
    const answer = await get(`/users/${uid}/scenes`, { count: 100, offset: found.length });
    if (answer.data.scenes.length === 0) break;
    found.push(...answer.data.scenes);
    ({ total } = answer);
  }
  return found;
}

function state(scene) {
  const problem = problemOf(scene);
  return h("div", {}, h("span", { class: `badge ${problem ? "bad" : "good"}` }, problem ? _("invalid") : _("ready")), problem ? h("div", { class: "soft" }, withNames(problem)) : null);
}

function activate(scene) {
  return h("button", {
    type: "button", class: "small", disabled: Boolean(problemOf(scene)), "aria-label": _("Activate {name}", { name: scene.name }),
    onclick: (event) => attempt(async () => {
      await call("POST", `/scenes/${scene.id}`, { body: {} });
      done(_("{name} is activated.", { name: scene.name }));
    }, { button: event.target }),
  }, _("Activate"));
}

await attempt(load);
