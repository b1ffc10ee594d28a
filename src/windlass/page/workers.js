// Workers.

import { get } from "./api.js";
import { h } from "./dom.js";
import { number, plain, short, when } from "./format.js";
import { command, empty, facts, pages, runLink, steadily, tags } from "./parts.js";

const COUNT = 100;

export async function workers(page) {
  page.title("Workers");
  const after = page.query.get("after") ?? "";
  const load = async () => {
    const { workers: records, cursor } = await get("workers", { after, count: COUNT }, page.signal);
    const alive = records.filter((worker) => worker.alive);
    const gone = records.filter((worker) => !worker.alive);
    page.draw(
      h("div", { class: "head" },
        h("h1", {}, "Workers"), records.length > 0 && h("p", { class: "faint" }, `${alive.length} alive, ${gone.length} seen lately`)),
      records.length ? h("div", { class: "cards", key: "list" }, [...alive, ...gone].map(card)) : nothing(),
      pages("workers", after, cursor));
    return 2_000;
  };
  await steadily(page, load).ended;
}

const nothing = () => empty("No worker has been seen.", h("p", {}, "Start one beside the store, or anywhere that reaches this hub:"),
  command("windlass work shop:app"), command(`windlass work shop:app --hub ${new URL("../", import.meta.url).href}`));

function card(worker) {
  const { about, held, metrics, runs, slots } = worker;
  const more = held - runs.length;
  return h("section", { class: "card", key: worker.name, "data-alive": String(worker.alive) },
    h("h2", {}, worker.name),
    h("p", { class: "faint" }, worker.alive ? "alive, seen " : worker.stopped_at ? "stopped " : "gone, last seen ", when(worker.stopped_at ?? worker.seen_at)),
    worker.alive && h("div", { class: "gauges" },
      gauge("Slots", held, slots, (part, limit) => `${part} of ${limit}`),
      gauge("CPU", metrics.cpu, 100, (part) => `${Math.round(part)} %`),
      gauge("Memory", metrics.memory, metrics.memory_total, ofBytes),
      gauge("Disk", metrics.disk, metrics.disk_total, ofBytes),
      gauge("Load", metrics.load1, metrics.cores, (part, limit) => `${part.toFixed(2)} on ${limit} cores`)),
    facts(
      ["Queues", worker.queues ? tags(worker.queues) : "all"],
      worker.jobs && ["Jobs", tags(worker.jobs)],
      worker.jobs && worker.programs && ["Programs", "of any job"],
      worker.tags.length > 0 && ["Tags", tags(worker.tags)],
      ["Offers", [`${worker.cores} cores`, worker.memory > 0 && `${number(worker.memory)} MiB`].filter(Boolean).join(", ")],
      ["Host", listed(about.host, named("pid", about.pid))],
      ["Version", listed(about.version, named("Python", about.python), about.system)],
      ["Since", when(worker.registered_at)],
      held > 0 && ["Runs", [runs.map((id) => [runLink(id, short(id)), " "]), more > 0 && `and ${number(more)} more`]]));
}

const named = (name, value) => plain(value) && `${name} ${plain(value)}`;

/** The values that are present, separated by commas. */
const listed = (...values) => values.map(plain).filter(Boolean).join(", ");

const bytes = (size) => `${(size / 2 ** 30).toFixed(size < 10 * 2 ** 30 ? 1 : 0)} GiB`;
const ofBytes = (part, limit) => `${bytes(part)} of ${bytes(limit)}`;

/** A part of a whole, in words; nothing if either is missing. */
function gauge(name, part, limit, words) {
  if (!Number.isFinite(part) || !Number.isFinite(limit)) return null;
  const meter = h("meter", { min: 0, max: limit || 1, value: part, high: limit * 0.9, "aria-label": name });
  return h("div", { class: "gauge", key: name }, h("span", {}, name), meter, h("span", { class: "number" }, words(part, limit)));
}
