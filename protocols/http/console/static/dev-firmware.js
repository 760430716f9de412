// Firmware images of a device type, and their roll-outs.

import { attempt, call, curlLine, done, get, REST } from "./api.js";
import { box, button, everything, field, follow, form, id, page, progress, sameAs, sameTable, show, table, upload } from "./dash.js";
import { DataTable } from "./data-table.js";
import { TASK_COLUMNS } from "./dev-tasks.js";
import { typeShown } from "./dev-shared.js";
import { $, fileSize, fill, h, sure, time, toast } from "./dom.js";
import { _, phrase } from "./texts.js";

const IMAGES = `/devicemgmt/devicetypes/${id}/images`;
const PLAN = ["devicesPerMinute", "canaryDevices", "canarySuccessPercent", "abortPercent"];
const OLDER_MS = 60000;  // interval of reading tasks beyond the newest 100
let listed = [];
let listedOn = 0;
let images = null;
let rollouts = null;
let place = null;

async function load() {
  const found = await everything(IMAGES, {}, (answer) => answer.data.images);
  images.set(found);
  const select = $("[name=updateId]");
  if (!select) return;
  const chosen = select.value;
  fill(select, found.map((one) => h("option", { value: one.updateId }, `${one.version} (${one.type}, ${fileSize(one.size)})`)));
  if (found.some((one) => one.updateId === chosen)) select.value = chosen;
}

async function listRollouts() {
  const newest = (await get("/devicemgmt/tasks", { dtid: id, count: 100 })).data.tasks;
  if (Date.now() - listedOn > OLDER_MS) {
    listed = await everything("/devicemgmt/tasks", { dtid: id }, (answer) => answer.data.tasks);
    listedOn = Date.now();
  }
  rollouts.set([...new Map([...listed, ...newest].map((one) => [one.id, one])).values()].filter((one) => one.property === "akc.update"));
}

async function send(elements, element) {
  const file = elements.image.files[0];
  if (!file) {
    toast(_("Choose a file."), { bad: true });
    return;
  }
  const query = new URLSearchParams({ version: elements.version.value.trim(), type: elements.type.value.trim() || _("Application") });
  const began = Date.now();
  try {
    const { data } = await upload(`${IMAGES}?${query}`, file, "application/octet-stream", (gone, total) => fill(place, h("p", { role: "status" },
      _("{part} of {total}, {rate} a second", { part: fileSize(gone), total: fileSize(total), rate: fileSize(Math.round(gone / Math.max(0.1, (Date.now() - began) / 1000))) })), progress(_("Progress of the image"), gone, total)));
    fill(place, h("p", { role: "status" }, phrase("Version {version} is stored: {digest}", { version: data.version, digest: h("code", {}, data.sha256) })));
    element.reset();
    await load();
  } catch (error) {
    fill(place);
    throw error;
  }
}

async function rollOut(elements) {
  const plan = Object.fromEntries(PLAN.filter((name) => elements[name].value !== "").map((name) => [name, Number(elements[name].value)]));
  const dids = elements.dids.value.split(/[\s,]+/).filter(Boolean);
  const body = { dtid: id, taskType: "W", property: "akc.update", needsAcceptance: elements.needsAcceptance.checked,
    taskParameters: { update: { updateId: elements.updateId.value, ...(Object.keys(plan).length ? { rollout: plan } : {}) } }, ...(dids.length ? { dids } : {}) };
  const { data } = await call("POST", "/devicemgmt/tasks", { body });
  done(_("The roll-out has begun."));
  location.assign(`/developer/tasks/${data.id}`);
}

async function remove(image, event) {
  if (!await sure(_("Delete version {version}?", { version: image.version }), _("Updates that have not sent its address to a device yet fail."), _("Delete the image"))) return;
  await attempt(async () => {
    await call("DELETE", `${IMAGES}/${image.updateId}`);
    done(_("The image is deleted."));
    await load();
  }, { button: event.target });
}

await show(async () => {
  const { type, isAdministrator } = await typeShown();
  place = h("div", { id: "sent" });
  images = new DataTable(_("Images"), [
    { name: _("Version"), value: (one) => one.version, isName: true }, { name: _("Type"), value: (one) => one.type },
    { name: _("Size"), value: (one) => one.size, cell: (one) => fileSize(one.size), isNumber: true },
    { name: "SHA-256", value: (one) => one.sha256, cell: (one) => h("code", { title: one.sha256 }, `${one.sha256.slice(0, 12)}…`) },
    { name: _("Uploaded"), value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
    { name: "", value: () => "", cell: (one) => button(_("Delete"), (event) => remove(one, event)) },
  ], { empty: _("No images yet."), file: "images.csv" });
  rollouts = new DataTable(_("Roll-outs"), TASK_COLUMNS, { empty: _("No roll-outs yet."), order: [4, true], file: "roll-outs.csv" });
  const line = `${curlLine("POST", `${REST}${IMAGES}?version=1.2.0&type=Application`)} --data-binary @firmware.bin`;
  fill(page, box(_("Upload an image"), h("p", { class: "row" }, sameAs(line), sameTable(table("firmware", { device_type: type.uniqueName, version: "1.2.0", file: "firmware.bin" }))), form(_("Upload an image"), [
    h("div", { class: "tools" }, field("version", _("Version, as the device reports it"), "text", { required: true, maxlength: 64 }), field("type", _("Type"), "text", { value: _("Application"), maxlength: 64 })),
    field("image", _("The image"), "file", { required: true })], _("Upload the image"), send), place),
  box(_("Images"), images.element),
  h("div", { id: "rollouts" }, box(_("Roll an image out"), form(_("Roll an image out"), [
    field("updateId", _("Image"), []),
    h("div", { class: "tools" }, field("devicesPerMinute", _("Devices in a minute"), "number", { min: 1 }), field("canaryDevices", _("Canary devices"), "number", { min: 1 }),
      field("canarySuccessPercent", _("Canary success in %"), "number", { min: 1, max: 100 }), field("abortPercent", _("Stop above % failed"), "number", { min: 0, max: 100 })),
    field("dids", _("Device ids; without any, every device of the type"), "area", { rows: 2 }),
    h("p", { class: "row checks" }, h("label", {}, h("input", { type: "checkbox", name: "needsAcceptance" }), _("Each owner must accept it"))),
  ], _("Begin the roll-out"), rollOut)), box(_("Roll-outs"), rollouts.element)));
  if (!isAdministrator) fill($("#rollouts"), h("p", { class: "hint" }, _("Roll-outs are for administrators of the organization. You may upload images.")));
  await load();
  if (!isAdministrator) return;
  await listRollouts();
  follow(listRollouts, 5000, { of: "task", concerns: (data) => data.dtid === id });
});
