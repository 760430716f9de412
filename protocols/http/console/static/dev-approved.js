// The approved list of a device type: ids, uploads with their progress, certificates.

import { attempt, call, done, get } from "./api.js";
import { badge, box, button, everything, field, follow, form, id, page, progress, sameAs, show, upload } from "./dash.js";
import { DataTable, quoted } from "./data-table.js";
import { typeShown } from "./dev-shared.js";
import { $, fill, h, sure, time, toast, whole } from "./dom.js";
import { named } from "./names.js";
import { curlLine, REST } from "./api.js";
import { _, phrase } from "./texts.js";

const KEPT = `trunkline upload ${id}`;  // an upload continues when the page is left
const WHITELIST = `/devicetypes/${id}/whitelist`;
let parts = null;

async function entries() {
  await everything(WHITELIST, {}, (answer) => answer.data, (found, more) => parts.ids.set(found, more));
}

async function watch(uploadId) {
  let data = null;
  try {
    ({ data } = await get(`${WHITELIST}/${encodeURIComponent(uploadId)}/status`));
  } catch (error) {
    if (error.status !== 404 && error.status !== 400) throw error;
    localStorage.removeItem(KEPT);  // the upload is of another store, or too old
    fill(parts.upload);
    return false;
  }
  const { total, succeeded, failed } = data.vdidsCount;
  const isOver = data.status !== "Processing";
  const rejected = isOver && failed ? (await everything(`${WHITELIST}/${uploadId}/rejectedRows`, {}, (answer) => answer.data)).slice(0, 10000) : [];
  fill(parts.upload, h("p", {}, badge(data.status === "Failed" ? _("failed: no header “vdid”, or too many rows") : isOver ? _("done") : _("is being worked through"), data.status === "Failed" ? "bad" : isOver ? "good" : ""),
    " ", _("{succeeded} stored, {failed} refused, of {total}", { succeeded: whole(succeeded), failed: whole(failed), total: whole(total) })), isOver ? null : progress(_("Progress of the upload"), succeeded + failed, total),
  rejected.length ? h("ul", { class: "findings" }, rejected.slice(0, 20).map((one) => h("li", {}, _("Row {index}: {message}", { index: one.index, message: one.message })))) : null,
  rejected.length > 20 ? h("p", { class: "hint" }, _("and {count} more", { count: whole(rejected.length - 20) })) : null);
  if (isOver) {
    localStorage.removeItem(KEPT);
    await entries();
  }
  return !isOver;
}

async function goOn(uploadId) {
  if (await watch(uploadId)) follow(() => watch(uploadId), 500, { of: "upload", concerns: (data) => data.uploadId === uploadId });
}

function send(elements) {
  const file = elements.file.files[0];
  const typed = elements.ids.value.split(/\s+/).filter(Boolean);
  if (!file && typed.length === 0) {
    toast(_("Choose a file, or write ids."), { bad: true });
    return undefined;
  }
  const body = file ?? new Blob([["vdid", ...typed.map(quoted)].join("\n")], { type: "text/csv" });
  return (async () => {
    const { data } = await upload(WHITELIST, body, "text/csv", (gone, total) => fill(parts.upload, h("p", {}, _("Sending…")), progress(_("Progress of sending"), gone, total)));
    localStorage.setItem(KEPT, data.uploadId);
    await goOn(data.uploadId);
  })();
}

async function certificates() {
  const found = await everything(`${WHITELIST}/certificates`, {}, (answer) => answer.data);
  fill(parts.certificates, found.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Certificates")), h("tbody", {}, found.map(({ id: cid, certificateFields: one }) => h("tr", {},
    h("th", { scope: "row" }, one.subject, h("span", { class: "type" }, _("from {issuer}, {algorithm}", { issuer: one.issuer, algorithm: one.signatureAlgorithm }))), h("td", { class: "when" }, phrase("until {when}", { when: time(one.validity.notAfter) })),
    h("td", { class: "size" }, button(_("Remove"), async (event) => {
      if (!await sure(_("Remove the certificate?"), _("Vendor ids that its key signs are no longer accepted."), _("Remove the certificate"))) return;
      await attempt(async () => {
        await call("DELETE", `${WHITELIST}/certificates/${cid}`);
        done(_("The certificate is removed."));
        await certificates();
      }, { button: event.target });
    })))))) : h("p", { class: "hint" }, _("None. With one, devices may prove their vendor id by a signature.")));
}

async function isEnabled() {
  const { data } = await get(`${WHITELIST}/status`);
  const isOn = data.enableWhitelist;
  fill(parts.standing, badge(isOn ? _("on: new devices need an id of the list") : _("off"), isOn ? "good" : ""), " ", button(isOn ? _("Turn off") : _("Turn on"), (event) => attempt(async () => {
    await call("PUT", `${WHITELIST}/enable`, { body: { enableWhitelist: !isOn } });
    done(isOn ? _("The list is off.") : _("The list is on."));
    await isEnabled();
  }, { button: event.target })));
}

await show(async () => {
  await typeShown();
  parts = { standing: h("p", { class: "row" }), upload: h("div", { id: "upload" }), certificates: h("div", { id: "certificates" }), ids: null };
  parts.ids = new DataTable(_("Vendor ids"), [
    { name: _("Vendor id"), value: (one) => one.vdid, isName: true, cell: (one) => h("code", {}, one.vdid) },
    { name: _("Device"), value: (one) => one.did ?? "", cell: (one) => (one.did ? named(one.did) : h("span", { class: "soft" }, _("nobody uses it"))) },
    { name: _("Uploaded"), value: (one) => one.uploadedOn, cell: (one) => time(one.uploadedOn) },
    { name: "", value: () => "", cell: (one) => button(_("Remove"), (event) => attempt(async () => {
      await call("DELETE", `${WHITELIST}/${encodeURIComponent(one.vdid)}`);
      done(_("{vdid} is removed.", { vdid: one.vdid }));
      await entries();
    }, { button: event.target })) },
  ], { empty: _("The list is empty."), file: "approved-list.csv" });
  await isEnabled();
  const line = `${curlLine("POST", `${REST}${WHITELIST}`)} -H 'Content-Type: text/csv' --data-binary @ids.csv`;
  fill(page, box(_("The list"), parts.standing),
    box(_("Upload"), h("p", {}, sameAs(line)), form(_("Upload ids"), [field("file", _("A CSV file whose first line is vdid"), "file", { accept: ".csv,text/csv" }), field("ids", _("Or ids, one in each line"), "area", { rows: 3 })], _("Upload"), send), parts.upload),
    box(_("Vendor ids"), parts.ids.element),
    box(_("Certificates"), parts.certificates, form(_("Add a certificate"), [field("certificate", _("A certificate in PEM"), "area", { rows: 4, class: "editor" })], _("Add the certificate"), async (elements, element) => {
      await call("POST", `${WHITELIST}/certificates`, { body: { certificate: elements.certificate.value } });
      element.reset();
      done(_("The certificate is added."));
      await certificates();
    }, "quiet")));
  await Promise.all([entries(), certificates()]);
  const begun = localStorage.getItem(KEPT);
  if (begun) await goOn(begun);
  $("#page").removeAttribute("aria-busy");
});
