// The public REST API with the token of this browser's session. The token is in this module's memory only.

import { toast, showLine } from "./dom.js";
import { withNames } from "./names.js";
import { signInAgain } from "./session.js";
import { _, alike } from "./texts.js";

const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;
export const REST = meta("rest");
const ATTEMPTS = 6;
let csrf = meta("csrf");
let token = null;
let goodUntil = 0;
let asking = null;
let hasDeclined = false;  // declined to sign in again; asked again only when the person does something
let hasTyped = false;  // the page has unsaved input
for (const kind of ["input", "change"]) addEventListener(kind, () => { hasTyped = true; }, { capture: true, passive: true });

// The ETag of an answer's object, for If-Match
const tags = new WeakMap();
export const tagOf = (data) => tags.get(data);

const note = (data, answer) => {
  const tag = answer.headers.get("ETag");
  if (tag !== null && data !== null && typeof data === "object") tags.set(data, tag);
};

export class Refused extends Error {
  constructor(status, body) {
    const error = body?.error ?? {};
    const message = typeof error.message === "string" ? error.message : _("The server answered {status}.", { status });
    super(typeof error.reason === "string" ? `${message}: ${error.reason}` : message);
    this.status = status;
    this.findings = (error.errors ?? []).flat();
    this.present = body?.data;  // the present version of an object that somebody else changed
  }

  // Advice for the person, in one sentence
  get text() {
    if (this.findings.length) return this.findings.map((one) => `${one.field}: ${one.messages.join(", ")}`).join("; ");
    return this.message;
  }
}

// Whether the server answers: the bar at the top of the page shows it.

const lost = new Set();

export function reachable(who, yes, text = _("No connection to the server. Trying again…")) {
  if (yes) lost.delete(who); else lost.add(who);
  const bar = document.getElementById("connection");
  bar.hidden = lost.size === 0;
  if (lost.size === 0) bar.textContent = "";
  else if (!yes && bar.textContent !== text) bar.textContent = text;
}

export function accessToken(fresh = false) {
  if (!fresh && token !== null && Date.now() < goodUntil) return Promise.resolve(token);
  asking ??= askForToken().finally(() => { asking = null; });
  return asking;
}

async function askForToken() {
  const answer = await patiently("token", () => fetch("/console/token",
    { method: "POST", headers: { "X-Console": csrf } }));
  if (answer.status === 401 || answer.status === 403) {
    if (!hasTyped) {
      location.reload();  // the server redirects to the sign-in, and from there back here
      return new Promise(() => {});
    }
    const renewed = hasDeclined ? null : await signInAgain();
    hasDeclined = renewed === null;
    if (renewed === null) throw new Refused(401, { error: { message: _("You are signed out. Your input is still here, and not saved.") } });
    csrf = renewed;
    for (const input of document.querySelectorAll('input[name="csrf"]')) input.value = csrf;
    return askForToken();
  }
  const given = await answer.json();
  if (given.build !== meta("build")) outdated();
  token = given.accessToken;
  goodUntil = Date.now() + (given.expiresIn - 60) * 1000;
  return token;
}

// The page was loaded before an upgrade: its calls and scripts may not fit the new version.
function outdated() {
  if (document.getElementById("outdated")) return;
  const reload = document.createElement("button");
  Object.assign(reload, { type: "button", className: "small", textContent: _("Reload") });
  reload.addEventListener("click", () => location.reload());
  const note = document.createElement("div");
  Object.assign(note, { id: "outdated", className: "notice" });
  note.setAttribute("role", "alert");
  const text = document.createElement("p");
  text.textContent = _("This service has another version now. Reload this page; save what you typed before.");
  note.append(text, reload);
  document.getElementById("content").prepend(note);
}

// Repeated while the server cannot be reached, or says that it cannot answer now: it starts, ends, or waits for its store
async function patiently(who, send, attempts = Infinity) {
  for (let attempt = 0; ; attempt += 1) {
    const isLast = attempt + 1 >= attempts;
    try {
      const answer = await send();
      if (answer.status !== 503 || isLast) {
        reachable(who, true);
        if (attempt > 0) goodUntil = 0;  // the service was away: the next token tells its version
        return answer;
      }
      reachable(who, false, _("The server cannot answer now. Trying again…"));
    } catch (error) {
      if (isLast) throw error;
      reachable(who, false);
    }
    await new Promise((resolve) => setTimeout(resolve, Math.min(8000, 500 * 2 ** attempt)));
  }
}

