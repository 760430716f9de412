// The applications of an organization: ids, secrets, redirect URIs, methods.

import { attempt, call, done, get, tagOf } from "./api.js";
import { box, button, check, everything, field, form, organizations, page, sameTable, show, table } from "./dash.js";
import { DataTable } from "./data-table.js";
import { copyButton, empty, fill, h, sure, told, typed } from "./dom.js";
import { named } from "./names.js";
import { save } from "./saving.js";
import { _, phrase, plural } from "./texts.js";

const METHODS = [["authorization_code", _("Authorization code")], ["pkce", "PKCE"], ["implicit", _("Implicit")],
  ["limited_input", _("Limited input")], ["client_credentials", _("Client credentials")]];
const LABELS = { name: _("Name"), methods: _("How it gets tokens"), redirectUris: _("Redirect URIs"), anyLoopbackPort: _("Any port of this computer"), permissions: _("Permissions it asks for"), managesOrganization: _("Manages the organization") };
const SECTIONS = 20;  // more applications are listed in a table
let members = [], types = [];

const uris = (text) => text.split(/\s+/).filter(Boolean);
const methodsOf = (application) => METHODS.filter(([value]) => application.methods.includes(value)).map(([, text]) => text).join(", ");
const chosen = (elements) => METHODS.map(([value]) => value).filter((value) => elements[value].checked);

// Only administrators change settings that give an application rights of its own.
const administers = (organization) => organization.role === "administrator";
const hasOwnTokens = (application) => application.methods.includes("client_credentials");
const mayRule = (organization, application) => administers(organization) || !(application.managesOrganization || hasOwnTokens(application));

function fields(application, isAdministrator) {
  // A developer who could change the others would get the tokens of administrators.
  if (application?.managesOrganization && !isAdministrator) return [field("name", _("Name"), "text", { maxlength: 64, required: true, value: application.name }),
    h("p", { class: "soft" }, _("This application manages your organization. An administrator can change its methods, its redirect URIs and its secret."))];
  return [
    field("name", _("Name"), "text", { maxlength: 64, required: true, value: application?.name }),
    h("fieldset", { class: "checks" }, h("legend", {}, _("How it gets tokens")), h("p", { class: "row checks far" }, METHODS.map(([value, text]) =>
      h("label", {}, h("input", { type: "checkbox", name: value, checked: application?.methods.includes(value),
        disabled: value === "client_credentials" && !isAdministrator && !application?.methods.includes(value) }), text)))),
    field("redirectUris", _("Redirect URIs, one in each line; the first is the main one"), "area", { value: application?.redirectUris.join("\n") ?? "" }),
    check("anyLoopbackPort", _("A redirect URI of this computer (http://127.0.0.1) fits with any port"), application?.anyLoopbackPort),
    asking(application?.permissions ?? []),
    isAdministrator ? check("managesOrganization", _("It manages the organization: its own tokens may do what an administrator may do"), application?.managesOrganization) : null,
  ].filter(Boolean);
}

const body = (elements, form) => ({ name: elements.name.value.trim(),
  ...(elements.redirectUris ? { methods: chosen(elements), redirectUris: uris(elements.redirectUris.value), anyLoopbackPort: elements.anyLoopbackPort.checked, permissions: askedIn(form) } : {}),
  ...(elements.managesOrganization ? { managesOrganization: elements.managesOrganization.checked } : {}) });

// Permissions that the application asks for, beside the types of its organization: a row for each device type
const NOT_TYPES = { "*": _("devices of every type"), profile: _("the account of the person"), trials: _("trials of the person") };
const MAY = [["READ", _("see")], ["READ,WRITE", _("see and control")], ["WRITE", _("control")]];

const rights = (permissions) => ["READ", "WRITE"].filter((one) => permissions.includes(one)).join();

function asked({ deviceType, permissions }) {
  const may = MAY.find(([value]) => value === rights(permissions))?.[1] ?? permissions.join(", ");
  return phrase("{may}: {what}", { may, what: NOT_TYPES[deviceType] ?? h("span", {}, phrase("devices of the type {type}", { type: named(deviceType) })) });
}

