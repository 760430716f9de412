// A line chart on a canvas: one field over time. Points are {t, v}, and {t, v, low, high, count} of a histogram.
//
// Points that share a pixel column are drawn as one stroke from the lowest to the highest, so that the time to draw
// depends on the width and not on the number of points.

import { fullTime, h, shown, truth, whole } from "./dom.js";

const LEFT = 52, RIGHT = 10, TOP = 10, BOTTOM = 22;
const STEPS_MS = [1, 2, 5, 10, 15, 30].map((one) => one * 1000)
  .concat([1, 2, 5, 10, 15, 30].map((one) => one * 60000))
  .concat([1, 2, 3, 6, 12].map((one) => one * 3600000))
  .concat([1, 2, 7, 14, 30, 90, 365].map((one) => one * 86400000));

export class Chart {
  constructor({ name, unit = "", step = false, onZoom = () => {}, onHover = () => {} }) {
    Object.assign(this, { name, unit, step, onZoom, onHover });
    this.points = [];
    this.range = [Date.now() - 300000, Date.now()];
    this.hover = null;
    this.drag = null;
    this.canvas = h("canvas", { tabindex: "0", role: "img" });
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, h("span", { class: "field" }, name), this.latest = h("span", { class: "number latest" })),
      this.canvas);
    this.listen();
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.canvas);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", () => this.draw());
  }

  show(points, range) {
    this.points = points;
    this.range = range;
    this.draw();
  }

  // Draws once per frame, however many points came
  draw() {
    this.asked ??= requestAnimationFrame(() => { this.asked = undefined; this.paint(); });
  }

  paint() {
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
    const seen = this.visible();
    this.scale(seen);
    this.paintAxes(pen, width);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, TOP - 3, this.frame.width, this.frame.height + 6);
    pen.clip();
    if (seen.some((one) => one.low !== undefined)) this.paintBand(pen, seen);
    this.paintLine(pen, seen);
    pen.restore();
    this.paintHover(pen);
    this.describe(seen);
  }

  // The points in the range, and the next one on both sides, so that lines leave the frame
  visible() {
    const [from, to] = this.range;
    let first = this.index(from), last = this.index(to);
    first = Math.max(0, first - 1);
    last = Math.min(this.points.length, last + 1);
    return this.points.slice(first, last);
  }

  index(t) {
    let low = 0, high = this.points.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.points[middle].t < t) low = middle + 1; else high = middle;
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
      pen.fillText(this.step ? truth(value, this.name) : shown(Number(value.toPrecision(8))), LEFT - 6, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const span = this.range[1] - this.range[0];
    const step = STEPS_MS.find((one) => span / one <= this.frame.width / 80) ?? STEPS_MS.at(-1);
    const format = new Intl.DateTimeFormat(undefined, step >= 86400000 ? { month: "short", day: "numeric" }
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

  paintLine(pen, seen) {
    pen.strokeStyle = this.colors.main;
    pen.fillStyle = this.colors.main;
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
    if (seen.length <= this.frame.width / 20) {
      for (const one of seen) {
        pen.beginPath();
        pen.arc(this.x(one.t), this.y(one.v), 2.5, 0, 7);
        pen.fill();
      }
    }
  }

  paintBand(pen, seen) {
    pen.fillStyle = this.colors["main-tint"];
    pen.beginPath();
    seen.forEach((one, at) => pen[at ? "lineTo" : "moveTo"](this.x(one.t), this.y(one.high)));
    for (const one of [...seen].reverse()) pen.lineTo(this.x(one.t), this.y(one.low));
    pen.fill();
  }

  paintHover(pen) {
    if (this.drag !== null && this.hover !== null) {
      pen.globalAlpha = 0.25;
      pen.fillStyle = this.colors.main;
      pen.fillRect(this.drag, TOP, this.x(this.hover) - this.drag, this.frame.height);
      pen.globalAlpha = 1;
    }
    const one = this.hovered();
    if (one === undefined) return;
    const x = this.x(one.t);
    pen.strokeStyle = this.colors.soft;
    pen.beginPath();
    pen.moveTo(Math.round(x) + 0.5, TOP);
    pen.lineTo(Math.round(x) + 0.5, TOP + this.frame.height);
    pen.stroke();
    pen.fillStyle = this.colors.main;
    pen.beginPath();
    pen.arc(x, this.y(one.v), 4, 0, 7);
    pen.fill();
  }

  hovered() {
    return this.hover === null ? undefined : this.nearest(this.hover);
  }

  words(one) {
    const value = this.step && !("count" in one) ? truth(one.v, this.name) : shown(one.v, this.unit);
    const range = one.low === undefined ? "" : ` (${shown(one.low)} to ${shown(one.high)}, ${whole(one.count)} messages)`;
    return `${fullTime(one.t)}: ${value}${range}`;
  }

  nearest(t) {
    const at = this.index(t);
    const around = [this.points[at - 1], this.points[at]].filter((one) => one && one.t >= this.range[0] && one.t <= this.range[1]);
    return around.sort((a, b) => Math.abs(a.t - t) - Math.abs(b.t - t))[0];
  }

  describe(seen) {
    const last = this.points.at(-1);
    const text = last === undefined ? "no data" : this.step && last.low === undefined ? truth(last.v, this.name) : shown(last.v, this.unit);
    const one = this.hovered();
    const said = one === undefined ? text : this.words(one);
    if (this.latest.textContent !== said) this.latest.textContent = said;
    this.canvas.setAttribute("aria-label", `${this.name} over time: ${whole(seen.length)} points, the last ${text}. `
      + "Arrow keys read the points, plus and minus zoom.");
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
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => {
      this.latest.removeAttribute("role");
      this.onHover(null);
    });
  }

  key(event) {
    const [from, to] = this.range;
    const here = this.hover ?? to;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const at = this.points.indexOf(this.nearest(here)) + (event.key === "ArrowLeft" ? -1 : 1);
      const next = this.hover === null ? this.nearest(to) : this.points[at];
      if (next === undefined) return;
      this.onHover(next.t);
      this.latest.setAttribute("role", "status");  // what a screen reader says while the arrows are used
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
