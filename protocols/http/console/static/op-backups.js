// The existing backups, and the one being made, which continues when the page is left.

import { attempt, call, done, get } from "./api.js";
import { badge, box, button, follow, page, progress, sameCommand, show } from "./dash.js";
import { fileSize, fill, h, heads, time } from "./dom.js";
import { _, phrase } from "./texts.js";

const WORDS = { running: [_("under way"), ""], done: [_("done"), "good"], failed: [_("failed"), "bad"] };
let state = null;

function paint(data) {
  const latest = data.latest;
  state.begin.disabled = latest?.status === "running";
  fill(state.latest, latest ? h("div", {}, h("p", {}, badge(...WORDS[latest.status]), " ", phrase("begun {when}", { when: time(latest.startedOn) })),
    latest.status === "running" ? h("p", {}, progress(_("Progress of the backup"), latest.done, latest.total), latest.total ? _("{part} of {total}", { part: fileSize(latest.done), total: fileSize(latest.total) }) : fileSize(latest.done)) : null,
    latest.problem ? h("p", { class: "finding" }, latest.problem) : null, latest.file ? h("p", {}, h("code", {}, latest.file), latest.node ? ` (${latest.node})` : "") : null) : h("p", { class: "hint" }, _("None since the start of the service.")));
  fill(state.kept, data.backups.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Backups")), heads(_("File"), `${_("Size")}#`, _("Made")), h("tbody", {}, data.backups.map((one) => h("tr", {},
    h("th", { scope: "row" }, one.node ? `${one.name} (${one.node})` : one.name), h("td", { class: "size", "data-label": _("Size") }, fileSize(one.size)), h("td", { class: "when", "data-label": _("Made") }, time(one.madeOn)))))) : h("p", { class: "hint" }, _("There is no backup yet.")),
  h("p", {}, _("{size} are free on the disk of the folder.", { size: fileSize(data.availableBytes) }), data.backups.length && data.availableBytes < data.backups[0].size
    ? h("b", { class: "finding" }, " ", _("The next backup has no room: it is written before the oldest is removed.")) : ""),
  h("p", { class: "hint" }, phrase("In {folder} on the machine of the service. A backup has every secret, so it is not sent over the network: copy it to another machine from there.", { folder: h("code", {}, data.folder) })));
}

async function load() {
  const { data } = await get("/operator/backups");
  if (!state) {
    state = { latest: h("div", { id: "latest" }), kept: h("div", { id: "kept" }), begin: button(_("Make a backup"), (event) => attempt(async () => {
      await call("POST", "/operator/backups");
      done(_("The backup has begun. It goes on when you leave this page."));
      await load();
    }, { button: event.target }), "small") };
    fill(page, box(_("The latest backup"), h("p", { class: "row" }, state.begin, sameCommand("backup")), state.latest), box(_("Backups"), state.kept));
  }
  paint(data);
}

await show(async () => {
  await load();
  follow(load, 1000, { of: "backup" });
});
