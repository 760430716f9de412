// The state of the service: the first questions of an incident, answered without a shell.

import { get, done, attempt } from "./api.js";
import { badge, box, button, figures, follow, page, persist, sameCommand, show } from "./dash.js";
import { Chart } from "./chart.js";
import { fileSize, fill, fullTime, h, heads, saveFile, shown, time, whole } from "./dom.js";
import { _, plural } from "./texts.js";

const AGAIN_MS = 5000;
const RECENT_MS = 600000;  // a count that grew within this time is still listed
const RATES = [[_("Messages"), "ingest", "messages"], [_("Actions"), "ingest", "actions"], [_("Failed messages"), "ingest", "failed_messages"], [_("Commits"), "store", "commits"]];

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
  if (data.problem) found.push([_("The service is not ready"), data.problem, null]);
  for (const one of data.listeners.filter((listener) => listener.problem)) found.push([_("{name} does not listen", { name: one.name }), one.problem, null]);
  for (const one of data.consumers.filter((consumer) => consumer.behind > 10000)) found.push([_("{name} lags", { name: one.name }), _("It is {count} messages of the log behind.", { count: whole(one.behind) }), "#consumers"]);
  if (data.room.fullOn !== null) found.push([_("The disk will be full"), _("{sentence}: on {when}.", { sentence: data.room.sentence, when: fullTime(data.room.fullOn) }), "#room"]);
  if (of(data, "subscriptions", "suspended")) found.push([_("Subscriptions are suspended"), _("{count} of them.", { count: whole(of(data, "subscriptions", "suspended")) }), "/developer/subscriptions"]);
  for (const one of data.connectors) found.push([_("The connector of {uniqueName} fails", { uniqueName: one.uniqueName }), one.lastOn === null ? one.problem : _("{problem} Last: {when}.", { problem: one.problem, when: fullTime(one.lastOn) }), null]);
  for (const [part, name, text] of [["rules", "problems", _("Rules have problems")], ["rules", "stopped", _("Rules were stopped")], ["store", "failures", _("Commits failed")]]) {
    if (of(data, part, name) > (before ? of(before, part, name) : 0)) grewOn.set(name, Date.now());
    if (Date.now() - (grewOn.get(name) ?? 0) < RECENT_MS) found.push([text, _("{count} since the start.", { count: whole(of(data, part, name)) }), "#statistics"]);
  }
  found.push(...ofNodes(data.node));
  for (const one of examined.filter((check) => !check.ok)) found.push([_("The doctor: {check}", { check: one.check }), one.text, "#doctor"]);
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
    if (isSilent(one)) told(_("Node {name} is silent", { name: one.name }), _("It was heard {heard} s ago. After {lease} s the others take its work: look at that machine.", { heard: whole(Math.round(one.heardSeconds)), lease: shown(one.leaseSeconds) }));
    if (one.behindRows > BEHIND || one.behindChanges > BEHIND) told(_("Node {name} does not follow the others", { name: one.name }), _("It is {rows} messages and {changes} changes behind.", { rows: whole(one.behindRows), changes: whole(one.behindChanges) }));
    if (one.isDraining) told(_("Node {name} drains", { name: one.name }), _("It moves its connections to the others, and ends."));
  }
  if (node.nodes.length === 1) told(_("This node serves alone"), _("No other one goes on when it fails."));
  if (node.freeLeases.length) told(_("Work that no node does"), _("{names}: one takes it within seconds, unless cluster.workers of each leaves it out.", { names: node.freeLeases.join(", ") }));
  if (node.latencySeconds > SLOW_S) told(_("The database is slow"), _("One commit takes {time}: each acknowledgement waits for it.", { time: milliseconds(node.latencySeconds) }));
  if (node.oldestSnapshotSeconds > OLD_S) told(_("A transaction has been open for long"), _("{minutes} minutes: until it ends, deleted rows keep their room in the database.", { minutes: whole(Math.round(node.oldestSnapshotSeconds / 60)) }));
  return found;
}

const milliseconds = (seconds) => _("{seconds} ms", { seconds: shown(Math.round(seconds * 10000) / 10) });
const behind = (one) => one.behindRows || one.behindChanges ? _("{rows} messages, {changes} changes", { rows: whole(one.behindRows), changes: whole(one.behindChanges) }) : "–";

