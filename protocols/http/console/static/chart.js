// A line chart on a canvas: one field over time, or several of the same unit. Points are {t, v}, and
// {t, v, low, high, count} of a histogram. Between points that lie farther apart than `gap` ms there is no line.
//
// Points that share a pixel column are drawn as one stroke from the lowest to the highest, so that the time to draw
// depends on the width and not on the number of points.

import { fullTime, h, shown, truth, whole } from "./dom.js";
import { _, locale } from "./texts.js";

const LEFT = 52, RIGHT = 10, TOP = 10, BOTTOM = 22;
// The first is the main color of the page; the others stand out from it, and from each other, on light and on dark.
const COLORS = [null, ["#b45309", "#fbbf24"], ["#0f766e", "#2dd4bf"], ["#7e22ce", "#d8b4fe"], ["#be123c", "#fda4af"], ["#4d7c0f", "#bef264"]];
const ZONE = new Intl.DateTimeFormat(locale, { timeZoneName: "short" }).formatToParts().find((one) => one.type === "timeZoneName")?.value ?? "";
const STEPS_MS = [1, 2, 5, 10, 15, 30].map((one) => one * 1000)
  .concat([1, 2, 5, 10, 15, 30].map((one) => one * 60000))
  .concat([1, 2, 3, 6, 12].map((one) => one * 3600000))
  .concat([1, 2, 7, 14, 30, 90, 365].map((one) => one * 86400000));

