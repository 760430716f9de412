// The device's latest messages, stored, failed and refused, and Actions to it, in one list.

import { get } from "./api.js";
import { $, clockTime, empty, fill, fullTime, h, heads } from "./dom.js";
import { withNames } from "./names.js";
import { _, worded } from "./texts.js";

const SHOWN = 12;
const FEW = 6;  // on a phone
const narrow = matchMedia("(max-width: 46rem)");
const KEPT = 100;
const AGAIN_MS = 20000;

export class Trail {
  constructor(did, manifest, isOwner, onLoss) {
    this.did = did;
    this.manifest = manifest;
    this.isForeign = !isOwner;  // only the owner sees failures
    this.entries = new Map();
    setInterval(() => { if (!document.hidden) this.again().catch(() => {}); }, AGAIN_MS);
    this.onLoss = onLoss;
    narrow.addEventListener("change", () => { if (this.body) this.paint(); });
  }

  // Returns the messages with data, newest first.
  async load() {
    const end = Date.now() + 60000;
    const [messages, actions] = await Promise.all([
      get("/messages/last", { sdids: this.did, count: 100 }),
      get("/actions", { ddid: this.did, startDate: 0, endDate: end, order: "desc", count: KEPT }),
      this.losses(),
    ]);
    for (const one of [...messages.data, ...actions.data]) this.take(one);
    this.paint();
    return messages.data;
  }

  async again() {
    await this.losses();
    this.paint();
    if (this.hasLosses) this.onLoss();
  }

  get few() {
    return narrow.matches ? FEW : SHOWN;
  }

  get hasLosses() {
    return [...this.entries].some(([key, one]) => one.kind === "bad" && !key.startsWith("wanted "));
  }

  // Wanted values, and what became of them
  async wanted() {
    const { fields } = (await get(`/devices/${this.did}/wanted`)).data;
    const kinds = { reached: "good", expired: "bad", refused: "bad" };
    for (const [path, one] of Object.entries(fields)) {
      const what = _("wanted: {state}", { state: worded(one.state) });
      const text = JSON.stringify({ [path]: one.wanted });
      const known = this.entries.get(`wanted ${path}`);
      if (known?.what !== what || known.at !== one.since) this.put(`wanted ${path}`, one.since, what, kinds[one.state] ?? "", text, _("by {by}. {message}", { by: one.by, message: one.message }));
    }
  }

  async losses() {
    if ([...this.manifest.fields.values()].some((one) => one.settable)) await this.wanted();
    if (this.isForeign) return;
    const [failures, refusals, dropped] = await Promise.all([
      get(`/devices/${this.did}/failures`, { count: KEPT }), get(`/devices/${this.did}/refusals`), get(`/devices/${this.did}/dropped`)]);
    for (const one of dropped.data.fields) {
      this.put(`dropped ${one.field}`, one.ts, _("field dropped"), "bad", "", _("{field}: {message}. The rest of the message was stored.", { field: one.field, message: one.message }));
    }
    for (const one of failures.data.failures) {
      this.put(one.mid, one.cts, _("failed"), "bad", one.payload, this.reasonOf(one));
    }
    if (this.manifest.hasResources) await this.resources();
    refusals.data.refusals.forEach((one) => this.put(`refused ${one.ts} ${one.message}`, one.ts, _("refused"), "bad", "",
      one.address ? _("{message} ({code}), from {actor} at {address}", { message: one.message, code: one.code, actor: one.actor || _("somebody"), address: one.address })
        : _("{message} ({code}), from {actor}", { message: one.message, code: one.code, actor: one.actor || _("somebody") })));
  }

  // Fields and Actions that are resources of an LWM2M device (reference 18.8).
  async resources() {
    const { fields, actions } = (await get(`/devices/${this.did}/lwm2m`)).data;
    const silent = { asleep: [_("asleep"), ""], away: [_("away"), ""], notObserved: [_("not observed"), "bad"] };
    for (const one of fields) {
      const key = `resource ${one.field}`, note = `${one.field}: ${one.message}`;
      if (!(one.state in silent)) this.entries.delete(key);
      else if (this.entries.get(key)?.note !== note) this.put(key, Date.now(), ...silent[one.state], "", note);
    }
    const kinds = { waiting: [_("Action waits"), ""], done: [_("Action done"), "good"], failed: [_("Action failed"), "bad"] };
    for (const one of actions) {
      const [what, kind] = kinds[one.state];
      if (this.entries.get(`ended ${one.mid}`)?.what !== what) this.put(`ended ${one.mid}`, one.ts, what, kind, "", `${one.name}: ${one.message}`);
    }
  }

  // A failed message has no field of the Manifest: lists its fields, and those of the Manifest.
  reasonOf({ reason, payload }) {
    let sent = [];
    try {
      sent = Object.keys(JSON.parse(payload));
    } catch { /* it was no JSON object */ }
    const known = [...this.manifest.fields.keys()].slice(0, 8).join(", ");
    if (sent.length === 0 || !known) return reason;
    return _("{reason}: the message had {sent}; the type has {known}", { reason, sent: sent.slice(0, 8).join(", "), known });
  }

  add(frame) {
    this.take(frame);
    this.paint();
  }

  take(one) {
    if (one.type === "action" || one.ddid) {
      const names = (one.data.actions ?? []).map((action) => action.name).join(", ");
      this.put(one.mid, one.cts, _("Action"), "", JSON.stringify(one.data), _("{names}, sent to the device", { names }));
    } else this.put(one.mid, one.cts, _("stored"), "good", JSON.stringify(one.data), one.ts === one.cts ? "" : _("with the time {ts}", { ts: fullTime(one.ts) }));
  }

  put(key, at, what, kind, text, note) {
    this.entries.set(key, { at, what, kind, text, note });
    if (this.entries.size > 4 * KEPT) this.entries = new Map(this.sorted().slice(0, KEPT));
  }

  sorted() {
    return [...this.entries].sort(([, a], [, b]) => b.at - a.at);
  }

  paint() {
    const found = this.sorted().slice(0, this.isLong ? KEPT : this.few);
    $("#trail-note").textContent = this.isForeign ? "" : _("Also failed messages of the last 7 days, refusals and dropped fields.");
    if (found.length === 0) {
      fill($("#trail"), empty(_("Nothing came yet"), _("Messages appear here at once: stored, failed or refused, and why.")));
      return;
    }
    this.body ??= this.table();
    const rows = found.map(([key, one]) => {
      one.row ??= h("tr", { class: "fresh" }, h("td", { class: "when", "data-label": _("Time"), title: fullTime(one.at) }, clockTime(one.at)),
        h("td", { "data-label": _("What") }, h("span", { class: `badge ${one.kind}` }, one.what)),
        h("td", { "data-label": _("Data") }, one.text ? h("code", {}, one.text) : null, one.note ? h("div", { class: "soft" }, withNames(one.note)) : null));
      return one.row;
    });
    // Moves only changed rows, so that a selection in the list stays.
    rows.forEach((row, at) => { if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] ?? null); });
    while (this.body.children.length > rows.length) this.body.lastChild.remove();
    this.more.hidden = this.isLong || this.entries.size <= this.few;
  }

  table() {
    const body = h("tbody");
    this.more = h("p", { hidden: true }, h("button", { type: "button", class: "quiet small", onclick: () => { this.isLong = true; this.paint(); } }, _("Show more")));
    fill($("#trail"), h("table", { class: "cards trail" }, h("caption", { class: "unseen" }, _("The latest messages")),
      heads(_("Time"), _("What"), _("Data")), body), this.more);
    return body;
  }
}