function nodes(node) {
  body.nodesBox.hidden = !node?.nodes.length;
  if (body.nodesBox.hidden) return;
  fill(body.nodes, h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Nodes that serve together")),
    heads(_("Node"), _("State"), _("Since"), _("Does for all"), `${_("Connections")}#`, _("Behind"), `${_("Commit")}#`), h("tbody", {}, node.nodes.map((one) => h("tr", {},
      h("th", { scope: "row" }, one.name, one.name === node.name ? [" ", _("(this one)")] : ""),
      h("td", { "data-label": _("State") }, one.isDraining ? badge("drains") : isSilent(one) ? badge(_("silent for {seconds} s", { seconds: whole(Math.round(one.heardSeconds)) }), "bad") : badge("serves", "good")),
      h("td", { "data-label": _("Since") }, h("span", { title: _("Trunkline {version}, epoch {epoch}, heard {seconds} s ago", { version: one.version, epoch: one.epoch, seconds: shown(one.heardSeconds) }) }, time(one.since)), ` · ${_("epoch {number}", { number: whole(one.epoch) })}`),
      h("td", { "data-label": _("Does for all") }, one.leases.join(", ") || "–"),
      h("td", { "data-label": _("Connections"), class: "size" }, whole(one.connections)),
      h("td", { "data-label": _("Behind") }, behind(one)),
      h("td", { "data-label": _("Commit"), class: "size" }, one.latencySeconds ? milliseconds(one.latencySeconds) : "–"))))),
  h("details", {}, h("summary", {}, _("Not shared by the nodes")), h("ul", {}, node.apart.map((text) => h("li", {}, text)))));
}

// Open topics and hooks whose payloads become messages
function topicDevices(entries) {
  body.topicsBox.hidden = entries.length === 0;
  if (body.topicsBox.hidden) return;
  fill(body.topics, h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Topic devices")), heads(_("Entry"), _("From"), `${_("Messages")}#`, `${_("Made")}#`, _("Not understood"), _("Keys without a device")),
    h("tbody", {}, entries.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { "data-label": _("From") }, h("code", {}, one.source)),
      h("td", { "data-label": _("Messages"), class: "size" }, whole(one.stored)), h("td", { "data-label": _("Made"), class: "size" }, whole(one.made)),
      h("td", { "data-label": _("Not understood") }, one.problem ? badge(one.not_understood ? `${whole(one.not_understood)}: ${one.problem}` : one.problem, "bad") : badge("nothing", "good")),
      h("td", { "data-label": _("Keys without a device") }, one.unknown.join(", ") || "–"))))));
}

function forwarding(upstreams, edges) {
  body.forwardingBox.hidden = upstreams.length + edges.length === 0;
  if (body.forwardingBox.hidden) return;
  const state = (one) => one.problem ? badge(one.problem, "bad") : badge(one.state === "elsewhere" ? _("another node forwards") : _("sends"), "good");
  fill(body.forwarding,
    upstreams.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Upstreams")), heads(_("Upstream"), _("To"), `${_("Sent")}#`, `${_("Actions")}#`, _("Behind"), _("Retention deletes from"), _("State")),
      h("tbody", {}, upstreams.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { "data-label": _("To") }, h("code", {}, one.to)),
        h("td", { "data-label": _("Sent"), class: "size" }, whole(one.sent)), h("td", { "data-label": _("Actions"), class: "size" }, whole(one.actions)),
        h("td", { "data-label": _("Behind") }, one.behind ? _("{rows} rows, {seconds} s", { rows: whole(one.behind), seconds: whole(Math.round(one.behind_seconds)) }) : "–"),
        h("td", { "data-label": _("Retention deletes from") }, one.deletes_on === null ? "–" : fullTime(one.deletes_on)),
        h("td", { "data-label": _("State") }, state(one)))))) : null,
    edges.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Edges")), heads(_("Edge"), `${_("Messages")}#`, `${_("Dropped")}#`, _("Last message"), _("State")),
      h("tbody", {}, edges.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name),
        h("td", { "data-label": _("Messages"), class: "size" }, whole(one.messages)), h("td", { "data-label": _("Dropped"), class: "size" }, whole(one.dropped)),
        h("td", { "data-label": _("Last message") }, one.seen_on === null ? "–" : fullTime(one.seen_on)),
        h("td", { "data-label": _("State") }, one.problem ? badge(one.problem, "bad") : badge(_("takes"), "good")))))) : null);
}

