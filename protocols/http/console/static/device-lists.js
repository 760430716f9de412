// Lists of devices to choose from, with a search field where a list has not all of them.

import { attempt, get } from "./api.js";
import { $, fill, h, whole } from "./dom.js";
import { _ } from "./texts.js";

const uid = $("meta[name=uid]").content;
export const LISTED = 100;
const TYPING_MS = 200;

export const optionsOf = (some) => [...some].map((one) => h("option", { value: one.id }, one.name));

// A search field. `list` asks for devices with these words, and `show` gets them, if there are any.
export function finder(total, list, show) {
  const input = h("input", { type: "search", "aria-label": _("Find a device"), placeholder: _("Find one of {count} devices", { count: whole(total) }), autocomplete: "off" });
  let timer = 0;
  let last = 0;
  const find = async () => {
    const turn = last += 1;
    const { data } = await list(input.value.trim());
    if (turn === last && data.devices.length) await show(data.devices);
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => attempt(find), TYPING_MS);
  });
  return input;
}

// The first of one's own devices by name, and how many there are
export const ownDevices = (search) => get(`/users/${uid}/devices`, { owner: "ME", search, sort: "name", count: LISTED });

// Offer one's own devices in a list, behind the options that it has.
export function offer(select, { data, total }) {
  const first = [...select.options];
  const show = (some) => fill(select, [...first, ...optionsOf(some)]);
  show(data.devices);
  if (total > LISTED) select.before(finder(total, ownDevices, show));
}
