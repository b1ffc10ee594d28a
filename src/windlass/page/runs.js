// All runs, live.

import { get, passing } from "./api.js";
import { h } from "./dom.js";
import { between, ENDED, HELD, number, pill, plain, short, STATES, when } from "./format.js";
import { command, empty, heads, live, problem, steadily, to } from "./parts.js";

const COUNT = 50;
const LOOKS = 10; // pages that are searched for one run, where the hub has no list for the filters

const ORDERS = { queued: "in the order of their queue", scheduled: "the next due first", waiting: "the oldest first" };

/** The filters that the hub can apply, and those left to the page. */
export function question({ state, job, queue }) {
  if (state === "queued") return [{ state, job, queue }, () => true];
  const query = job && state && !ENDED.has(state) ? { state } : { state, job };
  return [query, (run) => (!job || run.job === job) && (!queue || run.queue === queue)];
}

async function look(filters, signal) {
  const [query, matches] = question(filters);
  const page = { runs: [], cursor: filters.cursor };
  for (let looks = 0; looks < LOOKS && page.runs.length < COUNT; looks++) {
    const { runs, cursor } = await get("runs", { ...query, cursor: page.cursor, count: COUNT }, signal);
    page.runs.push(...runs.filter(matches));
    page.cursor = cursor;
    if (!cursor) break;
  }
  return page;
}

/** A run after a change, until the list is read again. */
function changed(run, event) {
  if (event.rev <= run.rev) return run;
  const { at, attempt, rev, state, worker } = event;
  const time = ENDED.has(state) ? { finished_at: at } : state === "running" ? { started_at: at } : {};
  return { ...run, rev, state, attempt, worker: worker ?? run.worker, ...time };
}

export async function runs(page) {
  const filters = Object.fromEntries(["state", "job", "queue", "cursor"].map((name) => [name, page.query.get(name) ?? ""]));
  const seen = { runs: null, cursor: null, error: null, stats: null, jobs: [], workers: [], paused: false };
  page.title("Runs");

  const load = async () => {
    if (seen.paused) return Infinity;
    const onError = (error) => (passing(error) || error.status === 401 ? Promise.reject(error) : { error, runs: [], cursor: null });
    const [list, stats, { workers }] = await Promise.all([
      look(filters, page.signal).catch(onError), get("stats", { minutes: 60 }, page.signal), get("workers", {}, page.signal),
    ]);
    Object.assign(seen, { error: null }, list, { stats, workers });
    draw();
    return 3_000;
  };
  const draw = () => page.draw(head(filters, seen, pause), warning(seen, filters), body(filters, seen));
  const pause = () => {
    seen.paused = !seen.paused;
    page.connection("reader", seen.paused ? "wait" : "live", seen.paused ? "paused" : "live");
    draw();
    list.soon();
  };
  const onEvent = ({ data }) => {
    const event = JSON.parse(data);
    if (seen.paused || !seen.runs || !event.run) return;
    const index = seen.runs.findIndex((run) => run.id === event.run);
    if (index >= 0) {
      seen.runs[index] = changed(seen.runs[index], event);
      redraw();
    }
    list.soon();
  };
  const redraw = once(draw);

  const list = steadily(page, load);
  get("jobs", { count: 1_000 }, page.signal).then(({ jobs }) => { seen.jobs = jobs.map((job) => job.name); }).catch(() => {});
  await Promise.all([list.ended, live(page, "events", { query: { job: filters.job, queue: filters.queue }, onEvent, opened: list.soon })]);
}

/** Combine the calls before the next frame into one. */
function once(draw) {
  let pending = false;
  return () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  };
}

function head(filters, seen, pause) {
  const { paused } = seen;
  const change = ({ target }) => { location.hash = filtered(filters, { [target.name]: target.value.trim() }); };
  const field = (name, list) =>
    h("input", { type: "search", name, list, value: filters[name], placeholder: name, "aria-label": `Only this ${name}`, on: { change } });
  return h("div", { class: "head", key: "head" },
    h("h1", {}, "Runs"),
    chart(seen.stats.minutes),
    h("div", { class: "filters" },
      field("job", "job-names"), field("queue"),
      h("datalist", { id: "job-names" }, seen.jobs.map((name) => h("option", { value: name }))),
      h("button", { "aria-pressed": String(paused), title: "Keeps the list as it is", on: { click: pause } }, paused ? "Go on" : "Hold")),
    chips(filters, seen.stats));
}

const filtered = (filters, change) => to("runs", undefined, { ...filters, cursor: "", ...change });

