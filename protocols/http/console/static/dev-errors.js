// Failed messages of a type's devices, by device and reason.

import { box, everything, follow, id, page, sameCommand, show } from "./dash.js";
import { DataTable } from "./data-table.js";
import { typeShown } from "./dev-shared.js";
import { fill, fullTime, h, time, whole } from "./dom.js";
import { named, plainNames } from "./names.js";

let latest = null;

async function load() {
  const { type } = await typeShown();
  const summary = new DataTable("Devices with errors", [
    { name: "Device", value: (one) => plainNames(one.did), cell: (one) => named(one.did, `/console/devices/${one.did}`), isName: true },
    { name: "Failed", value: (one) => one.times, isNumber: true },
    { name: "Last reason", value: (one) => one.reason },
    { name: "Last", value: (one) => one.cts, cell: (one) => time(one.cts) },
  ], { empty: "No message failed in the last 7 days.", order: [1, true], file: "devices-with-errors.csv" });
  latest = new DataTable("Failed messages", [
    { name: "Time", value: (one) => new Date(one.cts).toISOString(), cell: (one) => h("span", { class: "when" }, fullTime(one.cts)) },
    { name: "Device", value: (one) => plainNames(one.did), cell: (one) => named(one.did), isName: true },
    { name: "Reason", value: (one) => one.reason },
  ], { empty: "No message failed in the last 7 days.", order: [0, true], file: "failed-messages.csv" });
  const again = h("p", { role: "status" });
  const refresh = async () => {
    let reading;
    const found = await everything(`/developer/devicetypes/${id}/failures`, {}, (answer) => {
      reading = answer.readAgain;
      return answer.data;
    });
    again.textContent = reading ? `Version ${reading.version} of the Manifest: of ${whole(reading.looked)} failed messages ${whole(reading.fit)} fit now${reading.endedOn ? "." : "; more are read."}` : "";
    const devices = new Map();
    for (const one of found) {
      const known = devices.get(one.did);
      if (known) known.times += 1; else devices.set(one.did, { ...one, times: 1 });
    }
    summary.set([...devices.values()]);
    latest.set(found);
  };
  fill(page, box("Devices with errors", h("p", { class: "hint" }, "Only the device's owner sees the content of a message, on the device's page."), summary.element),
    box("Failed messages", h("p", {}, sameCommand(`type failures ${type.uniqueName}`)), again, latest.element));
  await refresh();
  follow(refresh, 10000);
}

await show(load);
