// The existing backups, and the one being made, which continues when the page is left.

import { attempt, call, done, get } from "./api.js";
import { badge, box, button, follow, page, progress, sameCommand, show } from "./dash.js";
import { fileSize, fill, h, heads, time } from "./dom.js";

const WORDS = { running: ["under way", ""], done: ["done", "good"], failed: ["failed", "bad"] };
let state = null;

function paint(data) {
  const latest = data.latest;
  state.begin.disabled = latest?.status === "running";
  fill(state.latest, latest ? h("div", {}, h("p", {}, badge(...WORDS[latest.status]), " begun ", time(latest.startedOn)),
    latest.status === "running" ? h("p", {}, progress("Progress of the backup", latest.done, latest.total), `${fileSize(latest.done)}${latest.total ? ` of ${fileSize(latest.total)}` : ""}`) : null,
    latest.problem ? h("p", { class: "finding" }, latest.problem) : null, latest.file ? h("p", {}, h("code", {}, latest.file), latest.node ? ` on ${latest.node}` : "") : null) : h("p", { class: "hint" }, "None since the start of the service."));
  fill(state.kept, data.backups.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Backups"), heads("File", "Size#", "Made"), h("tbody", {}, data.backups.map((one) => h("tr", {},
    h("th", { scope: "row" }, one.node ? `${one.name} (${one.node})` : one.name), h("td", { class: "size", "data-label": "Size" }, fileSize(one.size)), h("td", { class: "when", "data-label": "Made" }, time(one.madeOn)))))) : h("p", { class: "hint" }, "There is no backup yet."),
  h("p", {}, `${fileSize(data.availableBytes)} are free on the disk of the folder.`, data.backups.length && data.availableBytes < data.backups[0].size
    ? h("b", { class: "finding" }, " The next backup has no room: it is written before the oldest is removed.") : ""),
  h("p", { class: "hint" }, "In ", h("code", {}, data.folder), " on the machine of the service. A backup has every secret, so it is not sent over the network: copy it to another machine from there."));
}

async function load() {
  const { data } = await get("/operator/backups");
  if (!state) {
    state = { latest: h("div", { id: "latest" }), kept: h("div", { id: "kept" }), begin: button("Make a backup", (event) => attempt(async () => {
      await call("POST", "/operator/backups");
      done("The backup has begun. It goes on when you leave this page.");
      await load();
    }, { button: event.target }), "small") };
    fill(page, box("The latest backup", h("p", { class: "row" }, state.begin, sameCommand("backup")), state.latest), box("Backups", state.kept));
  }
  paint(data);
}

await show(async () => {
  await load();
  follow(load, 1000, { of: "backup" });
});
