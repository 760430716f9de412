// The latest values of the device, with units, live.

import { $, empty, fill, h, heads, shown, time } from "./dom.js";
import { valueAt } from "./manifest.js";
import { _ } from "./texts.js";

export class Values {
  constructor(manifest) {
    this.manifest = manifest;
    this.rows = new Map();
    this.box = $("#values");
  }

  take(leaves) {
    for (const [path, value, ts] of leaves) {
      const known = this.rows.get(path);
      if (known && known.ts > ts) continue;
      if (known) {
        known.ts = ts;
        fill(known.value, this.value(path, value));
        fill(known.when, time(ts));
      } else this.add(path, value, ts);
    }
    if (this.rows.size === 0) fill(this.box, empty(_("No values yet"), _("They appear when the device has sent a message.")));
  }

  message(frame) {
    const sent = [...this.manifest.fields.keys()].map((path) => [path, valueAt(frame.data, path), frame.ts]);
    this.take(sent.filter(([, value]) => value !== undefined));
  }

  value(path, value) {
    return h("span", {}, shown(value, this.unit(path), path));
  }

  unit(path) {
    return this.manifest.fields.get(path)?.unit ?? "";
  }

  add(path, value, ts) {
    if (this.rows.size === 0) {
      this.body = h("tbody");
      fill(this.box, h("table", {}, h("caption", { class: "unseen" }, _("The latest value of each field")),
        heads(_("Field"), `${_("Value")}#`),
        this.body));
    }
    const row = { ts, value: h("div", {}, this.value(path, value)), when: h("small", { class: "when" }, time(ts)) };
    this.rows.set(path, row);
    const about = this.manifest.fields.get(path)?.description;
    this.body.append(h("tr", {}, h("th", { scope: "row", title: about || undefined }, path), h("td", { class: "size" }, row.value, row.when)));
  }
}
