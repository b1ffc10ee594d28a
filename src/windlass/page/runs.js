// All runs, live.

import { get } from "./api.js";
import { h } from "./dom.js";
import { between, ENDED, HELD, pill, short, STATES, when } from "./format.js";
import { command, empty, live, passing, problem, steadily, to } from "./parts.js";

const COUNT = 50;
const LOOKS = 10; // pages that are looked through for one, where the hub has no list for what is asked

const ORDERS = { queued: "in the order of their queue", scheduled: "the next due first", waiting: "the oldest first" };

/** What the hub can list at once, and what is left to choose from that. */
export function question({ state, job, queue }) {
  if (state === "queued") return [{ state, job, queue }, () => true];
  const asked = job && state && !ENDED.has(state) ? { state } : { state, job };
  return [asked, (run) => (!job || run.job === job) && (!queue || run.queue === queue)];
}

async function look(filters, signal) {
  const [asked, wanted] = question(filters);
  const page = { runs: [], cursor: filters.cursor };
  for (let looks = 0; looks < LOOKS && page.runs.length < COUNT; looks++) {
    const { runs, cursor } = await get("runs", { ...asked, cursor: page.cursor, count: COUNT }, signal);
    page.runs.push(...runs.filter(wanted));
    page.cursor = cursor;
    if (!cursor) break;
  }
  return page;
}

/** A run as a change leaves it, until the list is read again. */
function changed(run, event) {
  if (event.rev <= run.rev) return run;
  const times = { running: { started_at: event.at }, claimed: { claimed_at: event.at } };
  const ended = ENDED.has(event.state) ? { finished_at: event.at } : {};
  return { ...run, rev: event.rev, state: event.state, attempt: event.attempt, worker: event.worker ?? run.worker, ...times[event.state], ...ended };
}

export async function runs(page) {
  const filters = Object.fromEntries(["state", "job", "queue", "cursor"].map((name) => [name, page.query.get(name) ?? ""]));
  const seen = { runs: null, cursor: null, error: null, stats: null, jobs: [], workers: [], paused: false };
  page.title("Runs");

  const load = async () => {
    if (seen.paused) return Infinity;
    const told = (error) => (passing(error) || error.status === 401 ? Promise.reject(error) : { error, runs: [], cursor: null });
    const [list, stats, { workers }] = await Promise.all([
      look(filters, page.signal).catch(told), get("stats", { minutes: 60 }, page.signal), get("workers", {}, page.signal),
    ]);
    Object.assign(seen, { error: null }, list, { stats, workers });
    draw();
    return 3_000;
  };
  const draw = () => page.draw(head(filters, seen, pause), warning(seen, filters), body(filters, seen));
  const pause = () => {
    seen.paused = !seen.paused;
    page.connection(seen.paused ? "wait" : "live", seen.paused ? "paused" : "live");
    draw();
    list.soon();
  };
  const heard = ({ data }) => {
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
  await Promise.all([list.ended, live(page, "events", { query: { job: filters.job, queue: filters.queue }, heard, opened: list.soon })]);
}

/** Many calls before the next frame are one. */
function once(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };
}

function head(filters, seen, pause) {
  const change = (event) => { location.hash = to("runs", undefined, { ...filters, cursor: "", [event.target.name]: event.target.value.trim() }); };
  const field = (name, extra) => h("input", { type: "search", name, value: filters[name], placeholder: name, "aria-label": `Only this ${name}`, on: { change }, ...extra });
  const chip = (state, number, title) =>
    h("a", { class: "chip", "data-state": state, "data-none": number === 0, title, href: to("runs", undefined, { ...filters, cursor: "", state }), "aria-current": state === filters.state && "true" },
      state || "all", number !== undefined && h("b", {}, number.toLocaleString("en")));
  const { states, minutes } = seen.stats;
  const lately = (state) => minutes.reduce((sum, { counts }) => sum + counts[state], 0);
  return h("div", { class: "head", key: "head" },
    h("h1", {}, "Runs"),
    chart(minutes),
    h("div", { class: "filters" },
      field("job", { list: "job-names" }), field("queue"),
      h("datalist", { id: "job-names" }, seen.jobs.map((name) => h("option", { value: name }))),
      h("button", { "aria-pressed": String(seen.paused), title: "Keep the list as it is while you read", on: { click: pause } }, seen.paused ? "Go on" : "Hold")),
    h("nav", { class: "chips", "aria-label": "States" },
      chip(""), h("span", { class: "faint" }, "now"), STATES.filter((state) => !ENDED.has(state)).map((state) => chip(state, states[state])),
      h("span", { class: "faint" }, "in the last hour"), [...ENDED].map((state) => chip(state, lately(state), `${states[state].toLocaleString("en")} in all`))));
}

