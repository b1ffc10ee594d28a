// What runs are made from.

import { get } from "./api.js";
import { h } from "./dom.js";
import { json, when } from "./format.js";
import { command, empty, heads, pages, steadily, tags, to } from "./parts.js";

const COUNT = 100;

export async function jobs(page) {
  page.title("Jobs");
  const after = page.query.get("after") ?? "";
  const load = async () => {
    const { jobs: found, cursor } = await get("jobs", { after, count: COUNT }, page.signal);
    page.draw(h("div", { class: "head" }, h("h1", {}, "Jobs")), found.length ? table(found) : nothing(after), pages("jobs", after, cursor));
    return 5_000;
  };
  await steadily(page, load).ended;
}

function nothing(after) {
  if (after) return empty("No more jobs.");
  const how = h("p", {}, "A worker defines those of its app when it starts:");
  return empty("There are no jobs yet.", how, command("windlass work shop:app"));
}

function table(found) {
  const row = ({ name, handler, payload, options, updated_at: updated }) => h("tr", { key: name },
    h("td", { class: "name" }, h("a", { href: to("runs", undefined, { job: name }) }, name)),
    h("td", { class: "what" }, handler === null ? "Not defined: its runs wait for a worker that knows it." : h("code", {}, handler)),
    h("td", { "data-name": "Queue" }, options.queue ?? "default"),
    h("td", { "data-name": "Tries" }, options.max_attempts ?? 3),
    h("td", { "data-name": "Requires" }, tags(options.requires?.tags)),
    h("td", { "data-name": "Payload" }, Object.keys(payload).length > 0 && h("code", {}, json(payload))),
    h("td", { "data-name": "Changed" }, when(updated)));
  return h("table", { class: "plain", key: "list" },
    heads("Job", "Handler", "Queue", "Tries", "Requires", "Payload", "Changed"),
    h("tbody", {}, found.map(row)));
}
