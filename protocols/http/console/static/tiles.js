// The tiles of a board: a value, a chart. Also for the page of a read-only link, which has no access token.

import { Chart } from "./chart.js";
import { fill, h, shown, time } from "./dom.js";
import { _ } from "./texts.js";

const MINUTE_MS = 60000;
const DAY_MS = 86400000;
// Of each range: the interval of its points, its length, the distance beyond which there is no line, what a point is
export const RANGES = {
  hour: { interval: "minute", length: 60 * MINUTE_MS, gap: 5 * MINUTE_MS, kind: "latest" },
  day: { interval: "tenMinutes", length: DAY_MS, gap: 30 * MINUTE_MS, kind: _("mean of the last ten minutes") },
  month: { interval: "day", length: 31 * DAY_MS, gap: 1.5 * DAY_MS, kind: _("mean of the last day") },
  year: { interval: "month", length: 365 * DAY_MS, gap: 47 * DAY_MS, kind: _("mean of the last month") },
};

// The frame of a tile. `tools` are buttons to arrange it.
export function frame(tile, title, content, tools = []) {
  return h("section", { class: ["box", "tile", `of-${tile.kind}`, tile.wide ? "broad" : ""].join(" ").trim(), "aria-label": title },
    h("div", { class: "head" }, h("h2", {}, title), tools.length ? h("div", { class: "row" }, tools) : null), content);
}

export class ValueTile {
  constructor(tile, unit) {
    this.tile = tile;
    this.unit = unit;
    this.ts = 0;
    this.number = h("p", { class: "figure" }, "–");
    this.when = h("p", { class: "soft" }, _("No values yet"));
    this.content = h("div", {}, this.number, this.when);
  }

  take(value, ts) {
    if (value === undefined || value === null || ts < this.ts) return;
    this.ts = ts;
    fill(this.number, shown(value, this.unit, this.tile.field));
    fill(this.when, time(ts));
  }
}

export class ChartTile {
  constructor(tile, unit) {
    this.tile = tile;
    this.range = RANGES[tile.range || "hour"];
    this.points = [];
    this.newest = [];  // behind the last point, of an hour
    this.chart = new Chart({ names: [tile.field], unit });
    this.content = this.chart.element;
  }

  show(points) {
    this.points = points;
    const last = points.at(-1)?.t ?? 0;
    this.newest = this.newest.filter((one) => one.t > last + MINUTE_MS);
    this.paint();
  }

  take(value, ts) {
    if (typeof value !== "number" || this.range.interval !== "minute" || ts <= (this.newest.at(-1)?.t ?? 0)) return;
    this.newest.push({ t: ts, v: value });
    this.newest = this.newest.slice(-500);
    this.paint();
  }

  paint() {
    const now = Date.now();
    const lists = new Map([[this.tile.field, [...this.points, ...this.newest]]]);
    this.chart.show(lists, [now - this.range.length, now], { gap: this.range.gap, kind: this.range.kind });
  }
}

export const gone = () => h("p", { class: "finding missing" }, _("This device was deleted, or is no longer shared with you."));
