// The person's trials, and a new one.

import { call, done } from "./api.js";
import { badge, box, everything, field, form, page, sameCall, show, uid } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, time } from "./dom.js";
import { _ } from "./texts.js";

await show(async () => {
  const trials = new DataTable(_("Trials"), [
    { name: _("Name"), value: (one) => one.name, cell: (one) => h("a", { href: `/developer/trials/${one.id}` }, one.name), isName: true },
    { name: _("About"), value: (one) => one.description ?? "", cell: (one) => (one.description ? h("span", { class: "type", title: one.description }, one.description) : "") },
    { name: _("State"), value: (one) => (one.endDate ? _("stopped") : _("running")), cell: (one) => (one.endDate ? badge("stopped") : badge("running", "good")) },
    { name: _("Begun"), value: (one) => one.startDate, cell: (one) => time(one.startDate) },
  ], { empty: _("No trials yet. In a trial, people you invite share devices with you and your application."), order: [3, true], file: "trials.csv" });
  fill(page, box(_("Trials"), trials.element), box(_("New trial"), h("p", {}, sameCall("POST", "/trials", { name: _("Does dimmed light help?") })), form(_("New trial"), [
    field("name", _("Name"), "text", { required: true, maxlength: 64 }), field("description", _("Description"), "area", { maxlength: 1500, rows: 2 }),
    field("types", _("Device types, each by its id or unique name"), "text", { placeholder: "acme.heater" })], _("Create the trial"), async (elements) => {
    const types = elements.types.value.split(/[\s,]+/).filter(Boolean);
    const { data } = await call("POST", "/trials", { body: { name: elements.name.value.trim(), description: elements.description.value, deviceTypes: types.map((dtid) => ({ dtid })) } });
    done(_("The trial is made."));
    location.assign(`/developer/trials/${data.id}`);
  })));
  trials.set(await everything(`/users/${uid}/trials`, {}, (answer) => answer.data.trials));
});
