// Firmware images of a device type, and their roll-outs.

import { attempt, call, curlLine, done, get, REST } from "./api.js";
import { box, button, everything, field, follow, form, id, page, progress, sameAs, sameTable, show, table, upload } from "./dash.js";
import { DataTable } from "./data-table.js";
import { TASK_COLUMNS } from "./dev-tasks.js";
import { typeShown } from "./dev-shared.js";
import { $, fileSize, fill, h, sure, time, toast } from "./dom.js";

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
    toast("Choose a file.", { bad: true });
    return;
  }
  const query = new URLSearchParams({ version: elements.version.value.trim(), type: elements.type.value.trim() || "Application" });
  const began = Date.now();
  try {
    const { data } = await upload(`${IMAGES}?${query}`, file, "application/octet-stream", (gone, total) => fill(place, h("p", { role: "status" },
      `${fileSize(gone)} of ${fileSize(total)}, ${fileSize(Math.round(gone / Math.max(0.1, (Date.now() - began) / 1000)))} a second`), progress("Progress of the image", gone, total)));
    fill(place, h("p", { role: "status" }, `Version ${data.version} is stored: `, h("code", {}, data.sha256)));
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
  done("The roll-out has begun.");
  location.assign(`/developer/tasks/${data.id}`);
}

async function remove(image, event) {
  if (!await sure(`Delete version ${image.version}?`, "Updates that have not sent its address to a device yet fail.", "Delete the image")) return;
  await attempt(async () => {
    await call("DELETE", `${IMAGES}/${image.updateId}`);
    done("The image is deleted.");
    await load();
  }, { button: event.target });
}

await show(async () => {
  const { type, isAdministrator } = await typeShown();
  place = h("div", { id: "sent" });
  images = new DataTable("Images", [
    { name: "Version", value: (one) => one.version, isName: true }, { name: "Type", value: (one) => one.type },
    { name: "Size", value: (one) => one.size, cell: (one) => fileSize(one.size), isNumber: true },
    { name: "SHA-256", value: (one) => one.sha256, cell: (one) => h("code", { title: one.sha256 }, `${one.sha256.slice(0, 12)}…`) },
    { name: "Uploaded", value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
    { name: "", value: () => "", cell: (one) => button("Delete", (event) => remove(one, event)) },
  ], { empty: "No images yet.", file: "images.csv" });
  rollouts = new DataTable("Roll-outs", TASK_COLUMNS, { empty: "No roll-outs yet.", order: [4, true], file: "roll-outs.csv" });
  const line = `${curlLine("POST", `${REST}${IMAGES}?version=1.2.0&type=Application`)} --data-binary @firmware.bin`;
  fill(page, box("Upload an image", h("p", { class: "row" }, sameAs(line), sameTable(table("firmware", { device_type: type.uniqueName, version: "1.2.0", file: "firmware.bin" }))), form("Upload an image", [
    h("div", { class: "tools" }, field("version", "Version, as the device reports it", "text", { required: true, maxlength: 64 }), field("type", "Type", "text", { value: "Application", maxlength: 64 })),
    field("image", "The image", "file", { required: true })], "Upload the image", send), place),
  box("Images", images.element),
  h("div", { id: "rollouts" }, box("Roll an image out", form("Roll an image out", [
    field("updateId", "Image", []),
    h("div", { class: "tools" }, field("devicesPerMinute", "Devices in a minute", "number", { min: 1 }), field("canaryDevices", "Canary devices", "number", { min: 1 }),
      field("canarySuccessPercent", "Canary success in %", "number", { min: 1, max: 100 }), field("abortPercent", "Stop above % failed", "number", { min: 0, max: 100 })),
    field("dids", "Device ids; without any, every device of the type", "area", { rows: 2 }),
    h("p", { class: "row checks" }, h("label", {}, h("input", { type: "checkbox", name: "needsAcceptance" }), "Each owner must accept it")),
  ], "Begin the roll-out", rollOut)), box("Roll-outs", rollouts.element)));
  if (!isAdministrator) fill($("#rollouts"), h("p", { class: "hint" }, "Roll-outs are for administrators of the organization. You may upload images."));
  await load();
  if (!isAdministrator) return;
  await listRollouts();
  follow(listRollouts, 5000, { of: "task", concerns: (data) => data.dtid === id });
});
