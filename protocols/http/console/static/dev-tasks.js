// Tasks as rows of tables.

import { badge } from "./dash.js";
import { h, time, whole } from "./dom.js";

const KINDS = { COMPLETE: "good", SUCCEEDED: "good", FAILED: "bad", CANCELLED: "" };

export const status = (one) => badge(one.toLowerCase().replaceAll("_", " "), KINDS[one] ?? "");

// A complete task may have failed on every device.
export const taskStatus = (task) => (task.status === "COMPLETE" && task.statusCounts.numFailed ? badge("complete, with failures", "bad") : status(task.status));

export const countsText = ({ totalDevices, numSucceeded, numFailed, numCancelled }) =>
  `${whole(numSucceeded)} done, ${whole(numFailed)} failed, ${whole(numCancelled)} cancelled, of ${whole(totalDevices)}`;

export const TASK_COLUMNS = [
  { name: "Task", value: (one) => one.property, cell: (one) => h("a", { href: `/developer/tasks/${one.id}` }, `${{ R: "Read", W: "Write", E: "Execute" }[one.taskType[0].toUpperCase()]} ${one.property}`), isName: true },
  { name: "Status", value: (one) => one.status, cell: taskStatus },
  { name: "Devices", value: (one) => one.statusCounts.totalDevices, cell: (one) => countsText(one.statusCounts) },
  { name: "Failed", value: (one) => one.statusCounts.numFailed, isNumber: true },
  { name: "Created", value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
];
