// One subscription: its delivery log, and replay.

import { attempt, call, done, get, Refused } from "./api.js";
import { badge, box, button, crumb, everything, field, follow, form, id, organizations, page, progress, sameCall, show, title, uid } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, fullTime, h, sure, time, whole } from "./dom.js";
import { named, nameOf, withNames } from "./names.js";
import { _, phrase, plural, worded } from "./texts.js";

const PATH = `/subscriptions/${id}`;
const KINDS = { DELIVERED: "good", FAILED: "bad", ACTIVE: "good", SUSPENDED: "bad", FAILING: "bad" };
// "Active" means not paused only: a subscription whose deliveries fail shows as failing.
const stateOf = (one) => (one.status === "ACTIVE" && one.problem ? "FAILING" : one.status);
const KEPT = `trunkline replay ${id}`;  // a replay continues when the page is left
let parts = null;
let members = [];
let waiting = -1;
let listedOn = 0;

const outcome = ({ attempts }) => {
  const last = attempts.at(-1);
  if (!last) return _("no attempt yet");
  const answer = _("{answer} after {ms} ms", { answer: last.httpStatus ?? last.error ?? "", ms: whole(last.durationMs) });
  return last.excerpt ? `${answer}: ${last.excerpt}` : answer;
};

// The device or device type, with its user
function ofWhat(one) {
  const of = one.sdid ?? one.ddid ?? one.sdtid;
  const user = named(one.uid, undefined, true);
  if (!of) return [user];
  return one.sdtid ? phrase("devices of the type {type} of {user}", { type: named(of), user }) : phrase("{device} of {user}", { device: named(of, `/console/devices/${of}`), user });
}

const replay = (body) => async () => {
  const { data } = await call("POST", `${PATH}/deliveries/replay`, { body });
  localStorage.setItem(KEPT, JSON.stringify({ ids: data.ids, on: Date.now() }));
  done(plural("{count} notification is delivered again, with the same id.", "{count} notifications are delivered again, with the same ids.", data.ids.length));
  await deliveries();
};

// Progress of this browser's latest replay: its notifications, and the unanswered ones.
function paintReplay() {
  let begun = null;
  try {
    begun = JSON.parse(localStorage.getItem(KEPT));
  } catch { /* not ours */ }
  if (!Array.isArray(begun?.ids) || begun.ids.length === 0) return;
  const states = new Map(parts.log.rows.map((one) => [one.id, one.status]));
  const ids = begun.ids.filter((one) => states.has(one)), waiting = ids.filter((one) => states.get(one) === "PENDING").length;
  if (ids.length === 0) return;  // the filter of the log leaves them out
  const failed = ids.filter((one) => states.get(one) === "FAILED").length;
  fill(parts.replay, h("p", { role: "status" }, phrase("The latest replay, begun {when}: {answered} of {total} answered, {failed} failed.", { when: time(begun.on), answered: whole(ids.length - waiting), total: whole(ids.length), failed: whole(failed) })),
    waiting ? progress(_("Progress of the replay"), ids.length - waiting, ids.length) : null);
}

async function deliveries() {
  const status = parts.status.value || undefined;
  await everything(`${PATH}/deliveries`, { status }, (answer) => answer.data, (found, more) => parts.log.set(found, more));
  listedOn = Date.now();
  paintReplay();
}

// The subscription from the organization's list, which has its failures
async function line() {
  const lists = await Promise.all(members.map((one) => everything(`/developer/organizations/${one.id}/subscriptions`, {}, (answer) => answer.data)));
  return lists.flat().find((one) => one.id === id);
}

async function standing() {
  const [{ data }, known] = await Promise.all([get(PATH), line()]);
  const one = { ...data, problem: known?.problem };
  title(one.description || one.callbackUrl || one.subscriptionType);
  fill(parts.standing, h("dl", { class: "facts" }, h("dt", {}, _("Status")), h("dd", {}, badge(stateOf(one).toLowerCase().replaceAll("_", " "), KINDS[stateOf(one)] ?? ""), one.problem ? h("div", { class: "soft" }, withNames(one.problem)) : null),
    h("dt", {}, _("Of")), h("dd", {}, { message: _("Messages"), action: _("Actions"), alarm: _("Alarms") }[one.messageType] ?? one.messageType, ": ", ...ofWhat(one)), one.callbackUrl ? [h("dt", {}, _("Callback")), h("dd", {}, h("code", {}, one.callbackUrl))] : null,
    h("dt", {}, _("Created")), h("dd", {}, time(one.createdOn))),
  h("p", { class: "row" }, ["ACTIVE", "PAUSED"].includes(one.status) ? button(one.status === "PAUSED" ? _("Resume") : _("Pause"), (event) => attempt(async () => {
    await call("PUT", PATH, { body: { status: one.status === "PAUSED" ? "ACTIVE" : "PAUSED" } });
    done(one.status === "PAUSED" ? _("Messages since the pause are delivered now.") : _("Paused: messages that come are delivered later."));
    await standing();
  }, { button: event.target })) : null, sameCall("GET", `${PATH}/deliveries`),
  button(_("Delete"), async (event) => {
    if (!await sure(_("Delete this subscription?"), _("Nothing more is delivered. Waiting notifications and the delivery log are deleted."), _("Delete it"))) return;
    await attempt(async () => {
      await call("DELETE", PATH);
      location.assign("/developer/subscriptions");
    }, { button: event.target });
  }, "danger small")));
}

