// The person's boards: charts, values, Actions and scenes on one page, live.

import { attempt, call, done, get, tagOf } from "./api.js";
import { $, copyButton, empty, fill, fullTime, h, sure } from "./dom.js";
import { isNumber, snapshotLeaves, valueAt } from "./manifest.js";
import { unwrapped } from "./parameters.js";
import { actionRow, deviceField, devicePicker, manifestOfDevice } from "./parts.js";
import { save } from "./saving.js";
import { follow } from "./sockets.js";
import { ChartTile, frame, gone, RANGES, ValueTile } from "./tiles.js";
import { _, phrase } from "./texts.js";

const uid = $("meta[name=uid]").content;
const ZONE = new Intl.DateTimeFormat().resolvedOptions().timeZone;
const CHARTS_MS = 60000;
const RANGE_NAMES = { hour: _("Hour"), day: _("Day"), month: _("Month"), year: _("Year") };
let boards = [];
let board = null;  // {tag, data}
let parts = [];  // of each tile, an object that takes values; null for others
let stop = null;
let isArranging = false;

async function load() {
  boards = (await get(`/users/${uid}/boards`)).data.boards;
  const wanted = boards.find((one) => one.id === location.hash.slice(1)) ?? boards[0];
  if (!wanted) {
    board = null;
    stop?.();
    $("#tools").hidden = true;
    $("#about").hidden = true;
    $("#link-box").hidden = true;
    $("#boards").hidden = true;
    fill($("#tiles"), empty(_("No board yet"), _("Pin charts, values, Actions and scenes on one page."), h("button", { type: "button", onclick: (event) => attempt(create, { button: event.target }) }, _("Make a board"))));
    return;
  }
  await open(wanted.id);
}

async function open(id) {
  const { data } = await get(`/boards/${id}`);
  history.replaceState(null, "", `#${id}`);
  await take(data);
}

async function take(data) {
  board = { tag: tagOf(data), data };
  const at = boards.findIndex((one) => one.id === data.id);
  if (at >= 0) boards[at] = data;
  $("#title").textContent = data.name;
  document.title = `${data.name} · Trunkline`;
  $("#tools").hidden = false;
  $("#board-name").value = data.name;
  $("#boards").hidden = boards.length < 2;
  fill($("#boards"), boards.map((one) => h("button", { type: "button", class: "small", "aria-pressed": String(one.id === data.id), onclick: () => attempt(() => open(one.id)) }, one.name)));
  paintLink();
  await lay();
}

async function create() {
  const { data } = await call("POST", `/users/${uid}/boards`, { body: { name: _("Board") } });
  boards.push(data);
  await open(data.id);
}

const change = async (body) => {
  const data = await save("PUT", `/boards/${board.data.id}`, body, { seen: board, labels: { name: _("Name"), tiles: _("Tiles") }, take });
  if (data !== null) await take(data);
};

// The tiles

async function lay() {
  const { tiles } = board.data;
  const [known, scenes] = await Promise.all([statuses(tiles), tiles.some((one) => one.kind === "scene") ? ownScenes() : []]);
  const manifests = new Map(await Promise.all([...known.keys()].map(async (did) => [did, await manifestOfDevice(did)])));
  const names = new Map(await Promise.all([...known.keys()].map(async (did) => [did, (await nameOfDevice(did)) ?? did])));
  parts = tiles.map((one) => {
    if (!known.has(one.did)) return null;
    const unit = manifests.get(one.did).fields.get(one.field)?.unit ?? "";
    return one.kind === "chart" ? new ChartTile(one, unit) : one.kind === "value" ? new ValueTile(one, unit) : null;
  });
  const content = (one, at) => {
    if (one.kind === "scene") {
      const scene = scenes.find((each) => each.id === one.sceneId);
      return scene ? acting(_("Activate"), () => call("POST", `/scenes/${scene.id}`, { body: {} }), _("{name} is activated.", { name: scene.name })) : h("p", { class: "finding missing" }, _("This scene was deleted."));
    }
    if (!known.has(one.did)) return gone();
    if (one.kind === "action") return acting(one.action, () => act(one), _("{name} is on its way.", { name: one.action }));
    return parts[at].content;
  };
  const title = (one) => one.title || (one.kind === "scene" ? scenes.find((each) => each.id === one.sceneId)?.name ?? _("Scene") : [names.get(one.did) ?? _("Device"), one.field ?? one.action].join(": "));
  fill($("#tiles"), tiles.length ? tiles.map((one, at) => frame(one, title(one), content(one, at), isArranging ? arranging(title(one), at) : []))
    : empty(_("Nothing is pinned yet"), _("Choose “Pin something” above.")));
  for (const [at, one] of tiles.entries()) {
    const leaf = known.get(one.did)?.get(one.field);
    if (leaf) parts[at]?.take(leaf.value, leaf.ts);
  }
  stop?.();
  stop = known.size ? follow("live", { sdids: [...known.keys()].join(",") }, live, () => attempt(charts)) : null;
}