export class Chart {
  constructor({ names, unit = "", step = false, onZoom = () => {}, onHover = () => {} }) {
    Object.assign(this, { names, unit, step, onZoom, onHover });
    this.series = names.map((name) => ({ name, points: [] }));
    this.gap = Infinity;
    this.kind = "latest";
    this.range = [Date.now() - 300000, Date.now()];
    this.hover = null;
    this.drag = null;
    this.isGiven = false;
    this.canvas = h("canvas", { tabindex: "0", role: "img" });
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, this.series.map((one) => h("span", { class: "legend" },
        names.length > 1 ? one.swatch = h("i", { class: "swatch", "aria-hidden": "true" }) : null,
        h("span", { class: "field" }, unit ? `${one.name} (${unit})` : one.name), " ", one.latest = h("span", { class: "number latest" })))),
      this.canvas, this.nothing = h("p", { class: "nothing", hidden: true, tabindex: "-1" }));
    this.listen();
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.element);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", () => this.draw());
  }

  // `lists` are points by name; `kind` says what the number beside the name is.
  show(lists, range, { gap = Infinity, kind = "latest" } = {}) {
    for (const one of this.series) one.points = lists.get(one.name) ?? [];
    Object.assign(this, { range, gap, kind, isGiven: true });
    this.draw();
  }

  // Draws at most once per frame
  draw() {
    this.asked ??= requestAnimationFrame(() => { this.asked = undefined; this.paint(); });
  }

  paint() {
    if (!this.isGiven) return;
    const isEmpty = this.series.every((one) => one.points.length === 0);
    const [seen, unseen] = isEmpty ? [this.nothing, this.canvas] : [this.canvas, this.nothing];
    const isFocused = document.activeElement === unseen;
    seen.hidden = false;
    if (isFocused) seen.focus({ preventScroll: true });  // Escape leads back from a range without points, too
    unseen.hidden = true;
    if (isEmpty) {
      this.nothing.textContent = this.kind === "latest" ? _("No values yet") : this.step ? _("Switches are drawn live only") : _("No values in this time");
      for (const one of this.series) one.latest.textContent = "";
      return;
    }
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !this.canvas.isConnected) return;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio)) this.canvas.width = Math.round(width * ratio);
    if (this.canvas.height !== Math.round(height * ratio)) this.canvas.height = Math.round(height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.canvas);
    this.colors = Object.fromEntries(["main", "main-tint", "line", "soft"].map((one) => [one, style.getPropertyValue(`--${one}`)]));
    pen.font = `11px ${style.fontFamily}`;
    this.frame = { width: width - LEFT - RIGHT, height: height - TOP - BOTTOM };
    const isDark = this.scheme.matches;
    this.series.forEach((one, at) => {
      const own = COLORS[at % COLORS.length];
      one.color = own === null ? this.colors.main : own[isDark ? 1 : 0];
      if (one.swatch) one.swatch.style.background = one.color;
      one.seen = this.visible(one.points);
    });
    this.scale(this.series.flatMap((one) => one.seen));
    this.paintAxes(pen, width);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, TOP - 3, this.frame.width, this.frame.height + 6);
    pen.clip();
    for (const { seen, color } of this.series) {
      if (seen.some((one) => one.low !== undefined)) for (const run of this.runs(seen)) this.paintBand(pen, run, color);
      for (const run of this.step ? [seen] : this.runs(seen)) this.paintLine(pen, run, color);
    }
    pen.restore();
    this.paintHover(pen);
    this.describe();
  }

  // The points in the range, and the next one on both sides, so that lines leave the frame
  visible(points) {
    const [from, to] = this.range;
    const first = Math.max(0, this.index(points, from) - 1), last = Math.min(points.length, this.index(points, to) + 1);
    return points.slice(first, last);
  }

  // The points between two gaps
  runs(seen) {
    const found = [];
    let before = null;
    for (const one of seen) {
      if (before === null || one.t - before.t > this.gap) found.push([]);
      found.at(-1).push(one);
      before = one;
    }
    return found;
  }

  index(points, t) {
    let low = 0, high = points.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle].t < t) low = middle + 1; else high = middle;
    }
    return low;
  }

  scale(seen) {
    let low = Infinity, high = -Infinity;
    for (const one of seen) {
      low = Math.min(low, one.low ?? one.v);
      high = Math.max(high, one.high ?? one.v);
    }
    if (this.step) [low, high] = [0, 1];
    if (low > high) [low, high] = [0, 1];
    if (low === high) [low, high] = [low - Math.max(1, Math.abs(low) * 0.05), high + Math.max(1, Math.abs(high) * 0.05)];
    const rough = (high - low) / 3;
    const power = 10 ** Math.floor(Math.log10(rough));
    this.tick = this.step ? 1 : power * [1, 2, 5, 10].find((one) => one * power >= rough);
    this.low = Math.floor(low / this.tick + 1e-9) * this.tick;
    this.high = Math.ceil(high / this.tick - 1e-9) * this.tick;
  }

  x(t) { return LEFT + ((t - this.range[0]) / (this.range[1] - this.range[0])) * this.frame.width; }
  y(v) { return TOP + (1 - (v - this.low) / (this.high - this.low)) * this.frame.height; }
  timeAt(x) { return this.range[0] + ((x - LEFT) / this.frame.width) * (this.range[1] - this.range[0]); }

  paintAxes(pen, width) {
    pen.strokeStyle = this.colors.line;
    pen.fillStyle = this.colors.soft;
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let value = this.low; value <= this.high + this.tick / 2; value += this.tick) {
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(width - RIGHT, y);
      pen.stroke();
      pen.fillText(this.step ? truth(value, this.names[0]) : shown(Number(value.toPrecision(8))), LEFT - 6, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const span = this.range[1] - this.range[0];
    const step = STEPS_MS.find((one) => span / one <= this.frame.width / 80) ?? STEPS_MS.at(-1);
    const format = new Intl.DateTimeFormat(locale, step >= 86400000 ? { month: "short", day: "numeric" }
      : step >= 60000 ? { hour: "2-digit", minute: "2-digit" } : { minute: "2-digit", second: "2-digit" });
    // Ticks on round hours and days of this zone, also where its clocks change within the range
    const tick = (t) => t + (new Date(t).getTimezoneOffset() - new Date(this.range[0]).getTimezoneOffset()) * (step >= 3600000 ? 60000 : 0);
    const shift = new Date(this.range[0]).getTimezoneOffset() * 60000;
    for (let even = Math.ceil((this.range[0] - shift) / step) * step + shift; even <= this.range[1]; even += step) {
      const t = tick(even);
      const x = this.x(t);
      if (x > LEFT + 18 && x < width - RIGHT - 16) pen.fillText(format.format(t), x, TOP + this.frame.height + 7);
    }
  }

  paintLine(pen, seen, color) {
    pen.strokeStyle = color;
    pen.fillStyle = color;
    pen.lineWidth = 1.75;
    pen.lineJoin = "round";
    pen.beginPath();
    let column = null, lowest = 0, highest = 0, before = null;
    for (const one of seen) {
      const x = Math.round(this.x(one.t) * 2) / 2, y = this.y(one.v);
      if (column === null) pen.moveTo(x, y);
      else if (x === column) {
        [lowest, highest, before] = [Math.max(lowest, y), Math.min(highest, y), y];
        continue;
      } else {
        if (lowest !== highest) { pen.lineTo(column, lowest); pen.lineTo(column, highest); pen.lineTo(column, before); }
        if (this.step) pen.lineTo(x, before);
        pen.lineTo(x, y);
      }
      [column, lowest, highest, before] = [x, y, y, y];
    }
    if (column !== null && lowest !== highest) { pen.lineTo(column, lowest); pen.lineTo(column, highest); }
    if (this.step && before !== null) pen.lineTo(this.x(Math.min(this.range[1], Date.now())), before);
    pen.stroke();
    if (seen.length === 1 || seen.length <= this.frame.width / 20) {
      for (const one of seen) {
        pen.beginPath();
        pen.arc(this.x(one.t), this.y(one.v), 2.5, 0, 7);
        pen.fill();
      }
    }
  }

  paintBand(pen, seen, color) {
    pen.fillStyle = color;
    pen.globalAlpha = 0.14;
    pen.beginPath();
    seen.forEach((one, at) => pen[at ? "lineTo" : "moveTo"](this.x(one.t), this.y(one.high)));
    for (const one of [...seen].reverse()) pen.lineTo(this.x(one.t), this.y(one.low));
    pen.fill();
    pen.globalAlpha = 1;
  }

  paintHover(pen) {
    if (this.drag !== null && this.hover !== null) {
      pen.globalAlpha = 0.25;
      pen.fillStyle = this.colors.main;
      pen.fillRect(this.drag, TOP, this.x(this.hover) - this.drag, this.frame.height);
      pen.globalAlpha = 1;
    }
    for (const { points, color } of this.series) {
      const one = this.hover === null ? undefined : this.nearest(points, this.hover);
      if (one === undefined) continue;
      const x = this.x(one.t);
      pen.strokeStyle = this.colors.soft;
      pen.beginPath();
      pen.moveTo(Math.round(x) + 0.5, TOP);
      pen.lineTo(Math.round(x) + 0.5, TOP + this.frame.height);
      pen.stroke();
      pen.fillStyle = color;
      pen.beginPath();
      pen.arc(x, this.y(one.v), 4, 0, 7);
      pen.fill();
    }
  }

  value(one, name) {
    return this.step && !("count" in one) ? truth(one.v, name) : shown(one.v, this.unit);
  }

  words(one, name) {
    const range = one.low === undefined ? "" : _("(mean; {low} to {high}, {count} messages)", { low: shown(one.low), high: shown(one.high), count: whole(one.count) });
    return `${fullTime(one.t)} ${ZONE}: ${this.value(one, name)} ${range}`.trim();
  }

  nearest(points, t) {
    const at = this.index(points, t);
    const around = [points[at - 1], points[at]].filter((one) => one && one.t >= this.range[0] && one.t <= this.range[1]);
    return around.sort((a, b) => Math.abs(a.t - t) - Math.abs(b.t - t))[0];
  }

  describe() {
    const told = this.series.map((one) => {
      const last = one.points.at(-1);
      const text = last === undefined ? _("no data") : `${this.kind === "latest" ? _("latest") : this.kind} ${this.value(last, one.name)}`;
      const hovered = this.hover === null ? undefined : this.nearest(one.points, this.hover);
      const said = hovered === undefined ? text : this.words(hovered, one.name);
      if (one.latest.textContent !== said) one.latest.textContent = said;
      return _("{name} over time: {count} points, {text}.", { name: one.name, count: whole(one.seen.length), text });
    });
    this.canvas.setAttribute("aria-label", _("{told} Times in {zone}. Arrow keys read the points, plus and minus zoom.", { told: told.join(" "), zone: ZONE }));
  }

  point(t) {
    this.hover = t;
    this.draw();
  }

  listen() {
    const at = (event) => event.clientX - this.canvas.getBoundingClientRect().left;
    this.canvas.addEventListener("pointermove", (event) => this.frame && this.onHover(this.timeAt(at(event))));
    this.canvas.addEventListener("pointerleave", () => { this.drag = null; this.onHover(null); });
    this.canvas.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") this.drag = at(event); });
    this.canvas.addEventListener("pointerup", (event) => {
      const [from, to] = [this.drag, at(event)].sort((a, b) => a - b);
      this.drag = null;
      if (from !== null && to - from > 8) this.onZoom(this.timeAt(from), this.timeAt(to));
    });
    this.canvas.addEventListener("dblclick", () => this.onZoom(null, null));
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => {
      for (const one of this.series) one.latest.removeAttribute("role");
      this.onHover(null);
    });
  }

  key(event) {
    const [from, to] = this.range;
    const here = this.hover ?? to;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const { points, latest } = this.series[0];
      const at = points.indexOf(this.nearest(points, here)) + (event.key === "ArrowLeft" ? -1 : 1);
      const next = this.hover === null ? this.nearest(points, to) : points[at];
      if (next === undefined) return;
      this.onHover(next.t);
      latest.setAttribute("role", "status");  // a screen reader says it while the arrow keys are used
    } else if (event.key === "+") this.onZoom(here - (to - from) / 4, here + (to - from) / 4);
    else if (event.key === "-" || event.key === "Escape") this.onZoom(null, null);
    else return;
    event.preventDefault();
  }

  remove() {
    this.resized.disconnect();
    this.element.remove();
  }
}
