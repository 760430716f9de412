// One task or roll-out: its progress, and the reason for the state of each device.

import { attempt, call, done, get } from "./api.js";
import { administered, box, button, crumb, everything, figures, follow, id, organizations, page, progress, sameCall, show, title } from "./dash.js";
import { DataTable } from "./data-table.js";
import { countsText, status, taskStatus } from "./dev-tasks.js";
import { fill, h, sure, time, whole } from "./dom.js";
import { named, plainNames } from "./names.js";
import { _, phrase, plural } from "./texts.js";

const PATH = `/devicemgmt/tasks/${id}`;
let parts = null;
let shown = "";
let shownOn = 0;

const change = (body, text) => (event) => attempt(async () => {
  await call("PUT", PATH, { body });
  done(text);
  await load();
}, { button: event.target });

const cancel = (did) => (event) => attempt(async () => {
  await call("PUT", `${PATH}/devices/${did}`, { body: { status: "CANCELLED" } });
  done(_("The device is left out."));
  await load();
}, { button: event.target });

async function cancelAll(event) {
  if (await sure(_("Cancel the task?"), _("Devices that have not begun are left out; an operation under way is not interrupted."), _("Cancel the task"))) await change({ status: "CANCELLED" }, _("The task is cancelled."))(event);
}

const why = (one) => one.waitsFor ?? [one.errorMessage, one.errorCode ? `(${one.errorCode})` : ""].filter(Boolean).join(" ") ?? "";

const planWords = (plan) => [plan.devicesPerMinute && plural("{count} device a minute", "{count} devices a minute", plan.devicesPerMinute), plan.canaryDevices && plural("first {count} canary device", "first {count} canary devices", plan.canaryDevices),
  plan.canarySuccessPercent && _("then the others if {percent} % of them succeed", { percent: plan.canarySuccessPercent }), plan.abortPercent !== undefined && _("stops when more than {percent} % failed", { percent: plan.abortPercent })].filter(Boolean).join(", ");

async function load() {
  const { data: task } = await get(PATH);
  const isOver = ["COMPLETE", "CANCELLED"].includes(task.status), counts = task.statusCounts;
  title(task.property === "akc.update" ? _("Firmware roll-out") : `${task.property}`);
  if (!parts) {
    crumb(`/developer/types/${task.dtid}/${task.property === "akc.update" ? "firmware" : "devices"}`, _("The device type"));
    parts = { head: h("div", { id: "standing" }), devices: new DataTable(_("Devices"), [
      { name: _("Device"), value: (one) => plainNames(one.did), cell: (one) => named(one.did), isName: true },
      { name: _("Status"), value: (one) => one.status, cell: (one) => status(one.status) },
      { name: _("Reason"), value: why },
      { name: _("Sent"), value: (one) => one.progress ?? "", cell: (one) => (one.progress === undefined ? "" : `${one.progress} %`), isNumber: true },
      { name: _("Attempts"), value: (one) => one.numAttempts, isNumber: true },
      { name: _("Since"), value: (one) => one.ts, cell: (one) => time(one.ts) },
      { name: "", value: () => "", cell: (one) => (["REQUESTED", "QUEUED", "PROCESSING"].includes(one.status) ? button(_("Leave out"), cancel(one.did)) : "") },
    ], { empty: _("No devices."), order: [1, false], file: `task-${id}.csv` }) };
    fill(page, box(_("Progress"), parts.head), box(_("Devices"), parts.devices.element));
  }
  fill(parts.head, h("p", { class: "row" }, taskStatus(task), h("span", {}, phrase("begun {when}", { when: time(task.createdOn) })), countsText(counts)),
    progress(_("Devices that have ended"), counts.numSucceeded + counts.numFailed + counts.numCancelled, counts.totalDevices),
    figures([_("Devices"), whole(counts.totalDevices)], [_("Succeeded"), whole(counts.numSucceeded)], [_("Failed"), whole(counts.numFailed), counts.numFailed > 0], [_("Cancelled"), whole(counts.numCancelled)]),
    task.taskParameters.update?.rollout ? h("p", { class: "hint" }, planWords(task.taskParameters.update.rollout)) : null,
    h("p", { class: "row" }, isOver ? null : button(_("Cancel the task"), cancelAll, "danger small"),
      task.isPaused ? button(_("Resume"), change({ status: "PROCESSING" }, _("The roll-out goes on."))) : null, sameCall("GET", `${PATH}/statuses`)));
  // Ten thousand devices take a hundred calls: only changed pages are read, and not too often.
  const now = `${task.status} ${JSON.stringify(counts)}`, left = shownOn + Math.max(4000, counts.totalDevices * 30) - Date.now();
  if (left > 0 && (now === shown || counts.totalDevices > 500) && !isOver) return left;
  [shown, shownOn] = [now, Date.now()];
  parts.devices.set(await everything(`${PATH}/statuses`, {}, (answer) => answer.data.statuses));
  return isOver ? false : undefined;
}

await show(async () => {
  const members = await organizations();
  administered(members.find((one) => one.role === "administrator") ?? members[0]);
  if (await load() !== false) follow(load, 2000, { of: "task", concerns: (data) => data.id === id });
});
