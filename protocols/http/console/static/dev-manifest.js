// The editor of a Manifest: its findings, a trial with a payload, and its upload.

import { attempt, call, done, get, Refused, tagOf } from "./api.js";
import { badge, box, button, field, form, id, page, sameCall, show } from "./dash.js";
import { typeShown } from "./dev-shared.js";
import { $, fill, h, time } from "./dom.js";
import { save } from "./saving.js";
import { _ } from "./texts.js";

const FIRST = { fields: [{ name: "temperature", type: "CUSTOM", valueClass: "Double", isCollection: false, description: "In the room" }], messageFormat: "json", actions: [] };
const KEPT = `trunkline manifest ${id}`;  // a draft is kept until the tab is closed
const SEEN = `${KEPT} seen`;  // the version from which the draft began

let verdict = null;
let typing = 0;
let seen = {};

// The document in the editor; an error of JSON is a finding with its line.
function read() {
  const text = $("[name=manifest]").value;
  try {
    const document_ = JSON.parse(text);
    if (document_ === null || typeof document_ !== "object" || Array.isArray(document_)) throw new SyntaxError(_("It must be an object."));
    return document_;
  } catch (error) {
    throw new Refused(400, { error: { message: _("No JSON"), errors: [{ field: "manifest", messages: [_("This is no JSON: {message}", { message: error.message })] }] } });
  }
}

function findings(error) {
  const list = error.findings?.length ? error.findings : [{ field: "", messages: [error.message] }];
  fill(verdict, h("p", {}, badge(_("Not valid"), "bad")), h("ul", { class: "findings" }, list.map((one) =>
    h("li", {}, one.field ? h("code", {}, one.field) : null, one.field ? ": " : "", one.messages.join(", ")))));
}

async function judge() {
  clearTimeout(typing);
  try {
    const { data } = await call("POST", `/devicetypes/${id}/manifests/try`, { body: { manifest: read(), payload: $("[name=payload]").value || "{}",
      encoding: $("[name=encoding]").value }, quiet: true });
    fill(verdict, h("p", {}, badge(_("The Manifest is valid"), "good")), data.data
      ? h("div", {}, h("p", {}, _("A message with this payload is stored as")), h("pre", { tabindex: "0", id: "tried" }, h("code", {}, JSON.stringify(data.data, null, 2))))
      : h("p", { id: "tried" }, _("A message with this payload would fail: {reason}", { reason: data.reason })));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    findings(error);
  }
}

async function uploadIt() {
  try {
    const data = await save("POST", `/devicetypes/${id}/manifests`, { manifest: read() }, { seen, labels: { manifest: _("The Manifest") }, take: forget });
    if (data === null) return;
    drop();
    done(data.isNew ? (data.approved ? _("Version {version} is in use.", { version: data.version }) : _("Version {version} waits for an operator's approval: it has a transform.", { version: data.version })) : _("The newest version is the same already."));
    await load();
  } catch (error) {
    if (!(error instanceof Refused) || error.status === 403) throw error;
    findings(error);
  }
}

const drop = () => { for (const one of [KEPT, SEEN]) sessionStorage.removeItem(one); };

async function forget() {
  drop();
  await load();
}

async function load() {
  await typeShown();
  const answer = await get(`/devicetypes/${id}/manifests`, { count: 20 });
  const newest = answer.data[0]?.manifest;
  const draft = sessionStorage.getItem(KEPT);
  const begun = sessionStorage.getItem(SEEN);
  seen = draft !== null && begun !== null ? JSON.parse(begun) : { tag: tagOf(answer.data), data: { manifest: newest } };
  verdict = h("div", { id: "verdict", role: "status" });
  const edit = form(_("Manifest"), [
    field("manifest", _("The Manifest as JSON"), "area", { class: "editor", rows: 20, value: draft ?? JSON.stringify(newest ?? FIRST, null, 2), oninput: (event) => {
      sessionStorage.setItem(KEPT, event.target.value);
      sessionStorage.setItem(SEEN, JSON.stringify(seen));
      clearTimeout(typing);
      typing = setTimeout(() => attempt(judge), 600);
    } }),
  ], _("Upload as the next version"), uploadIt);
  const tryIt = form(_("Try it"), [
    field("payload", _("Payload of a device"), "area", { class: "editor", rows: 3, maxlength: 2048, value: '{"temperature":"21.5","more":1}' }),
    field("encoding", _("Written as"), [["text", "text"], ["hex", _(_("hexadecimal"))]]),
  ], _("Try it"), judge, "quiet");
  fill(page,
    draft === null ? null : h("p", { class: "notice" }, _("This is a draft that was not uploaded."), " ", button(_("Throw it away"), () => attempt(forget))),
    h("div", { class: "columns" }, h("div", { class: "column" }, box(_("Manifest"), h("p", {}, sameCall("POST", `/devicetypes/${id}/manifests`, { manifest: newest ?? FIRST })), edit)),
      h("div", { class: "column" }, box(_("Try it"), tryIt, verdict),
        box(_("Versions"), answer.data.length ? answer.data.map((one) => h("p", { class: "row between" }, h("span", {}, h("b", {}, _("Version {version}", { version: one.version })), " ", time(one.createdOn),
          one.approved ? null : h("span", {}, " ", badge(_("waits for approval")))), button(_("Edit"), () => { $("[name=manifest]").value = JSON.stringify(one.manifest, null, 2); attempt(judge); })))
          : [h("p", { class: "hint" }, _("None yet."))]))));
}

await show(load);
