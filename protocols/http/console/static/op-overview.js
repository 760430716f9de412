// The state of the service: the first questions of an incident, answered without a shell.

import { get, done, attempt } from "./api.js";
import { badge, box, button, figures, follow, page, sameCommand, show } from "./dash.js";
import { Chart } from "./chart.js";
import { fileSize, fill, fullTime, h, heads, saveFile, shown, time, whole } from "./dom.js";

const AGAIN_MS = 5000;
const RECENT_MS = 600000;  // a count that grew within this time is still listed
const RATES = [["Messages", "ingest", "messages"], ["Actions", "ingest", "actions"], ["Failed messages", "ingest", "failed_messages"], ["Commits", "store", "commits"]];

let before = null;
let body = null;
let examined = [];
const grewOn = new Map();  // when each count of failures grew last

const of = (data, part, name) => data.statistics[part]?.[name] ?? 0;

// Turns totals since the start into rates since the last reading
function rate(data, part, name) {
  const seconds = before ? (data.now - before.now) / 1000 : (data.now - data.startedOn) / 1000;
  const grown = of(data, part, name) - (before ? of(before, part, name) : 0);
  return `${shown(seconds > 0 ? Math.round(grown / seconds * 100) / 100 : 0)} /s`;
}

function alarms(data) {
  const found = [];
  if (data.problem) found.push(["The service is not ready", data.problem, null]);
  for (const one of data.listeners.filter((listener) => listener.problem)) found.push([`${one.name} does not listen`, one.problem, null]);
  for (const one of data.consumers.filter((consumer) => consumer.behind > 10000)) found.push([`${one.name} lags`, `It is ${whole(one.behind)} messages of the log behind.`, "#consumers"]);
  if (data.room.fullOn !== null) found.push(["The disk will be full", `${data.room.sentence}: on ${fullTime(data.room.fullOn)}.`, "#room"]);
  if (of(data, "subscriptions", "suspended")) found.push(["Subscriptions are suspended", `${whole(of(data, "subscriptions", "suspended"))} of them.`, "/developer/subscriptions"]);
  for (const one of data.connectors) found.push([`The connector of ${one.uniqueName} fails`, one.lastOn === null ? one.problem : `${one.problem} Last: ${fullTime(one.lastOn)}.`, null]);
  for (const [part, name, text] of [["rules", "problems", "Rules have problems"], ["rules", "stopped", "Rules were stopped"], ["store", "failures", "Commits failed"]]) {
    if (of(data, part, name) > (before ? of(before, part, name) : 0)) grewOn.set(name, Date.now());
    if (Date.now() - (grewOn.get(name) ?? 0) < RECENT_MS) found.push([text, `${whole(of(data, part, name))} since the start.`, "#statistics"]);
  }
  found.push(...ofNodes(data.node));
  for (const one of examined.filter((check) => !check.ok)) found.push([`The doctor: ${one.check}`, one.text, "#doctor"]);
  return found;
}

const BEHIND = 10000, SLOW_S = 0.25, OLD_S = 3600;

// A node renews its lease four times before it is over
const isSilent = (one) => one.leaseSeconds > 0 && one.heardSeconds > one.leaseSeconds / 2;

// Faults of nodes that serve together, and of their database
function ofNodes(node) {
  if (node === null) return [];
  const found = [], told = (name, text) => found.push([name, text, "#nodes"]);
  for (const one of node.nodes) {
    if (isSilent(one)) told(`Node ${one.name} is silent`, `It was heard ${whole(Math.round(one.heardSeconds))} s ago. After ${shown(one.leaseSeconds)} s the others take its work: look at that machine.`);
    if (one.behindRows > BEHIND || one.behindChanges > BEHIND) told(`Node ${one.name} does not follow the others`, `It is ${whole(one.behindRows)} messages and ${whole(one.behindChanges)} changes behind.`);
    if (one.isDraining) told(`Node ${one.name} drains`, "It moves its connections to the others, and ends.");
  }
  if (node.nodes.length === 1) told("This node serves alone", "No other one goes on when it fails.");
  if (node.freeLeases.length) told("Work that no node does", `${node.freeLeases.join(", ")}: one takes it within seconds, unless cluster.workers of each leaves it out.`);
  if (node.latencySeconds > SLOW_S) told("The database is slow", `One commit takes ${milliseconds(node.latencySeconds)}: each acknowledgement waits for it.`);
  if (node.oldestSnapshotSeconds > OLD_S) told("A transaction has been open for long", `${whole(Math.round(node.oldestSnapshotSeconds / 60))} minutes: until it ends, deleted rows keep their room in the database.`);
  return found;
}

