// The shares of the device.

import { attempt, call, done, get } from "./api.js";
import { $, fill, h, time } from "./dom.js";
import { _, worded } from "./texts.js";

export class Sharing {
  constructor(did) {
    this.path = `/devices/${did}/shares`;
    this.form = $("#share");
    $("#share-box").hidden = false;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      attempt(async () => {
        const email = this.form.elements.email.value;
        await call("POST", this.path, { body: { email } });
        this.form.reset();
        done(_("{email} gets a mail, and sees the device after accepting.", { email }));
        await this.load();
      }, { form: this.form });
    });
    attempt(() => this.load());
  }

  async load() {
    const { data } = await get(this.path);
    fill($("#shares"), data.shares.length === 0
      ? h("p", { class: "hint" }, _("Nobody else sees this device. Whoever accepts a share sees its messages and may send it Actions."))
      : h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Shares")), h("tbody", {}, data.shares.map((share) => this.row(share)))));
  }

  row(share) {
    const status = share.status.toLowerCase(), whom = share.email ?? _("user {uid}", { uid: share.uid });
    return h("tr", {}, h("th", { scope: "row" }, whom),
      h("td", {}, h("span", { class: `badge ${status === "accepted" ? "good" : ""}` }, worded(status))), h("td", { class: "when" }, time(share.sharedOn)),
      h("td", { class: "act" }, h("button", {
        type: "button", class: "quiet small", "aria-label": _("Stop sharing with {whom}", { whom }),
        onclick: (event) => attempt(async () => {
          await call("DELETE", `${this.path}/${share.id}`);
          done(_("{whom} no longer sees the device.", { whom }));
          await this.load();
        }, { button: event.target }),
      }, _("Stop"))));
  }
}
