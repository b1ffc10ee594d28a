// The definitions from which runs are created.

import { get } from "./api.js";
import { h } from "./dom.js";
import { json, when } from "./format.js";
import { command, empty, heads, pages, steadily, switching, tags, to } from "./parts.js";

const COUNT = 100;

export async function jobs(page) {
  page.title("Jobs");
  const after = page.query.get("after") ?? "";
  const load = async () => {
    const [{ jobs: records, cursor }, { pauses }] = await Promise.all([
      get("jobs", { after, count: COUNT }, page.signal), get("pauses", {}, page.signal),
    ]);
    const list = records.length ? table(page, records, pauses, view.soon) : nothing(after);
    page.draw(h("div", { class: "head" }, h("h1", {}, "Jobs")), list, pages("jobs", after, cursor));
    return 5_000;
  };
  const view = steadily(page, load);
  await view.ended;
}

function nothing(after) {
  if (after) return empty("No more jobs.");
  const how = h("p", {}, "A worker defines those of its app when it starts:");
  return empty("There are no jobs yet.", how, command("windlass work shop:app"));
}

function table(page, records, pauses, again) {
  const paused = (name) => pauses.some((pause) => pause.scope === "job" && pause.name === name);
  const row = ({ name, handler, description, payload, options, updated_at: updated }) => h("tr", { key: name },
    h("td", { class: "name" }, h("a", { href: to("runs", undefined, { job: name }) }, name), description !== null && h("p", { class: "faint" }, description)),
    h("td", { class: "what" }, handler === null ? "Not defined: its runs wait for a worker that knows it." : h("code", {}, handler)),
    h("td", { "data-name": "Queue" }, options.queue ?? "default"),
    h("td", { "data-name": "Tries" }, options.max_attempts ?? 3),
    h("td", { "data-name": "Requires" }, tags(options.requires?.tags)),
    h("td", { "data-name": "Payload" }, Object.keys(payload).length > 0 && h("code", {}, json(payload))),
    h("td", { "data-name": "Changed" }, when(updated)),
    h("td", { class: "actions" }, switching(page, { scope: "job", name }, paused(name), again)));
  return h("table", { class: "plain", key: "list" },
    heads("Job", "Handler", "Queue", "Tries", "Requires", "Payload", "Changed", ""),
    h("tbody", {}, records.map(row)));
}
