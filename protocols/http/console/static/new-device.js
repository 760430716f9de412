// Adding a device: its name and type, with the fields and Actions of the type beside it.

import { attempt, call, get } from "./api.js";
import { $, empty, fill, h, heads } from "./dom.js";
import { manifestOf } from "./manifest.js";
import { _ } from "./texts.js";

const form = $("#new");
const select = $("#dtid");
let types = new Map();
let newest = 0;

async function find() {
  const mine = newest += 1;
  const { data } = await get("/devicetypes", { nameSearch: $("#find-type").value.trim(), createDevice: true, count: 100 });
  if (mine !== newest) return;
  const chosen = select.value;
  types = new Map(data.deviceTypes.map((type) => [type.id, type]));
  fill(select, data.deviceTypes.map((type) => h("option", { value: type.id }, type.name)));
  if (types.has(chosen)) select.value = chosen;
  else if (types.size) select.selectedIndex = 0;
  await describe();
}

async function describe() {
  const type = types.get(select.value);
  if (!type) {
    fill($("#type"), empty(_("No type fits"), _("Try another word. New types are made by the operator, with “trunkline type upload”.")));
    return;
  }
  const { fields, actions } = await manifestOf(type.id, type.latestVersion);
  if (types.get(select.value) !== type) return;
  const hasUnits = [...fields.values()].some((field) => field.unit);
  fill($("#type"), h("p", {}, h("b", {}, type.name), " ", h("code", {}, type.uniqueName)), type.description ? h("p", {}, type.description) : null,
    h("table", {}, h("caption", { class: "unseen" }, _("Fields")), heads(_("Field"), _("Kind"), ...(hasUnits ? [_("Unit")] : [])),
      h("tbody", {}, [...fields].map(([path, field]) => h("tr", {}, h("th", { scope: "row", title: field.description || undefined }, path),
        h("td", {}, field.isCollection ? _("list of {type}", { type: field.type }) : field.type), hasUnits ? h("td", {}, field.unit ?? "") : null)))),
    actions.length ? h("p", {}, _("Actions: {names}", { names: actions.map((one) => one.name).join(", ") })) : null,
    type.rsp ? h("p", { class: "hint" }, _("Devices of this type register with a certificate.")) : null);
}

let typing = 0;
$("#find-type").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => attempt(find), 200);
});
select.addEventListener("change", () => attempt(describe));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const name = form.elements.name.value.trim() || select.selectedOptions[0].text.slice(0, 64);
    const { data } = await call("POST", "/devices", { body: { dtid: select.value, name } });
    // The device's page shows the token. A type with certificates has no token.
    await call("PUT", `/devices/${data.id}/tokens`).catch(() => {});
    location.assign(`/console/devices/${data.id}`);
  }, { form });
});

await attempt(find);