const milliseconds = (seconds) => `${shown(Math.round(seconds * 10000) / 10)} ms`;
const behind = (one) => one.behindRows || one.behindChanges ? `${whole(one.behindRows)} messages, ${whole(one.behindChanges)} changes` : "–";

function nodes(node) {
  body.nodesBox.hidden = !node?.nodes.length;
  if (body.nodesBox.hidden) return;
  fill(body.nodes, h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Nodes that serve together"),
    heads("Node", "State", "Since", "Does for all", "Connections#", "Behind", "Commit#"), h("tbody", {}, node.nodes.map((one) => h("tr", {},
      h("th", { scope: "row" }, one.name, one.name === node.name ? " (this one)" : ""),
      h("td", { "data-label": "State" }, one.isDraining ? badge("drains") : isSilent(one) ? badge(`silent for ${whole(Math.round(one.heardSeconds))} s`, "bad") : badge("serves", "good")),
      h("td", { "data-label": "Since" }, h("span", { title: `Trunkline ${one.version}, epoch ${one.epoch}, heard ${shown(one.heardSeconds)} s ago` }, time(one.since)), ` · epoch\u00a0${whole(one.epoch)}`),
      h("td", { "data-label": "Does for all" }, one.leases.join(", ") || "–"),
      h("td", { "data-label": "Connections", class: "size" }, whole(one.connections)),
      h("td", { "data-label": "Behind" }, behind(one)),
      h("td", { "data-label": "Commit", class: "size" }, one.latencySeconds ? milliseconds(one.latencySeconds) : "–"))))),
  h("details", {}, h("summary", {}, "Not shared by the nodes"), h("ul", {}, node.apart.map((text) => h("li", {}, text)))));
}

// Open topics and hooks whose payloads become messages
function topicDevices(entries) {
  body.topicsBox.hidden = entries.length === 0;
  if (body.topicsBox.hidden) return;
  fill(body.topics, h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Topic devices"), heads("Entry", "From", "Messages#", "Made#", "Not understood", "Keys without a device"),
    h("tbody", {}, entries.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { "data-label": "From" }, h("code", {}, one.source)),
      h("td", { "data-label": "Messages", class: "size" }, whole(one.stored)), h("td", { "data-label": "Made", class: "size" }, whole(one.made)),
      h("td", { "data-label": "Not understood" }, one.problem ? badge(one.not_understood ? `${whole(one.not_understood)}: ${one.problem}` : one.problem, "bad") : badge("nothing", "good")),
      h("td", { "data-label": "Keys without a device" }, one.unknown.join(", ") || "–"))))));
}

function connections(data) {
  const all = data.node?.nodes ?? [];
  if (!all.length) return [["Connections of devices", whole(of(data, "connections", "links"))]];
  return [["Connections here", whole(of(data, "connections", "links"))], ["Of all nodes", whole(all.reduce((sum, one) => sum + one.connections, 0))]];
}

