// Failed messages of a type's devices, by device and reason.

import { box, everything, follow, id, page, sameCommand, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { typeShown } from "./dev-shared.js";
import { fill, fullTime, h, time, whole } from "./dom.js";
import { named, plainNames } from "./names.js";
import { _ } from "./texts.js";

let latest = null;

async function load() {
  const { type } = await typeShown();
  const summary = new DataTable(_("Devices with errors"), [
    { name: _("Device"), value: (one) => plainNames(one.did), cell: (one) => named(one.did, `/console/devices/${one.did}`), isName: true },
    { name: _("Failed"), value: (one) => one.times, isNumber: true },
    { name: _("Last reason"), value: (one) => one.reason },
    { name: _("Last"), value: (one) => one.cts, cell: (one) => time(one.cts) },
  ], { empty: _("No message failed in the last 7 days."), order: [1, true], file: "devices-with-errors.csv" });
  latest = new DataTable(_("Failed messages"), [
    { name: _("Time"), value: (one) => new Date(one.cts).toISOString(), cell: (one) => h("span", { class: "when" }, fullTime(one.cts)) },
    { name: _("Device"), value: (one) => plainNames(one.did), cell: (one) => named(one.did), isName: true },
    { name: _("Reason"), value: (one) => one.reason },
  ], { empty: _("No message failed in the last 7 days."), order: [0, true], file: "failed-messages.csv" });
  const again = h("p", { role: "status" });
  const refresh = async () => {
    let reading;
    const found = await everything(`/developer/devicetypes/${id}/failures`, {}, (answer) => {
      reading = answer.readAgain;
      return answer.data;
    });
    again.textContent = !reading ? "" : [_("Version {version} of the Manifest: of {looked} failed messages {fit} fit now.", { version: reading.version, looked: whole(reading.looked), fit: whole(reading.fit) }),
      reading.endedOn ? "" : _("More are read.")].join(" ").trim();
    const devices = new Map();
    for (const one of found) {
      const known = devices.get(one.did);
      if (known) known.times += 1; else devices.set(one.did, { ...one, times: 1 });
    }
    summary.set([...devices.values()]);
    latest.set(found);
  };
  fill(page, box(_("Devices with errors"), h("p", { class: "hint" }, _("Only the device's owner sees the content of a message, on the device's page.")), summary.element),
    box(_("Failed messages"), h("p", {}, sameCommand(`type failures ${type.uniqueName}`)), again, latest.element));
  await refresh();
  follow(refresh, 10000);
}

await show(load);
