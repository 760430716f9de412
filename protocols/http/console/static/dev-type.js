// One device type: its record, and changing it.

import { call, done } from "./api.js";
import { badge, box, check, field, form, id, page, sameCall, sameTable, show, table } from "./dash.js";
import { boardBox, boards } from "./dev-boards.js";
import { typeShown } from "./dev-shared.js";
import { fill, h, time } from "./dom.js";
import { _ } from "./texts.js";

async function load() {
  const { type, organization } = await typeShown();
  const offering = organization ? await boards([organization], type.id) : [];
  const change = form(_("Change the device type"), [
    field("name", _("Name"), "text", { maxlength: 64, required: true, value: type.name }),
    field("description", _("Description"), "area", { maxlength: 1500, value: type.description ?? "" }),
    field("tags", _("Tags, separated by commas"), "text", { value: (type.tags ?? []).map((one) => one.name).join(", ") }),
    check("published", _("Everybody may make devices of it"), type.published),
    check("protected", _("Only for users of the organization's applications"), type.protected),
  ], _("Save"), async (elements) => {
    await call("PUT", `/developer/devicetypes/${id}`, { body: { name: elements.name.value.trim(), description: elements.description.value,
      published: elements.published.checked, protected: elements.protected.checked,
      tags: elements.tags.value.split(",").map((one) => one.trim()).filter(Boolean) } });
    done(_("The device type is changed."));
    await load();
  });
  fill(page, boardBox(offering, load, { isNamed: false }), box(_("Record"), h("dl", { class: "facts" },
    h("dt", {}, _("Id")), h("dd", {}, h("code", {}, type.id)), h("dt", {}, _("Unique name")), h("dd", {}, h("code", {}, type.uniqueName)),
    h("dt", {}, _("Organization")), h("dd", {}, organization?.name ?? type.oid),
    h("dt", {}, _("Manifest")), h("dd", {}, type.latestVersion ? _("version {version}", { version: type.latestVersion }) : badge(_("none yet"), "bad"), ...type.approved ? [] : [" — ", _("the newest waits for an operator's approval")]),
    h("dt", {}, _("Certificates")), h("dd", {}, type.rsp ? _("devices register with a certificate") : _("not needed")),
    h("dt", {}, _("Changed")), h("dd", {}, time(type.lastUpdated))),
  h("p", { class: "row" }, sameCall("GET", `/devicetypes/${type.id}`), sameTable(table("device_types", { id: type.id, unique_name: type.uniqueName, name: type.name,
    organization: organization?.name ?? "", published: type.published, protected: type.protected, tags: (type.tags ?? []).map((one) => one.name) })))),
  box(_("Change"), change));
}

await show(load);
