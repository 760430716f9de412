// The page of a read-only link to a board. The secret is behind the # of the address, which the browser sends to nobody.

import { $, empty, fill, h } from "./dom.js";
import { ChartTile, frame, gone, ValueTile } from "./tiles.js";
import { _ } from "./texts.js";

const VALUES_MS = 3000;
const CHARTS_MS = 60000;
const LONGEST_WAIT_MS = 60000;
const CHARTS = `?charts=1&zone=${encodeURIComponent(Intl.DateTimeFormat().resolvedOptions().timeZone)}`;
const secret = location.hash.slice(1);
let laid = "";
let parts = [];
let chartsOn = 0;
let failures = 0;

async function look() {
  const now = Date.now(), withCharts = now - chartsOn >= CHARTS_MS;
  const answer = await fetch(`/console/kiosk${withCharts ? CHARTS : ""}`, { method: "POST", headers: { "X-Kiosk": secret } });
  if (answer.status === 404) return false;
  if (!answer.ok) throw new TypeError("no connection");
  const { data } = await answer.json();
  lay(data);
  data.tiles.forEach((one, at) => {
    if (!parts[at]) return;
    if (withCharts && one.kind === "chart") parts[at].show(one.points);
    parts[at].take(one.value, one.ts);
  });
  if (withCharts) chartsOn = now;
  return true;
}

// The tiles are replaced only when the board has changed.
function lay(data) {
  $("#title").textContent = data.name;
  document.title = `${data.name} · Trunkline`;
  const now = JSON.stringify([data.name, data.tiles.map((one) => [one.kind, one.title, one.device, one.field, one.unit, one.range, one.wide])]);
  if (now === laid) return;
  laid = now;
  chartsOn = 0;
  parts = data.tiles.map((one) => (!one.device ? null : one.kind === "chart" ? new ChartTile(one, one.unit) : new ValueTile(one, one.unit)));
  fill($("#tiles"), data.tiles.length ? data.tiles.map((one, at) => frame(one, one.title || [one.device, one.field].filter(Boolean).join(": "), parts[at]?.content ?? gone()))
    : empty(_("Nothing is pinned yet"), _("Values and charts of this board appear here.")));
}

async function again() {
  let wait = VALUES_MS;
  try {
    if (!await look()) {
      $("#now").textContent = "";
      fill($("#tiles"), h("div", { class: "empty", role: "alert" }, h("p", {}, h("b", {}, _("This link is no longer valid"))), h("p", {}, _("It was revoked or has expired. Ask for a new one."))));
      return;
    }
    failures = 0;
    $("#now").textContent = "";
  } catch (error) {
    if (!(error instanceof TypeError) && !(error instanceof SyntaxError)) throw error;
    failures += 1;
    wait = Math.min(LONGEST_WAIT_MS, VALUES_MS * 2 ** failures);
    $("#now").textContent = _("No connection to the server. Trying again…");
  }
  setTimeout(again, wait);
}

addEventListener("hashchange", () => location.reload());
await again();
