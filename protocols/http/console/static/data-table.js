// A table with pages, sorting, a filter and export as CSV. All rows are in memory.

import { fill, h, saveFile, whole } from "./dom.js";
import { _, language } from "./texts.js";

const SHOWN = 50;
const CARDS = 12;  // rows in a page of cards
const narrow = matchMedia("(max-width: 52rem)");

// A column: { name, value: row => text or number, cell: row => node (text by default), isNumber, isName, isHidden }.
// A hidden column is the last: the filter and the CSV use it.
export class DataTable {
  constructor(caption, columns, { empty = _("Nothing yet."), order = null, file = "table.csv", cards = CARDS } = {}) {
    this.caption = caption;
    this.columns = columns;
    this.rows = [];
    this.page = 0;
    this.order = order;  // [index of the column, whether descending]
    this.noRows = empty;
    this.file = file;
    this.cards = cards;
    this.words = "";
    this.more = "";
    const at = `find-${Math.random().toString(36).slice(2, 8)}`;
    this.search = h("input", { id: at, type: "search", maxlength: 64, autocomplete: "off", oninput: () => { this.words = this.search.value.toLowerCase(); this.page = 0; this.paint(); } });
    this.note = h("span", { class: "number", role: "status" });
    this.tools = h("div", { class: "tools" }, h("p", {}, h("label", { for: at }, _("Filter {what}", { what: language === "de" ? caption : caption.toLowerCase() })), this.search),
      h("p", { class: "row" }, h("button", { type: "button", class: "quiet small", onclick: () => this.saveCsv() }, _("Save as CSV"))));
    this.body = h("tbody");
    this.headRow = h("tr");
    this.earlier = h("button", { type: "button", class: "quiet small", onclick: () => this.turn(-1) }, _("Previous"));
    this.later = h("button", { type: "button", class: "quiet small", onclick: () => this.turn(1) }, _("Next"));
    this.table = h("table", { class: "cards" }, h("caption", { class: "unseen" }, caption), h("thead", {}, this.headRow), this.body);
    this.pages = h("div", { class: "pages" }, this.earlier, this.note, this.later);
    this.none = h("p", { class: "hint" });
    narrow.addEventListener("change", () => this.paint());
    this.element = h("div", {}, this.tools, h("div", { class: "scroll" }, this.table), this.none, this.pages);
    this.paint();
  }

  // `more` describes rows that are still being loaded.
  set(rows, more = "") {
    this.rows = rows;
    this.more = more;
    this.paint();
  }

  turn(by) {
    this.page += by;
    this.paint();
  }

  sortBy(index) {
    this.order = [index, this.order?.[0] === index ? !this.order[1] : false];
    this.page = 0;
    this.paint();
  }

  found() {
    const found = this.words ? this.rows.filter((row) => this.columns.some((one) => String(one.value(row) ?? "").toLowerCase().includes(this.words))) : [...this.rows];
    if (!this.order) return found;
    const [index, falls] = this.order;
    const { value } = this.columns[index];
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? "")));
    return found.sort((a, b) => compare(value(a), value(b)) * (falls ? -1 : 1));
  }

  paint() {
    const size = narrow.matches ? this.cards : SHOWN;
    const found = this.found(), last = Math.max(0, Math.ceil(found.length / size) - 1);
    this.page = Math.min(Math.max(0, this.page), last);
    const first = this.page * size, some = found.slice(first, first + size);
    if (!this.headRow.contains(document.activeElement) || this.painted !== this.order) {
      const focused = [...this.headRow.querySelectorAll("button")].indexOf(document.activeElement);
      fill(this.headRow, this.columns.filter((one) => !one.isHidden).map((one, index) => this.head(one, index)));
      if (focused >= 0) this.headRow.querySelectorAll("button")[focused]?.focus();
      this.painted = this.order;
    }
    fill(this.body, some.map((row) => h("tr", {}, this.columns.filter((one) => !one.isHidden).map((one) => this.cell(one, row)))));
    this.table.hidden = found.length === 0;
    this.tools.hidden = this.rows.length < 8 && !this.words;
    this.pages.hidden = found.length <= size && !this.more;
    this.earlier.disabled = this.page === 0;
    this.later.disabled = this.page === last;
    this.none.hidden = found.length > 0;
    this.none.textContent = this.rows.length ? _("No row fits.") : this.noRows;
    this.note.textContent = _("{first}–{last} of {total}", { first: whole(found.length ? first + 1 : 0), last: whole(first + some.length), total: whole(found.length) }) + (this.more ? ` (${this.more})` : "");
  }

  head(one, index) {
    const isSorted = this.order?.[0] === index;
    if (!one.name) return h("th", { scope: "col" }, h("span", { class: "unseen" }, _("Actions")));
    return h("th", { scope: "col", class: one.isNumber ? "size" : undefined, "aria-sort": isSorted ? (this.order[1] ? "descending" : "ascending") : undefined },
      h("button", { type: "button", class: "sort", onclick: () => this.sortBy(index) }, one.name, isSorted ? (this.order[1] ? " ↓" : " ↑") : ""));
  }

  cell(one, row) {
    const content = one.cell ? one.cell(row) : String(one.value(row) ?? "");
    if (one.isName) return h("th", { scope: "row" }, content);
    const isNothing = content instanceof Element ? !content.textContent && !content.childElementCount : content === "";
    const kind = isNothing ? "none" : one.isNumber ? "size" : one.name ? undefined : "act";
    return h("td", { class: kind, "data-label": one.name || undefined }, content);
  }

  saveCsv() {
    const columns = this.columns.filter((one) => one.name);
    const lines = [columns.map((one) => one.name), ...this.found().map((row) => columns.map((one) => one.value(row) ?? ""))];
    saveFile(this.file, lines.map((line) => line.map(csvCell).join(",")).join("\r\n"), "text/csv");
  }
}

// Puts an apostrophe before text that a spreadsheet would take for a formula, also inside of a text, after characters
// that spreadsheets of some countries take for the end of a cell.
const csvCell = (value) => quoted(typeof value === "string" ? value.replace(/(^|[;\t\r\n])(?=[=+\-@\t\r])/g, "$1'") : String(value));

// A CSV field without protection against formulas.
export const quoted = (text) => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
