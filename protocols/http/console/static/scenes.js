// The list of scenes, each with the button that activates it.

import { attempt, call, done, get } from "./api.js";
import { $, empty, fill, h, heads } from "./dom.js";

const uid = $("meta[name=uid]").content;

async function load() {
  const { data } = await get(`/users/${uid}/scenes`, { count: 100 });
  if (data.scenes.length === 0) {
    fill($("#scenes"), empty("No scenes yet", "A scene sends Actions to several devices at once, such as “Good night”.",
      h("a", { class: "button", href: "/console/scenes/new" }, "New scene")));
    return;
  }
  fill($("#scenes"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Scenes"), heads("Name", "Actions#", "State", ""),
    h("tbody", {}, data.scenes.map(row))));
}

function row(scene) {
  const problem = scene.error?.errors?.flat()[0];
  return h("tr", {}, h("th", { scope: "row" }, h("a", { href: `/console/scenes/${scene.id}` }, scene.name), scene.description ? h("span", { class: "type" }, scene.description) : null),
    h("td", { class: "size", "data-label": "Actions" }, String(scene.actions?.length ?? 0)),
    h("td", { "data-label": "State" }, h("span", { class: `badge ${problem ? "bad" : "good"}` }, problem ? "invalid" : "ready"), problem ? h("div", { class: "soft" }, problem.messages.join(", ")) : null),
    h("td", { class: "size" }, h("button", {
      type: "button", class: "small", disabled: Boolean(problem), "aria-label": `Activate ${scene.name}`,
      onclick: (event) => attempt(async () => {
        await call("POST", `/scenes/${scene.id}`, { body: {} });
        done(`${scene.name} is activated.`);
      }, { button: event.target }),
    }, "Activate")));
}

await attempt(load);