function asking(given) {
  const rows = h("div", { class: "asks" });
  const add = (one) => {
    const id = `ask-${Math.random().toString(36).slice(2, 8)}`;
    const row = h("div", { class: "row ask" },
      h("p", {}, h("label", { for: id }, _("Of")), h("input", { id, class: "of", list: "types-to-ask", required: true, autocomplete: "off", value: types.find((type) => type.id === one.deviceType)?.uniqueName ?? one.deviceType })),
      h("p", {}, h("label", { for: `${id}-may` }, _("It may")), h("select", { id: `${id}-may` }, MAY.map(([value, text]) =>
        h("option", { value, selected: value === rights(one.permissions) }, text)))),
      button(_("Remove"), () => row.remove()));
    rows.append(row);
  };
  given.forEach(add);
  return h("fieldset", { class: "asking" }, h("legend", {}, _("Permissions it asks for")),
    h("p", { class: "hint" }, _("Every sign-in gives it the device types of your organization. For others, and for the account itself, it asks: choose a type by its unique name or id, or one of *, profile and trials.")),
    h("datalist", { id: "types-to-ask" }, Object.entries(NOT_TYPES).map(([value, text]) => h("option", { value }, text)), types.map((one) => h("option", { value: one.uniqueName }, one.name))),
    rows, h("p", { class: "row" }, button(_("Ask for more"), () => add({ deviceType: "*", permissions: ["READ"] }))));
}

const askedIn = (form) => [...form.querySelectorAll(".ask")].map((row, index) => {
  const input = row.querySelector("input");
  input.name = `permissions.${index}.deviceType`;  // the field of a finding
  return { deviceType: input.value.trim(), permissions: row.querySelector("select").value.split(",") };
});

function secretBox(application, secret) {
  return h("div", { class: "secret", role: "status" }, h("p", {}, _("The client secret of {name}, shown this once:", { name: application.name })),
    h("div", { class: "line" }, h("pre", { tabindex: "0" }, h("code", {}, secret)), copyButton(secret, _("the client secret"))));
}

async function renew(application, place, event) {
  const agreed = await sure(_("Renew the secret of {name}?", { name: application.name }), _("The former one ends at once: whoever uses it gets no more tokens with it. Tokens that were issued stay."), _("Renew"));
  if (!agreed) return;
  await attempt(async () => {
    const { data } = await call("POST", `/developer/applications/${application.id}/secret`);
    fill(place, secretBox(application, data.clientSecret));
    done(_("The secret is renewed."));
  }, { button: event.target });
}

const ENDS = {
  users: (count) => plural("{count} person can no longer use it", "{count} people can no longer use it", count),
  tokens: (count) => plural("{count} access token with its connections", "{count} access tokens with their connections", count),
  rules: (count) => plural("{count} rule", "{count} rules", count),
  scenes: (count) => plural("{count} scene", "{count} scenes", count),
  models: (count) => plural("{count} model", "{count} models", count),
  subscriptions: (count) => plural("{count} subscription", "{count} subscriptions", count),
  exports: (count) => plural("{count} export", "{count} exports", count),
};

async function remove(application, button) {
  const path = `/developer/applications/${application.id}`;
  await attempt(async () => {
    const { data } = await get(`${path}/deletion`);
    if (data.refusal) {
      await told(_("{name} cannot be deleted", { name: application.name }), `${data.refusal}.`);
      return;
    }
    const ends = Object.entries(ENDS).filter(([kind]) => data[kind]).map(([kind, words]) =>
      h("li", {}, words(data[kind])));
    const isMeant = await typed(_("Delete {name}?", { name: application.name }), ends.length ? _("This cannot be undone. At once this ends:") : _("This cannot be undone. Nobody uses it."), _("Delete for good"),
      { word: application.name, name: _("Type its name, {name}, to confirm", { name: application.name }), more: [ends.length ? h("ul", {}, ends) : null,
        h("p", { class: "soft" }, _("Devices, their tokens and their messages stay."))] });
    if (!isMeant) return;
    await call("DELETE", path);
    done(_("{name} is deleted.", { name: application.name }));
    await load();
  }, { button });
}