function chips(filters, { states, minutes }) {
  const chip = (state, many, title) => {
    const [href, current] = [filtered(filters, { state }), state === filters.state && "true"];
    return h("a", { class: "chip", "data-state": state, "data-none": many === 0, title, href, "aria-current": current },
      state || "all", many !== undefined && h("b", {}, number(many)));
  };
  const lately = (state) => minutes.reduce((sum, { counts }) => sum + counts[state], 0);
  return h("nav", { class: "chips", "aria-label": "States" },
    chip(""),
    h("span", { class: "faint" }, "now"),
    STATES.filter((state) => !ENDED.has(state)).map((state) => chip(state, states[state])),
    h("span", { class: "faint" }, "in the last hour"),
    [...ENDED].map((state) => chip(state, lately(state), `${number(states[state])} in all`)));
}

/** The last hour, a bar per minute: successes, and on top of them other ends. */
function chart(minutes) {
  const bars = minutes.map(({ counts }) => [counts.succeeded, counts.failed + counts.quarantined]);
  const highest = Math.max(1, ...bars.map(([well, badly]) => well + badly));
  const high = (many) => (many / highest) * 24;
  const bar = (state, index, from, many) =>
    many > 0 && h("svg:rect", { "data-state": state, x: index * 4, width: 3, y: 24 - high(from + many), height: high(many) });
  const title = `Ended a minute, in the last hour; ${number(highest)} at most`;
  return h("svg:svg", { class: "chart", viewBox: "0 0 240 24", role: "img", "aria-label": title }, h("svg:title", {}, title),
    bars.map(([well, badly], index) => [bar("succeeded", index, 0, well), bar("failed", index, well, badly)]));
}

function warning({ workers, stats }) {
  if (!stats.states.queued || workers.some((worker) => worker.alive)) return null;
  const words = h("p", {}, "No worker is running, so nothing that is queued will be executed. Start one:");
  return h("div", { class: "callout", key: "warning" }, words, command("windlass work shop:app"));
}

function body(filters, seen) {
  if (seen.error) return problem(seen.error);
  if (seen.runs.length === 0) return nothing(filters, seen.cursor);
  return h("section", { key: "list" },
    h("table", { class: "runs" },
      heads("State", "Run", "Queue", "Try", "What", "Worker", "Created", "Took"),
      h("tbody", {}, seen.runs.map(row))),
    h("nav", { class: "pages", "aria-label": "Pages" },
      filters.cursor && h("a", { href: filtered(filters) }, "← First page"),
      h("span", { class: "faint" }, ORDERS[filters.state] ?? "the newest first"),
      seen.cursor && h("a", { href: filtered(filters, { cursor: seen.cursor }), rel: "next" }, "Older →")));
}

function nothing(filters, cursor) {
  if (cursor) return empty("None among those looked at.", h("a", { href: filtered(filters, { cursor }), rel: "next" }, "Look further →"));
  if (Object.values(filters).some(Boolean)) return empty("No run is like this.", h("a", { href: to("runs") }, "Show all runs"));
  return empty("There are no runs yet.", h("p", {}, "Ask for one, and see it come here:"), command("windlass enqueue JOB key=value"));
}

function row(run) {
  return h("tr", { key: run.id, "data-id": run.id, "data-state": run.state },
    h("td", { class: "state" }, pill(run.state)),
    h("td", { class: "name" },
      h("a", { class: "cover", href: to("runs", run.id) }, run.job), " ",
      h("span", { class: "mono faint id", title: run.id }, short(run.id))),
    h("td", { class: "queue" }, run.queue, run.priority !== 0 && ` ${run.priority > 0 ? "+" : ""}${run.priority}`),
    h("td", { class: "try" }, `${tries(run)}/${run.max_attempts}`),
    h("td", { class: "what" }, what(run)),
    h("td", { class: "worker" }, HELD.has(run.state) || run.finished_at ? run.worker : ""),
    h("td", { class: "created" }, when(run.created_at)),
    h("td", { class: "took" }, between(run.started_at, run.finished_at) ?? (HELD.has(run.state) && when(run.started_at, "for"))));
}

/** Attempts that have started: failed ones, and the one that runs or succeeded. */
export const tries = (run) => run.failures + (HELD.has(run.state) || run.state === "succeeded" ? 1 : 0);

function what(run) {
  const { created_at: created, error, progress, due_at: due, state } = run;
  const failure = error && `${error.code}: ${error.message}`;
  if (HELD.has(state)) return [run.cancel_asked_at && ["asked to stop ", when(run.cancel_asked_at), " "], bar(progress), plain(progress?.message)];
  if (state === "scheduled") return ["due ", when(due, "due"), failure && ` · after ${failure}`];
  if (state === "queued") return ["for ", when(due > created ? due : created, "for"), failure && ` · after ${failure}`];
  if (state === "waiting") return "for another run to end";
  return state === "succeeded" ? null : failure ?? run.reason;
}

export function bar(progress) {
  return typeof progress?.fraction === "number" && h("progress", { max: 1, value: progress.fraction, "aria-label": "Progress" });
}
