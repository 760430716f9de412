// One trial: its people, invitations, device types and devices.

import { attempt, call, done, get, tagOf } from "./api.js";
import { badge, box, button, crumb, everything, field, follow, form, id, page, sameCall, show, title } from "./dash.js";
import { DataTable } from "./data-table.js";
import { copyButton, fill, h, sure, time } from "./dom.js";
import { named } from "./names.js";
import { save } from "./saving.js";

const PATH = `/trials/${id}`;
const KINDS = { accepted: "good" };
const LABELS = { name: "Name", description: "About", endDate: "Stopped" };
let parts = null;

// Name and description, as they were when the form was opened
async function edit() {
  const { data } = await get(PATH);
  fill(parts.edit, form("Change the trial", [field("name", "Name", "text", { maxlength: 64, required: true, value: data.name }),
    field("description", "About", "area", { maxlength: 1500, value: data.description ?? "" })], "Save", async (elements) => {
    const body = { name: elements.name.value.trim(), description: elements.description.value };
    if (await save("PUT", PATH, body, { seen: { tag: tagOf(data), data }, labels: LABELS, take: edit }) === null) return;
    fill(parts.edit);
    done("The trial is changed.");
    await load();
  }));
}

const act = (method, path, body, text) => (event) => attempt(async () => {
  await call(method, path, { body });
  done(text);
  await load();
}, { button: event.target });

const people = (caption, role, path) => new DataTable(caption, [
  { name: "Name", value: (one) => one.fullName || one.name, isName: true }, { name: "E-mail address", value: (one) => one.email },
  { name: "", value: () => "", cell: (one) => button("Remove", act("DELETE", `${PATH}/${path}/${one.id}`, undefined, `${one.email} is no ${role} any more.`)) },
], { empty: `No ${role} yet.`, file: `${path}.csv` });

async function load() {
  const { data: trial } = await get(PATH);
  title(trial.name);
  fill(parts.record, h("dl", { class: "facts" }, h("dt", {}, "State"), h("dd", {}, trial.endDate ? badge("stopped") : badge("running", "good")), h("dt", {}, "About"), h("dd", {}, trial.description ?? ""),
    h("dt", {}, "Begun"), h("dd", {}, time(trial.startDate)), trial.aid ? [h("dt", {}, "Application"), h("dd", {}, h("code", {}, trial.aid)), h("dt", {}, "Client secret"), h("dd", {}, copyButton(trial.clientSecret, "the client secret"))] : null),
  h("p", { class: "row" }, sameCall("GET", PATH), trial.endDate || !trial.aid ? null : button("Change", (event) => attempt(edit, { button: event.target })), trial.endDate || !trial.aid ? null : button("Renew the application", act("PUT", `${PATH}/application`, undefined, "The trial has a new application.")),
    trial.endDate || !trial.aid ? null : button("Stop the trial", async (event) => {
      if (await sure("Stop the trial?", "Its application no longer sees the participants' devices. A trial that is stopped stays stopped.", "Stop the trial")) await act("PUT", PATH, { status: "stop" }, "The trial is stopped.")(event);
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
  crumb("/developer/trials", "Trials");
  parts = {
    record: h("div"),
    edit: h("div"),
    types: new DataTable("Device types", [{ name: "Device type", value: (one) => one.dtid ?? one.id, isName: true, cell: (one) => h("span", {}, one.name ?? named(one.dtid ?? one.id), one.uniqueName ? h("span", { class: "type" }, one.uniqueName) : null) },
      { name: "", value: () => "", cell: (one) => button("Take out", act("DELETE", `${PATH}/devicetypes/${one.dtid ?? one.id}`, undefined, "The device type is no longer in the trial.")) }], { empty: "No device type yet.", file: "trial-device-types.csv" }),
    invitations: new DataTable("Invitations", [
      { name: "E-mail address", value: (one) => one.email, isName: true }, { name: "As", value: (one) => one.invitationType },
      { name: "State", value: (one) => one.status, cell: (one) => badge(one.status, KINDS[one.status] ?? "") }, { name: "Sent", value: (one) => one.sentDate, cell: (one) => time(one.sentDate) },
      { name: "", value: () => "", cell: (one) => (one.status === "sent" ? button("Revoke", act("PUT", `${PATH}/invitations/${one.id}`, { status: "revoked" }, "The invitation is revoked.")) : "") },
    ], { empty: "No invitations yet.", file: "invitations.csv" }),
    participants: people("Participants", "participant", "participants"),
    administrators: people("Administrators", "administrator", "administrators"),
    devices: new DataTable("Connected devices", [{ name: "Device", value: (one) => one.name, isName: true }, { name: "Id", value: (one) => one.id, cell: (one) => h("code", {}, one.id) }, { name: "Of", value: (one) => one.uid, cell: (one) => named(one.uid) }], { empty: "No device is connected yet.", file: "trial-devices.csv" }),
  };
  const invite = form("Invite", [h("div", { class: "tools" }, field("email", "E-mail address", "email", { required: true }), field("invitationType", "As", [["participant", "participant"], ["administrator", "administrator"]]))], "Send the invitation", async (elements, element) => {
    await call("POST", `${PATH}/invitations`, { body: { email: elements.email.value.trim(), invitationType: elements.invitationType.value } });
    element.reset();
    done("The invitation is on its way.");
    await load();
  });
  const addType = form("Add a device type", [field("dtid", "Id or unique name", "text", { required: true })], "Add the device type", async (elements, element) => {
    await call("POST", `${PATH}/devicetypes`, { body: { dtid: elements.dtid.value.trim() } });
    element.reset();
    done("The device type is in the trial.");
    await load();
  }, "quiet");
  parts.forAdministrators = h("div", { class: "column" }, box("Invitations", invite, parts.invitations.element), box("Participants", parts.participants.element),
    box("Administrators", parts.administrators.element), box("Connected devices", parts.devices.element));
  fill(page, box("Trial", parts.record, parts.edit), box("Device types", parts.types.element, addType), parts.forAdministrators);
  await load();
  follow(load, 10000);
});
