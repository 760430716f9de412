// The texts in the language of the page. English is the key; the page loads a dictionary for the other languages.

export const language = document.documentElement.lang || "en";
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
  return filled(forms[RULES.select(count)] ?? forms.other, { count: new Intl.NumberFormat(language).format(count), ...names });
}