// The snapshots of the devices that the person may see, by their ids
async function statuses(tiles) {
  const dids = [...new Set(tiles.map((one) => one.did).filter(Boolean))];
  if (dids.length === 0) return new Map();
  const { data } = await get("/devices/status", { dids: dids.join(",") });
  return new Map(data.map((one) => [one.did, new Map(snapshotLeaves(one.data.snapshot ?? one.snapshot))]));
}

const nameOfDevice = async (did) => (await get(`/devices/${did}`)).data.name;
const ownScenes = async () => (await get(`/users/${uid}/scenes`, { count: 100 })).data.scenes;

function live(message) {
  if (message.type === "action") return;
  for (const [at, one] of board.data.tiles.entries()) {
    if (one.did === message.sdid) parts[at]?.take(valueAt(message.data, one.field ?? ""), message.ts);
  }
}

// When the minute, day or month ends that `now` is in, by the viewer's clock
function endOf(interval, now) {
  const at = new Date(now);
  if (interval === "day") return new Date(at.getFullYear(), at.getMonth(), at.getDate() + 1).getTime();
  if (interval === "month") return new Date(at.getFullYear(), at.getMonth() + 1, 1).getTime();
  const step = { minute: 60000, tenMinutes: 600000 }[interval];
  return Math.ceil(now / step) * step;
}

async function charts() {
  const now = Date.now();
  await Promise.all(board.data.tiles.map(async (one, at) => {
    const part = parts[at];
    if (!(part instanceof ChartTile)) return;
    const { interval, length } = part.range;
    const end = endOf(interval, now);
    const { data } = await get("/messages/analytics/histogram", { sdid: one.did, field: one.field, interval, startDate: end - length, endDate: end, timezone: ZONE });
    part.show(data.map((each) => ({ t: each.ts, v: each.mean, low: each.min, high: each.max, count: each.count })));
  }));
}

const act = ({ did, action, parameters }) => call("POST", "/actions", { body: { ddid: did, data: { actions: [Object.keys(parameters ?? {}).length ? { name: action, parameters } : { name: action }] } } });

const acting = (words, work, told) => h("p", {}, h("button", { type: "button", onclick: (event) => attempt(async () => {
  await work();
  done(told);
}, { button: event.target }) }, words));

function arranging(title, at) {
  const moved = (by) => async () => {
    const tiles = [...board.data.tiles];
    tiles.splice(at + by, 0, ...tiles.splice(at, 1));
    await change({ tiles });
  };
  const tool = (sign, words, work, isOff = false) => h("button", { type: "button", class: "quiet small", "aria-label": words, title: words, disabled: isOff, onclick: (event) => attempt(work, { button: event.target }) }, sign);
  return [tool("←", _("Move {title} earlier", { title }), moved(-1), at === 0), tool("→", _("Move {title} later", { title }), moved(1), at === board.data.tiles.length - 1),
    tool("×", _("Remove {title}", { title }), () => change({ tiles: board.data.tiles.filter((one, index) => index !== at) }))];
}

// Pinning

let chosen = { read: () => ({}) };

async function ask() {
  const kind = $("#kind").value;
  if (kind === "scene") {
    const scenes = await ownScenes();
    const select = h("select", { id: "pin-scene", name: "sceneId", required: true }, scenes.map((one) => h("option", { value: one.id }, one.name)));
    fill($("#what"), h("p", {}, h("label", { for: select.id }, _("Scene")), select), scenes.length ? null : h("p", { class: "hint" }, _("You have no scene yet.")));
    chosen = { read: () => ({ sceneId: select.value }) };
  } else if (kind === "action") {
    const row = await actionRow(undefined, (name) => `tiles.${name}`);
    row.querySelector(".remove").remove();
    fill($("#what"), h("ul", { class: "parts" }, row));
    chosen = { read: () => { const { ddid, action, parameters } = row.read(); return { did: ddid, action, parameters: unwrapped(parameters) ?? {} }; } };
  } else await askField(kind);
}

