// The approved list of a device type: ids, uploads with their progress, certificates.

import { attempt, call, done, get } from "./api.js";
import { badge, box, button, everything, field, follow, form, id, page, progress, sameAs, show, upload } from "./dash.js";
import { DataTable, quoted } from "./data-table.js";
import { typeShown } from "./dev-shared.js";
import { $, fill, h, sure, time, toast, whole } from "./dom.js";
import { named } from "./names.js";
import { curlLine, REST } from "./api.js";

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
  fill(parts.upload, h("p", {}, badge(data.status === "Failed" ? "failed: no header “vdid”, or too many rows" : isOver ? "done" : "is being worked through", data.status === "Failed" ? "bad" : isOver ? "good" : ""),
    ` ${whole(succeeded)} stored, ${whole(failed)} refused, of ${whole(total)}`), isOver ? null : progress("Progress of the upload", succeeded + failed, total),
  rejected.length ? h("ul", { class: "findings" }, rejected.slice(0, 20).map((one) => h("li", {}, `Row ${one.index}: ${one.message}`))) : null,
  rejected.length > 20 ? h("p", { class: "hint" }, `and ${whole(rejected.length - 20)} more`) : null);
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
    toast("Choose a file, or write ids.", { bad: true });
    return undefined;
  }
  const body = file ?? new Blob([["vdid", ...typed.map(quoted)].join("\n")], { type: "text/csv" });
  return (async () => {
    const { data } = await upload(WHITELIST, body, "text/csv", (gone, total) => fill(parts.upload, h("p", {}, "Sending…"), progress("Progress of sending", gone, total)));
    localStorage.setItem(KEPT, data.uploadId);
    await goOn(data.uploadId);
  })();
}

async function certificates() {
  const found = await everything(`${WHITELIST}/certificates`, {}, (answer) => answer.data);
  fill(parts.certificates, found.length ? h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Certificates"), h("tbody", {}, found.map(({ id: cid, certificateFields: one }) => h("tr", {},
    h("th", { scope: "row" }, one.subject, h("span", { class: "type" }, `from ${one.issuer}, ${one.signatureAlgorithm}`)), h("td", { class: "when" }, "until ", time(one.validity.notAfter)),
    h("td", { class: "size" }, button("Remove", async (event) => {
      if (!await sure("Remove the certificate?", "Vendor ids that its key signs are no longer accepted.", "Remove the certificate")) return;
      await attempt(async () => {
        await call("DELETE", `${WHITELIST}/certificates/${cid}`);
        done("The certificate is removed.");
        await certificates();
      }, { button: event.target });
    })))))) : h("p", { class: "hint" }, "None. With one, devices may prove their vendor id by a signature."));
}

async function isEnabled() {
  const { data } = await get(`${WHITELIST}/status`);
  const isOn = data.enableWhitelist;
  fill(parts.standing, badge(isOn ? "on: new devices need an id of the list" : "off", isOn ? "good" : ""), " ", button(isOn ? "Turn off" : "Turn on", (event) => attempt(async () => {
    await call("PUT", `${WHITELIST}/enable`, { body: { enableWhitelist: !isOn } });
    done(isOn ? "The list is off." : "The list is on.");
    await isEnabled();
  }, { button: event.target })));
}

await show(async () => {
  await typeShown();
  parts = { standing: h("p", { class: "row" }), upload: h("div", { id: "upload" }), certificates: h("div", { id: "certificates" }), ids: null };
  parts.ids = new DataTable("Vendor ids", [
    { name: "Vendor id", value: (one) => one.vdid, isName: true, cell: (one) => h("code", {}, one.vdid) },
    { name: "Device", value: (one) => one.did ?? "", cell: (one) => (one.did ? named(one.did) : h("span", { class: "soft" }, "nobody uses it")) },
    { name: "Uploaded", value: (one) => one.uploadedOn, cell: (one) => time(one.uploadedOn) },
    { name: "", value: () => "", cell: (one) => button("Remove", (event) => attempt(async () => {
      await call("DELETE", `${WHITELIST}/${encodeURIComponent(one.vdid)}`);
      done(`${one.vdid} is removed.`);
      await entries();
    }, { button: event.target })) },
  ], { empty: "The list is empty.", file: "approved-list.csv" });
  await isEnabled();
  const line = `${curlLine("POST", `${REST}${WHITELIST}`)} -H 'Content-Type: text/csv' --data-binary @ids.csv`;
  fill(page, box("The list", parts.standing),
    box("Upload", h("p", {}, sameAs(line)), form("Upload ids", [field("file", "A CSV file whose first line is vdid", "file", { accept: ".csv,text/csv" }), field("ids", "Or ids, one in each line", "area", { rows: 3 })], "Upload", send), parts.upload),
    box("Vendor ids", parts.ids.element),
    box("Certificates", parts.certificates, form("Add a certificate", [field("certificate", "A certificate in PEM", "area", { rows: 4, class: "editor" })], "Add the certificate", async (elements, element) => {
      await call("POST", `${WHITELIST}/certificates`, { body: { certificate: elements.certificate.value } });
      element.reset();
      done("The certificate is added.");
      await certificates();
    }, "quiet")));
  await Promise.all([entries(), certificates()]);
  const begun = localStorage.getItem(KEPT);
  if (begun) await goOn(begun);
  $("#page").removeAttribute("aria-busy");
});
