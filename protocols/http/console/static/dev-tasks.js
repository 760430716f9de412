// Tasks as rows of tables.

import { badge } from "./dash.js";
import { h, time, whole } from "./dom.js";
import { _ } from "./texts.js";

const KINDS = { COMPLETE: "good", SUCCEEDED: "good", FAILED: "bad", CANCELLED: "" };

export const status = (one) => badge(one.toLowerCase().replaceAll("_", " "), KINDS[one] ?? "");

// A complete task may have failed on every device.
export const taskStatus = (task) => (task.status === "COMPLETE" && task.statusCounts.numFailed ? badge(_("complete, with failures"), "bad") : status(task.status));

export const countsText = ({ totalDevices, numSucceeded, numFailed, numCancelled }) =>
  _("{done} done, {failed} failed, {cancelled} cancelled, of {total}", { done: whole(numSucceeded), failed: whole(numFailed), cancelled: whole(numCancelled), total: whole(totalDevices) });

export const TASK_COLUMNS = [
  { name: _("Task"), value: (one) => one.property, cell: (one) => h("a", { href: `/developer/tasks/${one.id}` }, `${{ R: _("Read"), W: _("Write"), E: _("Execute") }[one.taskType[0].toUpperCase()]} ${one.property}`), isName: true },
  { name: _("Status"), value: (one) => one.status, cell: taskStatus },
  { name: _("Devices"), value: (one) => one.statusCounts.totalDevices, cell: (one) => countsText(one.statusCounts) },
  { name: _("Failed"), value: (one) => one.statusCounts.numFailed, isNumber: true },
  { name: _("Created"), value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
];
