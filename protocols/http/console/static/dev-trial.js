// One trial: its people, invitations, device types and devices.

import { attempt, call, done, get, tagOf } from "./api.js";
import { badge, box, button, crumb, everything, field, follow, form, id, page, sameCall, show, title } from "./dash.js";
import { DataTable } from "./data-table.js";
import { copyButton, fill, h, sure, time } from "./dom.js";
import { named } from "./names.js";
import { save } from "./saving.js";
import { _, worded } from "./texts.js";

const PATH = `/trials/${id}`;
const KINDS = { accepted: "good" };
const LABELS = { name: _("Name"), description: _("About"), endDate: _("Stopped") };
let parts = null;

// Name and description, as they were when the form was opened
async function edit() {
  const { data } = await get(PATH);
  fill(parts.edit, form(_("Change the trial"), [field("name", _("Name"), "text", { maxlength: 64, required: true, value: data.name }),
    field("description", _("About"), "area", { maxlength: 1500, value: data.description ?? "" })], _("Save"), async (elements) => {
    const body = { name: elements.name.value.trim(), description: elements.description.value };
    if (await save("PUT", PATH, body, { seen: { tag: tagOf(data), data }, labels: LABELS, take: edit }) === null) return;
    fill(parts.edit);
    done(_("The trial is changed."));
    await load();
  }));
}

const act = (method, path, body, text) => (event) => attempt(async () => {
  await call(method, path, { body });
  done(text);
  await load();
}, { button: event.target });

const people = (caption, role, path) => new DataTable(caption, [
  { name: _("Name"), value: (one) => one.fullName || one.name, isName: true }, { name: _("E-mail address"), value: (one) => one.email },
  { name: "", value: () => "", cell: (one) => button(_("Remove"), act("DELETE", `${PATH}/${path}/${one.id}`, undefined, _("{email} is no {role} any more.", { email: one.email, role: worded(role) }))) },
], { empty: _("No {role} yet.", { role: worded(role) }), file: `${path}.csv` });

async function load() {
  const { data: trial } = await get(PATH);
  title(trial.name);
  fill(parts.record, h("dl", { class: "facts" }, h("dt", {}, _("State")), h("dd", {}, trial.endDate ? badge("stopped") : badge("running", "good")), h("dt", {}, _("About")), h("dd", {}, trial.description ?? ""),
    h("dt", {}, _("Begun")), h("dd", {}, time(trial.startDate)), trial.aid ? [h("dt", {}, _("Application")), h("dd", {}, h("code", {}, trial.aid)), h("dt", {}, _("Client secret")), h("dd", {}, copyButton(trial.clientSecret, _("the client secret")))] : null),
  h("p", { class: "row" }, sameCall("GET", PATH), trial.endDate || !trial.aid ? null : button(_("Change"), (event) => attempt(edit, { button: event.target })), trial.endDate || !trial.aid ? null : button(_("Renew the application"), act("PUT", `${PATH}/application`, undefined, _("The trial has a new application."))),
    trial.endDate || !trial.aid ? null : button(_("Stop the trial"), async (event) => {
      if (await sure(_("Stop the trial?"), _("Its application no longer sees the participants' devices. A trial that is stopped stays stopped."), _("Stop the trial"))) await act("PUT", PATH, { status: "stop" }, _("The trial is stopped."))(event);
    }, "danger small")));
  parts.types.set(await everything(`${PATH}/devicetypes`, {}, (answer) => answer.data.deviceTypes));
  if (!trial.aid) {
    parts.forAdministrators.hidden = true;
    return;
  }
  parts.invitations.set(await everything(`${PATH}/invitations`, {}, (answer) => answer.data.invitations));
  parts.participants.set(await everything(`${PATH}/participants`, {}, (answer) => answer.data.participants));
  parts.administrators.set(await everything(`${PATH}/administrators`, {}, (answer) => answer.data.administrators));
  parts.devices.set(await everything(`${PATH}/devices`, {}, (answer) => answer.data.devices));
}

await show(async () => {
  crumb("/developer/trials", _("Trials"));
  parts = {
    record: h("div"),
    edit: h("div"),
    types: new DataTable(_("Device types"), [{ name: _("Device type"), value: (one) => one.dtid ?? one.id, isName: true, cell: (one) => h("span", {}, one.name ?? named(one.dtid ?? one.id), one.uniqueName ? h("span", { class: "type" }, one.uniqueName) : null) },
      { name: "", value: () => "", cell: (one) => button(_("Take out"), act("DELETE", `${PATH}/devicetypes/${one.dtid ?? one.id}`, undefined, _("The device type is no longer in the trial."))) }], { empty: _("No device type yet."), file: "trial-device-types.csv" }),
    invitations: new DataTable(_("Invitations"), [
      { name: _("E-mail address"), value: (one) => one.email, isName: true }, { name: _("As"), value: (one) => worded(one.invitationType) },
      { name: _("State"), value: (one) => one.status, cell: (one) => badge(one.status, KINDS[one.status] ?? "") }, { name: _("Sent"), value: (one) => one.sentDate, cell: (one) => time(one.sentDate) },
      { name: "", value: () => "", cell: (one) => (one.status === "sent" ? button(_("Revoke"), act("PUT", `${PATH}/invitations/${one.id}`, { status: "revoked" }, _("The invitation is revoked."))) : "") },
    ], { empty: _("No invitations yet."), file: "invitations.csv" }),
    participants: people(_("Participants"), "participant", "participants"),
    administrators: people(_("Administrators"), "administrator", "administrators"),
    devices: new DataTable(_("Connected devices"), [{ name: _("Device"), value: (one) => one.name, isName: true }, { name: _("Id"), value: (one) => one.id, cell: (one) => h("code", {}, one.id) }, { name: _("Of"), value: (one) => one.uid, cell: (one) => named(one.uid) }], { empty: _("No device is connected yet."), file: "trial-devices.csv" }),
  };
  const invite = form(_("Invite"), [h("div", { class: "tools" }, field("email", _("E-mail address"), "email", { required: true }), field("invitationType", _("As"), [["participant", _("participant")], ["administrator", _("administrator")]]))], _("Send the invitation"), async (elements, element) => {
    await call("POST", `${PATH}/invitations`, { body: { email: elements.email.value.trim(), invitationType: elements.invitationType.value } });
    element.reset();
    done(_("The invitation is on its way."));
    await load();
  });
  const addType = form(_("Add a device type"), [field("dtid", _("Id or unique name"), "text", { required: true })], _("Add the device type"), async (elements, element) => {
    await call("POST", `${PATH}/devicetypes`, { body: { dtid: elements.dtid.value.trim() } });
    element.reset();
    done(_("The device type is in the trial."));
    await load();
  }, "quiet");
  parts.forAdministrators = h("div", { class: "column" }, box(_("Invitations"), invite, parts.invitations.element), box(_("Participants"), parts.participants.element),
    box(_("Administrators"), parts.administrators.element), box(_("Connected devices"), parts.devices.element));
  fill(page, box(_("Trial"), parts.record, parts.edit), box(_("Device types"), parts.types.element, addType), parts.forAdministrators);
  await load();
  follow(load, 10000);
});
