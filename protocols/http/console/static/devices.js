// The list of devices, searched, sorted and paged by the server. Status and values of the shown devices are live.

import { severity } from "./alarm-row.js";
import { attempt, call, done, get } from "./api.js";
import { $, empty, fill, h, shown, time, whole } from "./dom.js";
import { manifestOf, snapshotLeaves } from "./manifest.js";
import { follow } from "./sockets.js";
import { _, phrase, plural, worded } from "./texts.js";

const PAGE = 25;
const VALUES = 3;
const ALARMS = 3;
const ALARMS_MS = 60000;
const form = $("#find");
const rows = $("#devices tbody");
const uid = $("meta[name=uid]").content;
let offset = Number(new URLSearchParams(location.search).get("offset") ?? 0) || 0;
let stop = [];
let newest = 0;

function asked() {
  const given = new FormData(form);
  return { search: given.get("search").trim(), owner: given.get("owner"), sort: given.get("sort") };
}

async function load() {
  const mine = newest += 1;
  const { search, owner, sort } = asked();
  const [by, order] = sort.split(" ");
  const answer = await get(`/users/${uid}/devices`, { search, owner, sort: by, order, count: PAGE, offset, includeShareInfo: true });
  if (mine !== newest) return;
  if (answer.data.devices.length === 0 && offset > 0 && answer.total > 0) {
    offset = Math.floor((answer.total - 1) / PAGE) * PAGE;
    return void load();
  }
  remember({ search, owner, sort });
  show(answer, search || owner !== "ALL");
}

function remember({ search, owner, sort }) {
  const query = new URLSearchParams();
  if (search) query.set("search", search);
  if (owner !== "ALL") query.set("owner", owner);
  if (sort !== form.sort.options[0].value) query.set("sort", sort);
  if (offset) query.set("offset", offset);
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
}

async function show({ data: { devices }, total }, isFiltered) {
  for (const end of stop) end();
  stop = [];
  $("#number").textContent = whole(total);
  const none = $("#none");
  none.hidden = devices.length > 0;
  $("#devices").hidden = devices.length === 0;
  if (devices.length === 0) {
    fill(none, isFiltered
      ? empty(_("No device fits"), _("Try another word, or another choice beside it."))
      : empty(_("No devices yet"), _("Add one, and its page shows the lines that send its first message."),
        h("a", { class: "button", href: "/console/devices/new" }, _("Add a device"))));
  }
  const shownRows = new Map(devices.map((device) => [device.id, new Row(device)]));
  fill(rows, [...shownRows.values()].map((row) => row.element));
  pages(total, devices.length);
  if (devices.length) await watch(shownRows);
}

function pages(total, count) {
  $("#range").textContent = count ? _("{first}–{last} of {total}", { first: whole(offset + 1), last: whole(offset + count), total: whole(total) }) : "";
  $("#earlier").disabled = offset === 0;
  $("#later").disabled = offset + count >= total;
  $("#pages").hidden = total <= PAGE;
}

async function watch(shownRows) {
  const ids = [...shownRows.keys()].join(",");
  const refresh = async () => {
    const { data } = await get("/devices/status", { dids: ids });
    for (const one of data) shownRows.get(one.did)?.status(one.data);
  };
  stop.push(
    // Both feeds fetch the state after a reconnection; at the start one of them is enough.
    follow("live", { sdids: ids }, (frame) => shownRows.get(frame.sdid)?.message(frame), refresh),
    follow("events", { dids: ids, events: "device.status.*" }, (frame) => {
      shownRows.get(frame.data.did)?.availability(frame.event.split(".").at(-1));
    }),
  );
  const types = new Map();
  for (const { device } of shownRows.values()) types.set(`${device.dtid} ${device.manifestVersion}`, device);
  for (const device of types.values()) {
    get(`/devicetypes/${device.dtid}`).then(({ data }) => {
      for (const row of shownRows.values()) if (row.device.dtid === device.dtid) row.type.textContent = data.name;
    }).catch(() => {});
    manifestOf(device.dtid, device.manifestVersion).then(({ fields }) => {
      for (const row of shownRows.values()) if (row.device.dtid === device.dtid) row.takes(fields);
    }).catch(() => {});
  }
}