async function askField(kind) {
  const device = await devicePicker("pin-device", "did");
  const field = h("select", { id: "pin-field", name: "field", required: true });
  const range = h("select", { id: "pin-range", name: "range" }, Object.keys(RANGES).map((one) => h("option", { value: one }, RANGE_NAMES[one])));
  const wide = h("input", { type: "checkbox", name: "wide" });
  const learn = async () => {
    const { fields } = await manifestOfDevice(device.value);
    fill(field, [...fields].filter(([, one]) => kind === "value" || isNumber(one)).map(([path]) => h("option", { value: path }, path)));
  };
  device.addEventListener("change", () => attempt(learn));
  await learn();
  fill($("#what"), deviceField(device), h("p", {}, h("label", { for: field.id }, _("Field")), field),
    kind === "chart" ? [h("p", {}, h("label", { for: range.id }, _("Range")), range), h("p", { class: "row checks" }, h("label", {}, wide, _("As wide as the page")))] : null);
  chosen = { read: () => ({ did: device.value, field: field.value, ...(kind === "chart" ? { range: range.value, wide: wide.checked } : {}) }) };
}

$("#add").addEventListener("click", () => attempt(async () => {
  $("#pin").hidden = false;
  await ask();
  $("#kind").focus();
}));
$("#kind").addEventListener("change", () => attempt(ask));
$("#pin-cancel").addEventListener("click", () => { $("#pin").hidden = true; $("#add").focus(); });
$("#pin").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const title = $("#pin-title").value.trim();
    await change({ tiles: [...board.data.tiles, { kind: $("#kind").value, ...(title ? { title } : {}), ...chosen.read() }] });
    $("#pin").hidden = true;
    $("#pin-title").value = "";
    done(_("It is pinned."));
  }, { form: event.target });
});

$("#edit").addEventListener("click", () => attempt(async () => {
  isArranging = !isArranging;
  $("#edit").setAttribute("aria-pressed", String(isArranging));
  $("#about").hidden = !isArranging;
  await lay();
  await charts();
}));
$("#about").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(() => change({ name: $("#board-name").value.trim() }), { form: event.target });
});
$("#new-board").addEventListener("click", (event) => attempt(create, { button: event.target }));
$("#delete-board").addEventListener("click", async (event) => {
  if (await sure(_("Delete {name}?", { name: board.data.name }), _("Its tiles and its read-only link end. Devices and scenes stay."), _("Delete this board"))) await attempt(async () => {
    await call("DELETE", `/boards/${board.data.id}`);
    history.replaceState(null, "", location.pathname);
    await load();
  }, { button: event.target });
});

// The read-only link

$("#link").addEventListener("click", () => { $("#link-box").hidden = !$("#link-box").hidden; });

function paintLink(made = null) {
  const { id, hasLink, linkMadeOn, linkExpiresOn } = board.data;
  const until = h("input", { type: "datetime-local", id: "link-until", name: "expiresOn" });
  const make = h("form", { class: "row" }, h("p", {}, h("label", { for: until.id }, _("Until"), " ", h("span", { class: "optional" }, _("optional"))), until),
    h("button", { type: "submit", class: hasLink ? "quiet" : undefined }, hasLink ? _("Make a new link") : _("Make a link")));
  make.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(async () => {
      const body = until.value ? { expiresOn: new Date(until.value).getTime() } : {};
      const { data } = await call("PUT", `/boards/${id}/link`, { body, quiet: true });
      Object.assign(board.data, { hasLink: true, linkMadeOn: Date.now(), linkExpiresOn: data.expiresOn });
      paintLink(data);
    }, { form: make });
  });
  const revoke = h("button", { type: "button", class: "danger small", onclick: (event) => attempt(async () => {
    const { data } = await call("DELETE", `/boards/${id}/link`);
    Object.assign(board.data, { hasLink: false, linkMadeOn: data.linkMadeOn, linkExpiresOn: undefined });
    done(_("The link is revoked."));
    paintLink();
  }, { button: event.target }) }, _("Revoke the link"));
  const url = made ? new URL(made.path, location.origin).href : "";
  fill($("#link-state"),
    made ? h("div", { class: "secret", role: "status" }, h("p", {}, _("The link, shown this once:")), h("div", { class: "line" }, h("pre", { tabindex: "0" }, h("code", {}, url)), copyButton(url, _("the link")))) : null,
    hasLink ? h("p", {}, linkExpiresOn ? phrase("There is a link, until {end}.", { end: fullTime(linkExpiresOn) }) : linkMadeOn ? phrase("There is a link, made {when}.", { when: fullTime(linkMadeOn) }) : _("There is a link.")) : null,
    make, hasLink ? h("p", {}, revoke) : null);
}

setInterval(() => { if (!document.hidden && board) charts().catch(() => {}); }, CHARTS_MS);

await attempt(load);