export async function call(method, path, { query, body, tag, quiet = false } = {}) {
  const search = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== ""));
  const url = `${REST}${path}${search.size ? `?${search}` : ""}`;
  const answer = await respond(method, url, body, tag);
  const text = await answer.text();
  let read = null;
  try {
    read = text ? JSON.parse(text) : null;
  } catch { /* the refusal says the status */ }
  note(read?.data, answer);
  if (!answer.ok) throw new Refused(answer.status, read);
  if (method !== "GET" && !quiet) lastLine = curlLine(method, url, body);
  return read;
}

async function respond(method, url, body, tag) {
  for (let attempt = 0; ; attempt += 1) {
    const headers = { Authorization: `Bearer ${await accessToken(attempt === 1)}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (tag !== undefined) headers["If-Match"] = tag;
    const send = () => fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    // Only reading is repeated: a change may have been made although its answer was lost.
    const answer = await patiently("api", send, method === "GET" ? ATTEMPTS : 1);
    if (answer.status === 401 && attempt === 0) continue;
    if (answer.status === 429 && method === "GET" && attempt < 3) {
      const seconds = Number(answer.headers.get("Retry-After") ?? 5);
      if (seconds <= 60) {
        toast(_("Too many calls in a short time: going on in {seconds} s.", { seconds }), { seconds });
        await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
        continue;
      }
    }
    return answer;
  }
}

export const get = (path, query) => call("GET", path, { query });

// An answer that is plain text, not JSON
export async function getText(path) {
  const answer = await respond("GET", `${REST}${path}`);
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => null));
  return answer.text();
}

// Downloads the file of an answer, under the name from its header. Reports the bytes received.
export async function download(path, onProgress) {
  const answer = await respond("GET", `${REST}${path}`);
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => null));
  const total = Number(answer.headers.get("Content-Length") ?? 0);
  const parts = [];
  let size = 0;
  for (const reader = answer.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) return new File(parts, nameIn(answer.headers.get("Content-Disposition") ?? ""));
    parts.push(value);
    size += value.length;
    onProgress(size, total);
  }
}

// RFC 6266: filename* has a name beyond ASCII.
function nameIn(disposition) {
  const wide = /filename\*=UTF-8''([^;]+)/.exec(disposition);
  return wide ? decodeURIComponent(wide[1]) : /filename="([^"]*)"/.exec(disposition)?.[1] ?? "";
}

// The same call as a curl command

let lastLine = "";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curlLine(method, url, body) {
  const words = ["curl", "-X", method, quoted(new URL(url, location.origin).href),
    "-H", '"Authorization: Bearer $TRUNKLINE_TOKEN"'];
  if (body !== undefined) words.push("-H", quoted("Content-Type: application/json"), "-d", quoted(JSON.stringify(body)));
  return words.join(" ");
}

// Confirms a call, and offers the command that does the same
export function done(text) {
  const line = lastLine;
  hasTyped = false;
  toast(text, { label: _("As a command"), action: () => showLine(line) });
}

// Runs the work of a button or form, shows that it is running, and shows a refusal at its fields.
export async function attempt(work, { form, button } = {}) {
  const buttons = [...(form?.querySelectorAll("button") ?? []), ...(button ? [button] : [])];
  for (const one of buttons) one.disabled = true;
  if (buttons.length) hasDeclined = false;
  clearFindings(form);
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Refused) && !(error instanceof TypeError)) throw error;
    const text = error instanceof Refused ? error.text : _("The server did not answer. Nothing is known to have changed.");
    if (!form || !showFindings(form, error)) toast(withNames(alike(text)), { bad: true });
    return undefined;
  } finally {
    for (const one of buttons) one.disabled = false;
  }
}

function clearFindings(form) {
  for (const one of form?.querySelectorAll(".finding:not(.missing)") ?? []) one.remove();
  for (const one of form?.querySelectorAll("[aria-invalid]") ?? []) {
    one.removeAttribute("aria-invalid");
    one.removeAttribute("aria-describedby");
  }
}

// Shows a finding at the field that the API names, if the form has it; else above the buttons
function showFindings(form, error) {
  const findings = error.findings?.length ? error.findings : [{ field: "", messages: [error.message] }];
  let first = null;
  for (const { field, messages } of findings) {
    const named = field && form.querySelector(`[name="${CSS.escape(field)}"]`);
    const input = named && named.offsetParent !== null ? named : null;  // a hidden field does not count
    const note = document.createElement("p");
    note.className = "finding";
    note.id = `finding-${Math.random().toString(36).slice(2)}`;
    note.append(withNames(input ? messages.join(", ") : `${field ? `${field}: ` : ""}${messages.join(", ")}`));
    if (input) {
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", note.id);
      input.after(note);
      first ??= input;
    } else {
      note.setAttribute("role", "alert");
      form.append(note);
    }
  }
  first?.focus();
  return true;
}
