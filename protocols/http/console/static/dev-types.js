// The device types of the person's organizations, and a new one.

import { call, done } from "./api.js";
import { badge, box, check, everything, field, form, organizations, page, sameTable, show, table, uid } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, time } from "./dom.js";
import { _ } from "./texts.js";

async function load() {
  const members = await organizations();
  const names = new Map(members.map((one) => [one.id, one.name]));
  const types = new DataTable(_("Device types"), [
    { name: _("Name"), value: (one) => one.name, cell: (one) => h("span", {}, h("a", { href: `/developer/types/${one.id}` }, one.name), h("span", { class: "type" }, one.uniqueName)), isName: true },
    { name: _("Organization"), value: (one) => names.get(one.oid) },
    { name: _("Manifest"), value: (one) => one.latestVersion, cell: (one) => (one.latestVersion ? _("version {version}", { version: one.latestVersion }) : badge(_("none"), "bad")), isNumber: true },
    { name: _("Open to"), value: (one) => (one.published ? _("everybody") : _("the organization")) },
    { name: _("Changed"), value: (one) => one.lastUpdated, cell: (one) => time(one.lastUpdated) },
  ], { empty: _("No device types yet."), order: [0, false], file: "device-types.csv" });
  const create = form(_("New device type"), [
    members.length > 1 ? field("organization", _("Organization"), members.map((one) => [one.id, one.name])) : null,
    field("uniqueName", _("Unique name"), "text", { maxlength: 128, required: true, hint: _("Lower case, with a dot, such as acme.heater. It stays.") }),
    field("name", _("Name"), "text", { maxlength: 64, required: true }),
    field("description", _("Description"), "area", { maxlength: 1500, rows: 2 }),
    check("published", _("Everybody may make devices of it")),
  ].filter(Boolean), _("Create the device type"), async (elements) => {
    const oid = elements.organization?.value ?? members[0].id;
    const { data } = await call("POST", `/developer/organizations/${oid}/devicetypes`, { body: { uniqueName: elements.uniqueName.value.trim(),
      name: elements.name.value.trim(), description: elements.description.value, published: elements.published.checked } });
    done(_("{name} is made. It needs a Manifest.", { name: data.name }));
    location.assign(`/developer/types/${data.id}/manifest`);
  });
  fill(page, box(_("Device types"), types.element), box(_("New device type"), h("p", {}, sameTable(table("device_types", { unique_name: "acme.heater", name: _("Heater"), organization: members[0].name, published: false, manifest: "heater.json" }))), create));
  await everything(`/users/${uid}/devicetypes`, { includeOrganization: true }, (answer) => answer.data.deviceTypes, (found, more) =>
    types.set(found.filter((one) => names.has(one.oid)), more));
}

await show(load);