/** The last hour, a bar a minute: what ended well, and on top of it what did not. */
function chart(minutes) {
  const bars = minutes.map(({ counts }) => [counts.succeeded, counts.failed + counts.quarantined]);
  const most = Math.max(1, ...bars.map(([well, badly]) => well + badly));
  const bar = (state, index, from, number) => number > 0 && h("svg:rect", { "data-state": state, x: index * 4, width: 3, y: 24 - ((from + number) / most) * 24, height: (number / most) * 24 });
  const title = `Ended a minute, in the last hour; ${most.toLocaleString("en")} at most`;
  return h("svg:svg", { class: "chart", viewBox: "0 0 240 24", role: "img", "aria-label": title }, h("svg:title", {}, title),
    bars.map(([well, badly], index) => [bar("succeeded", index, 0, well), bar("failed", index, well, badly)]));
}

function warning({ workers, stats }) {
  if (!stats.states.queued || workers.some((worker) => worker.alive)) return null;
  return h("div", { class: "callout", key: "warning" }, h("p", {}, "No worker is alive, so nothing that is queued will run. Start one:"), command("windlass work shop:app"));
}

function body(filters, seen) {
  if (seen.error) return problem(seen.error);
  if (seen.runs.length === 0) return nothing(filters, seen.cursor);
  return h("section", { key: "list" },
    h("table", { class: "runs" },
      h("thead", {}, h("tr", {}, ["State", "Run", "Queue", "Try", "What", "Worker", "Created", "Took"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, seen.runs.map(row))),
    h("nav", { class: "pages", "aria-label": "Pages" },
      filters.cursor && h("a", { href: to("runs", undefined, { ...filters, cursor: "" }) }, "← First page"),
      h("span", { class: "faint" }, ORDERS[filters.state] ?? "the newest first"),
      seen.cursor && h("a", { href: to("runs", undefined, { ...filters, cursor: seen.cursor }), rel: "next" }, "Older →")));
}

function nothing(filters, cursor) {
  if (cursor) return empty("None among those looked at.", h("p", {}, h("a", { href: to("runs", undefined, { ...filters, cursor }) }, "Look further →")));
  if (Object.values(filters).some(Boolean)) return empty("No run is like this.", h("p", {}, h("a", { href: to("runs") }, "Show all runs")));
  return empty("There are no runs yet.", h("p", {}, "Ask for one, and see it come here:"), command("windlass enqueue JOB key=value"));
}

function row(run) {
  return h("tr", { key: run.id, "data-id": run.id, "data-state": run.state },
    h("td", { class: "state" }, pill(run.state)),
    h("td", { class: "name" }, h("a", { class: "cover", href: to("runs", run.id) }, run.job), " ", h("span", { class: "mono faint id", title: run.id }, short(run.id))),
    h("td", { class: "queue" }, run.queue, run.priority !== 0 && h("span", { class: "faint", title: "Priority" }, ` ${run.priority > 0 ? "+" : ""}${run.priority}`)),
    h("td", { class: "try" }, `${tries(run)}/${run.max_attempts}`),
    h("td", { class: "what" }, what(run)),
    h("td", { class: "worker" }, HELD.has(run.state) || run.finished_at ? run.worker : ""),
    h("td", { class: "created" }, when(run.created_at)),
    h("td", { class: "took" }, run.started_at && (between(run.started_at, run.finished_at) ?? (HELD.has(run.state) ? when(run.started_at, "for") : ""))));
}

/** Tries that have begun: those used up, and the one that is under way or went well. */
export const tries = (run) => run.failures + (HELD.has(run.state) || run.state === "succeeded" ? 1 : 0);

function what(run) {
  if (HELD.has(run.state)) return [run.cancel_asked_at && ["asked to stop ", when(run.cancel_asked_at)], bar(run.progress), run.progress?.message];
  if (run.state === "scheduled") return ["due ", when(run.scheduled_for, "due"), run.error && ` · after ${said(run.error)}`];
  if (run.state === "queued") return [h("span", { class: "faint" }, "for ", when(run.scheduled_for > run.created_at ? run.scheduled_for : run.created_at, "for")), run.error && ` · after ${said(run.error)}`];
  if (run.state === "waiting") return h("span", { class: "faint" }, "for another run to end");
  if (run.state === "succeeded") return null;
  return run.error ? said(run.error) : run.reason;
}

const said = (error) => `${error.code}: ${error.message}`;

export const bar = (progress) => typeof progress?.fraction === "number" && h("progress", { max: 1, value: progress.fraction, "aria-label": "Progress" });
