// The applications to which the person granted something, and how to end that.

import { attempt, call, done, get } from "./api.js";
import { $, empty, fill, h, heads, sure } from "./dom.js";

const uid = $("meta[name=uid]").content;
const names = new Map();
const NOT_TYPES = { "*": "devices of every type", profile: "your account", trials: "your trials, with the addresses of their participants" };

async function load() {
  const { data } = await get(`/users/${uid}/applications`);
  if (data.applications.length === 0) {
    fill($("#applications"), empty("No applications", "An application stands here after you have signed in through it and let it in."));
    return;
  }
  await Promise.all(data.applications.flatMap((one) => one.permissions).map(({ dtid }) => learn(dtid)));
  fill($("#applications"), h("table", { class: "cards" }, h("caption", { class: "unseen" }, "Applications"),
    heads("Name", "Made by", "May", ""),
    h("tbody", {}, data.applications.map(row))));
}

async function learn(dtid) {
  if (dtid in NOT_TYPES || names.has(dtid)) return;
  names.set(dtid, dtid);
  try {
    names.set(dtid, (await get(`/devicetypes/${dtid}`)).data.name);
  } catch { /* the id says enough */ }
}

// In the words of the page on which the person let it in
function words(dtid, permissions) {
  const [reads, writes] = ["READ", "WRITE"].map((one) => permissions.includes(one));
  if (dtid === "profile" || dtid === "trials") return reads && writes ? "see and change" : writes ? "change" : "see";
  return reads && writes ? "see, control, add, change and delete" : writes ? "control, add, change and delete" : "see";
}

function row(one) {
  const what = one.permissions.map(({ dtid, permissions }) => {
    const of = NOT_TYPES[dtid] ?? `your devices of the type ${names.get(dtid)}`;
    return h("div", {}, `${words(dtid, permissions)} ${of}`);
  });
  // Any permission gives those of its own organization's types, too (reference 4.7).
  what.push(h("div", {}, `see, control, add, change and delete your devices of the types of ${one.organization}`));
  return h("tr", {}, h("th", { scope: "row" }, one.name), h("td", { "data-label": "Made by" }, one.organization),
    h("td", { "data-label": "May" }, what),
    h("td", { class: "act" }, h("button", { type: "button", class: "danger small", "aria-label": `Revoke ${one.name}`, onclick: (event) => revoke(one, event.target) }, "Revoke")));
}

async function revoke(one, button) {
  const yes = await sure(`Revoke ${one.name}?`, "It is signed out at once. It has to ask you again before it sees anything.", "Revoke");
  if (yes) await attempt(async () => {
    await call("DELETE", `/users/${uid}/applications/${one.aid}`);
    done(`${one.name} no longer sees anything of yours.`);
    await load();
  }, { button });
}

await attempt(load);
