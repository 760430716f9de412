// The charts of the device's fields: live over the last minutes, or from the histogram of a range.

import { attempt, get } from "./api.js";
import { Chart } from "./chart.js";
import { $, empty, fill, fullTime, h } from "./dom.js";
import { isDrawn, isNumber, valueAt } from "./manifest.js";

const LIVE_MS = 300000;
const MOST_POINTS = 10000;
const AT_FIRST = 3;
const BUCKET_MS = { minute: 60000, hour: 3600000 };
// The longest range that the histogram takes for each interval (reference 9.5)
const LONGEST_MS = { minute: 3600000, hour: 86400000, day: 31 * 86400000, month: 365 * 86400000 };

const ZONE = new Intl.DateTimeFormat().resolvedOptions().timeZone;  // hours, days and months are those of the viewer

// The histogram leaves out the bucket in which the range ends: so it ends where the next one begins.
function nextBucket(interval, ms) {
  if (interval === "minute") return Math.ceil(ms / BUCKET_MS.minute) * BUCKET_MS.minute;
  const at = new Date(ms);
  if (interval === "hour") at.setMinutes(0, 0, 0);
  else at.setHours(0, 0, 0, 0);
  if (interval === "month") at.setMonth(at.getMonth() + 1, 1);
  else if (at < ms) interval === "day" ? at.setDate(at.getDate() + 1) : at.setTime(at.getTime() + BUCKET_MS.hour);
  return at.getTime();
}

function firstBucket(interval, end) {
  const at = new Date(end);
  if (interval === "month") at.setFullYear(at.getFullYear() - 1);
  else if (interval === "day") at.setDate(at.getDate() - 31);
  else return end - LONGEST_MS[interval];
  return at.getTime();
}

export class Drawing {
  constructor(did, manifest) {
    this.did = did;
    this.fields = new Map([...manifest.fields].filter(([, field]) => isDrawn(field)));
    this.live = new Map([...this.fields.keys()].map((path) => [path, []]));
    this.charts = new Map();
    this.interval = "live";
    this.end = 0;
    this.zoom = null;
    this.asked = 0;
    if (this.fields.size === 0) {
      fill($("#charts"), empty("Nothing to draw", "This type of device has no field with a number or a switch."));
      $("#ranges").hidden = true;
      return;
    }
    [...this.fields.keys()].forEach((path, at) => $("#drawn").append(this.choice(path, at < AT_FIRST)));
    this.lay();
    for (const button of $("#ranges").children) button.addEventListener("click", () => this.choose(button));
    $("#back").addEventListener("click", () => this.move(-1));
    $("#forth").addEventListener("click", () => this.move(1));
    setInterval(() => { if (this.interval === "live" && !document.hidden) this.paint(); }, 1000);
  }

  choice(path, checked) {
    const box = h("input", { type: "checkbox", value: path, checked });
    box.addEventListener("change", () => { this.lay(); this.draw(); });
    return h("label", {}, box, path);
  }

  lay() {
    const wanted = [...document.querySelectorAll("#drawn input:checked")].map((one) => one.value);
    for (const [path, chart] of this.charts) if (!wanted.includes(path)) { chart.remove(); this.charts.delete(path); }
    for (const path of wanted) {
      if (this.charts.has(path)) continue;
      const field = this.fields.get(path);
      this.charts.set(path, new Chart({
        name: path, unit: field.unit, step: !isNumber(field),
        onHover: (t) => { for (const one of this.charts.values()) one.point(t); },
        onZoom: (from, to) => { this.zoom = from === null ? null : [from, to]; this.paint(); },
      }));
    }
    fill($("#charts"), wanted.length ? wanted.map((path) => this.charts.get(path).element)
      : empty("No field chosen", "Tick a field to see it here."));
  }

  // Messages that were stored before the page was open, newest first
  fill(messages) {
    for (const one of [...messages].reverse()) this.put(one);
    this.paint();
  }

  message(frame) {
    this.put(frame);
    if (this.interval === "live") this.paint();
  }

  put({ ts, data }) {
    for (const [path, points] of this.live) {
      const value = valueAt(data, path);
      if (typeof value !== "number" && typeof value !== "boolean") continue;
      const point = { t: ts, v: Number(value) };
      let at = points.length;
      while (at > 0 && points[at - 1].t > ts) at -= 1;
      if (points[at - 1]?.t === ts) points[at - 1] = point;
      else points.splice(at, 0, point);
      if (points.length > MOST_POINTS) points.shift();
    }
  }

  choose(button) {
    for (const one of $("#ranges").children) one.setAttribute("aria-pressed", String(one === button));
    this.interval = button.dataset.range;
    this.end = 0;
    this.zoom = null;
    this.draw();
  }

  move(steps) {
    const width = LONGEST_MS[this.interval];
    const end = (this.end || Date.now()) + steps * width;
    this.end = end >= Date.now() ? 0 : end;
    this.zoom = null;
    this.draw();
  }

  draw() {
    $("#moves").hidden = this.interval === "live";
    if (this.interval === "live") this.paint();
    else attempt(() => this.load());
  }

  async load() {
    const mine = this.asked += 1;
    const end = nextBucket(this.interval, this.end || Date.now());
    const start = firstBucket(this.interval, end);
    const query = { sdid: this.did, startDate: start, endDate: end, interval: this.interval, timezone: ZONE };
    $("#span").textContent = `${fullTime(start)} to ${fullTime(end)}`;
    $("#forth").disabled = this.end === 0;
    this.loaded = new Map();
    this.range = [start, end];
    await Promise.all([...this.charts].map(async ([path, chart]) => {
      if (!isNumber(this.fields.get(path))) {
        chart.show([], this.range);
        return;
      }
      const { data } = await get("/messages/analytics/histogram", { ...query, field: path });
      if (mine !== this.asked) return;
      this.loaded.set(path, data.map((one) => ({ t: one.ts, v: one.mean, low: one.min, high: one.max, count: one.count })));
      this.paint();
    }));
    this.paint();
  }

  paint() {
    const now = Date.now();
    for (const [path, chart] of this.charts) {
      if (this.interval === "live") chart.show(this.live.get(path), this.zoom ?? this.window(now));
      else if (this.range) chart.show(this.loaded?.get(path) ?? [], this.zoom ?? this.range);
    }
  }

  // The last five minutes; of a device that was silent in them, the five minutes before its last message
  window(now) {
    const last = Math.max(0, ...[...this.live.values()].map((points) => points.at(-1)?.t ?? 0));
    const end = last && last < now - LIVE_MS ? last + LIVE_MS / 10 : now;
    return [end - LIVE_MS, end];
  }
}
