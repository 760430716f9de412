// The device's plan, and the use of its quotas.

import { attempt, get } from "./api.js";
import { $, fill, fullTime, h, whole } from "./dom.js";
import { _ } from "./texts.js";

const AGAIN_MS = 10000;

export class Plan {
  constructor(did, isOwner, uniqueName) {
    this.did = did;
    this.isOwner = isOwner;
    this.family = `${uniqueName.split(".")[0]}.*`;  // the types of one maker share the first part of their names
    attempt(() => this.load());
  }

  // After a message, but at most once in a while
  later() {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      if (!document.hidden) attempt(() => this.meters());
    }, AGAIN_MS);
  }

  async load() {
    this.parts = { plan: h("div"), meters: h("div") };
    fill($("#plan"), this.parts.plan, this.parts.meters);
    await this.meters();
    if (!this.isOwner) return;
    const { data } = await get(`/pricing/devices/${this.did}/pricingtiers`);
    const active = data.pricingTiers.find((tier) => tier.active);
    const paid = data.pricingTiers.find((tier) => tier.type === "paid");
    if (!active) return;
    fill(this.parts.plan, h("p", {}, h("b", {}, active.name), active.description ? `: ${active.description}` : ""),
      paid && paid !== active ? h("p", {}, h("button", { type: "button", class: "small", onclick: (event) => this.upgrade(event.target) },
        _("Upgrade for {cost}", { cost: paid.cost }))) : null);
  }

  async meters() {
    const { data } = await get(`/devices/${this.did}/quota`);
    fill(this.parts.meters, this.meter(_("Messages today, this device"), data.device), this.meter(_("Messages this month, all {type} devices", { type: this.family }), data.organization),
      data.organization ? null : h("p", { class: "hint" }, _("Quotas are turned off here.")));
  }

  meter(name, usage) {
    if (!usage) return null;
    const unlimited = usage.limit < 0;
    return h("div", {}, h("div", { class: "row between" }, h("span", {}, name),
      h("span", { class: "number" }, unlimited ? _("{used}, no limit", { used: whole(usage.used) }) : _("{used} of {limit}", { used: whole(usage.used), limit: whole(usage.limit) }))),
    unlimited ? null : h("meter", { class: "meter", "aria-label": name, min: 0, max: usage.limit, value: Math.min(usage.used, usage.limit),
      high: usage.limit * 0.9, low: usage.limit * 0.75, optimum: 0 }),
    h("p", { class: "hint" }, _("Resets on {until}", { until: fullTime(usage.until) })));
  }

  upgrade(button) {
    attempt(async () => {
      const { data } = await get(`/pricing/devices/${this.did}/revenueshare/upgradepath`);
      location.assign(`${data.url}&redirect_uri=${encodeURIComponent(location.href)}`);
    }, { button });
  }
}
