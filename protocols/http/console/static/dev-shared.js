// The head of the pages about one device type.

import { get } from "./api.js";
import { crumb, id, organizations, title } from "./dash.js";
import { $, h } from "./dom.js";

const PAGES = [["", "Type"], ["/manifest", "Manifest"], ["/list", "Approved list"], ["/devices", "Devices and tasks"],
  ["/firmware", "Firmware"], ["/connector", "Connector"], ["/plans", "Plans"], ["/errors", "Errors"]];

// The type and the organization in which the person may develop it
export async function typeShown() {
  const members = await organizations();
  const { data } = await get(`/devicetypes/${id}`);
  crumb("/developer/types", "Device types");
  title(data.name);
  const here = location.pathname.split("/")[4] ?? "";
  if (!$(".subnav")) {
    $("#crumb").append(h("nav", { "aria-label": "About this device type" }, h("ul", { class: "subnav" }, PAGES.filter(([path]) => path !== "/connector" || data.hasCloudConnector).map(([path, text]) =>
      h("li", {}, h("a", { href: `/developer/types/${encodeURIComponent(id)}${path}`, "aria-current": path === (here ? `/${here}` : "") ? "page" : undefined }, text))))));
  }
  return { type: data, organization: members.find((one) => one.id === data.oid) };
}
