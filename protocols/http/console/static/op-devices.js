// All devices, and the connected ones with protocol and time.

import { attempt, get } from "./api.js";
import { badge, box, field, follow, page, sameAs, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, time, whole } from "./dom.js";
import { named, plainNames } from "./names.js";
import { _, worded } from "./texts.js";

const COUNT = 100;
const TYPING_MS = 250;
const AGAIN_MS = 10000;
const search = field("search", _("Find by name, id, owner or type"), "search", { maxlength: 64 });
const word = search.querySelector("input");
const note = h("p", { class: "hint", role: "status" });
const count = h("p", { class: "hint", role: "status" });
const connections = new DataTable(_("Connections"), [
  { name: _("Device"), value: (one) => one.name, isName: true },
  { name: _("Owner"), value: (one) => plainNames(one.ownerId), cell: (one) => named(one.ownerId) },
  { name: _("Over"), value: (one) => one.protocol },
  { name: _("Since"), value: (one) => one.since, cell: (one) => time(one.since) },
], { empty: _("No device is connected now. Devices that post over HTTP or CoAP need no connection."), file: "connections.csv", order: [3, true] });
const devices = new DataTable(_("Devices"), [
  { name: _("Device"), value: (one) => one.name, isName: true, cell: (one) => h("span", {}, one.name, h("code", { class: "type" }, one.id)) },
  { name: _("Type"), value: (one) => one.typeName },
  { name: _("Owner"), value: (one) => one.ownerEmail },
  { name: _("State"), value: (one) => worded(one.enabled ? "enabled" : "disabled"), cell: (one) => badge(one.enabled ? "enabled" : "disabled", one.enabled ? "good" : "bad") },
  { name: _("Since"), value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
], { empty: _("No device fits."), file: "devices.csv" });

async function load() {
  const { data, total } = await get("/operator/devices", { search: word.value.trim(), count: COUNT });
  devices.set(data);
  note.textContent = total > data.length ? _("The first {count} of {total}: search for the others.", { count: whole(data.length), total: whole(total) }) : "";
}

async function connected() {
  const { data } = await get("/operator/connections");
  connections.set(data.connections);
  count.textContent = data.total > data.connections.length ? _("The newest {count} of {total}.", { count: whole(data.connections.length), total: whole(data.total) }) : "";
}

let timer = 0;
word.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => attempt(load), TYPING_MS);
});

await show(async () => {
  await Promise.all([load(), connected()]);
  fill(page, box(_("Connected now"), connections.element, count),
    box(_("Devices"), h("p", {}, sameAs("trunkline device list", _("On the machine of the service."))), search, devices.element, note));
  follow(connected, AGAIN_MS);
});
