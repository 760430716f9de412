// The texts in the language of the page. English is the key; the page loads a dictionary for the other languages.

export const language = document.documentElement.lang || "en";
// The browser's own kind of that language, for dates and numbers: en-GB, de-CH
export const locale = navigator.languages?.find((one) => one.split("-")[0] === language) ?? language;
const texts = globalThis.TEXTS ?? {};
const RULES = new Intl.PluralRules(language);

const filled = (text, names) => text.replace(/\{(\w+)\}/g, (whole, name) => (name in names ? String(names[name]) : whole));

// A text with `names` in its placeholders: _("Remove {name}", { name })
export function _(text, names = {}) {
  const found = texts[text];
  return filled(typeof found === "string" ? found : text, names);
}

// The form of a text for a number: plural("{count} device", "{count} devices", 2). `shown` is the number as it is written.
export function plural(one, other, count, names = {}) {
  const found = texts[other];
  const forms = typeof found === "object" ? found : { one, other };
  return filled(forms[RULES.select(count)] ?? forms.other, { count: new Intl.NumberFormat(locale).format(count), ...names });
}

// A text with elements in its placeholders, as children of one: phrase("until {when}", { when: time(ms) })
export const phrase = (text, parts) => _(text).split(/(\{\w+\})/).map((piece) => (piece.startsWith("{") ? parts[piece.slice(1, -1)] ?? piece : piece)).filter((piece) => piece !== "");

// A finished English text of the API: in the language of the page, if the dictionary has it or its pattern.
let patterns = null;
export function alike(text) {
  if (language === "en" || typeof texts[text] === "string") return _(text);
  patterns ??= Object.keys(texts).filter((key) => /\{\w+\}/.test(key) && /\w+\W+\w+/.test(key.replace(/\{\w+\}/g, "")))
    .sort((one, other) => other.length - one.length)
    .map((key) => [key, key.split(/\{\w+\}/), [...key.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)]);
  for (const [key, parts, names] of patterns) {
    const found = between(text, parts);
    if (found) return _(key, Object.fromEntries(names.map((name, at) => [name, found[at]])));
  }
  return text;
}

// The pieces between these parts of a text, each at least one character; null where the text does not have the parts. A
// piece ends where the next part begins first: an expression would try all places, which takes for ever in a long text.
function between(text, parts) {
  const last = parts.at(-1);
  const until = text.length - last.length;
  if (!text.startsWith(parts[0]) || !text.endsWith(last)) return null;
  const found = [];
  let at = parts[0].length;
  for (const part of parts.slice(1, -1)) {
    const end = text.indexOf(part, at + 1);
    if (end < 0) return null;
    found.push(text.slice(at, end));
    at = end + part.length;
  }
  return at < until ? [...found, text.slice(at, until)] : null;
}

// States and roles, which the API calls by an English word
const WORDS = {
  accepted: _("accepted"), active: _("active"), administrator: _("administrator"), approved: _("approved"), asleep: _("asleep"), cancelled: _("cancelled"),
  complete: _("complete"), connected: _("connected"), declined: _("declined"), delivered: _("delivered"), developer: _("developer"), disabled: _("disabled"),
  disconnected: _("disconnected"), done: _("done"), drains: _("drains"), enabled: _("enabled"), expired: _("expired"), failed: _("failed"), failing: _("failing"),
  invalid: _("invalid"), listens: _("listens"), nothing: _("nothing"), offline: _("offline"), ok: _("ok"), online: _("online"), participant: _("participant"),
  paused: _("paused"), pending: _("pending"), "pending approval": _("pending approval"), "pending callback validation": _("pending callback validation"), processing: _("processing"), queued: _("queued"), reached: _("reached"),
  ready: _("ready"), refused: _("refused"), rejected: _("rejected"), requested: _("requested"), revoked: _("revoked"), running: _("running"), sent: _("sent"),
  serves: _("serves"), stopped: _("stopped"), succeeded: _("succeeded"), suspended: _("suspended"), unknown: _("unknown"), viewer: _("viewer"), waiting: _("waiting"),
};
export const worded = (text) => (Object.hasOwn(WORDS, text) ? WORDS[text] : text);
