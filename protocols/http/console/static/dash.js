// Shared by the pages of developers and operators: access, forms, background updates, uploads.

import { attempt, accessToken, curlLine, get, REST, Refused } from "./api.js";
import { $, fill, h, showText, whole } from "./dom.js";
import { follow as hear } from "./sockets.js";
import { _, worded } from "./texts.js";

export const page = $("#page");
export const id = page.dataset.id;
export const uid = $("meta[name=uid]").content;
const area = location.pathname.split("/")[1];

export const title = (text) => {
  $("#title").textContent = text;
  document.title = `${text} · Trunkline`;
};

export const crumb = (href, text) => fill($("#crumb"), h("p", { class: "crumb" }, h("a", { href }, text)));

export const box = (name, ...children) => h("section", { class: "box", "aria-label": name },
  h("div", { class: "head" }, h("h2", {}, name)), ...children.flat().filter(Boolean));

export const button = (text, onclick, kind = "quiet small") => h("button", { type: "button", class: kind, onclick }, text);

export const figures = (...found) => h("ul", { class: "figures" }, found.filter(Boolean).map(([name, value, isBad]) =>
  h("li", {}, h("small", {}, name), h("b", { class: isBad ? "bad" : undefined }, value))));

// An address in the font of code, which is narrower
export const address = (text) => (/^https?:/.test(text) ? h("code", {}, text) : text);

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, worded(text));

// A field with its label. `kind` is a type of input, "area", or a list of [value, text] to choose from.
export function field(name, label, kind = "text", more = {}) {
  const at = `field-${name}-${Math.random().toString(36).slice(2, 8)}`;
  const { hint, ...properties } = more;
  const shared = { id: at, name, autocomplete: "off", ...properties };
  let input;
  if (Array.isArray(kind)) {
    input = h("select", shared, kind.map(([value, text]) => h("option", { value, selected: value === properties.value }, text)));
  } else if (kind === "area") input = h("textarea", { rows: 4, spellcheck: "false", ...shared });
  else input = h("input", { type: kind, ...shared });
  return h("p", {}, h("label", { for: at }, label), input, hint ? h("span", { class: "hint" }, hint) : null);
}

export function check(name, label, isOn = false) {
  return h("p", { class: "row checks" }, h("label", {}, h("input", { type: "checkbox", name, checked: isOn }), label));
}

// A form whose button runs `work`. Refusals show at their fields.
export function form(label, fields, text, work, kind = "") {
  const submit = h("p", { class: "row" }, h("button", { class: kind }, text));
  const [only] = fields, isLine = fields.length === 1 && only.className === "tools";
  if (isLine) only.append(submit);  // a form of one line has its button in that line
  const element = h("form", { class: "fields", "aria-label": label }, ...fields, isLine ? null : submit);
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(() => work(element.elements, element), { form: element });
  });
  return element;
}

const ROLE_MS = 5000;
let needsRole = false;
let follows = false;

// Shows a page, or the reason why it is refused. A page without periodic reading asks periodically whether the person
// still has the role.
export async function show(load) {
  try {
    // The server says whether the person may use the area, so that no call is refused.
    if (!page.dataset.may) throw new Refused(403, { error: { message: "" } });
    await load();
    setTimeout(() => { if (needsRole && !follows) follow(organizations, ROLE_MS); });
  } catch (error) {
    if (!(error instanceof Refused) && !(error instanceof TypeError)) throw error;
    refuse(error);
  } finally {
    page.removeAttribute("aria-busy");
  }
}

const WANTED = {
  developer: _("This page is for administrators and developers of an organization; approved lists, devices, tasks and plans are for its administrators. Ask one of yours, or the operator of this service."),
  operator: _("This page is for the operators of this service. The setting “console.operators” names them by their e-mail address."),
};

export function refuse(error) {
  const isRole = error.status === 403;
  fill(page, h("div", { class: "empty", role: "alert" },
    h("p", {}, h("b", {}, isRole ? _("This is not for you") : error.status === 404 ? _("Not found") : _("That did not work"))),
    h("p", {}, isRole ? WANTED[area] : error instanceof Refused ? error.text : _("The server did not answer.")),
    isRole && error.text ? h("p", { class: "hint" }, error.text) : null, h("a", { class: "button", href: "/console" }, _("To the console"))));
}