function shown(organization, application) {
  const place = h("div");
  const path = `/developer/applications/${application.id}`;
  const change = h("div", { hidden: true });
  const edit = (data) => fill(change, form(_("Change {name}", { name: data.name }), fields(data, administers(organization)), _("Save"), async (elements, form) => {
    if (await save("PUT", path, body(elements, form), { seen: { tag: tagOf(data), data }, labels: LABELS, take: edit }) === null) return;
    done(_("The application is changed."));
    await load();
  }));
  const asTable = table("applications", { id: application.id, name: application.name, organization: organization.name,
    redirect_uri: application.redirectUris[0], methods: application.methods,
    permissions: application.permissions.map((one) => ({ device_type: one.deviceType, permissions: one.permissions })),
    any_loopback_port: application.anyLoopbackPort, manages_organization: application.managesOrganization });
  return h("section", { class: "box", "aria-label": application.name },
    h("div", { class: "head" }, h("h2", {}, application.name), h("div", { class: "row" },
      button(_("Change"), (event) => attempt(async () => {
        if (change.hidden) edit((await get(path)).data);
        change.hidden = !change.hidden;
      }, { button: event.target })), mayRule(organization, application) ? button(_("Renew the secret"), (event) => renew(application, place, event)) : null, sameTable(asTable),
      mayRule(organization, application) ? button(_("Delete"), (event) => remove(application, event.target), "danger small") : null)),
    h("dl", { class: "facts" }, h("dt", {}, _("Id")), h("dd", {}, h("code", {}, application.id)),
      h("dt", {}, _("Methods")), h("dd", {}, methodsOf(application) || _("none: it gets no tokens")),
      h("dt", {}, _("Redirect URIs")), h("dd", {}, application.redirectUris.length ? application.redirectUris.map((one) => h("div", {}, h("code", {}, one))) : "none"),
      h("dt", {}, _("Asks people for")), h("dd", {}, application.permissions.length ? application.permissions.map((one) => h("div", {}, asked(one))) : _("nothing beside your types, which every sign-in gives it")),
      h("dt", {}, _("Manages the organization")), h("dd", {}, application.managesOrganization ? _("yes: its own tokens may do what an administrator may do") : "no")),
    place, change);
}

// Many applications: a table, and the chosen one.
function listed(all) {
  const place = h("div", { id: "chosen" });
  const rows = new DataTable(_("Applications"), [
    { name: _("Name"), value: ([, one]) => one.name, isName: true, cell: ([organization, one]) => h("div", {}, button(one.name, () => {
      fill(place, shown(organization, one));
      place.scrollIntoView({ block: "nearest" });
    }, "link"), h("div", {}, h("code", { class: "id" }, one.id))) },
    ...(members.length > 1 ? [{ name: _("Organization"), value: ([organization]) => organization.name }] : []),
    { name: _("Methods"), value: ([, one]) => one.methods.join(", "), cell: ([, one]) => methodsOf(one) },
    { name: _("Redirect URIs"), value: ([, one]) => one.redirectUris.join(" "), cell: ([, one]) => h("ul", { class: "plain" }, one.redirectUris.map((uri) => h("li", {}, uri))) },
    { name: _("Id"), value: ([, one]) => one.id, isHidden: true },
  ], { order: [0, false], file: "applications.csv" });
  rows.set(all);
  return [box(_("Applications"), rows.element), place];
}

async function load(made = null) {
  members = await organizations();
  types = (await get("/devicetypes", { count: 100 })).data.deviceTypes;
  const lists = await Promise.all(members.map((one) => everything(`/developer/organizations/${one.id}/applications`, {}, (answer) => answer.data)));
  const all = members.flatMap((one, index) => lists[index].map((application) => [one, application]));
  const create = form(_("New application"), [
    members.length > 1 ? field("organization", _("Organization"), members.map((one) => [one.id, one.name])) : null, ...fields(null, members.some(administers))].filter(Boolean), _("Create the application"),
  async (elements, form) => {
    const oid = elements.organization?.value ?? members[0].id;
    const { data } = await call("POST", `/developer/organizations/${oid}/applications`, { body: body(elements, form) });
    done(_("{name} is made.", { name: data.name }));
    await load(data);
  });
  fill(page, made ? secretBox(made, made.clientSecret) : null,
    ...(all.length > SECTIONS ? listed(all) : all.length ? all.map((one) => shown(...one)) : [empty(_("No applications yet"), _("An application is what people sign in to, and what gets tokens."))]),
    h("section", { class: "box", "aria-label": _("New application") }, h("h2", {}, _("New application")), create));
}

await show(load);
