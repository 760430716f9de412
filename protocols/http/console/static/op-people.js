// Users and organizations: search, disabling, resets of passwords and second factors.

import { attempt, call, done, get } from "./api.js";
import { badge, box, button, field, follow, form, page, sameAs, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, showText, sure, time, whole } from "./dom.js";
import { _, worded } from "./texts.js";

const COUNT = 100;
const TYPING_MS = 250;
const search = field("search", _("Find by address, name or id"), "search", { maxlength: 64 });
const word = search.querySelector("input");
const note = h("p", { class: "hint", role: "status" });
const users = new DataTable(_("Users"), [
  { name: _("User"), value: (one) => one.email, isName: true, cell: (one) => h("span", {}, one.email, one.fullName ? h("span", { class: "type" }, one.fullName) : null) },
  { name: _("State"), value: (one) => (worded(one.isDisabled ? "disabled" : "active")), cell: (one) => h("span", {}, badge(one.isDisabled ? "disabled" : "active", one.isDisabled ? "bad" : "good"),
    one.isVerified ? null : h("div", { class: "soft" }, _("address not proved"))) },
  { name: _("Devices"), value: (one) => one.devices, isNumber: true, cell: (one) => whole(one.devices) },
  { name: _("Organizations"), value: (one) => one.organizations },
  { name: _("Since"), value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
  { name: "", value: () => "", cell: (one) => h("span", { class: "acts" },
    button(one.isDisabled ? _("Enable") : _("Disable"), (event) => change(one, one.isDisabled ? "enable" : "disable", event.target)),
    one.accountType === "LOCAL" ? button(_("New password"), (event) => change(one, "resetPassword", event.target)) : null,
    button(_("Reset code"), (event) => change(one, "resetSecondFactor", event.target))) },
], { empty: _("Nobody fits."), file: "users.csv" });
const organizations = new DataTable(_("Organizations"), [
  { name: _("Organization"), value: (one) => one.name, isName: true },
  { name: _("Members"), value: (one) => one.members, isNumber: true }, { name: _("Device types"), value: (one) => one.types, isNumber: true },
  { name: _("Applications"), value: (one) => one.applications, isNumber: true },
  { name: _("Messages a month"), value: (one) => one.monthlyMessages, isNumber: true, cell: (one) => (one.monthlyMessages < 0 ? _("no limit") : whole(one.monthlyMessages)) },
], { empty: _("No organizations."), file: "organizations.csv" });

const ASKED = {
  disable: [(email) => _("Disable {email}?", { email }), _("They are signed out at once, and all tokens of applications end. Their devices go on."), _("The user is disabled."), _("Disable")],
  enable: null,
  resetPassword: [(email) => _("Reset the password of {email}?", { email }), _("You get a link to hand over. It is good for half an hour, and once."), _("The link is made."), _("Reset")],
  resetSecondFactor: [(email) => _("Remove the second factor of {email}?", { email }), _("They are signed out, and no code is asked for until they set up a new one."), _("The second factor is removed."), _("Remove")],
};

async function change(one, action, pressed) {
  const asked = ASKED[action];
  if (asked && !await sure(asked[0](one.email), asked[1], asked[3])) return;
  await attempt(async () => {
    const { data } = await call("POST", "/operator/users", { body: { uid: one.id, action }, quiet: true });
    if (data.link) showText(_("A new password for {email}", { email: one.email }), data.link, _("Hand it over in a way that nobody else reads."));
    else done(asked ? asked[2] : _("The user is enabled."));
    await load();
  }, { button: pressed });
}

const invite = form(_("Invite"), [h("div", { class: "tools" }, field("email", _("E-mail address"), "email", { required: true, maxlength: 320 }), field("organization", _("Organization, if any"), "text", { maxlength: 64 }),
  field("role", _("Role in it"), [["developer", _("developer")], ["administrator", _("administrator")], ["viewer", _("viewer")]]))], _("Invite"), async (elements, element) => {
  const body = { email: elements.email.value.trim(), organization: elements.organization.value.trim(), role: elements.role.value };
  const { data } = await call("POST", "/operator/invitations", { body, quiet: true });
  element.reset();
  if (data.link) showText(_("The invitation of {email}", { email: data.email }), data.link, _("It is good for 7 days, and once. A mail with it is sent where a mail server is set."));
  else done(_("{email} is invited.", { email: data.email }));
});

async function load() {
  const { data, total } = await get("/operator/users", { search: word.value.trim(), count: COUNT });
  users.set(data);
  note.textContent = total > data.length ? _("The first {count} of {total}: search for the others.", { count: whole(data.length), total: whole(total) }) : "";
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
  fill(page, box(_("Users"), h("p", {}, sameAs("trunkline user invite ada@example.org", _("On the machine of the service: it prints the link, and mails it where a mail server is set."))), search, users.element, note),
    box(_("Invite"), invite),
    box(_("Organizations"), organizations.element));
  follow(() => get("/operator/waiting"), 5000);  // whether the person is still an operator
});
