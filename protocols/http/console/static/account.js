// The person's name, the browsers in which the person is signed in, and what happened to the account.

import { loadActivity } from "./activity.js";
import { attempt, call, done, get } from "./api.js";
import { $, fill, fullTime, h, heads, time } from "./dom.js";

const uid = $("meta[name=uid]").content;
const BROWSERS = [["Edg", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]];
const SYSTEMS = [["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS X", "macOS"], ["Linux", "Linux"]];

function browser(userAgent) {
  const [name, system] = [BROWSERS, SYSTEMS].map((known) => known.find(([mark]) => userAgent.includes(mark))?.[1]);
  return name && system ? `${name} on ${system}` : userAgent || "Unknown browser";
}

async function load() {
  const { data } = await get(`/users/${uid}/sessions`);
  fill($("#sessions"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Sessions"),
    heads("Browser", "Address", "Last used", "Signed in until", ""),
    h("tbody", {}, data.sessions.map(row))));
}

function row(one) {
  const name = browser(one.userAgent);
  return h("tr", {}, h("th", { scope: "row", title: one.userAgent }, name, one.id === $("#sessions").dataset.this ? h("small", { class: "tag" }, "this browser") : null),
    h("td", { "data-label": "Address" }, one.address), h("td", { class: "when", "data-label": "Last used" }, time(one.lastUsedOn)),
    h("td", { class: "when", "data-label": "Until" }, fullTime(one.expiresOn)),
    h("td", { class: "size" }, h("button", { type: "button", class: "quiet small", "aria-label": `Sign out ${name} at ${one.address}`, onclick: (event) => attempt(async () => {
      await call("DELETE", `/users/${uid}/sessions/${one.id}`);
      done("That browser is signed out.");
      await load();
    }, { button: event.target }) }, "Sign out")));
}

const name = $("#name");
name.addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const { data } = await call("PUT", `/users/${uid}`, { body: { fullName: name.elements.fullName.value } });
    name.elements.fullName.value = data.fullName;
    done("Your name is changed.");
    await loadActivity();
  }, { form: name });
});

await attempt(() => Promise.all([load(), loadActivity()]));
