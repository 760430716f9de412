// Transferring the device to another owner.

import { attempt, call, done, get } from "./api.js";
import { $, fill, fullTime, h, sure } from "./dom.js";
import { named } from "./names.js";

const uid = $("meta[name=uid]").content;

export class HandingOver {
  constructor(did, nameOf) {
    this.did = did;
    this.path = `/devices/${did}/transfer`;
    this.form = $("#hand-over");
    $("#hand-over-box").hidden = false;
    this.form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const email = this.form.elements.email.value;
      const yes = await sure(`Hand ${nameOf()} over to ${email}?`,
        "If they accept, the device and all that it has sent are theirs. Your shares of it end, and you see it no more.", "Hand it over");
      if (yes) await attempt(async () => {
        await call("POST", this.path, { body: { email } });
        this.form.reset();
        done(`${email} gets a mail, and may accept or decline.`);
        await this.load();
      }, { form: this.form });
    });
    attempt(() => this.load());
  }

  async load() {
    const { data } = await get(`/users/${uid}/transfers`);
    const offer = data.offers.find((one) => one.did === this.did) ?? null;
    this.form.hidden = offer !== null;
    if (offer === null) return void fill($("#handed"), h("p", { class: "hint" }, "Somebody else becomes the owner, with all that the device has sent."));
    fill($("#handed"), h("p", {}, "Offered to ", h("b", {}, offer.email ?? named(offer.uid)), `, until ${fullTime(offer.expiresOn)}.`),
      h("p", {}, h("button", { type: "button", class: "quiet small", onclick: (event) => attempt(async () => {
        await call("DELETE", this.path);
        done("The offer is withdrawn.");
        await this.load();
      }, { button: event.target }) }, "Withdraw")));
  }
}
