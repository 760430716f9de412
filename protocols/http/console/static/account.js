// The person's name, the browsers in which the person is signed in, and the events of the account.

import { loadActivity } from "./activity.js";
import "./applications.js";
import { accessToken, attempt, call, done, download, get } from "./api.js";
import { DataTable } from "./data-table.js";
import { $, fileSize, fill, fullTime, h, heads, sure, time, typed } from "./dom.js";
import { _, phrase } from "./texts.js";

const uid = $("meta[name=uid]").content;
const name = $("#name");
const BROWSERS = [["Edg", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]];
const SYSTEMS = [["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS X", "macOS"], ["Linux", "Linux"]];

function browser(userAgent) {
  const [program, system] = [BROWSERS, SYSTEMS].map((known) => known.find(([mark]) => userAgent.includes(mark))?.[1]);
  return program && system ? _("{browser} on {system}", { browser: program, system }) : userAgent || _("Unknown browser");
}

const sessions = new DataTable(_("Sessions"), [
  { name: _("Browser"), value: (one) => browser(one.userAgent), isName: true, cell: (one) => h("span", { title: one.userAgent }, browser(one.userAgent),
    ...(one.id === $("#sessions").dataset.this ? [" ", h("small", { class: "tag" }, _("this browser"))] : [])) },
  { name: _("Address"), value: (one) => one.address },
  { name: _("Last used"), value: (one) => one.lastUsedOn, cell: (one) => time(one.lastUsedOn) },
  { name: _("Signed in until"), value: (one) => one.expiresOn, cell: (one) => fullTime(one.expiresOn) },
  { name: "", value: () => "", cell: signOut },
], { file: "sessions.csv", cards: 5 });

async function load() {
  sessions.set((await get(`/users/${uid}/sessions`)).data.sessions);
  if (!sessions.element.isConnected) fill($("#sessions"), sessions.element);
}

function signOut(one) {
  return h("button", { type: "button", class: "quiet small", "aria-label": _("Sign out {browser} at {address}", { browser: browser(one.userAgent), address: one.address }), onclick: (event) => attempt(async () => {
    await call("DELETE", `/users/${uid}/sessions/${one.id}`);
    await accessToken(true);  // signing out ends the tokens of all pages of the person
    done(_("That browser is signed out."));
    await load();
  }, { button: event.target }) }, _("Sign out"));
}

name.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const { data } = await call("PUT", `/users/${uid}`, { body: { fullName: name.elements.fullName.value } });
    name.elements.fullName.value = name.elements.fullName.defaultValue = data.fullName;
    done(_("Your name is changed."));
    await loadActivity();
  }, { form: name });
});

$("#spoken").addEventListener("change", (event) => attempt(async () => {
  await call("PUT", `/users/${uid}`, { body: { fullName: name.elements.fullName.defaultValue, language: event.target.value } });
  location.reload();
}, { button: event.target }));

// Devices that others share with the person. Leaving ends a share; the owner can offer it again.
async function shared() {
  const { data } = await get(`/users/${uid}/shares`, { filter: "ACCEPTED", count: 100 });
  fill($("#shared"), data.shares.length === 0 ? h("p", { class: "soft" }, _("Nobody shares a device with you."))
    : h("table", { class: "cards" }, h("caption", { class: "unseen" }, _("Shared devices")), heads(_("Device"), _("Owner"), ""), h("tbody", {}, data.shares.map((one) =>
      h("tr", {}, h("th", { scope: "row" }, h("a", { href: `/console/devices/${one.did}` }, one.deviceName)), h("td", { "data-label": _("Owner") }, one.ownerName),
        h("td", { class: "act" }, h("button", { type: "button", class: "quiet small", "aria-label": _("Leave {deviceName}", { deviceName: one.deviceName }), onclick: (event) => leave(one, event.target) }, _("Leave"))))))));
}

async function leave(one, button) {
  if (await sure(_("Leave {deviceName}?", { deviceName: one.deviceName }), _("You see it no more. Only its owner can share it with you again."), _("Leave it"))) await attempt(async () => {
    await call("DELETE", `/devices/${one.did}/shares/${one.id}`);
    done(_("You no longer see {deviceName}.", { deviceName: one.deviceName }));
    await shared();
  }, { button });
}

// The archive, then deleting the account

const ARCHIVE_MS = 2000;
const archivePath = `/users/${uid}/archive`;
const email = $("#leave").dataset.email;

async function archive() {
  const { data } = await get(archivePath);
  const made = data.archives[0] ?? null;
  const isMade = made?.status === "Success", isOver = made === null || isMade || made.status === "Failure";
  const ask = h("button", { type: "button", class: "quiet small", onclick: (event) => attempt(async () => {
    await call("POST", archivePath);
    await archive();
  }, { button: event.target }) }, isMade ? _("Make a new one") : _("Make the archive"));
  const fetchIt = h("button", { type: "button", class: "small", onclick: (event) => attempt(async () => {
    const file = await download(`${archivePath}/result`, (size, total) => { event.target.textContent = _("{part} of {total}", { part: fileSize(size), total: fileSize(total) }); });
    const url = URL.createObjectURL(file);
    h("a", { href: url, download: `trunkline-${uid}.tgz` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    event.target.textContent = _("Download");
  }, { button: event.target }) }, _("Download"));
  fill($("#archive"), isMade ? h("p", {}, phrase("Made {when}: {size}, until {end}.", { when: time(made.createdOn), size: fileSize(made.fileSize), end: fullTime(made.expirationDate) }), made.isWhole ? null : [" ", _("It reached its largest size: the oldest messages are not in it.")]) : null,
    made?.status === "Failure" ? h("p", { class: "problem" }, _("It could not be made. Please try again.")) : null,
    isOver ? h("p", { class: "row" }, isMade ? fetchIt : null, ask) : h("p", { role: "status" }, _("It is being made. You can leave this page.")));
  if (!isOver) setTimeout(() => attempt(archive), ARCHIVE_MS);
}

$("#leave").addEventListener("click", async (event) => {
  const first = await sure(_("Delete your account?"), _("Your devices and all their messages, your rules, scenes, shares and exports are deleted at once. Devices that others shall have can be handed over first, on their pages."), _("Go on"));
  const isMeant = first && await typed(_("Are you sure?"), _("This cannot be undone. Type the e-mail address of your account to confirm."), _("Delete for good"), { word: email, name: _("E-mail address"), kind: "email" });
  if (isMeant) await attempt(async () => {
    await call("DELETE", `/users/${uid}`);
    location.assign("/console");
  }, { button: event.target });
});

for (const since of document.querySelectorAll("#factor-since")) since.textContent = fullTime(Number(since.dataset.at));

await attempt(() => Promise.all([load(), shared(), loadActivity(), archive()]));