// The organizations in which the person may develop; without one, the page says so.
export async function organizations() {
  needsRole = true;
  const { data } = await get("/developer/organizations");
  const found = data.organizations.filter((one) => one.role !== "viewer");
  if (found.length === 0) throw new Refused(403, { error: { message: data.organizations.length ? _("You may only look at your organization.") : _("You are in no organization.") } });
  return found;
}

// Whether the person administers the type's organization
export function administered(organization) {
  if (organization?.role === "administrator") return;
  throw new Refused(403, { error: { message: organization ? _("You are a developer of {name}, and no administrator.", { name: organization.name }) : _("The device type is of another organization.") } });
}

const SLOWEST_MS = 60000;
const HEARD_MS = 30000;  // with a feed: the service may leave out hints under load
const LOST_MS = 5000;
let usedOn = Date.now();
for (const kind of ["pointerdown", "keydown", "focus"]) addEventListener(kind, () => { usedOn = Date.now(); }, { passive: true });

// The interval grows while nobody uses the page, so that an open page does not use up the person's calls of the day.
export const pause = (ms) => Math.max(ms, Math.min(SLOWEST_MS, ms * (1 + (Date.now() - usedOn) / 60000)));

// Runs `work` periodically while the page is visible. Shows a lost role at once, and a lost connection.
// `work` returns false to end, or the longest time in ms until its next run.
// With `feed`, the period counts only while the feed is lost; otherwise `ms` is the shortest time between two runs.
export function follow(work, ms, feed) {
  follows ||= !feed;
  let timer = 0, began = Date.now(), isAt = false, isDue = false, isHeard = false, isOver = false, stop = () => {};
  const plan = (wait) => {
    clearTimeout(timer);
    if (!isOver) timer = setTimeout(again, Math.max(0, wait));
  };
  const end = () => {
    isOver = true;
    clearTimeout(timer);
    stop();
  };
  const soon = () => {
    isDue = true;
    if (!isAt) plan(began + pause(ms) - Date.now());
  };
  const wait = () => pause(isHeard ? HEARD_MS : feed ? Math.max(ms, LOST_MS) : ms);
  async function again() {
    if (document.hidden) return plan(wait());
    [isAt, isDue, began] = [true, false, Date.now()];
    let latest = Infinity;
    try {
      const told = await work();
      if (told === false) return end();
      if (typeof told === "number") latest = told;
    } catch (error) {
      if (error instanceof Refused && [401, 403, 404].includes(error.status)) {
        end();
        return refuse(error);
      }
      if (!(error instanceof Refused) && !(error instanceof TypeError)) throw error;
    } finally {
      isAt = false;
    }
    return isDue ? soon() : plan(Math.min(Math.max(latest, pause(ms)), wait()));
  }
  plan(ms);
  if (feed) {
    const told = (yes) => () => {
      isHeard = yes;
      soon();  // reads changes since the feed ended, or finds that the role is lost
    };
    stop = hear("events", { progress: feed.of }, (frame) => { if (feed.concerns?.(frame.data) ?? true) soon(); }, told(true), told(false));
    document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });
  }
  return end;
}

// Does `work` once; where it fails, once more after a while, and the rest of the page stays.
export async function persist(work, ms) {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof Refused) && !(error instanceof TypeError)) throw error;
    if (error.status === 403) throw error;
    follow(async () => {
      await work();
      return false;
    }, ms);
  }
}

const MOST = 10000;

// All items of a paged list, at most 10,000. `onMore` gets the items so far, and a note of the missing ones.
export async function everything(path, query, items, onMore = () => {}) {
  const found = [];
  for (let offset = 0; ;) {
    const answer = await get(path, { ...query, count: 100, offset });
    const some = items(answer);
    found.push(...some);
    offset += some.length;
    const total = answer.total ?? found.length, isOver = some.length === 0 || offset >= Math.min(MOST, total);
    onMore(found, missing(found.length, total, isOver));
    if (isOver) return found;
  }
}

const missing = (some, total, isOver) => {
  if (some >= total) return "";
  return isOver ? _("the first of {total}; the API has the others", { total: whole(total) }) : _("loading, {total} in all", { total: whole(total) });
};

