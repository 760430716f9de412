// The subscriptions of the organization's applications, and a new one.

import { call, done } from "./api.js";
import { address, badge, box, everything, field, follow, form, organizations, page, sameClient, show, uid } from "./dash.js";
import { DataTable } from "./data-table.js";
import { fill, h, time } from "./dom.js";
import { named, plainNames, withNames } from "./names.js";
import { _ } from "./texts.js";

const KINDS = { ACTIVE: "good", SUSPENDED: "bad", FAILING: "bad" };
const textOf = (one) => one.description || one.callbackUrl || one.subscriptionType;
const stateOf = (one) => (one.status === "ACTIVE" && one.problem ? "FAILING" : one.status);
const SOURCES = [["", _("Messages of all devices")], ["sdtid", _("Messages of the devices of a type")], ["sdid", _("Messages of one device")], ["ddid", _("Actions for one device")], ["alarm", _("Alarms of the application's rules")]];
const RECEIVERS = [["httpCallback", _("To a callback: an address of your server")], ["cloudStream", _("Into a cloud stream")]];
const STREAM = [["cloudRegion", _("Region")], ["cloudStreamName", _("Name of the stream")], ["cloudKey", _("Id of the access key")], ["cloudSecret", _("Secret of the access key")]];

async function load(table, members) {
  const lists = await Promise.all(members.map((one) => everything(`/developer/organizations/${one.id}/subscriptions`, {}, (answer) => answer.data)));
  table.set(lists.flat());
}

// A field that shows only when it is needed. Hidden fields are not sent.
const part = (name, ...found) => h("div", { class: "part", "data-of": name, hidden: true }, found);
const showParts = (element, shown) => {
  for (const one of element.querySelectorAll(".part")) {
    one.hidden = !shown.includes(one.dataset.of);
    for (const input of one.querySelectorAll("input, select")) input.disabled = one.hidden;
  }
};

function creating(members, applications, devices, types, made) {
  const organizationOf = new Map(applications.map(([organization, one]) => [one.id, organization]));
  const mine = devices.map((one) => [one.id, one.name]);
  const element = form(_("New subscription"), [
    field("application", _("Application"), applications.map(([organization, one]) => [one.id, members.length > 1 ? `${one.name} (${organization.name})` : one.name])),
    field("source", _("Data"), SOURCES),
    part("sdtid", field("sdtid", _("Device type"), types.map((one) => [one.id, one.name]))),
    part("sdid", field("sdid", _("Device"), mine)),
    part("ddid", field("ddid", _("Device that the Actions are for"), mine)),
    field("receiver", _("Where it goes"), RECEIVERS),
    part("httpCallback", field("callbackUrl", _("Callback"), "url", { required: true, placeholder: "https://", hint: _("In the domain of the application's first redirect URI. It gets a nonce first, and sends it back to validate.") })),
    part("cloudStream", ...STREAM.map(([name, text]) => field(name, text, name === "cloudSecret" ? "password" : "text", { required: true, autocomplete: "off" }))),
    field("description", _("Description"), "text", { maxlength: 256, hint: _("For you and your colleagues.") }),
    part("others", field("uid", _("Whose devices"), "text", { placeholder: _("yours"), maxlength: 64, hint: _("Leave it empty for your own devices. Or enter the id of a user who let the application in.") })),
  ], _("Create the subscription"), async (elements) => {
    const { application, source, receiver, description } = elements;
    const given = [source.value === "alarm" ? "" : source.value, ...(receiver.value === "httpCallback" ? ["callbackUrl"] : STREAM.map(([name]) => name))].filter(Boolean);
    const body = { messageType: { ddid: "action", alarm: "alarm" }[source.value] ?? "message", subscriptionType: receiver.value, uid: elements.uid.value.trim() || "self",
      ...Object.fromEntries(given.map((name) => [name, elements[name].value.trim()])) };
    if (description.value.trim()) body.description = description.value.trim();
    const { data } = await call("POST", `/developer/applications/${application.value}/subscriptions`, { body });
    done(receiver.value === "httpCallback" ? _("The subscription waits for its callback to validate it, for a day.") : _("The subscription is made."));
    await made(data);
  });
  const change = () => {
    const { application, source, receiver } = element.elements;
    // Alarms go to callbacks only.
    const ofAlarms = source.value === "alarm";
    for (const one of receiver.options) one.disabled = ofAlarms && one.value !== "httpCallback";
    if (ofAlarms) receiver.value = "httpCallback";
    const isAdministrator = organizationOf.get(application.value)?.role === "administrator";
    showParts(element, [source.value, receiver.value, isAdministrator ? "others" : ""]);
  };
  element.addEventListener("change", change);
  change();
  return element;
}

await show(async () => {
  const members = await organizations();
  const table = new DataTable(_("Subscriptions"), [
    { name: _("To"), value: (one) => one.description ?? one.callbackUrl ?? one.subscriptionType, isName: true, cell: (one) =>
      h("span", {}, one.uid === uid ? h("a", { href: `/developer/subscriptions/${one.id}` }, address(textOf(one))) : address(textOf(one)), h("span", { class: "type" }, one.messageType)) },
    { name: _("Status"), value: stateOf, cell: (one) => badge(stateOf(one).toLowerCase().replaceAll("_", " "), KINDS[stateOf(one)] ?? "") },
    { name: _("Last problem"), value: (one) => plainNames(one.problem), cell: (one) => withNames(one.problem ?? "") },
    { name: _("Of"), value: (one) => plainNames(one.uid), cell: (one) => named(one.uid, undefined, true) },
    { name: _("Application"), value: (one) => plainNames(one.aid), cell: (one) => named(one.aid) },
    { name: _("Created"), value: (one) => one.createdOn, cell: (one) => time(one.createdOn) },
  ], { empty: _("No application of yours has a subscription yet. Create one below."), order: [1, true], file: "subscriptions.csv" });
  const lists = await Promise.all(members.map((one) => everything(`/developer/organizations/${one.id}/applications`, {}, (answer) => answer.data)));
  const applications = members.flatMap((one, index) => lists[index].map((application) => [one, application]));
  const [devices, types] = await Promise.all([everything(`/users/${uid}/devices`, {}, (answer) => answer.data.devices),
    everything(`/users/${uid}/devicetypes`, { includeOrganization: true }, (answer) => answer.data.deviceTypes)]);
  fill(page, box(_("Subscriptions"), h("p", {}, sameClient("receive --port 9000", _("A callback on your own machine that prints what it gets and validates its subscription."))), table.element),
    box(_("New subscription"), applications.length ? [h("p", {}, _("It gets what people let the application see. For your own devices, sign in to the application once before.")),
      creating(members, applications, devices, types, () => load(table, members))] : h("p", {}, _("A subscription is an application's."), " ", h("a", { href: "/developer/applications" }, _("Create an application first")), ".")));
  await load(table, members);
  follow(() => load(table, members), 5000);
});
