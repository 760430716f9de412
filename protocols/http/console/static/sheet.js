// The data sheet of a device type (Regulation (EU) 2023/2854, article 3.2), for the screen and for paper.

import { attempt, get } from "./api.js";
import { $, fill, h, heads, whole } from "./dom.js";
import { _, plural } from "./texts.js";

const place = $("#sheet");

const KINDS = { boolean: _("yes or no"), integer: _("whole number"), number: _("number"), text: _("text") };
const kind = (one) => (one.isList ? _("list: {kind}", { kind: KINDS[one.type] }) : KINDS[one.type]);
const kept = (days) => (days === 0 ? _("for ever") : plural("{count} day", "{count} days", days));
const part = (name, ...children) => h("section", { class: "box", "aria-label": name }, h("h2", {}, name), ...children);

$("#print").addEventListener("click", () => print());

function fields(sheet) {
  if (sheet.fields.length === 0) return h("p", {}, _("This type has no Manifest yet: it records nothing."));
  return h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Fields")),
    heads(_("Field"), _("Kind"), _("Unit"), _("Description")),
    h("tbody", {}, sheet.fields.map((one) => h("tr", {},
      h("td", { "data-label": _("Field") }, h("code", {}, one.field)),
      h("td", { "data-label": _("Kind") }, kind(one)),
      h("td", { "data-label": _("Unit") }, one.unit || "–"),
      h("td", { "data-label": _("Description") }, one.description || "–", one.sensitive ? h("span", { class: "badge" }, _("sensitive")) : null)))));
}

function volume({ measured }) {
  if (measured.perDeviceAndDay === undefined) return _("No device of this type has sent anything in the last {days} days.", { days: measured.days });
  return _("{messages} messages a day from each device, as measured in the last {days} days on {devices} of them.", { messages: whole(measured.perDeviceAndDay), days: measured.days, devices: whole(measured.devices) });
}

await attempt(async () => {
  const { data: sheet } = await get(`/devicetypes/${place.dataset.id}/sheet`);
  $("#title").textContent = _("Data sheet: {name}", { name: sheet.name });
  document.title = `${sheet.name} · Trunkline`;
  const days = sheet.retentionDays;
  fill(place,
    h("p", { class: "hint" }, _("Version {version} of the Manifest of {name}. It says what Regulation (EU) 2023/2854, the Data Act, wants to be said before the contract.", { version: sheet.manifestVersion, name: sheet.uniqueName })),
    part(_("Recorded data"), fields(sheet)),
    part(_("How much"), h("p", {}, volume(sheet))),
    part(_("For how long"), h("ul", {}, h("li", {}, _("Messages: {days}", { days: kept(days.messages) })), h("li", {}, _("Sums by minute: {days}", { days: kept(days.minutes) })),
      h("li", {}, _("Sums by hour: {days}", { days: kept(days.hours) })), h("li", {}, _("Sums by day: {days}", { days: kept(days.days) })))),
    part(_("How to read it"), h("p", {}, sheet.read), h("p", {}, sheet.take)),
    part(_("How to share it"), h("p", {}, sheet.share)),
    part(_("How to erase it"), h("p", {}, sheet.erase)));
  place.removeAttribute("aria-busy");
});
