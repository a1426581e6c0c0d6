// Shows the view that the fragment names, and asks the node again while somebody looks.

import { ask, asksFor, errorText } from "./asking.js";
import { element } from "./elements.js";
import { views } from "./views.js";

const EVERY = 5000;
const main = document.getElementById("main");
const said = document.getElementById("said");
const node = document.getElementById("node");
let turn = 0;
let timer = 0;
let refreshNow = () => {};

function asked() {
  const [view, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  return [view in views ? view : "status", Object.fromEntries(new URLSearchParams(query))];
}

function announce(text) {
  if (said.textContent !== text) said.textContent = text;
}

// Replaces the content; the link that has the focus keeps it.
function replace(place, content) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const target = focused?.getAttribute("href");
  const scrolled = focused && !target ? focused.getAttribute("aria-label") : null;
  place.replaceChildren(...content.flat(Infinity).filter((child) => child !== null && child !== undefined));
  const same = [...place.querySelectorAll("a, [tabindex]")].find((candidate) =>
    target ? candidate.getAttribute("href") === target : scrolled && candidate.getAttribute("aria-label") === scrolled);
  same?.focus({ preventScroll: true });
}

async function refresh(mine, view, place) {
  if (mine !== turn) return;
  const path = typeof view.path === "function" ? view.path() : view.path;
  if (path && !document.hidden) {
    try {
      const answer = await ask(path);
      if (mine !== turn) return;
      const content = view.show(answer);
      if (content) replace(place, content);
      place.removeAttribute("aria-busy");
      announce("");
    } catch (error) {
      if (mine !== turn) return;
      place.removeAttribute("aria-busy");
      const text = errorText(error);
      if (view.once || !place.childElementCount) replace(place, [element("p", { class: "banner bad" }, text)]);
      announce(`Not up to date: ${text}`);
    }
  }
  if (!view.once && mine === turn) timer = setTimeout(() => refresh(mine, view, place), view.every ?? EVERY);
}

function show(focus) {
  turn += 1;
  clearTimeout(timer);
  const [name, parameters] = asked();
  const view = views[name](parameters);
  const heading = element("h1", { tabindex: -1 }, view.heading);
  const place = element("div", { "aria-busy": view.path ? "true" : undefined });
  main.replaceChildren(heading, ...[view.form ?? []].flat(), place);
  document.title = `${view.heading} · bpfsvc`;
  const current = name === "service" ? "services" : name;
  for (const item of document.querySelectorAll("header nav a")) {
    if (item.getAttribute("href") === `#${current}`) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  if (focus) heading.focus();
  const mine = turn;
  refreshNow = () => {
    clearTimeout(timer);
    refresh(mine, view, place);
  };
  refreshNow();
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
if (asksFor) {
  document.querySelector("header nav ul").append(element("li", {}, element("a", { href: "/" }, "All nodes")));
}
addEventListener("hashchange", () => show(true));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refreshNow();
});
show(false);
node.textContent = asksFor ?? "";
ask("/api/status").then((answer) => { node.textContent = answer.node; }, () => {});
