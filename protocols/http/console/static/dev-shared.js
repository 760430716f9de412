// The head of the pages about one device type.

import { get } from "./api.js";
import { administered, crumb, id, organizations, title } from "./dash.js";
import { $, h, whole } from "./dom.js";

const PAGES = [["", "Type"], ["/manifest", "Manifest"], ["/list", "Approved list"], ["/devices", "Devices and tasks"],
  ["/firmware", "Firmware"], ["/connector", "Connector"], ["/plans", "Plans"], ["/errors", "Errors"]];

// A tier of a plan
export const tierText = (one) => `${one.name}: ${one.messageLimit < 0 ? "unlimited messages" : `${whole(one.messageLimit)} messages a day`}, ${one.type === "free" ? "free" : `${one.cost}, paid once`}`;

const FOR_ADMINISTRATORS = ["list", "devices", "plans"];

// The type and the organization in which the person may develop it
export async function typeShown() {
  const members = await organizations();
  const { data } = await get(`/devicetypes/${id}`);
  crumb("/developer/types", "Device types");
  title(data.name);
  const organization = members.find((one) => one.id === data.oid), isAdministrator = organization?.role === "administrator";
  const here = location.pathname.split("/")[4] ?? "";
  if (!$(".subnav")) {
    $("#crumb").append(h("nav", { "aria-label": "About this device type" }, h("ul", { class: "subnav" }, PAGES.filter(([path]) => (path !== "/connector" || data.hasCloudConnector) && (isAdministrator || !FOR_ADMINISTRATORS.includes(path.slice(1)))).map(([path, text]) =>
      h("li", {}, h("a", { href: `/developer/types/${encodeURIComponent(id)}${path}`, "aria-current": path === (here ? `/${here}` : "") ? "page" : undefined }, text))))));
  }
  if (!organization || FOR_ADMINISTRATORS.includes(here)) administered(organization);
  return { type: data, organization, isAdministrator };
}
