// The applications of an organization: ids, secrets, redirect URIs, methods.

import { attempt, call, done, get, tagOf } from "./api.js";
import { box, button, check, everything, field, form, organizations, page, sameTable, show, table } from "./dash.js";
import { DataTable } from "./data-table.js";
import { copyButton, empty, fill, h, sure } from "./dom.js";
import { save } from "./saving.js";

const METHODS = [["authorization_code", "Authorization code"], ["pkce", "PKCE"], ["implicit", "Implicit"],
  ["limited_input", "Limited input"], ["client_credentials", "Client credentials"]];
const LABELS = { name: "Name", methods: "How it gets tokens", redirectUris: "Redirect URIs", anyLoopbackPort: "Any port of this computer", managesOrganization: "Manages the organization" };
const SECTIONS = 20;  // more applications are a table
let members = [];

const uris = (text) => text.split(/\s+/).filter(Boolean);
const chosen = (elements) => METHODS.map(([value]) => value).filter((value) => elements[value].checked);

// What gives an application rights of its own is for administrators.
const administers = (organization) => organization.role === "administrator";
const hasOwnTokens = (application) => application.methods.includes("client_credentials");
const mayRenew = (organization, application) => administers(organization) || !(application.managesOrganization || hasOwnTokens(application));

function fields(application, isAdministrator) {
  // A developer who changes the others would get the tokens of administrators.
  if (application?.managesOrganization && !isAdministrator) return [field("name", "Name", "text", { maxlength: 64, required: true, value: application.name }),
    h("p", { class: "soft" }, "This application manages your organization. An administrator can change its methods, its redirect URIs and its secret.")];
  return [
    field("name", "Name", "text", { maxlength: 64, required: true, value: application?.name }),
    h("fieldset", { class: "checks" }, h("legend", {}, "How it gets tokens"), h("p", { class: "row checks far" }, METHODS.map(([value, text]) =>
      h("label", {}, h("input", { type: "checkbox", name: value, checked: application?.methods.includes(value),
        disabled: value === "client_credentials" && !isAdministrator && !application?.methods.includes(value) }), text)))),
    field("redirectUris", "Redirect URIs, one in each line; the first is the main one", "area", { value: application?.redirectUris.join("\n") ?? "" }),
    check("anyLoopbackPort", "A redirect URI of this computer (http://127.0.0.1) fits with any port", application?.anyLoopbackPort),
    isAdministrator ? check("managesOrganization", "It manages the organization: its own tokens may what an administrator may", application?.managesOrganization) : null,
  ].filter(Boolean);
}

const body = (elements) => ({ name: elements.name.value.trim(),
  ...(elements.redirectUris ? { methods: chosen(elements), redirectUris: uris(elements.redirectUris.value), anyLoopbackPort: elements.anyLoopbackPort.checked } : {}),
  ...(elements.managesOrganization ? { managesOrganization: elements.managesOrganization.checked } : {}) });

function secretBox(application, secret) {
  return h("div", { class: "secret", role: "status" }, h("p", {}, `The client secret of ${application.name}, shown this once:`),
    h("div", { class: "line" }, h("pre", { tabindex: "0" }, h("code", {}, secret)), copyButton(secret, "the client secret")));
}

async function renew(application, place, event) {
  const agreed = await sure(`Renew the secret of ${application.name}?`, "The former one ends at once: whoever uses it gets no more tokens with it. Tokens that were issued stay.", "Renew");
  if (!agreed) return;
  await attempt(async () => {
    const { data } = await call("POST", `/developer/applications/${application.id}/secret`);
    fill(place, secretBox(application, data.clientSecret));
    done("The secret is renewed.");
  }, { button: event.target });
}

function shown(organization, application) {
  const place = h("div");
  const path = `/developer/applications/${application.id}`;
  const change = h("div", { hidden: true });
  const edit = (data) => fill(change, form(`Change ${data.name}`, fields(data, administers(organization)), "Save", async (elements) => {
    if (await save("PUT", path, body(elements), { seen: { tag: tagOf(data), data }, labels: LABELS, take: edit }) === null) return;
    done("The application is changed.");
    await load();
  }));
  const asTable = table("applications", { id: application.id, name: application.name, organization: organization.name,
    redirect_uri: application.redirectUris[0], methods: application.methods,
    permissions: application.permissions.map((one) => ({ device_type: one.deviceType, permissions: one.permissions })),
    any_loopback_port: application.anyLoopbackPort, manages_organization: application.managesOrganization });
  return h("section", { class: "box", "aria-label": application.name },
    h("div", { class: "head" }, h("h2", {}, application.name), h("div", { class: "row" },
      button("Change", (event) => attempt(async () => {
        if (change.hidden) edit((await get(path)).data);
        change.hidden = !change.hidden;
      }, { button: event.target })), mayRenew(organization, application) ? button("Renew the secret", (event) => renew(application, place, event)) : null, sameTable(asTable))),
    h("dl", { class: "facts" }, h("dt", {}, "Id"), h("dd", {}, h("code", {}, application.id)),
      h("dt", {}, "Methods"), h("dd", {}, application.methods.join(", ") || "none: it gets no tokens"),
      h("dt", {}, "Redirect URIs"), h("dd", {}, application.redirectUris.length ? application.redirectUris.map((one) => h("div", {}, h("code", {}, one))) : "none"),
      h("dt", {}, "Asks for"), h("dd", {}, application.permissions.map((one) => `${one.deviceType}: ${one.permissions.join(", ")}`).join("; ") || "nothing beside the types of its organization"),
      h("dt", {}, "Manages the organization"), h("dd", {}, application.managesOrganization ? "yes: its own tokens may what an administrator may" : "no")),
    place, change);
}

// Many applications: a table, and the one that was chosen.
function listed(all) {
  const place = h("div", { id: "chosen" });
  const rows = new DataTable("Applications", [
    { name: "Name", value: ([, one]) => one.name, isName: true, cell: ([organization, one]) => button(one.name, () => {
      fill(place, shown(organization, one));
      place.scrollIntoView({ block: "nearest" });
    }) },
    { name: "Organization", value: ([organization]) => organization.name },
    { name: "Id", value: ([, one]) => one.id, cell: ([, one]) => h("code", {}, one.id) },
    { name: "Methods", value: ([, one]) => one.methods.join(", ") },
    { name: "Redirect URIs", value: ([, one]) => one.redirectUris.join(" ") },
  ], { order: [0, false], file: "applications.csv" });
  rows.set(all);
  return [box("Applications", rows.element), place];
}

async function load(made = null) {
  members = await organizations();
  const lists = await Promise.all(members.map((one) => everything(`/developer/organizations/${one.id}/applications`, {}, (answer) => answer.data)));
  const all = members.flatMap((one, index) => lists[index].map((application) => [one, application]));
  const create = form("New application", [
    members.length > 1 ? field("organization", "Organization", members.map((one) => [one.id, one.name])) : null, ...fields(null, members.some(administers))].filter(Boolean), "Create the application",
  async (elements) => {
    const oid = elements.organization?.value ?? members[0].id;
    const { data } = await call("POST", `/developer/organizations/${oid}/applications`, { body: body(elements) });
    done(`${data.name} is made.`);
    await load(data);
  });
  fill(page, made ? secretBox(made, made.clientSecret) : null,
    ...(all.length > SECTIONS ? listed(all) : all.length ? all.map((one) => shown(...one)) : [empty("No applications yet", "An application is what people sign in to, and what gets tokens.")]),
    h("section", { class: "box", "aria-label": "New application" }, h("h2", {}, "New application"), create));
}

await show(load);