class Row {
  constructor(device) {
    this.device = device;
    this.values = new Map();
    this.fields = new Map();
    this.badge = h("span", { class: "badge unknown" }, "…");
    this.cell = h("td", { class: "values", "data-label": _("Latest values") }, h("span", { class: "skeleton inline" }));
    this.last = h("td", { class: "when", "data-label": _("Last message") });
    const notes = [];
    if (device.sharedWithMe) notes.push(" ", h("small", { class: "tag" }, _("shared with you")));
    if (device.sharedWithOthers) notes.push(" ", h("small", { class: "tag" }, _("shared")));
    if (!device.connected) notes.push(" ", h("small", { class: "tag" }, _("disabled")));
    this.type = h("span", { class: "type" }, "\u00a0");
    this.element = h("tr", {},
      h("th", { scope: "row" }, h("div", {}, h("a", { href: `/console/devices/${device.id}` }, device.name), notes, this.type)),
      h("td", { "data-label": _("Status") }, this.badge), this.cell, this.last);
  }

  status({ availability, snapshot, lastMessageTs }) {
    this.availability(availability);
    for (const [path, one] of snapshotLeaves(snapshot)) this.values.set(path, one.value);
    this.paint();
    fill(this.last, lastMessageTs ? time(lastMessageTs) : _("never"));
  }

  availability(is) {
    this.badge.className = `badge ${is}`;
    this.badge.textContent = worded(is);
  }

  message(frame) {
    if (frame.type === "action") return;
    for (const [path, value] of flat(frame.data)) this.values.set(path, value);
    this.paint();
    fill(this.last, time(frame.ts));
    this.element.classList.remove("fresh");
    void this.element.offsetWidth;  // restarts the animation
    this.element.classList.add("fresh");
  }

  takes(fields) {
    this.fields = fields;
    this.paint();
  }

  paint() {
    const found = [...this.values].slice(0, VALUES);
    if (found.length === 0) {
      fill(this.cell, "–");
      return;
    }
    fill(this.cell, found.map(([path, value]) => h("span", { class: "value" }, h("small", {}, path),
      h("b", {}, shown(value, this.fields.get(path)?.unit, path)))),
    this.values.size > VALUES ? h("small", { class: "more" }, `+${this.values.size - VALUES}`) : null);
  }
}

function* flat(data, prefix = "") {
  for (const [name, one] of Object.entries(data ?? {})) {
    if (one !== null && typeof one === "object" && !Array.isArray(one)) yield* flat(one, `${prefix}${name}.`);
    else yield [prefix + name, one];
  }
}

// Devices that others offer to share

// The open alarms, the last raised first
async function alarms() {
  const { data, total } = await get("/alarms", { state: "raised,acknowledged", count: ALARMS });
  const box = $("#alarms");
  box.hidden = data.length === 0;
  fill(box, data.map((one) => h("p", { class: "row notice" }, severity(one), h("a", { href: "/console/alarms" }, one.text ?? one.ruleName), h("span", { class: "soft" }, time(one.raisedOn)))),
    total > data.length ? h("p", {}, h("a", { href: "/console/alarms" }, plural("{count} more alarm", "{count} more alarms", total - data.length))) : null);
}

async function offers() {
  const { data } = await get(`/users/${uid}/shares`, { filter: "WAITING", count: 10 });
  const box = $("#offers");
  for (const share of data.shares) {
    const answer = (status, text) => attempt(async () => {
      await call("PUT", `/devices/${share.did}/shares/${share.id}`, { body: { status } });
      if (status === "ACCEPTED") openIt(note, share.did, share.deviceName);
      else note.remove();
      done(text);
      await load();
    }, { button: note.querySelector("button") });
    const note = h("div", { class: "notice" }, h("p", {}, phrase("{owner} shares {device} with you.", { owner: h("b", {}, share.ownerName || _("Somebody")), device: h("b", {}, share.deviceName) })),
      h("div", { class: "row" },
        h("button", { type: "button", class: "small", onclick: () => answer("ACCEPTED", _("{deviceName} is in your list.", { deviceName: share.deviceName })) }, _("Accept")),
        h("button", { type: "button", class: "quiet small", onclick: () => answer("REJECTED", _("The offer was declined.")) }, _("Decline"))));
    box.append(note);
  }
}

const openIt = (note, did, name) => {
  note.className = "notice good";
  fill(note, h("p", {}, _("{name} is in your list.", { name })), h("a", { class: "button", href: `/console/devices/${did}` }, _("Open it")));
};

// Devices that others hand over

