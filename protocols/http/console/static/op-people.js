// Users and organizations: search, disabling, resets of passwords and second factors.

import { attempt, call, done, get } from "./api.js";
import { badge, box, button, field, follow, form, page, sameAs, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, showText, sure, time, whole } from "./dom.js";

const COUNT = 100;
const TYPING_MS = 250;
const search = field("search", "Find by address, name or id", "search", { maxlength: 64 });
const word = search.querySelector("input");
const note = h("p", { class: "hint", role: "status" });
const users = new DataTable("Users", [
  { name: "User", value: (one) => one.email, isName: true, cell: (one) => h("span", {}, one.email, one.fullName ? h("span", { class: "type" }, one.fullName) : null) },
  { name: "State", value: (one) => (one.isDisabled ? "disabled" : "active"), cell: (one) => h("span", {}, badge(one.isDisabled ? "disabled" : "active", one.isDisabled ? "bad" : "good"),
    one.isVerified ? null : h("div", { class: "soft" }, "address not proved")) },
  { name: "Devices", value: (one) => one.devices, isNumber: true, cell: (one) => whole(one.devices) },
  { name: "Organizations", value: (one) => one.organizations },
  { name: "Since", value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
  { name: "", value: () => "", cell: (one) => h("span", { class: "acts" },
    button(one.isDisabled ? "Enable" : "Disable", (event) => change(one, one.isDisabled ? "enable" : "disable", event.target)),
    one.accountType === "LOCAL" ? button("New password", (event) => change(one, "resetPassword", event.target)) : null,
    button("Reset code", (event) => change(one, "resetSecondFactor", event.target))) },
], { empty: "Nobody fits.", file: "users.csv" });
const organizations = new DataTable("Organizations", [
  { name: "Organization", value: (one) => one.name, isName: true },
  { name: "Members", value: (one) => one.members, isNumber: true }, { name: "Device types", value: (one) => one.types, isNumber: true },
  { name: "Applications", value: (one) => one.applications, isNumber: true },
  { name: "Messages a month", value: (one) => one.monthlyMessages, isNumber: true, cell: (one) => (one.monthlyMessages < 0 ? "no limit" : whole(one.monthlyMessages)) },
], { empty: "No organizations.", file: "organizations.csv" });

const ASKED = {
  disable: ["Disable", "They are signed out at once, and all tokens of applications end. Their devices go on.", "The user is disabled."],
  enable: null,
  resetPassword: ["Reset the password of", "You get a link to hand over. It is good for half an hour, and once.", "The link is made."],
  resetSecondFactor: ["Remove the second factor of", "They are signed out, and no code is asked for until they set up a new one.", "The second factor is removed."],
};

async function change(one, action, pressed) {
  const asked = ASKED[action];
  if (asked && !await sure(`${asked[0]} ${one.email}?`, asked[1], asked[0].split(" ")[0])) return;
  await attempt(async () => {
    const { data } = await call("POST", "/operator/users", { body: { uid: one.id, action }, quiet: true });
    if (data.link) showText(`A new password for ${one.email}`, data.link, "Hand it over in a way that nobody else reads.");
    else done(asked ? asked[2] : "The user is enabled.");
    await load();
  }, { button: pressed });
}

const invite = form("Invite", [h("div", { class: "tools" }, field("email", "E-mail address", "email", { required: true, maxlength: 320 }), field("organization", "Organization, if any", "text", { maxlength: 64 }),
  field("role", "Role in it", [["developer", "developer"], ["administrator", "administrator"], ["viewer", "viewer"]]))], "Invite", async (elements, element) => {
  const body = { email: elements.email.value.trim(), organization: elements.organization.value.trim(), role: elements.role.value };
  const { data } = await call("POST", "/operator/invitations", { body, quiet: true });
  element.reset();
  if (data.link) showText(`The invitation of ${data.email}`, data.link, "It is good for 7 days, and once. A mail with it is sent where a mail server is set.");
  else done(`${data.email} is invited.`);
});

async function load() {
  const { data, total } = await get("/operator/users", { search: word.value.trim(), count: COUNT });
  users.set(data);
  note.textContent = total > data.length ? `The first ${whole(data.length)} of ${whole(total)}: search for the others.` : "";
}

let timer = 0;
word.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => attempt(load), TYPING_MS);
});

await show(async () => {
  await load();
  const { data } = await get("/operator/organizations");
  organizations.set(data.organizations);
  fill(page, box("Users", h("p", {}, sameAs("trunkline user invite ada@example.org", "On the machine of the service: it prints the link, and mails it where a mail server is set.")), search, users.element, note),
    box("Invite", invite),
    box("Organizations", organizations.element));
  follow(() => get("/operator/waiting"), 5000);  // whether the person is still an operator
});
