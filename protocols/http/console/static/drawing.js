// The charts of the device's fields: live over the last minutes, or from the histogram of a range.

import { attempt, get } from "./api.js";
import { Chart } from "./chart.js";
import { $, ago, empty, fill, fullTime, h } from "./dom.js";
import { isDrawn, isNumber, valueAt } from "./manifest.js";
import { _ } from "./texts.js";

const LIVE_MS = 300000;
const MOST_POINTS = 10000;
const AT_FIRST = 3;
const BUCKET_MS = { minute: 60000, tenMinutes: 600000, hour: 3600000, day: 86400000, month: 31 * 86400000 };
// The longest range that the histogram takes for each interval (reference 9.5)
const LONGEST_MS = { minute: 3600000, tenMinutes: 86400000, day: 31 * 86400000, month: 365 * 86400000 };

// The meaning of a point of a histogram
const WORDS = { minute: _("mean of the last minute"), tenMinutes: _("mean of the last ten minutes"), day: _("mean of the last day"), month: _("mean of the last month") };
const ZONE = new Intl.DateTimeFormat().resolvedOptions().timeZone;  // hours, days and months in the viewer's zone

// The histogram leaves out the bucket in which the range ends, so the range is extended to the next bucket.
function nextBucket(interval, ms) {
  if (interval in { minute: 1, tenMinutes: 1 }) return Math.ceil(ms / BUCKET_MS[interval]) * BUCKET_MS[interval];
  const at = new Date(ms);
  at.setHours(0, 0, 0, 0);
  if (interval === "month") at.setMonth(at.getMonth() + 1, 1);
  else if (at < ms) at.setDate(at.getDate() + 1);
  return at.getTime();
}

function firstBucket(interval, end) {
  const at = new Date(end);
  if (interval === "month") at.setFullYear(at.getFullYear() - 1);
  else if (interval === "day") at.setDate(at.getDate() - 31);
  else return end - LONGEST_MS[interval];
  return at.getTime();
}

// The finest interval whose limit allows this range
const finest = (ms) => Object.entries(LONGEST_MS).find(([, longest]) => ms <= longest)?.[0] ?? "month";

// A time for a datetime-local field, in the browser's zone
const local = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60000).toISOString().slice(0, 16);

export class Drawing {
  constructor(did, manifest) {
    this.did = did;
    this.fields = new Map([...manifest.fields].filter(([, field]) => isDrawn(field)));
    this.live = new Map([...this.fields.keys()].map((path) => [path, []]));
    this.charts = new Map();
    this.interval = "live";
    this.end = 0;
    this.zoom = null;
    this.own = null;  // a range that the person chose or zoomed into
    this.asked = 0;
    $("#drawing").inert = false;  // until now a click would be lost
    if (this.fields.size === 0) {
      fill($("#charts"), empty(_("Nothing to draw"), _("This type of device has no field with a number or a switch.")));
      $("#ranges").hidden = true;
      return;
    }
    [...this.fields.keys()].forEach((path, at) => $("#drawn").append(this.choice(path, at < AT_FIRST)));
    this.lay();
    for (const button of $("#ranges").children) button.addEventListener("click", () => this.choose(button));
    $("#back").addEventListener("click", () => this.move(-1));
    $("#forth").addEventListener("click", () => this.move(1));
    $("#together").addEventListener("change", () => { this.lay(); this.draw(); });
    $("#own").addEventListener("submit", (event) => {
      event.preventDefault();
      const [from, to] = ["from", "to"].map((name) => new Date(event.target.elements[name].value).getTime());
      if (from < to) this.show([from, to]);
    });
    setInterval(() => { if (this.interval === "live" && !document.hidden) this.paint(); }, 1000);
  }

  choice(path, checked) {
    const box = h("input", { type: "checkbox", value: path, checked });
    box.addEventListener("change", () => { this.lay(); this.draw(); });
    return h("label", {}, box, path);
  }

  // One chart for each field, or for all fields of the same unit
  lay() {
    const wanted = [...document.querySelectorAll("#drawn input:checked")].map((one) => one.value);
    const groups = new Map();
    for (const path of wanted) {
      const field = this.fields.get(path);
      const key = $("#together").checked ? `${isNumber(field)} ${field.unit ?? ""}` : path;
      groups.set(key, [...(groups.get(key) ?? []), path]);
    }
    for (const chart of this.charts.values()) chart.remove();
    this.charts.clear();
    for (const [key, paths] of groups) {
      const field = this.fields.get(paths[0]);
      this.charts.set(key, new Chart({
        names: paths, unit: field.unit, step: !isNumber(field),
        onHover: (t) => { for (const one of this.charts.values()) one.point(t); },
        onZoom: (from, to) => this.zoomTo(from, to),
      }));
    }
    fill($("#charts"), wanted.length ? [...this.charts.values()].map((one) => one.element)
      : empty(_("No field chosen"), _("Tick a field to see it here.")));
  }

