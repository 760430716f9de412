// The cloud connector of a device type: whether it works, and each device's failures with reason and time.

import { get } from "./api.js";
import { badge, box, everything, figures, follow, id, page, sameCall, show, uid } from "./dash.js";
import { DataTable } from "./data-table.js";
import { typeShown } from "./dev-shared.js";
import { fill, fullTime, h, time, whole } from "./dom.js";
import { named } from "./names.js";
import { _ } from "./texts.js";

const PATH = `/developer/devicetypes/${id}/connector`;
const DOING = { authorization: _("linking an account"), fetch: _("fetching readings"), notification: _("reading a notification"), action: _("sending an Action") };
let parts = null;

// The person's own devices without a linked account at the third party, which send no readings.
async function unlinked() {
  const devices = await everything(`/users/${uid}/devices`, { dtid: id }, (answer) => answer.data.devices);
  parts.unlinked.set(devices.filter((one) => one.needProviderAuth));
}

async function load() {
  const { data: one } = await get(PATH);
  fill(parts.standing, h("p", { class: "row" }, one.status === "FAILING" ? badge(_("failing"), "bad") : badge(_("working"), "good"), sameCall("GET", PATH)),
    one.problem ? h("p", {}, one.problem) : h("p", { class: "hint" }, _("Nothing is known to fail: the last call of each kind succeeded, or there was none.")),
    figures([_("Devices that are linked"), whole(one.linked)], [_("Failing calls"), whole(one.problems.length), one.problems.length > 0],
      one.lastOn ? [_("Failed last"), time(one.lastOn), true] : null));
  parts.problems.set(one.problems);
}

await show(async () => {
  await typeShown();
  parts = { standing: h("div", { id: "standing" }), problems: new DataTable(_("Failing calls"), [
    { name: _("Device"), value: (one) => one.did ?? "", cell: (one) => (one.did ? named(one.did) : _("no single device")), isName: true },
    { name: _("While"), value: (one) => DOING[one.doing] ?? one.doing },
    { name: _("Reason"), value: (one) => one.problem },
    { name: _("Times"), value: (one) => one.times, cell: (one) => whole(one.times), isNumber: true },
    { name: _("Since"), value: (one) => new Date(one.firstOn).toISOString(), cell: (one) => fullTime(one.firstOn) },
    { name: _("Last"), value: (one) => new Date(one.lastOn).toISOString(), cell: (one) => fullTime(one.lastOn) },
  ], { empty: _("Nothing fails."), order: [5, true], file: "connector-problems.csv" }), unlinked: new DataTable(_("Your devices that are not linked"), [
    { name: _("Name"), value: (one) => one.name, isName: true, cell: (one) => h("a", { href: `/console/devices/${one.id}` }, one.name) },
    { name: _("Id"), value: (one) => one.id, cell: (one) => h("code", {}, one.id) },
  ], { empty: _("Every device of yours is linked, or you have none of this type."), order: [0, false], file: "devices-not-linked.csv" }) };
  fill(page, box(_("Connector"), parts.standing), box(_("Failing calls"),
    h("p", { class: "hint" }, _("A row goes with the next call of its kind that succeeds. The operator of this service binds connectors, and has their credentials and the log of their plug-ins.")), parts.problems.element),
  box(_("Your devices that are not linked"), parts.unlinked.element));
  await Promise.all([load(), unlinked()]);
  follow(load, 5000);
});
