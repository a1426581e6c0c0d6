// All nodes: the health of each agent and of what it carries, or why it did not answer.

import { clock, element, number, table } from "./elements.js";

const EVERY = 10000;
const nodes = document.getElementById("nodes");
const said = document.getElementById("said");
let timer = 0;

const page = (node, fragment = "") => `/node?${new URLSearchParams({ node })}${fragment}`;

// What is worst comes first: no answer, an agent that is not healthy, traffic that fails.
const rank = (row) => (row.problem ? 0 : !row.well ? 1 : !row.carries_well ? 2 : 3);

function banner(rows) {
  const known = rows.filter((row) => !row.problem);
  const ill = known.filter((row) => !row.well).length;
  const failing = known.filter((row) => !row.carries_well).length;
  const texts = [`${number(known.length)} of ${number(rows.length)} nodes answer`];
  if (ill) texts.push(`${number(ill)} ${ill === 1 ? "agent is" : "agents are"} not healthy`);
  if (failing) texts.push(`traffic fails on ${number(failing)} ${failing === 1 ? "node" : "nodes"}`);
  const well = known.length === rows.length && !ill && !failing;
  return element("p", { class: `banner ${well ? "good" : "bad"}` }, texts.join("; "));
}

function nodeRow(row) {
  if (row.problem) return [row.node, element("span", { class: "bad" }, "no answer"), row.problem];
  const state = (well, text) => element("span", { class: well ? "good" : "bad" }, text);
  return [
    element("a", { href: page(row.node) }, row.node),
    state(row.well, row.head), state(row.carries_well, row.lines?.carries ?? "-"),
  ];
}

// A line for each fault, with the nodes that see it: all nodes, or one, is where to look first.
function faults(rows) {
  const seen = new Map();
  for (const row of rows) {
    for (const fault of row.failing ?? []) note(seen, [fault.service, `backend ${fault.backend} fails`], row.node);
    for (const fault of row.refusing ?? []) note(seen, [fault.service, "clients are refused"], row.node);
  }
  return [...seen.values()].sort((one, other) => other.nodes.size - one.nodes.size).map(({ texts, nodes: where }) =>
    [texts[0], texts[1], [...where].map((node, index) => [index ? ", " : "", element("a", { href: page(node, "#status") }, node)])]);
}

function note(seen, texts, node) {
  const key = texts.join("\n");
  if (!seen.has(key)) seen.set(key, { texts, nodes: new Set() });
  seen.get(key).nodes.add(node);
}

function show(answer) {
  const rows = [...answer.nodes].sort((one, other) => rank(one) - rank(other));
  const focused = nodes.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  nodes.replaceChildren(
    banner(rows),
    element("p", { class: "soft" }, "As of ", clock(answer.at), answer.note ? `. Note: ${answer.note}` : ""),
    element("h2", {}, "What fails"),
    table("Services at fault, in the last minutes", [["Service"], ["What"], ["Nodes that see it"]], faults(rows)),
    element("h2", {}, "Nodes"),
    table("Each node: its agent, and what it carries", [["Node", "nowrap"], ["Agent"], ["Traffic, or why there is no answer"]], rows.map(nodeRow), "there is no agent"),
  );
  [...nodes.querySelectorAll("a")].find((link) => focused && link.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

async function refresh() {
  clearTimeout(timer);
  if (!document.hidden) {
    try {
      const response = await fetch("/api/fleet", { headers: { Accept: "application/json" } });
      const answer = await response.json().catch(() => ({ error: `the answer is ${response.status}` }));
      if (!response.ok) throw new Error([answer.error, answer.hint].filter(Boolean).join("; "));
      show(answer);
      said.textContent = "";
    } catch (error) {
      const text = error instanceof TypeError ? "bpfsvc page --fleet does not answer" : error.message;
      said.textContent = `Not up to date: ${text}`;
      if (nodes.hasAttribute("aria-busy")) nodes.replaceChildren(element("p", { class: "banner bad" }, text));
    }
    nodes.removeAttribute("aria-busy");
  }
  timer = setTimeout(refresh, EVERY);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
refresh();