async function transfers() {
  const { data } = await get(`/users/${uid}/transfers`);
  for (const one of data.transfers) {
    const answer = (status, text) => (event) => attempt(async () => {
      await call("PUT", `/devices/${one.did}/transfer`, { body: { status } });
      if (status === "ACCEPTED") openIt(note, one.did, one.deviceName);
      else note.remove();
      done(text);
      await load();
    }, { button: event.target });
    const note = h("div", { class: "notice" }, h("p", {}, phrase("{owner} hands {device} over to you, for good.", { owner: h("b", {}, one.ownerName || _("Somebody")), device: h("b", {}, one.deviceName) })),
      h("div", { class: "row" },
        h("button", { type: "button", class: "small", "aria-label": _("Take {deviceName}", { deviceName: one.deviceName }), onclick: answer("ACCEPTED", _("{deviceName} is yours.", { deviceName: one.deviceName })) }, _("Take it")),
        h("button", { type: "button", class: "quiet small", "aria-label": _("Decline {deviceName}", { deviceName: one.deviceName }), onclick: answer("DECLINED", _("The device was declined.")) }, _("Decline"))));
    $("#offers").append(note);
  }
}

// Devices that MQTT clients announce

const SHOWN_FOUND = 20;
const SHOWN_PROBLEMS = 5;

async function found() {
  const box = $("#found");
  if (box === null) return;
  const { data } = await get(`/users/${uid}/found`);
  const fresh = data.found.filter((one) => one.status === "FOUND");
  const ignored = data.found.filter((one) => one.status === "IGNORED");
  box.hidden = fresh.length + ignored.length === 0;
  const rest = fresh.length - SHOWN_FOUND;
  fill(box, h("h2", {}, _("Found")),
    h("p", { class: "hint" }, _("Announced over MQTT for Home Assistant. An accepted one is a device here, with history, rules and Actions.")),
    ...fresh.slice(0, SHOWN_FOUND).map(foundNote),
    rest <= 0 ? null : h("p", { class: "hint" }, _("{rest} more are listed when these are decided.", { rest })),
    ...ignored.map((one) => h("p", {}, _("{name} is ignored.", { name: one.name }), " ",
      h("button", { type: "button", class: "quiet small", "aria-label": _("List {name} again", { name: one.name }), onclick: (event) => decide(one, "FOUND", _("{name} is listed as found.", { name: one.name }), event.target) }, _("List again")))));
}

async function decide(one, status, text, button) {
  await attempt(async () => {
    const { data } = await call("PUT", `/found/${one.id}`, { body: { status } });
    done(text);
    await Promise.all([load(), found()]);
    if (data.did) {
      const note = h("div", { class: "notice good" });
      openIt(note, data.did, data.name);
      $("#offers").append(note);
    }
  }, { button });
}

function foundNote(one) {
  const made = [one.fields.length > 0 && _("values: {names}", { names: one.fields.join(", ") }), one.actions.length > 0 && _("Actions: {names}", { names: one.actions.join(", ") })].filter(Boolean).join("; ");
  const canBe = made !== "";
  const name = h("span", {}, h("b", {}, one.name), one.model && one.model !== one.name ? ` (${one.model})` : "");
  return h("div", { class: "notice" },
    h("div", {}, h("p", {}, canBe ? phrase("{name} has {made}.", { name, made }) : phrase("{name}: nothing of it can be taken over.", { name })),
      ...one.problems.slice(0, SHOWN_PROBLEMS).map((two) => h("p", { class: "hint" }, _("Not taken over: {component}: {text}.", { component: two.component, text: two.text }))),
      one.problems.length <= SHOWN_PROBLEMS ? null : h("p", { class: "hint" }, _("{count} more are not taken over.", { count: one.problems.length - SHOWN_PROBLEMS }))),
    h("div", { class: "row" },
      !canBe ? null : h("button", { type: "button", class: "small", "aria-label": _("Accept {name}", { name: one.name }), onclick: (event) => decide(one, "ACCEPTED", _("{name} is in your list.", { name: one.name }), event.target) }, _("Accept")),
      h("button", { type: "button", class: "quiet small", "aria-label": _("Ignore {name}", { name: one.name }), onclick: (event) => decide(one, "IGNORED", _("{name} is ignored.", { name: one.name }), event.target) }, _("Ignore"))));
}

let typing = 0;
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => { offset = 0; attempt(load); }, event.target.name === "search" ? 200 : 0);
});
$("#earlier").addEventListener("click", () => { offset = Math.max(0, offset - PAGE); attempt(load); });
$("#later").addEventListener("click", () => { offset += PAGE; attempt(load); });

const before = new URLSearchParams(location.search);
for (const name of ["search", "owner", "sort"]) if (before.get(name)) form.elements[name].value = before.get(name);

setInterval(() => { if (!document.hidden) alarms().catch(() => {}); }, ALARMS_MS);
await attempt(() => Promise.all([load(), alarms(), offers(), transfers(), found()]));
