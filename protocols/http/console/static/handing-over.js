// Transferring the device to another owner.

import { attempt, call, done, get } from "./api.js";
import { $, fill, fullTime, h, sure } from "./dom.js";
import { named } from "./names.js";
import { _, phrase } from "./texts.js";

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
      const yes = await sure(_("Hand {name} over to {email}?", { name: nameOf(), email }),
        _("If they accept, the device and all that it has sent are theirs. Your shares of it end, and you see it no more."), _("Hand it over"));
      if (yes) await attempt(async () => {
        await call("POST", this.path, { body: { email } });
        this.form.reset();
        done(_("{email} gets a mail, and may accept or decline.", { email }));
        await this.load();
      }, { form: this.form });
    });
    attempt(() => this.load());
  }

  async load() {
    const { data } = await get(`/users/${uid}/transfers`);
    const offer = data.offers.find((one) => one.did === this.did) ?? null;
    this.form.hidden = offer !== null;
    if (offer === null) return void fill($("#handed"), h("p", { class: "hint" }, _("Somebody else becomes the owner, with all that the device has sent.")));
    fill($("#handed"), h("p", {}, phrase("Offered to {whom}, until {end}.", { whom: h("b", {}, offer.email ?? named(offer.uid)), end: fullTime(offer.expiresOn) })),
      h("p", {}, h("button", { type: "button", class: "quiet small", onclick: (event) => attempt(async () => {
        await call("DELETE", this.path);
        done(_("The offer is withdrawn."));
        await this.load();
      }, { button: event.target }) }, _("Withdraw"))));
  }
}
