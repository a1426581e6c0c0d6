// The views. Each returns what stays while its answer is asked for again, and how to show an answer.
//   heading: the title; form: what stays; path: what is asked; show(answer): elements.

import { ask, errorText } from "./asking.js";
import { bar, choice, clock, counted, element, field, fragment, input, link, number, table } from "./elements.js";

const PAGE = 50;
const EVENTS_SHOWN = 200;

const serviceOf = (text) => text.slice(0, text.lastIndexOf(":"));
const query = (parameters) => new URLSearchParams(parameters).toString();

// A form whose fields become the fragment.
function form(view, label, ...fields) {
  const made = element("form", { role: "search", "aria-label": label, onsubmit: (event) => {
    event.preventDefault();
    location.hash = fragment(view, Object.fromEntries(new FormData(made)));
  } }, fields, element("button", { type: "submit" }, "Show"));
  return made;
}

function banner(well, text) {
  return element("p", { class: `banner ${well ? "good" : "bad"}` }, text);
}

function facts(pairs) {
  return element("dl", {}, pairs.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

export const views = {
  status: () => ({
    heading: "Status of this node",
    path: "/api/status",
    show: (answer) => [
      banner(answer.well, `Agent: ${answer.head}`),
      banner(answer.carries_well, `Traffic: ${answer.lines.carries}`),
      element("h2", {}, "What fails"),
      table("Backends at fault, in the last minutes", [["Service"], ["Backend"], ["Connections"]],
        answer.failing.map((row) => [serviceLink(row.service), row.backend, row.text])),
      table("Services that refuse clients, in the last minutes", [["Service"], ["Why"]],
        answer.refusing.map((row) => [serviceLink(row.service), row.text])),
      element("h2", {}, "Drops by reason"),
      table("Dropped packets and calls since the programs were loaded", [["Reason"], ["Number", "number"], ["Share"]],
        drops(answer.drops)),
      element("h2", {}, "Details"),
      facts(Object.entries(answer.lines).filter(([name]) => !["carries", "drops"].includes(name))),
    ],
  }),

  services: (asked) => {
    const first = Number(asked.first ?? 0);
    const { search = "", failing = "", sort = "" } = asked;
    return {
      heading: "Services",
      form: form("services", "Services",
        field("Name or address", input("search", search, { type: "search", placeholder: "shop/web or 10.96.0.1" })),
        field("Sort by", choice("sort", sort, [["", "name"], ["connections", "connections so far"], ["active", "active connections"], ["half-open", "half-open connections"]])),
        element("label", { class: "check" }, element("input", { type: "checkbox", name: "failing", value: "1", checked: failing === "1" }), "Only with failures or without a ready backend")),
      path: `/api/services?${query({ search, failing, sort, first, size: PAGE })}`,
      show: (answer) => [
        table(`${number(answer.matching)} of ${number(answer.total)} service ports`,
          [["Service"], ["Protocol"], ["Frontends"], ["Ready", "number"], ["Half-open", "number"], ["Active", "number"], ["Failed lately", "number"], ["Connections", "number"], ["Shares of backends"]],
          answer.rows.map(serviceRow), "no service port matches"),
        pages(answer, (from) => fragment("services", { ...asked, first: from || "" })),
        element("p", { class: "soft" }, answer.note),
      ],
    };
  },

  service: (asked) => {
    const { name = "", protocol = "TCP", family = "IPv4" } = asked;
    return {
      heading: `Service ${name} ${protocol} ${family}`,
      path: `/api/service?${query({ name, protocol, family })}`,
      show: (answer) => service(answer),
    };
  },

  events: (asked) => eventsView(asked),

  history: (asked) => {
    const { service: name = "" } = asked;
    return {
      heading: name ? `History of ${name}` : "History",
      form: form("history", "History", field("Service (empty: all)", input("service", name, { placeholder: "shop/web" }))),
      path: `/api/history?${query({ service: name })}`,
      show: (answer) => history(answer),
    };
  },

  explain: (asked) => {
    const complete = asked.client && asked.destination;
    return {
      heading: "Explain: the way of a first packet",
      form: form("explain", "Explain",
        field("Client", input("client", asked.client, { placeholder: "10.244.1.5 or shop/pod-0", required: true })),
        field("From", choice("from", asked.from, [["", "as the pod's name says"], ["pod", "a pod of this node"], ["external", "outside of this node"], ["node", "the node"], ["localhost", "the node, by 127.0.0.1"]])),
        field("Protocol", choice("protocol", asked.protocol || "TCP", [["TCP", "TCP"], ["UDP", "UDP"], ["SCTP", "SCTP"]])),
        field("Destination and port", input("destination", asked.destination, { placeholder: "10.96.0.1:80 or shop/web:http", required: true }))),
      path: complete ? `/api/explain?${query(asked)}` : "",
      once: true,
      show: (answer) => [way(answer), live(asked)],
    };
  },
};

function serviceLink(text) {
  return link(text, "services", { search: text });
}

function drops(counts) {
  const rows = Object.entries(counts).sort(([, one], [, other]) => other - one);
  const most = rows.reduce((sum, [, count]) => sum + count, 0);
  return rows.map(([reason, count]) => [reason, number(count), bar([count / most], `${((100 * count) / most).toFixed(0)} %`)]);
}

function serviceRow(port) {
  const all = port.shares.reduce((sum, share) => sum + share.connections, 0);
  const largest = port.shares[0];
  const text = largest ? `${largest.backend} ${((100 * largest.connections) / all).toFixed(0)} %` : "no connection yet";
  const more = port.all_frontends - port.frontends.length;
  return [
    link(port.service, "service", { name: port.service, protocol: port.protocol, family: port.family }),
    `${port.protocol} ${port.family}`,
    [port.frontends.map((frontend) => element("div", {}, frontend)), more > 0 ? `and ${more} more` : ""],
    element("span", { class: port.ready ? "" : "bad" }, `${port.ready} of ${port.backends}`),
    number(port.half_open), counted(port, "active"), failed(port.failed_lately), number(port.connections),
    all ? bar(port.shares.map((share) => share.connections / all), text) : text,
  ];
}

function failed(count) {
  return element("span", { class: count ? "bad" : "" }, count === null ? "-" : number(count));
}

function pages(answer, target) {
  const end = answer.first + answer.rows.length;
  const parts = [`${answer.rows.length ? number(answer.first + 1) : 0} to ${number(end)} of ${number(answer.matching)}`];
  if (answer.first > 0) parts.push(element("a", { href: target(Math.max(0, answer.first - PAGE)) }, "Previous page"));
  if (end < answer.matching) parts.push(element("a", { href: target(end) }, "Next page"));
  return element("nav", { class: "pages", "aria-label": "Pages" }, parts);
}

function service(port) {
  const name = serviceOf(port.service);
  const counts = port.backends.map((backend) => backend.counts?.connections ?? 0);
  const all = counts.reduce((sum, count) => sum + count, 0);
  return [
    element("p", {}, link("Its history", "history", { service: name }), " · ", link("Its events", "events", { service: port.service })),
    facts([
      ["scheduler", port.scheduler || "-"],
      ["affinity", port.affinity_seconds ? `${port.affinity_seconds} s` : "none"],
      ["source ranges", port.source_ranges.join(", ") || "all clients"],
      ["half-open, active, inactive", `${number(port.half_open)}, ${counted(port, "active")}, ${counted(port, "inactive")}`],
      ["connections so far", number(all)],
      ["refused clients", `${number(port.counts.rejected)} by an answer, ${number(port.counts.dropped)} silently`],
    ]),
    element("h2", {}, "Backends"),
    table("Backends of new connections, and those that drain",
      [["Backend"], ["State"], ["Weight", "number"], ["Half-open", "number"], ["Active", "number"], ["Inactive", "number"], ["Failed lately"], ["Half answered", "number"], ["Connections", "number"], ["Share"]],
      port.backends.map((backend, index) => [
        address(backend), element("span", { class: backend.state === "ready" ? "good" : "warn" }, backend.state),
        number(backend.weight), number(backend.half_open), counted(port, "active", backend.active), counted(port, "inactive", backend.inactive),
        failures(backend.failed_lately), median(backend.connect_times), backend.counts ? number(counts[index]) : "-",
        all ? bar([counts[index] / all], `${((100 * counts[index]) / all).toFixed(0)} %`) : "-",
      ])),
    element("h2", {}, "Frontends"),
    table("Where clients send to", [["Frontend"], ["Treatment"]],
      port.frontends.map((frontend) => [frontend.frontend, frontend.words.join(", ") || "forwarded"])),
  ];
}

function address(backend) {
  return backend.address.includes(":") ? `[${backend.address}]:${backend.port}` : `${backend.address}:${backend.port}`;
}

function failures(counts) {
  if (!counts) return "-";
  const texts = Object.entries(counts).filter(([, count]) => count).map(([reason, count]) => `${number(count)} ${reason}`);
  return element("span", { class: texts.length ? "bad" : "" }, texts.join(", ") || "0");
}

// Within which time half of the connects of this node's clients were answered.
function median(times) {
  if (!times) return "-";
  const [least, below] = times.median_ms;
  return below === null ? `> ${least} ms` : `< ${below} ms`;
}

function history(answer) {
  const entries = [
    ...answer.changes.map((change) => ({ at: change.at, item: element("li", {}, clock(change.at), changed(change)) })),
    ...answer.failures.map((failure) => ({ at: failure.last, item: element("li", { class: "failure" }, clock(failure.last),
      element("span", { class: "bad" }, failure.text),
      `; ${number(failure.count)} times, first at `, clock(failure.first),
      failure.clients.length ? `; clients: ${failure.clients.join(", ")}` : "") })),
  ].sort((one, other) => other.at - one.at);
  const left = answer.all_changes - answer.changes.length;
  return [
    answer.problem ? banner(false, `Failed connections are not known: ${answer.problem}`) : null,
    element("p", { class: "soft" }, `${entries.length} ${entries.length === 1 ? "entry" : "entries"}, the newest first${left > 0 ? `; ${number(left)} older changes are left out (bpfsvc history shows them)` : ""}`),
    element("ol", { class: "timeline", reversed: true }, entries.map((entry) => entry.item)),
  ];
}

function changed(change) {
  const names = change.services.map((name, index) => [index ? ", " : "", link(name, "history", { service: name })]);
  const more = change.more ? ` and ${number(change.more)} more` : "";
  const waited = change.waited_ms === undefined || change.waited_ms === null ? "" : ` (after ${change.waited_ms} ms)`;
  return [names, `${more}: ${change.text}${waited}`];
}

function way(answer) {
  const good = answer.endpoints.length > 0;
  const masqueraded = (endpoint) => answer.masquerade || (answer.masquerade_endpoints ?? []).includes(endpoint);
  return [
    element("h2", {}, "The way"),
    element("ol", { class: "way", "aria-label": "The packet's way" },
      element("li", {}, element("span", { class: "box" }, `client ${answer.client} (${answer.from})`)),
      element("li", {}, element("span", { class: "box" }, answer.frontend ? `frontend ${answer.frontend} of ${answer.service}` : `destination ${answer.asked}: no Service`)),
      element("li", {}, element("span", { class: `box ${good ? "good" : "bad"}` }, answer.verdict)),
      good ? element("li", { class: "endpoints" }, element("ul", { "aria-label": "Endpoints that it may reach" }, answer.endpoints.map((endpoint) =>
        element("li", {}, element("span", { class: "box" }, `${endpoint}${masqueraded(endpoint) ? " (masqueraded)" : ""}`))))) : null),
    element("h2", {}, "The reasons"),
    element("ul", {}, answer.reasons.map((reason) => element("li", {}, reason))),
    answer.lately ? [element("h2", {}, "What failed lately"), element("ul", {}, answer.lately.map((text) => element("li", { class: "bad" }, text)))] : null,
  ];
}

// A button that watches what becomes of the real packets of the question, for some seconds.
function live(asked) {
  const shown = element("div", { role: "status", "aria-live": "polite" });
  const button = element("button", { type: "button", onclick: async () => {
    button.disabled = true;
    shown.replaceChildren(element("p", { class: "soft" }, "Watching for ten seconds; connections that are made now are seen."));
    try {
      const answer = await ask(`/api/explain-live?${query(asked)}`);
      const missing = answer.missing ? element("p", { class: "soft" }, `What other parts of this node drop is not seen: ${answer.missing}`) : "";
      shown.replaceChildren(missing, element("pre", {}, answer.lines.join("\n")));
    } catch (error) {
      shown.replaceChildren(element("p", { class: "banner bad" }, errorText(error)));
    }
    button.disabled = false;
  } }, "Watch real packets");
  return [element("h2", {}, "What becomes of real packets"), button, shown];
}

function eventsView(asked) {
  const { service: name = "", namespace = "", ip = "", verdict = "" } = asked;
  let last = 0;
  let shown = [];
  let paused = false;
  const pause = element("button", { type: "button", "aria-pressed": "false", onclick: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
  } }, "Pause");
  return {
    heading: "Live events",
    form: [form("events", "Events",
      field("Service", input("service", name, { placeholder: "shop/web or shop/web:http" })),
      field("Namespace", input("namespace", namespace)),
      field("Address or network", input("ip", ip, { placeholder: "10.244.0.0/16" })),
      field("Verdict", choice("verdict", verdict, [["", "all"], ["forwarded", "forwarded"], ["refused", "refused"], ["dropped", "dropped"]]))), pause],
    // The numbers begin anew with another process of the page: then the answer has all that it knows.
    path: () => (paused ? "" : `/api/events?${query({ after: last, service: name, namespace, ip, verdict })}`),
    every: 1000,
    show: (answer) => {
      const missed = answer.missed ? [{ time: Date.now() / 1000, kind: "lost", text: `${number(answer.missed)} events are left out: more came than this page shows` }] : [];
      shown = [...(answer.last < last ? [] : shown), ...missed, ...answer.events].slice(-EVENTS_SHOWN);
      const news = answer.events.length;
      const quiet = last && !news && !missed.length && !answer.error;
      last = answer.last;
      if (quiet && shown.length) return null;
      return [
        answer.error ? banner(false, answer.error) : null,
        table(`The last ${EVENTS_SHOWN} events at most, the newest first`, [["Time", "nowrap"], ["Event"], ["Service"], ["Client"], ["Backend"], ["Details"]],
          [...shown].reverse().map(eventRow), "nothing has happened yet"),
      ];
    },
  };
}

function eventRow(event) {
  if (event.kind === "lost") return [clock(event.time), element("span", { class: "warn" }, "lost"), event.text, "", "", ""];
  const kind = { refused: "bad", dropped: "bad", repeated: "warn", answered: "good" }[event.kind] ?? "";
  const details = [
    event.took_ms === null ? "" : `after ${event.took_ms.toFixed(event.took_ms < 10 ? 3 : 0)} ms`,
    event.reason, event.path, event.chosen_by ? `by ${event.chosen_by}` : "", event.masquerade ? "masqueraded" : "", event.sample > 1 ? `one of ${event.sample}` : "",
  ].filter(Boolean).join("; ");
  return [
    clock(event.time), element("span", { class: kind }, `${event.kind} ${event.protocol}`),
    event.service === "-" ? event.frontend : link(event.service, "services", { search: event.service }),
    event.client, event.backend, details,
  ];
}
