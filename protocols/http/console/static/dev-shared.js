// The head of the pages about one device type.

import { get } from "./api.js";
import { administered, crumb, id, organizations, title } from "./dash.js";
import { $, h } from "./dom.js";
import { _, plural } from "./texts.js";

const PAGES = [["", _("Type")], ["/manifest", _("Manifest")], ["/list", _("Approved list")], ["/devices", _("Devices and tasks")],
  ["/firmware", _("Firmware")], ["/connector", _("Connector")], ["/plans", _("Plans")], ["/errors", _("Errors")]];

// A tier of a plan
export function tierText(one) {
  const messages = one.messageLimit < 0 ? _("unlimited messages") : plural("{count} message a day", "{count} messages a day", one.messageLimit);
  const price = one.type === "free" ? _("free") : _("{price}, paid once", { price: one.cost });
  return `${one.name}: ${messages}, ${price}`;
}

const FOR_ADMINISTRATORS = ["list", "devices", "plans"];

// The type and the organization in which the person may develop it
export async function typeShown() {
  const members = await organizations();
  const { data } = await get(`/devicetypes/${id}`);
  crumb("/developer/types", _("Device types"));
  title(data.name);
  const organization = members.find((one) => one.id === data.oid), isAdministrator = organization?.role === "administrator";
  const here = location.pathname.split("/")[4] ?? "";
  if (!$(".subnav")) {
    $("#crumb").append(h("nav", { "aria-label": _("About this device type") }, h("ul", { class: "subnav" }, PAGES.filter(([path]) => (path !== "/connector" || data.hasCloudConnector) && (isAdministrator || !FOR_ADMINISTRATORS.includes(path.slice(1)))).map(([path, text]) =>
      h("li", {}, h("a", { href: `/developer/types/${encodeURIComponent(id)}${path}`, "aria-current": path === (here ? `/${here}` : "") ? "page" : undefined }, text))))));
  }
  if (!organization || FOR_ADMINISTRATORS.includes(here)) administered(organization);
  return { type: data, organization, isAdministrator };
}
