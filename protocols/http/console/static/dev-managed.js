// The devices of a type: their properties, and tasks that read, write or execute one of them.

import { attempt, call, done, get } from "./api.js";
import { badge, box, button, everything, field, form, id, page, sameCall, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { typeShown } from "./dev-shared.js";
import { TASK_COLUMNS } from "./dev-tasks.js";
import { fill, h, shown, time } from "./dom.js";
import { named, plainNames } from "./names.js";
import { _ } from "./texts.js";

let table = null;
let tasks = null;
let filter = "";

const flat = (value, path = "") => (value !== null && typeof value === "object" && !Array.isArray(value)
  ? Object.entries(value).flatMap(([name, one]) => flat(one, path ? `${path}.${name}` : name)) : [[path, value]]);
const units = new Map();
// A property of an instance is described once for all of them: temperature.0.sensorValue as temperature.sensorValue.
const unit = (name) => units.get(name.replace(/\.[0-9]+\./, ".")) ?? "";
const said = (properties) => flat(properties).map(([name, value]) => `${name}: ${shown(value ?? "", "", name)}${unit(name) && ` ${unit(name)}`}`).join(", ");

async function devices() {
  let left = "";
  const found = await everything("/devicemgmt/devices/properties", { dtid: id, filter }, (answer) => answer.data.properties, (some, more) => table.set(some, left = more));
  const objects = [...new Set(found.flatMap((one) => Object.keys(one.deviceProperties ?? {})))].join(",");
  const { data } = await get(`/devicemgmt/devicetypes/${id}/manifest/properties`, { objects });
  for (const [group, described] of Object.entries(data.properties.fields.deviceProperties)) {
    for (const [name, one] of Object.entries(described)) if (one.metadata.unit) units.set(`${group}.${name}`, one.metadata.unit);
  }
  table.set(found, left);
}

async function listTasks() {
  tasks.set(await everything("/devicemgmt/tasks", { dtid: id }, (answer) => answer.data.tasks));
}

async function configuration(place) {
  const { data } = await get(`/devicemgmt/devicetypes/${id}`);
  fill(place, h("p", { class: "row" }, badge(data.devicePropertiesEnabled ? _("device properties are read and observed") : _("device properties are off"), data.devicePropertiesEnabled ? "good" : ""),
    button(data.devicePropertiesEnabled ? _("Turn off") : _("Turn on"), (event) => attempt(async () => {
      await call("PUT", `/devicemgmt/devicetypes/${id}`, { body: { devicePropertiesEnabled: !data.devicePropertiesEnabled } });
      done(_("The configuration is changed."));
      await configuration(place);
    }, { button: event.target }))));
}

async function create(elements) {
  const type = elements.taskType.value, value = elements.value.value;
  const dids = elements.dids.value.split(/[\s,]+/).filter(Boolean);
  const body = { dtid: id, taskType: type, property: elements.property.value.trim(), taskParameters: type === "W" || value ? { value } : {},
    ...(dids.length ? { dids } : filter ? { filter } : {}) };
  const { data } = await call("POST", "/devicemgmt/tasks", { body });
  done(_("The task is made."));
  location.assign(`/developer/tasks/${data.id}`);
}

await show(async () => {
  await typeShown();
  const standing = h("div");
  table = new DataTable(_("Devices"), [
    { name: _("Device"), value: (one) => plainNames(one.systemProperties?.did ?? one.did), isName: true, cell: (one) => named(one.systemProperties?.did ?? one.did) },
    { name: _("Connection"), value: (one) => (one.systemProperties?.connection?.connected ? "connected" : _("not connected")), cell: (one) => {
      const link = one.systemProperties?.connection;
      return link ? h("span", {}, badge(link.connected ? link.protocol : _("not connected"), link.connected ? "good" : ""), " ", time(link.lastSeenOn)) : badge(_("never connected"));
    } },
    { name: _("Server properties"), value: (one) => said(one.serverProperties ?? {}) },
    { name: _("Device properties"), value: (one) => said(one.deviceProperties ?? {}) },
  ], { empty: _("No device fits."), file: "device-properties.csv" });
  tasks = new DataTable(_("Tasks"), TASK_COLUMNS, { empty: _("No tasks yet."), order: [4, true], file: "tasks.csv" });
  fill(page, box(_("Configuration"), standing),
    box(_("Properties"), form(_("Choose devices"), [field("filter", _("Devices whose properties are"), "text", { placeholder: "serverProperties.site=hall", hint: _("Pairs key=value with commas; a task without ids is for these devices.") })], _("Show"), async (elements) => {
      filter = elements.filter.value.trim();
      await devices();
    }, "quiet"), table.element),
    box(_("New task"), h("p", {}, sameCall("POST", "/devicemgmt/tasks", { dtid: id, taskType: "R", property: "serverProperties.site" })), form(_("New task"), [
      h("div", { class: "tools" }, field("taskType", _("What"), [["R", _("Read")], ["W", _("Write")], ["E", _("Execute")]]), field("property", _("Property"), "text", { required: true, placeholder: "serverProperties.site" }), field("value", _("Value"), "text")),
      field("dids", _("Device ids; without any, the devices above"), "area", { rows: 2 })], _("Create the task"), create)),
    box(_("Tasks"), tasks.element));
  await Promise.all([configuration(standing), devices(), listTasks()]);
});