// Only the user of the subscription may read the delivery log: a colleague sees that user's name.
async function requireOwn() {
  members = await organizations();
  const found = await line();
  if (!found || found.uid === uid) return;
  const owner = await nameOf(found.uid);
  throw new Refused(403, { error: { message: _("This subscription is of {owner}, who alone sees its deliveries.", { owner: owner?.name ?? _("somebody else") }) } });
}

await show(async () => {
  await requireOwn();
  crumb("/developer/subscriptions", _("Subscriptions"));
  parts = { standing: h("div"), replay: h("div", { id: "replay" }), log: new DataTable(_("Deliveries"), [
    { name: _("Status"), value: (one) => one.status, cell: (one) => badge(one.status.toLowerCase(), KINDS[one.status] ?? ""), isName: true },
    { name: _("Notification"), value: (one) => one.id, cell: (one) => h("code", { class: "id", title: one.id }, `…${one.id.slice(-8)}`) },
    { name: _("Attempts"), value: (one) => one.attempts.length, isNumber: true },
    { name: _("Last attempt"), value: (one) => one.attempts.at(-1)?.ts ?? 0, cell: (one) => (one.attempts.length ? time(one.attempts.at(-1).ts) : "–") },
    { name: _("Answer"), value: outcome },
    { name: _("Next"), value: (one) => one.nextAttemptOn ?? "", cell: (one) => (one.nextAttemptOn ? fullTime(one.nextAttemptOn) : "–") },
    { name: "", value: () => "", cell: (one) => button(_("Deliver again"), (event) => attempt(replay({ ids: [one.id] }), { button: event.target })) },
  ], { empty: _("Nothing was delivered yet."), file: `deliveries-${id}.csv` }) };
  const chosen = field("status", _("Show"), [["", _("everything")], ["FAILED", worded("failed")], ["PENDING", worded("pending")], ["DELIVERED", worded("delivered")]]);
  parts.status = chosen.querySelector("select");
  parts.status.addEventListener("change", () => attempt(deliveries));
  const hour = (ms) => new Date(ms - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 16);
  await standing();
  fill(page, box(_("Subscription"), parts.standing), box(_("Delivery log"), h("div", { class: "tools" }, chosen), parts.log.element),
    box(_("Deliver again"), form(_("Deliver again"), [h("div", { class: "tools" }, field("startDate", _("Made from"), "datetime-local", { value: hour(Date.now() - 3600000), required: true }),
      field("endDate", _("to"), "datetime-local", { value: hour(Date.now() + 60000), required: true }))], _("Deliver these again"),
    (elements) => replay({ startDate: Date.parse(elements.startDate.value), endDate: Date.parse(elements.endDate.value) })()), parts.replay));
  await deliveries();
  follow(async () => {
    await standing();
    const { data } = await get(`${PATH}/deliveries`, { status: parts.status.value, count: 100 });
    const newest = new Set(data.map((one) => one.id));
    parts.log.set([...data, ...parts.log.rows.filter((one) => !newest.has(one.id))], parts.log.more);
    // Older ones change only while some wait. Then all are read again, less often for longer lists.
    const { total } = await get(`${PATH}/deliveries`, { status: "PENDING", count: 1 });
    const isChanged = total > 0 || total !== waiting;
    const left = listedOn + Math.max(4000, parts.log.rows.length * 30) - Date.now();
    if (isChanged && left <= 0) {
      waiting = total;
      await deliveries();
      return undefined;
    }
    paintReplay();
    return isChanged ? left : undefined;
  }, 5000, { of: "deliveries", concerns: (data) => data.subscriptionId === id });
});