// Uploads a file and reports its progress. Leaving the page during an upload asks first.
export async function upload(path, file, contentType, onProgress) {
  const stay = (event) => event.preventDefault();
  addEventListener("beforeunload", stay);
  try {
    try {
      return await send(path, file, contentType, onProgress, await accessToken());
    } catch (error) {
      if (error.status !== 401) throw error;
      return await send(path, file, contentType, onProgress, await accessToken(true));
    }
  } finally {
    removeEventListener("beforeunload", stay);
  }
}

function send(path, file, contentType, onProgress, token) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", `${REST}${path}`);
    request.setRequestHeader("Authorization", `Bearer ${token}`);
    request.setRequestHeader("Content-Type", contentType);
    request.upload.addEventListener("progress", (event) => onProgress(event.loaded, event.total));
    request.addEventListener("load", () => {
      let body = null;
      try {
        body = JSON.parse(request.responseText);
      } catch { /* the refusal says the status */ }
      if (request.status >= 200 && request.status < 300) resolve(body);
      else reject(new Refused(request.status, body));
    });
    request.addEventListener("error", () => reject(new TypeError("no connection")));
    request.send(file);
  });
}

export function progress(label, done, total) {
  return h("progress", { "aria-label": label, max: total || 1, value: String(done) });
}

// The same as a command, or as a table of a provision file

export const sameAs = (text, hint = _("Put an access token into the variable TRUNKLINE_TOKEN first.")) =>
  button(_("As a command"), () => showText(_("The same from a shell"), text, hint));

export const sameCall = (method, path, body) => sameAs(curlLine(method, `${REST}${path}`, body));

// A command of the service: `words` without the program's name. Commands on its machine name its configuration.
const command = (words) => `${page.dataset.before} ${words}${page.dataset.behind}`;

export const sameCommand = (words, hint = _("On the machine of the service.")) => sameAs(command(words), hint);

export const sameClient = (words, hint) => sameAs(`${page.dataset.program} ${words}`, hint);

export const sameTable = (text) => button(_("As a provision table"), () => showText(_("The same in a provision file"), text,
  _("{command} applies it.", { command: command("provision FILE.toml") })));

const toml = (value) => {
  if (Array.isArray(value)) return `[${value.map(toml).join(", ")}]`;
  if (value !== null && typeof value === "object") return `{ ${Object.entries(value).map(([key, one]) => `${/^[\w-]+$/.test(key) ? key : JSON.stringify(key)} = ${toml(one)}`).join(", ")} }`;
  // JSON escapes as TOML does, but for DEL.
  return typeof value === "string" ? JSON.stringify(value).replaceAll("\u007f", "\\u007F") : String(value);
};

export const table = (name, members) => [`[[${name}]]`, ...Object.entries(members)
  .filter(([, value]) => value !== undefined && value !== null).map(([key, value]) => `${key} = ${toml(value)}`)].join("\n");

// Bars by day: [time, number], with the numbers at the left and the days below

const SVG = "http://www.w3.org/2000/svg";
const svg = (tag, properties, text) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
};

export function bars(label, points, tell) {
  const highest = roundUp(Math.max(1, ...points.map(([, value]) => value)));
  const width = 600, height = 120, step = width / Math.max(1, points.length);
  const chart = svg("svg", { class: "bars", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" });
  points.forEach(([at, value], index) => {
    const size = Math.round(value / highest * height);
    const bar = svg("rect", { x: index * step + 1, y: height - size, width: Math.max(1, step - 2), height: size, rx: 1 });
    bar.append(svg("title", {}, tell(at, value)));
    chart.append(bar);
  });
  for (const at of [0, 0.5, 1]) chart.append(svg("line", { x1: 0, x2: width, y1: at * height, y2: at * height, "vector-effect": "non-scaling-stroke" }));
  const day = (index) => tell(...points[index]).split(":")[0];
  return h("figure", { class: "axes" }, h("div", { class: "y number", "aria-hidden": "true" }, [highest, highest / 2, 0].map((one) => h("span", {}, whole(one)))), chart,
    h("div", { class: "x number", "aria-hidden": "true" }, points.length ? [0, Math.floor((points.length - 1) / 2), points.length - 1].map((index) => h("span", {}, day(index))) : null));
}

// Rounds up to 1, 2 or 5 times a power of ten
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((one) => one * power >= value);
}
