// One device: its state, and the parts of the page, each in its own module.

import { attempt, call, done, get } from "./api.js";
import { Acting } from "./actions.js";
import { Connecting } from "./connecting.js";
import { $, fill, fullTime, h, showText, sure, time } from "./dom.js";
import { Drawing } from "./drawing.js";
import { HandingOver } from "./handing-over.js";
import { manifestOf, snapshotLeaves } from "./manifest.js";
import { named } from "./names.js";
import { Plan } from "./plan.js";
import { Sharing } from "./sharing.js";
import { follow } from "./sockets.js";
import { Tasks } from "./tasks.js";
import { Trail } from "./trail.js";
import { Values } from "./values.js";
import { Wanting } from "./wanted.js";
import { _, phrase, worded } from "./texts.js";

const page = $("#device");
const did = page.dataset.did;
let device;
let availability = "unknown";
let lastMessage = 0;
let leaving = false;
let shared = null;  // who shares it with the person

async function open() {
  const { data } = await get(`/devices/${did}`);
  device = data;
  const isOwner = device.sharedWithMe === undefined;
  head();
  const [type, manifest] = await Promise.all([
    get(`/devicetypes/${device.dtid}`).then((answer) => answer.data),
    manifestOf(device.dtid, device.manifestVersion),
  ]);
  about(type);
  const values = new Values(manifest);
  const drawing = new Drawing(did, manifest);
  const trail = new Trail(did, manifest, isOwner, () => connecting.troubled());
  new Acting(did, manifest);
  const wanting = new Wanting(did, manifest);
  const connecting = new Connecting(page.dataset, device, manifest, type, isOwner);
  if (isOwner) {
    ownerTools();
    new Sharing(did);
    new HandingOver(did, () => device.name);
    new Tasks(did);
  } else guestTools();
  const plan = new Plan(did, isOwner, type.uniqueName);

  const refresh = async () => {
    const { data: status } = await get(`/devices/${did}/status`);
    availability = status.availability;
    lastMessage = Math.max(lastMessage, status.lastMessageTs ?? 0);
    values.take([...snapshotLeaves(status.snapshot)].map(([path, one]) => [path, one.value, one.ts]));
    head();
    connecting.heard(lastMessage > 0);
    const messages = await trail.load();
    drawing.fill(messages);
    if (trail.hasLosses) connecting.troubled();
  };
  follow("live", { sdid: did }, (frame) => {
    trail.add(frame);
    if (frame.type === "action") return;
    lastMessage = Math.max(lastMessage, frame.ts);
    values.message(frame);
    drawing.message(frame);
    connecting.heard(true, true);
    plan.later();
    head();
  }, () => attempt(refresh));
  follow("events", { did, events: "device.*" }, (frame) => {
    const [, what, status] = frame.event.split(".");
    if (leaving) return;
    if (what === "status") availability = status;
    else if (what === "wanted") { attempt(() => wanting.load()); attempt(() => trail.again()); return; }
    else if (what === "connected" || what === "disconnected") device.connected = what === "connected";
    else if (what === "updated") get(`/devices/${did}`).then(({ data: now }) => { device = now; head(); }).catch(() => {});
    else if (what === "deleted") location.assign("/console");
    head();
  });
}

function head() {
  $("#name").textContent = device.name;
  document.title = `${device.name} · Trunkline`;
  fill($("#standing"), h("span", { class: `badge ${availability}` }, worded(availability)),
    lastMessage ? h("span", {}, phrase("last message {when}", { when: time(lastMessage) })) : null,
    device.connected ? null : h("span", { class: "tag" }, _("disabled")),
    device.sharedWithMe ? (shared ??= h("span", {}, phrase("shared with you by {name}", { name: named(device.uid, undefined, true) }))) : null);
  $("#enable").textContent = device.connected ? _("Disable") : _("Enable");
}

function about(type) {
  const facts = [[_("Device id"), h("code", {}, did)], [_("Type"), `${type.name} (${type.uniqueName})`],
    [_("Type id"), h("code", {}, device.dtid)],
    [_("Manifest"), device.manifestVersionPolicy === "LATEST" ? _("version {version}, always the latest", { version: device.manifestVersion }) : _("version {version}, fixed", { version: device.manifestVersion })],
    [_("Added"), fullTime(device.createdOn)]];
  if (device.certificateInfo) facts.push([_("Certificate"), h("code", {}, device.certificateInfo["Cert-FP"])]);
  fill($("#about"), facts.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]));
  $("#as-text").addEventListener("click", () => showText(_("{name} as text", { name: device.name }), table(type),
    _("In a provision file, “trunkline provision” makes or changes this device.")));
}

// The device as a table of the provision file
function table(type) {
  const quoted = (text) => JSON.stringify(text);  // a basic string of TOML
  const owner = device.sharedWithMe ? device.uid : page.dataset.email;
  return ["[[devices]]", `id = ${quoted(did)}`, `owner = ${quoted(owner)}`, `type = ${quoted(type.uniqueName)}`, `name = ${quoted(device.name)}`].join("\n");
}

function ownerTools() {
  $("#owner-tools").hidden = false;
  const form = $("#rename-form");
  const show = (yes) => {
    form.hidden = !yes;
    if (yes) { form.elements.name.value = device.name; form.elements.name.select(); } else $("#rename").focus();
  };
  $("#rename").addEventListener("click", () => show(form.hidden));
  $("#rename-cancel").addEventListener("click", () => show(false));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(async () => {
      await change({ name: form.elements.name.value });
      show(false);
      done(_("The device has a new name."));
    }, { form });
  });
  $("#enable").addEventListener("click", (event) => attempt(async () => {
    await change({ connected: !device.connected });
    done(device.connected ? _("The device is enabled.") : _("The device is disabled: it neither sends nor receives."));
  }, { button: event.target }));
  $("#delete").addEventListener("click", async (event) => {
    const yes = await sure(_("Delete {name}?", { name: device.name }),
      _("Its messages leave every list at once. Only the operator can bring it back, for 30 days."), _("Delete the device"));
    if (yes) await attempt(async () => {
      leaving = true;
      await call("DELETE", `/devices/${did}`);
      location.assign("/console");
    }, { button: event.target });
  });
}

function guestTools() {
  $("#guest-tools").hidden = false;
  $("#leave").addEventListener("click", async (event) => {
    const yes = await sure(_("Leave {name}?", { name: device.name }), _("You see it no more. Only its owner can share it with you again."), _("Leave it"));
    if (yes) await attempt(async () => {
      leaving = true;
      await call("DELETE", `/devices/${did}/shares/${device.sharedWithMe}`);
      location.assign("/console");
    }, { button: event.target });
  });
}

async function change(body) {
  const { data } = await call("PUT", `/devices/${did}`, { body });
  device = data;
  head();
}

await attempt(async () => {
  try {
    await open();
  } catch (error) {
    if (error.status !== 403 && error.status !== 404) throw error;
    fill($("#device"), h("div", { class: "empty" }, h("h1", {}, _("No such device")),
      h("p", {}, _("It was deleted, or it is not yours to see.")), h("a", { class: "button", href: "/console" }, _("To your devices"))));
  }
});