  // Live data is drawn larger; otherwise the range is loaded again in a finer interval.
  zoomTo(from, to) {
    if (this.interval === "live") {
      this.zoom = from === null ? null : [from, to];
      this.paint();
    } else if (from === null) {
      this.own = null;
      this.draw();
    } else this.show([from, Math.max(to, from + BUCKET_MS.minute)]);
  }

  show([from, to]) {
    if (this.interval === "live") {
      this.interval = "minute";
      for (const one of $("#ranges").children) one.setAttribute("aria-pressed", "false");
    }
    this.own = [from, to];
    this.draw();
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
    this.own = null;
    this.draw();
  }

  move(steps) {
    if (this.own) {
      const width = this.own[1] - this.own[0];
      return this.show(this.own.map((one) => one + steps * width));
    }
    const width = LONGEST_MS[this.interval];
    const end = (this.end || Date.now()) + steps * width;
    this.end = end >= Date.now() ? 0 : end;
    this.zoom = null;
    return this.draw();
  }

  draw() {
    $("#moves").hidden = this.interval === "live";
    if (this.interval === "live") this.paint();
    else attempt(() => this.load());
  }

  async load() {
    const mine = this.asked += 1;
    const interval = this.own ? finest(this.own[1] - this.own[0]) : this.interval;
    const end = nextBucket(interval, this.own?.[1] ?? (this.end || Date.now()));
    const start = this.own ? Math.max(this.own[0], end - LONGEST_MS[interval]) : firstBucket(interval, end);
    const query = { sdid: this.did, startDate: start, endDate: end, interval, timezone: ZONE };
    $("#span").textContent = _("{start} to {end}, {zone}", { start: fullTime(start), end: fullTime(end), zone: ZONE });
    $("#forth").disabled = this.own ? this.own[1] >= Date.now() : this.end === 0;
    [$("#own-from").value, $("#own-to").value] = [local(start), local(end)];
    this.loaded = new Map();
    this.range = [start, end];
    this.gap = BUCKET_MS[interval] * 1.5;
    this.kind = WORDS[interval];
    const paths = [...this.charts.values()].flatMap((one) => one.names).filter((path) => isNumber(this.fields.get(path)));
    await Promise.all(paths.map(async (path) => {
      const { data } = await get("/messages/analytics/histogram", { ...query, field: path });
      if (mine !== this.asked) return;
      this.loaded.set(path, data.map((one) => ({ t: one.ts, v: one.mean, low: one.min, high: one.max, count: one.count })));
      this.paint();
    }));
    this.paint();
  }

  paint() {
    const now = Date.now();
    const isLive = this.interval === "live";
    const lists = isLive ? this.live : this.loaded ?? new Map();
    const range = isLive ? this.zoom ?? this.window(now) : this.range;
    if (!range) return;
    // A chart whose answers are still to come stays as it was
    const isThere = (name) => isLive || lists.has(name) || !isNumber(this.fields.get(name));
    for (const chart of this.charts.values()) if (chart.names.every(isThere)) chart.show(lists, range, isLive ? { gap: this.silence() } : { gap: this.gap, kind: this.kind });
    const last = this.lastOn();
    const isSilent = isLive && last > 0 && last < now - LIVE_MS;
    $("#silent").hidden = !isSilent;
    if (isSilent) $("#silent").textContent = _("No message since {when} ({ago}). Shown are the minutes before.", { when: fullTime(last), ago: ago(last) });
  }

  lastOn() {
    return Math.max(0, ...[...this.live.values()].map((points) => points.at(-1)?.t ?? 0));
  }

  // Silence after which a live line has a gap: five times the usual interval
  silence() {
    const steps = [...this.live.values()].flatMap((points) => points.slice(-50).map((one, at, some) => (at ? one.t - some[at - 1].t : 0)).slice(1)).sort((a, b) => a - b);
    return Math.max(30000, 5 * (steps[Math.floor(steps.length / 2)] ?? 0));
  }

  // The last five minutes, or for a silent device the five minutes before its last message
  window(now) {
    const last = this.lastOn();
    const end = last && last < now - LIVE_MS ? last + LIVE_MS / 10 : now;
    return [end - LIVE_MS, end];
  }
}
