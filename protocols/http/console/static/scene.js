// One scene: its Actions, activating it, and its text.

import { attempt, call, done, get, getText, tagOf } from "./api.js";
import { problemOf } from "./automations.js";
import { $, fill, h, showText, toast } from "./dom.js";
import { named, withNames } from "./names.js";
import { actionRow, isPlainAction, removable, wantedLeaf, wantRow } from "./parts.js";
import { save } from "./saving.js";
import { _, phrase } from "./texts.js";

const form = $("#scene");
let id = form.dataset.id;
let scene = null;
let seen = {};  // the form's contents as last loaded or saved
const LABELS = { name: _("Name"), description: _("Description"), actions: _("Actions") };

const nameOf = (at) => (path) => `actions.${at}.${path}`;

// An Action that the form cannot change, such as one to every device of a type, is kept unchanged.
function keptRow(one) {
  const { selector, dtid } = one.ddid;
  const isPlain = selector === "every" && !one.parameters;
  const item = h("li", { class: "part" }, isPlain ? h("span", {}, phrase("{action} to every device of the type {type}", { action: h("b", {}, one.action), type: named(dtid, undefined, true) }))
    : h("code", {}, JSON.stringify(one)));
  item.read = () => one;
  return removable(item, _("this Action"));
}

async function add(one, newRow = actionRow) {
  const at = $("#actions").children.length;
  const make = one && wantedLeaf(one) ? wantRow : newRow;
  const row = one && make === actionRow && !isPlainAction(one) ? keptRow(one) : await make(one, nameOf(at));
  $("#actions").append(row);
  return row;
}

async function load(data) {
  seen = { tag: tagOf(data), data };
  take(data);
  form.elements.name.value = data.name;
  form.elements.description.value = data.description ?? "";
  const submit = form.querySelector("[type=submit]");
  submit.disabled = true;  // until all rows are there: saving now would leave some out
  $("#actions").replaceChildren();
  for (const one of data.actions) await add(one);
  submit.disabled = false;
}

function take(data) {
  scene = data;
  $("#title").textContent = scene.name;
  document.title = `${scene.name} · Trunkline`;
  $("#tools").hidden = false;
  const problem = problemOf(scene);
  $("#invalid").hidden = !problem;
  fill($("#invalid"), problem ? withNames(problem) : null);
  $("#activate").disabled = Boolean(problem);
}

$("#add-action").addEventListener("click", async () => (await add()).querySelector("select").focus());
$("#add-want").addEventListener("click", async () => (await add(undefined, wantRow)).querySelector("select").focus());
form.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const body = { name: form.elements.name.value, description: form.elements.description.value, actions: [...$("#actions").children].map((one) => one.read()) };
    const data = id ? await save("PUT", `/scenes/${id}`, body, { seen, labels: LABELS, take: load }) : (await call("POST", "/scenes", { body })).data;
    if (data === null) return;
    seen = { tag: tagOf(data), data };
    if (!id) {
      id = data.id;
      history.replaceState(null, "", `/console/scenes/${id}`);
    }
    take(data);
    done(_("The scene is saved."));
  }, { form });
});
$("#activate").addEventListener("click", (event) => attempt(async () => {
  await call("POST", `/scenes/${id}`, { body: {} });
  done(_("{name} is activated.", { name: scene.name }));
}, { button: event.target }));
$("#as-text").addEventListener("click", (event) => attempt(async () => {
  showText(_("{name} as text", { name: scene.name }), await getText(`/scenes/${id}/provision`), _("In a provision file, “trunkline provision” makes or changes this scene."));
}, { button: event.target }));
$("#delete").addEventListener("click", (event) => attempt(async () => {
  await call("DELETE", `/scenes/${id}`);
  const { name, description, actions } = scene;
  id = "";
  $("#tools").hidden = true;
  $("#title").textContent = _("Deleted scene");
  toast(_("{name} is deleted.", { name }), {
    seconds: 30,
    action: () => attempt(async () => {
      const { data } = await call("POST", "/scenes", { body: { name, description, actions } });
      location.assign(`/console/scenes/${data.id}`);
    }),
  });
}, { button: event.target }));

await attempt(async () => {
  if (!id) {
    await add();
    $("#name").focus();
    return;
  }
  await load((await get(`/scenes/${id}`)).data);
});
