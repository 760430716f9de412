// The device types of the person's organizations, and a new one.

import { call, done } from "./api.js";
import { badge, box, check, everything, field, form, organizations, page, sameTable, show, table, uid } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, time } from "./dom.js";

async function load() {
  const members = await organizations();
  const names = new Map(members.map((one) => [one.id, one.name]));
  const types = new DataTable("Device types", [
    { name: "Name", value: (one) => one.name, cell: (one) => h("span", {}, h("a", { href: `/developer/types/${one.id}` }, one.name), h("span", { class: "type" }, one.uniqueName)), isName: true },
    { name: "Organization", value: (one) => names.get(one.oid) },
    { name: "Manifest", value: (one) => one.latestVersion, cell: (one) => (one.latestVersion ? `version ${one.latestVersion}` : badge("none", "bad")), isNumber: true },
    { name: "Open to", value: (one) => (one.published ? "everybody" : "the organization") },
    { name: "Changed", value: (one) => one.lastUpdated, cell: (one) => time(one.lastUpdated) },
  ], { empty: "No device types yet.", order: [0, false], file: "device-types.csv" });
  const create = form("New device type", [
    members.length > 1 ? field("organization", "Organization", members.map((one) => [one.id, one.name])) : null,
    field("uniqueName", "Unique name", "text", { maxlength: 128, required: true, hint: "Lower case, with a dot, such as acme.heater. It stays." }),
    field("name", "Name", "text", { maxlength: 64, required: true }),
    field("description", "Description", "area", { maxlength: 1500, rows: 2 }),
    check("published", "Everybody may make devices of it"),
  ].filter(Boolean), "Create the device type", async (elements) => {
    const oid = elements.organization?.value ?? members[0].id;
    const { data } = await call("POST", `/developer/organizations/${oid}/devicetypes`, { body: { uniqueName: elements.uniqueName.value.trim(),
      name: elements.name.value.trim(), description: elements.description.value, published: elements.published.checked } });
    done(`${data.name} is made. It needs a Manifest.`);
    location.assign(`/developer/types/${data.id}/manifest`);
  });
  fill(page, box("Device types", types.element), box("New device type", h("p", {}, sameTable(table("device_types", { unique_name: "acme.heater", name: "Heater", organization: members[0].name, published: false, manifest: "heater.json" }))), create));
  await everything(`/users/${uid}/devicetypes`, { includeOrganization: true }, (answer) => answer.data.deviceTypes, (found, more) =>
    types.set(found.filter((one) => names.has(one.oid)), more));
}

await show(load);
