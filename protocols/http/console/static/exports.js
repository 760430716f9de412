// Exports of messages: request, progress, file.

import { attempt, call, done, download, get } from "./api.js";
import { offer, ownDevices } from "./device-lists.js";
import { $, empty, fileSize, fill, fullTime, h, heads, time, toast, whole } from "./dom.js";
import { _ } from "./texts.js";

const uid = $("meta[name=uid]").content;
const DAY_MS = 86400000;
const AGAIN_MS = 2000;
const form = $("#ask");
let timer = 0;

// A time for a datetime-local field, in the browser's zone
const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60000).toISOString().slice(0, 16);

form.elements.startDate.value = local(Date.now() - DAY_MS);
form.elements.endDate.value = local(Date.now() + 60000);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const given = form.elements;
    const body = { startDate: new Date(given.startDate.value).getTime(), endDate: new Date(given.endDate.value).getTime(), format: given.format.value };
    await call("POST", "/messages/export", { body: given.sdids.value ? { ...body, sdids: given.sdids.value } : { ...body, uids: uid } });
    done(_("The export has begun. You can leave this page."));
    await load();
  }, { form });
});

async function load() {
  clearTimeout(timer);
  const { data } = await get("/messages/export/history", { count: 25 });
  if (data.exports.length === 0) {
    fill($("#exports"), empty(_("No exports yet"), _("Choose a range above, and take your messages with you as one archive.")));
    return;
  }
  fill($("#exports"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Exports")),
    heads(_("Asked for"), _("Range"), _("State"), `${_("Messages")}#`, `${_("Size")}#`, ""),
    h("tbody", {}, data.exports.map(row))));
  if (data.exports.some((one) => ["Received", "InProgress"].includes(one.status))) timer = setTimeout(() => attempt(load), AGAIN_MS);
}

function row(one) {
  const { request } = one;
  const kind = { Success: "good", Served: "good", Failure: "bad" }[one.status] ?? "";
  const words = { Received: _("waiting"), InProgress: _("being written"), Success: _("ready"), Served: _("ready, downloaded before"), Failure: _("failed"), Expired: _("deleted after 24 hours") };
  const isOn = ["Received", "InProgress"].includes(one.status);
  return h("tr", {}, h("td", { class: "when", "data-label": _("Asked for") }, time(request.requestDate)),
    h("td", { "data-label": _("Range") }, _("{start} to {end}, {format}", { start: fullTime(request.startDate), end: fullTime(request.endDate), format: { csv1: _("CSV, data as JSON"), csv2: "CSV" }[request.format] ?? request.format.toUpperCase() })),
    h("td", { "data-label": _("State") }, h("span", { class: `badge ${kind}` }, words[one.status] ?? one.status), isOn ? h("progress", { "aria-label": _("The export is being written") }) : null),
    h("td", { class: "size", "data-label": _("Messages") }, one.totalMessages === undefined ? "" : whole(one.totalMessages)),
    h("td", { class: "size", "data-label": _("Size") }, one.fileSize === undefined ? "" : fileSize(one.fileSize)),
    h("td", { class: "act" }, kind === "good" ? h("button", { type: "button", class: "small", "aria-label": _("Download the export of {when}", { when: fullTime(request.requestDate) }), onclick: (event) => save(one, event.target) }, _("Download")) : null));
}

function save(one, button) {
  attempt(async () => {
    const day = (ms) => local(ms).slice(0, 10);
    const plain = `trunkline-${day(one.request.startDate)}-to-${day(one.request.endDate)}-${one.exportId.slice(0, 8)}.tgz`;
    const bar = h("progress", { max: 1, "aria-label": _("Progress of the download") });
    button.after(bar);
    try {
      const blob = await download(`/messages/export/${one.exportId}/result`, (size, total) => { if (total) bar.value = size / total; });
      const name = blob.name === `${one.exportId}.tgz` ? plain : blob.name;  // csv2 names the device
      const link = h("a", { href: URL.createObjectURL(blob), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
      toast(_("{name} is in your downloads.", { name }));
    } finally {
      bar.remove();
    }
    await load();
  }, { button });
}

async function devices() {
  offer(form.elements.sdids, await ownDevices());
}

await attempt(() => Promise.all([load(), devices()]));
