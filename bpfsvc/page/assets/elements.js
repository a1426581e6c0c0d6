// Elements of the page. Every text from the node is set as text, never as markup.

export function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

// The fragment of a view: "#services?search=web".
export function fragment(view, parameters = {}) {
  const wanted = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined);
  const query = new URLSearchParams(wanted.map(([name, value]) => [name, String(value)])).toString();
  return `#${view}${query ? `?${query}` : ""}`;
}

export function link(text, view, parameters) {
  return element("a", { href: fragment(view, parameters) }, text);
}

// A table. On a phone each row is a block, and each cell has the name of its column before it: the roles
// say to a screen reader that it is a table all the same.
export function table(caption, columns, rows, nothing = "none") {
  if (!rows.length) return element("p", { class: "soft" }, `${caption}: ${nothing}`);
  const head = columns.map(([text, kind]) => element("th", { scope: "col", role: "columnheader", class: kind }, text));
  const body = rows.map((cells) =>
    element("tr", { role: "row" }, cells.map((cell, index) => {
      const [name, kind = ""] = columns[index];
      if (!index) return element("th", { scope: "row", role: "rowheader", class: kind }, cell);
      const empty = cell === "" ? "empty" : "";
      return element("td", { role: "cell", "data-column": name, class: `${kind} ${empty}` }, element("div", {}, cell));
    })));
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    element("table", { role: "table" }, element("caption", {}, caption),
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, head)),
      element("tbody", { role: "rowgroup" }, body)));
}

// Shares drawn side by side; the text says the largest of them.
export function bar(shares, text) {
  const drawn = shares.map((share) => {
    const part = element("span");
    part.style.width = `${(100 * share).toFixed(2)}%`;
    return part;
  });
  return [element("div", { class: "bar", "aria-hidden": "true" }, drawn), element("span", { class: "soft" }, text)];
}

export function field(label, input) {
  return element("label", {}, label, input);
}

export function input(name, value, attributes = {}) {
  const made = element("input", { name, autocomplete: "off", spellcheck: "false", ...attributes });
  made.value = value ?? "";
  return made;
}

export function choice(name, value, options) {
  const made = element("select", { name }, options.map(([key, text]) => element("option", { value: key }, text)));
  made.value = value ?? "";
  return made;
}

export function clock(seconds) {
  const at = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const text = at.toDateString() === new Date().toDateString() ? time : `${day} ${time}`;
  return element("time", { datetime: at.toISOString() }, `${text}.${String(at.getMilliseconds()).padStart(3, "0")}`);
}

export const number = (value) => (value ?? "-").toLocaleString("en");

// "12+" for at least 12, "-" for not known.
export function counted(port, name, value = port[name]) {
  if (value === null || value === undefined) return "-";
  return port.at_least.includes(name) ? `${number(value)}+` : number(value);
}
