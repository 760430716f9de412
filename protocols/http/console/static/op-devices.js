// All devices, and the connected ones with protocol and time.

import { attempt, get } from "./api.js";
import { badge, box, field, follow, page, sameAs, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, time, whole } from "./dom.js";
import { named, plainNames } from "./names.js";

const COUNT = 100;
const TYPING_MS = 250;
const AGAIN_MS = 10000;
const search = field("search", "Find by name, id, owner or type", "search", { maxlength: 64 });
const word = search.querySelector("input");
const note = h("p", { class: "hint", role: "status" });
const count = h("p", { class: "hint", role: "status" });
const connections = new DataTable("Connections", [
  { name: "Device", value: (one) => one.name, isName: true },
  { name: "Owner", value: (one) => plainNames(one.ownerId), cell: (one) => named(one.ownerId) },
  { name: "Over", value: (one) => one.protocol },
  { name: "Since", value: (one) => one.since, cell: (one) => time(one.since) },
], { empty: "No device is connected now. Devices that post over HTTP or CoAP need no connection.", file: "connections.csv", order: [3, true] });
const devices = new DataTable("Devices", [
  { name: "Device", value: (one) => one.name, isName: true, cell: (one) => h("span", {}, one.name, h("code", { class: "type" }, one.id)) },
  { name: "Type", value: (one) => one.typeName },
  { name: "Owner", value: (one) => one.ownerEmail },
  { name: "State", value: (one) => (one.enabled ? "enabled" : "disabled"), cell: (one) => badge(one.enabled ? "enabled" : "disabled", one.enabled ? "good" : "bad") },
  { name: "Since", value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
], { empty: "No device fits.", file: "devices.csv" });

async function load() {
  const { data, total } = await get("/operator/devices", { search: word.value.trim(), count: COUNT });
  devices.set(data);
  note.textContent = total > data.length ? `The first ${whole(data.length)} of ${whole(total)}: search for the others.` : "";
}

async function connected() {
  const { data } = await get("/operator/connections");
  connections.set(data.connections);
  count.textContent = data.total > data.connections.length ? `The newest ${whole(data.connections.length)} of ${whole(data.total)}.` : "";
}

let timer = 0;
word.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => attempt(load), TYPING_MS);
});

await show(async () => {
  await Promise.all([load(), connected()]);
  fill(page, box("Connected now", connections.element, count),
    box("Devices", h("p", {}, sameAs("trunkline device list", "On the machine of the service.")), search, devices.element, note));
  follow(connected, AGAIN_MS);
});
