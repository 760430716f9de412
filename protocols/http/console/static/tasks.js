// Tasks of device management for this device, and updates that wait for its owner.

import { attempt, call, done, get } from "./api.js";
import { $, fill, h, heads, time } from "./dom.js";
import { _, worded } from "./texts.js";

const ENDED = ["SUCCEEDED", "FAILED", "CANCELLED"];
const AGAIN_MS = 10000;
const SELDOM_MS = 60000;

export class Tasks {
  constructor(did) {
    this.did = did;
    attempt(() => this.load());
  }

  async load() {
    const { data } = await get(`/devicemgmt/devices/${this.did}/tasks`, { count: 10 });
    $("#tasks-box").hidden = data.tasks.length === 0;
    fill($("#tasks"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Tasks")),
      heads(_("Property"), _("Status"), _("When")),
      h("tbody", {}, data.tasks.map((task) => this.row(task)))));
    fill($("#tasks-waiting"), data.tasks.filter((task) => this.waits(task)).map((task) => this.question(task)));
    clearTimeout(this.timer);
    const isOn = data.tasks.some((task) => !ENDED.includes(task.status));
    this.timer = setTimeout(() => attempt(() => this.load()), document.hidden || !isOn ? SELDOM_MS : AGAIN_MS);
  }

  waits(task) {
    return task.needsAcceptance && task.acceptanceStatus === "WAITING" && !ENDED.includes(task.status);
  }

  row(task) {
    const kind = { SUCCEEDED: "good", FAILED: "bad" }[task.status] ?? "";
    const more = task.errorMessage || task.errorCode || task.waitsFor;
    return h("tr", {}, h("th", { scope: "row" }, task.property), h("td", { "data-label": _("Status") }, h("span", { class: `badge ${kind}` }, worded(task.status.toLowerCase())),
      task.progress === undefined || ENDED.includes(task.status) ? null
        : h("progress", { max: 100, value: task.progress, "aria-label": _("Progress of the update") }),
      more ? h("div", { class: "soft" }, more) : null), h("td", { class: "when", "data-label": _("When") }, time(task.ts ?? task.createdOn)));
  }

  question(task) {
    const box = h("div", { class: "notice", role: "group", "aria-label": _("An update waits for you.") });
    const answer = (acceptanceStatus, text) => (event) => attempt(async () => {
      await call("POST", `/devicemgmt/tasks/${task.id}/devices/${this.did}/acceptance`, { body: { acceptanceStatus } });
      done(text);
      await this.load();
    }, { button: event.target });
    box.append(h("p", {}, h("b", {}, _("An update waits for you.")), " ", _("The maker of this device wants to install new software on it.")),
      h("div", { class: "row" }, h("button", { type: "button", class: "small", onclick: answer("ACCEPTED", _("The update goes on.")) }, _("Install it")),
        h("button", { type: "button", class: "quiet small", onclick: answer("REJECTED", _("The update was rejected.")) }, _("Reject"))));
    return box;
  }
}