function connections(data) {
  const all = data.node?.nodes ?? [];
  if (!all.length) return [[_("Connections of devices"), whole(of(data, "connections", "links"))]];
  return [[_("Connections here"), whole(of(data, "connections", "links"))], [_("Of all nodes"), whole(all.reduce((sum, one) => sum + one.connections, 0))]];
}

function paint(data) {
  const found = alarms(data), room = data.room;
  fill(body.alarms, found.length ? h("ul", { class: "alarms" }, found.map(([name, text, href]) => h("li", {}, h("div", {}, h("p", {}, h("b", {}, name)), h("p", {}, text)),
    href ? h("a", { href, "aria-label": _("Open: {name}", { name }) }, _("Open")) : null))) : h("ul", { class: "alarms" }, h("li", { class: "calm" }, h("p", {}, _("The service is ready, and nothing is wrong that it knows of.")))));
  fill(body.figures, figures(
    [_("Version"), h("span", { title: data.version }, data.version.split(" ")[0])], [_("Runs since"), time(data.startedOn)], ...RATES.map(([name, ...at]) => [name, rate(data, ...at)]),
    [_("Devices online"), whole(of(data, "presence", "online"))], ...connections(data),
    [_("Live feeds"), whole(of(data, "feeds", "subscribers"))], [_("Waiting to be stored"), whole(of(data, "store", "waiting_rows"))]));
  fill(body.listeners, h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Listeners")), heads(_("Listener"), _("Address"), _("State"), _("Answers")), h("tbody", {}, data.listeners.map((one) =>
    h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { "data-label": _("Address") }, h("code", {}, one.address || "–")),
      h("td", { "data-label": _("State") }, one.problem ? badge(one.problem, "bad") : badge("listens", "good")),
      h("td", { "data-label": _("Answers") }, Object.entries(one.answers).map(([code, times]) => `${code}: ${whole(times)}`).join(", ") || "–"))))));
  const node = data.node;
  nodes(node);
  const several = node === null ? [] : [[_("This node"), node.name], [_("Take-overs of the lease"), whole(node.leaseEpoch)], [_("The lease lasts"), _("{seconds} s", { seconds: shown(node.leaseLeftSeconds) })],
    [_("Stand by"), node.standbys.join(", ") || _("no node"), false], [_("Latency of the database"), milliseconds(node.latencySeconds), node.latencySeconds > SLOW_S],
    [_("Oldest transaction"), _("{seconds} s", { seconds: shown(node.oldestSnapshotSeconds) }), node.oldestSnapshotSeconds > OLD_S]];
  fill(body.room, figures([_("Engine"), data.engine === "sqlite" ? "SQLite" : "PostgreSQL"], ...several, [_("Store"), fileSize(room.storeBytes)], [_("Free on its disk"), fileSize(room.availableBytes), room.fullOn !== null],
    [_("Grows a day"), room.bytesADay === null ? _("too young to tell") : fileSize(room.bytesADay)], [_("Retention"), room.retentionDays ? plural("{count} day", "{count} days", room.retentionDays) : _("keeps everything")],
    [_("The disk is full"), room.fullOn === null ? (room.bytesADay === null ? _("too young to tell") : _("not in sight")) : fullTime(room.fullOn), room.fullOn !== null]), h("p", {}, `${room.sentence}.`),
    room.parts.length ? h("table", {}, h("caption", { class: "unseen" }, _("Parts of the store")), heads(_("Part of the store"), `${_("Size")}#`, `${_("Comes a day")}#`), h("tbody", {}, [...room.parts].sort((a, b) => b.bytes - a.bytes).map((one) =>
      h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { class: "size" }, fileSize(one.bytes)), h("td", { class: "size" }, one.bytesADay ? fileSize(one.bytesADay) : "–"))))) : null);
  topicDevices(data.statistics["topic devices"]?.entries ?? []);
  forwarding(data.statistics.forwards?.entries ?? [], data.statistics.edges?.edges ?? []);
  const lags = [[_("snapshots and rollups"), of(data, "folds", "held_rows")], [_("rules"), of(data, "rules", "waiting_rows")], [_("subscriptions"), of(data, "subscriptions", "backlog")],
    [_("connectors"), of(data, "connectors", "waiting")], [_("mails"), of(data, "mails", "waiting")]];
  fill(body.consumers, h("table", {}, h("caption", { class: "unseen" }, _("Waiting for each consumer")), heads(_("Consumer"), `${_("Messages behind")}#`), h("tbody", {}, lags.map(([name, behind]) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "size" }, whole(behind)))))),
  data.consumers.length ? h("table", {}, h("caption", { class: "unseen" }, _("Saved positions")), heads(_("Saved position of"), `${_("Behind")}#`, `${_("Position")}#`), h("tbody", {}, data.consumers.map((one) =>
    h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { class: "size" }, whole(one.behind)), h("td", { class: "size" }, whole(one.position)))))) : null,
  h("p", { class: "hint" }, _("Subscriptions that are behind: {behind}. Notifications that wait: {waiting}.", { behind: whole(of(data, "subscriptions", "behind")), waiting: whole(of(data, "subscriptions", "pending")) })));
  if (!body.statistics.open || before === null) fill(body.numbers, Object.entries(data.statistics).map(([part, numbers]) => h("div", {}, h("h3", {}, part),
    h("dl", { class: "facts" }, Object.entries(numbers ?? {}).flatMap(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, shown(Array.isArray(value) ? value.length : value))])))));
  before = data;
}