function paint(data) {
  const found = alarms(data), room = data.room;
  fill(body.alarms, found.length ? h("ul", { class: "alarms" }, found.map(([name, text, href]) => h("li", {}, h("div", {}, h("p", {}, h("b", {}, name)), h("p", {}, text)),
    href ? h("a", { href, "aria-label": `Open: ${name}` }, "Open") : null))) : h("ul", { class: "alarms" }, h("li", { class: "calm" }, h("p", {}, "The service is ready, and nothing is wrong that it knows of."))));
  fill(body.figures, figures(
    ["Version", h("span", { title: data.version }, data.version.split(" ")[0])], ["Runs since", time(data.startedOn)], ...RATES.map(([name, ...at]) => [name, rate(data, ...at)]),
    ["Devices online", whole(of(data, "presence", "online"))], ...connections(data),
    ["Live feeds", whole(of(data, "feeds", "subscribers"))], ["Waiting to be stored", whole(of(data, "store", "waiting_rows"))]));
  fill(body.listeners, h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Listeners"), heads("Listener", "Address", "State", "Answers"), h("tbody", {}, data.listeners.map((one) =>
    h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { "data-label": "Address" }, h("code", {}, one.address || "–")),
      h("td", { "data-label": "State" }, one.problem ? badge(one.problem, "bad") : badge("listens", "good")),
      h("td", { "data-label": "Answers" }, Object.entries(one.answers).map(([code, times]) => `${code}: ${whole(times)}`).join(", ") || "–"))))));
  const node = data.node;
  nodes(node);
  const several = node === null ? [] : [["This node", node.name], ["Take-overs of the lease", whole(node.leaseEpoch)], ["The lease lasts", `${shown(node.leaseLeftSeconds)} s`],
    ["Stand by", node.standbys.join(", ") || "no node", false], ["Latency of the database", milliseconds(node.latencySeconds), node.latencySeconds > SLOW_S],
    ["Oldest transaction", `${shown(node.oldestSnapshotSeconds)} s`, node.oldestSnapshotSeconds > OLD_S]];
  fill(body.room, figures(["Engine", data.engine === "sqlite" ? "SQLite" : "PostgreSQL"], ...several, ["Store", fileSize(room.storeBytes)], ["Free on its disk", fileSize(room.availableBytes), room.fullOn !== null],
    ["Grows a day", room.bytesADay === null ? "too young to tell" : fileSize(room.bytesADay)], ["Retention", room.retentionDays ? `${whole(room.retentionDays)} days` : "keeps everything"],
    ["The disk is full", room.fullOn === null ? (room.bytesADay === null ? "too young to tell" : "not in sight") : fullTime(room.fullOn), room.fullOn !== null]), h("p", {}, `${room.sentence}.`),
    room.parts.length ? h("table", {}, h("caption", { class: "unseen" }, "Parts of the store"), heads("Part of the store", "Size#", "Comes a day#"), h("tbody", {}, [...room.parts].sort((a, b) => b.bytes - a.bytes).map((one) =>
      h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { class: "size" }, fileSize(one.bytes)), h("td", { class: "size" }, one.bytesADay ? fileSize(one.bytesADay) : "–"))))) : null);
  topicDevices(data.statistics["topic devices"]?.entries ?? []);
  const lags = [["snapshots and rollups", of(data, "folds", "held_rows")], ["rules", of(data, "rules", "waiting_rows")], ["subscriptions", of(data, "subscriptions", "backlog")],
    ["connectors", of(data, "connectors", "waiting")], ["mails", of(data, "mails", "waiting")]];
  fill(body.consumers, h("table", {}, h("caption", { class: "unseen" }, "Waiting for each consumer"), heads("Consumer", "Messages behind#"), h("tbody", {}, lags.map(([name, behind]) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "size" }, whole(behind)))))),
  data.consumers.length ? h("table", {}, h("caption", { class: "unseen" }, "Saved positions"), heads("Saved position of", "Behind#", "Position#"), h("tbody", {}, data.consumers.map((one) =>
    h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { class: "size" }, whole(one.behind)), h("td", { class: "size" }, whole(one.position)))))) : null,
  h("p", { class: "hint" }, `Subscriptions that are behind: ${whole(of(data, "subscriptions", "behind"))}. Notifications that wait: ${whole(of(data, "subscriptions", "pending"))}.`));
  if (!body.statistics.open || before === null) fill(body.numbers, Object.entries(data.statistics).map(([part, numbers]) => h("div", {}, h("h3", {}, part),
    h("dl", { class: "facts" }, Object.entries(numbers ?? {}).flatMap(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, shown(Array.isArray(value) ? value.length : value))])))));
  before = data;
}

