// The list of scenes, each with the button that activates it.

import { attempt, call, done, get } from "./api.js";
import { automations, othersBox } from "./automations.js";
import { $, empty, fill, h, heads } from "./dom.js";
import { withNames } from "./names.js";

const uid = $("meta[name=uid]").content;

async function load() {
  const [scenes, made] = await Promise.all([all(), automations("scene")]);
  const others = othersBox([...made.values()]);
  if (scenes.length === 0) {
    fill($("#scenes"), empty("No scenes yet", "A scene sends Actions to several devices at once, such as “Good night”.",
      h("a", { class: "button", href: "/console/scenes/new" }, "New scene")), others);
    return;
  }
  fill($("#scenes"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Scenes"), heads("Name", "Actions#", "State", "Made by", ""),
    h("tbody", {}, scenes.map((scene) => row(scene, made.get(scene.id))))), others);
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

function row(scene, made) {
  const problem = scene.error?.errors?.flat()[0];
  return h("tr", {}, h("th", { scope: "row" }, h("a", { href: `/console/scenes/${scene.id}` }, scene.name), scene.description ? h("span", { class: "type" }, scene.description) : null),
    h("td", { class: "size", "data-label": "Actions" }, String(scene.actions?.length ?? 0)),
    h("td", { "data-label": "State" }, h("span", { class: `badge ${problem ? "bad" : "good"}` }, problem ? "invalid" : "ready"), problem ? h("div", { class: "soft" }, withNames(problem.messages.join(", "))) : null),
    h("td", { "data-label": "Made by" }, made ? (made.isOfConsole ? "you, here" : made.application.name) : ""),
    h("td", { class: "act" }, h("button", {
      type: "button", class: "small", disabled: Boolean(problem), "aria-label": `Activate ${scene.name}`,
      onclick: (event) => attempt(async () => {
        await call("POST", `/scenes/${scene.id}`, { body: {} });
        done(`${scene.name} is activated.`);
      }, { button: event.target }),
    }, "Activate")));
}

await attempt(load);
