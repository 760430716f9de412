// People and their data: who has read it, importing, deleting, and what each device type records.

import { attempt, call, done, get } from "./api.js";
import { upload } from "./dash.js";
import { offer, ownDevices } from "./device-lists.js";
import { $, empty, fileSize, fill, fullTime, h, heads, sure, time, whole } from "./dom.js";
import { _, plural } from "./texts.js";

const uid = $("meta[name=uid]").content;
const AGAIN_MS = 2000;
const MINUTE_MS = 60000;
const DAY_MS = 86400000;
const bring = $("#import");
const erase = $("#delete");
let timer = 0;

// A time for a datetime-local field, in the browser's zone
const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60000).toISOString().slice(0, 16);

erase.elements.startDate.value = local(Date.now() - DAY_MS);
erase.elements.endDate.value = local(Date.now() + MINUTE_MS);

async function readers() {
  const { data } = await get(`/users/${uid}/readers`);
  if (data.readers.length === 0) {
    fill($("#readers"), h("p", { class: "hint" }, _("No application has read messages of your devices yet.")));
    return;
  }
  fill($("#readers"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Applications that have read it")),
    heads(_("Application"), _("For"), `${_("Reads")}#`, _("Last")),
    h("tbody", {}, data.readers.map((one) => h("tr", {},
      h("td", { "data-label": _("Application") }, one.application?.name ?? ""),
      h("td", { "data-label": _("For") }, one.user?.name ?? _("itself")),
      h("td", { class: "size", "data-label": _("Reads") }, whole(one.count)),
      h("td", { class: "when", "data-label": _("Last") }, time(one.lastOn)))))));
}

bring.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const [file] = bring.elements.file.files;
    const into = bring.elements.sdid.value;
    try {
      await upload(`/messages/import${into ? `?sdid=${into}` : ""}`, file, "text/csv", (gone, total) => fill($("#gone"), h("progress", { value: gone, max: total || 1, "aria-label": _("Progress of the upload") })));
    } finally {
      fill($("#gone"));
    }
    bring.reset();
    done(_("The import has begun. You can leave this page."));
    await under();
  }, { form: bring });
});

erase.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const given = erase.elements;
    const [start, end] = [given.startDate, given.endDate].map((one) => new Date(one.value).getTime());
    const device = given.sdid.selectedOptions[0].textContent;
    const agreed = await sure(_("Delete messages of {device}?", { device }), _("All its messages from {start} to {end} are deleted for good.", { start: fullTime(start), end: fullTime(end) }), _("Delete"));
    if (!agreed) return;
    await call("DELETE", "/messages", { query: { sdid: given.sdid.value, startDate: start, endDate: end } });
    done(_("The deletion has begun. You can leave this page."));
    await under();
  }, { form: erase });
});

const badge = (status) => h("span", { class: `badge ${{ Success: "good", Failure: "bad" }[status] ?? ""}` }, { Success: _("done"), Failure: _("failed") }[status] ?? _("running"));

// Imports and deletions, as long as any of them is under way
async function under() {
  clearTimeout(timer);
  const [{ data: imported }, { data: deleted }] = await Promise.all([get("/messages/import/history"), get("/messages/deletions")]);
  fill($("#imports"), imported.imports.length === 0 ? null : h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Imports")),
    heads(_("Begun"), _("State"), `${_("Size")}#`, `${_("Stored")}#`, `${_("Present")}#`, `${_("Wrong")}#`),
    h("tbody", {}, imported.imports.slice(0, 10).flatMap(importRow))));
  fill($("#deletions"), deleted.deletions.length === 0 ? null : h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Deletions")),
    heads(_("Begun"), _("Range"), _("State"), `${_("Deleted")}#`),
    h("tbody", {}, deleted.deletions.slice(0, 10).map((one) => h("tr", {},
      h("td", { class: "when", "data-label": _("Begun") }, time(one.requestedOn)),
      h("td", { "data-label": _("Range") }, _("{start} to {end}", { start: fullTime(one.startDate), end: fullTime(one.endDate) })),
      h("td", { "data-label": _("State") }, badge(one.status)),
      h("td", { class: "size", "data-label": _("Deleted") }, whole(one.deleted)))))));
  if ([...imported.imports, ...deleted.deletions].some((one) => one.status === "InProgress")) timer = setTimeout(() => attempt(under), AGAIN_MS);
}

function importRow(one) {
  const row = h("tr", {}, h("td", { class: "when", "data-label": _("Begun") }, time(one.requestedOn)),
    h("td", { "data-label": _("State") }, badge(one.status), one.status === "InProgress" ? h("progress", { value: one.progress, max: 100, "aria-label": _("The import is running") }) : null),
    h("td", { class: "size", "data-label": _("Size") }, fileSize(one.fileSize)),
    h("td", { class: "size", "data-label": _("Stored") }, whole(one.stored)),
    h("td", { class: "size", "data-label": _("Present") }, whole(one.present)),
    h("td", { class: "size", "data-label": _("Wrong") }, whole(one.wrong)));
  const problems = [...(one.reason ? [one.reason] : []), ...one.wrongLines.slice(0, 20).map((wrong) => _("Line {line}: {reason}", { line: wrong.line, reason: wrong.reason }))];
  if (problems.length === 0) return [row];
  return [row, h("tr", {}, h("td", { colspan: "6" }, h("details", {}, h("summary", {}, plural("{count} problem", "{count} problems", one.wrong || 1)), h("ul", {}, problems.map((text) => h("li", {}, text))))))];
}

async function devices() {
  const owned = await ownDevices();
  for (const form of [erase, bring]) offer(form.elements.sdid, owned);
  const types = [...new Set(owned.data.devices.map((device) => device.dtid))];
  if (types.length === 0) {
    fill($("#sheets"), empty(_("No devices yet"), _("When you have some, this shows what each type of them records.")));
    return;
  }
  const found = await Promise.all(types.slice(0, 30).map((dtid) => get(`/devicetypes/${dtid}`)));
  fill($("#sheets"), h("ul", { class: "plain" }, found.map(({ data: type }) => h("li", {}, h("a", { href: `/console/types/${type.id}/sheet` }, type.name)))));
}

await attempt(() => Promise.all([readers(), under(), devices()]));