// The last day, from samples that the service takes every five minutes
const CURVES = [["messages in a second", (one) => one.messages / one.seconds], ["connections of devices", (one) => one.connections],
  ["mean commit, ms", (one) => one.commitUs / 1000], ["refusals in five minutes", (one) => one.refusals * 300 / one.seconds], ["size of the store, MB", (one) => one.storeBytes / 1e6]];
const GAP_MS = 11 * 60000;
let curves = null;

async function day() {
  const { data } = await get("/operator/samples");
  const now = Date.now();
  body.day.firstChild.hidden = data.samples.length > 1;
  if (data.samples.length < 2) return;
  curves ??= CURVES.map(([name, read]) => {
    const chart = new Chart({ names: [name], onHover: (t) => { for (const one of curves) one.chart.point(t); } });
    body.day.append(chart.element);
    return { name, read, chart };
  });
  for (const { name, read, chart } of curves) chart.show(new Map([[name, data.samples.map((one) => ({ t: one.at, v: read(one) }))]]), [now - 86400000, now], { gap: GAP_MS });
}

// The box of nodes has it, too
const isShownAbove = (one) => one.check === "cluster" && one.ok && !body.nodesBox.hidden;

async function examine() {
  const { data } = await get("/operator/doctor");
  examined = data.checks;
  fill(body.doctor, h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Checks"), h("tbody", {}, data.checks.filter((one) => !isShownAbove(one)).map((one) => h("tr", {},
    h("th", { scope: "row" }, one.check), h("td", {}, badge(one.ok ? "ok" : "to do", one.ok ? "good" : "bad")), h("td", {}, one.text))))));
  if (before) paint(before);
}

async function load() {
  const { data } = await get("/operator/overview");
  if (!body) {
    const part = () => h("div");
    body = { day: h("div", {}, h("p", { class: "hint" }, "The first curves appear after ten minutes: the service keeps a sample every five.")), alarms: part(), figures: part(), listeners: part(), nodes: part(), nodesBox: null, room: h("div", { id: "room" }), consumers: h("div", { id: "consumers" }), doctor: h("div", { id: "doctor", "aria-busy": "true" }, h("p", { class: "skeleton" })),
      numbers: part(), statistics: null };
    body.statistics = h("details", { id: "statistics" }, h("summary", {}, "Every statistic"), body.numbers);
    body.topics = part();
    body.topicsBox = h("div", { id: "topics", hidden: true }, box("Topics and hooks", body.topics));
    body.nodesBox = h("div", { id: "nodes", hidden: true }, box("Nodes", body.nodes));
    fill(page, box("Now", body.alarms, body.figures), body.nodesBox, box("The last day", body.day), box("Listeners", body.listeners), box("Store and disk", body.room), body.topicsBox, box("Consumers of the log", body.consumers),
      box("Checks of the doctor", h("p", { class: "row" }, sameCommand("doctor")), body.doctor),
      box("Statistics", h("p", { class: "row" }, sameCommand("statistics"), button("Diagnostics file", (event) => attempt(async () => {
        const answer = await get("/operator/diagnostics");
        saveFile("trunkline-diagnostics.json", JSON.stringify(answer.data, null, 2), "application/json");
        done("The file has addresses of peers, ids and e-mail addresses, and no secrets.");
      }, { button: event.target }))), body.statistics));
  }
  paint(data);
}

await show(async () => {
  await load();
  follow(load, AGAIN_MS);
  await day();
  follow(day, 60000);
  await examine();
});