// The last day, from samples that the service takes every five minutes
const CURVES = [[_("messages in a second"), (one) => one.messages / one.seconds], [_("connections of devices"), (one) => one.connections],
  [_("mean commit, ms"), (one) => one.commitUs / 1000], [_("refusals in five minutes"), (one) => one.refusals * 300 / one.seconds], [_("size of the store, MB"), (one) => one.storeBytes / 1e6]];
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
  fill(body.doctor, h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Checks")), h("tbody", {}, data.checks.filter((one) => !isShownAbove(one)).map((one) => h("tr", {},
    h("th", { scope: "row" }, one.check), h("td", {}, badge(one.ok ? "ok" : _("to do"), one.ok ? "good" : "bad")), h("td", {}, one.text))))));
  if (before) paint(before);
}

async function load() {
  const { data } = await get("/operator/overview");
  if (!body) {
    const part = () => h("div");
    body = { day: h("div", {}, h("p", { class: "hint" }, _("The first curves appear after ten minutes: the service keeps a sample every five."))), alarms: part(), figures: part(), listeners: part(), nodes: part(), nodesBox: null, room: h("div", { id: "room" }), consumers: h("div", { id: "consumers" }), doctor: h("div", { id: "doctor", "aria-busy": "true" }, h("p", { class: "skeleton" })),
      numbers: part(), statistics: null };
    body.statistics = h("details", { id: "statistics" }, h("summary", {}, _("Every statistic")), body.numbers);
    body.topics = part();
    body.topicsBox = h("div", { id: "topics", hidden: true }, box(_("Topics and hooks"), body.topics));
    body.forwarding = part();
    body.forwardingBox = h("div", { id: "forwarding", hidden: true }, box(_("Upstreams and edges"), body.forwarding));
    body.nodesBox = h("div", { id: "nodes", hidden: true }, box(_("Nodes"), body.nodes));
    fill(page, box(_("Now"), body.alarms, body.figures), body.nodesBox, box(_("The last day"), body.day), box(_("Listeners"), body.listeners), box(_("Store and disk"), body.room), body.topicsBox, body.forwardingBox, box(_("Consumers of the log"), body.consumers),
      box(_("Checks of the doctor"), h("p", { class: "row" }, sameCommand("doctor")), body.doctor),
      box(_("Statistics"), h("p", { class: "row" }, sameCommand("statistics"), button(_("Diagnostics file"), (event) => attempt(async () => {
        const answer = await get("/operator/diagnostics");
        saveFile("trunkline-diagnostics.json", JSON.stringify(answer.data, null, 2), "application/json");
        done(_("The file has addresses of peers, ids and e-mail addresses, and no secrets."));
      }, { button: event.target }))), body.statistics));
  }
  paint(data);
}

await show(async () => {
  await load();
  follow(load, AGAIN_MS);
  await persist(day, AGAIN_MS);
  follow(day, 60000);
  await persist(examine, AGAIN_MS);
});
