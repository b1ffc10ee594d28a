// One run: its data, why it does not start, its history, its log.

import { get, patch, path, post } from "./api.js";
import { h } from "./dom.js";
import { at, between, clock, duration, ENDED, HELD, now, number, pill, plain, when } from "./format.js";
import { log } from "./log.js";
import { act, asked, command, facts, live, runLink, steadily, switching, to, value } from "./parts.js";
import { bar, tries } from "./runs.js";

const MAX_AHEAD = 10_000; // no more are counted
const STEPS = 100; // each may be large
const WAITING = new Set(["waiting", "scheduled", "queued"]);

export async function run(page) {
  const route = path("runs", page.rest);
  const seen = { run: null, attempts: [], steps: [], events: [], reasons: [], deliveries: [] };
  const lines = log();

  const load = async () => {
    const ask = (part, query = {}) => get(`${route}/${part}`, query, page.signal);
    const parts = [get(route, {}, page.signal), ask("attempts"), ask("steps", { count: STEPS }), ask("history"), ask("deliveries")];
    const [record, { attempts }, { steps }, { events }, { deliveries }] = await Promise.all(parts);
    const { reasons } = WAITING.has(record.state) ? await ask("why") : { reasons: [] };
    Object.assign(seen, { run: record, attempts, steps, events, reasons, deliveries });
    draw();
    return ENDED.has(record.state) && sent(record, deliveries) ? Infinity : 3_000;
  };
  const draw = () => {
    page.title(`${seen.run.state} · ${seen.run.job}`);
    page.draw(...everything(page, seen, lines, view.soon));
  };
  const onEvent = ({ type, data }) => {
    const event = JSON.parse(data);
    if (type === "log") lines.add(event);
    else if (type === "progress" && seen.run) {
      seen.run = { ...seen.run, progress: event.progress };
      draw();
    } else view.soon();
    return type === "status" && ENDED.has(event.state);
  };

  const view = steadily(page, load, 250);
  // From its beginning, so that the whole log comes in the same way as new lines.
  await Promise.all([view.ended, live(page, `${route}/events`, { from: "0-0", onEvent, opened: view.soon, over: "ended" })]);
}

/** Whether no more deliveries are to be expected: those of an end are created a moment after it. */
function sent(run, deliveries) {
  return now() - Date.parse(run.finished_at) > 10_000 && deliveries.every(({ status }) => status !== "pending");
}

function everything(page, { run, attempts, steps, events, reasons, deliveries }, lines, again) {
  return [
    h("div", { class: "head", key: run.id },
      h("h1", {}, pill(run.state), " ", run.job),
      h("div", { class: "actions" }, actions(page, run, again)),
      h("p", { class: "mono faint" }, run.id)),
    reasons.length > 0 && why(page, reasons, again),
    HELD.has(run.state) && run.progress && far(run.progress),
    run.error && h("section", { class: "error", key: "error" },
      h("h2", {}, ENDED.has(run.state) ? "Why it failed" : "Why it is tried again"), failure(run.error)),
    h("section", { key: "facts" }, about(run)),
    h("section", { key: "timeline" }, h("h2", {}, "Timeline"), strip(events, run), timeline(events)),
    h("div", { class: "columns", key: "values" },
      h("section", {}, h("h2", {}, "Payload"), value(run.payload)),
      h("section", {}, h("h2", {}, "Output"), output(run)),
      run.meta && h("section", {}, h("h2", {}, "Meta"), value(run.meta))),
    steps.length > 0 && h("section", { key: "steps" },
      h("h2", {}, steps.length < STEPS ? "Steps" : `The first ${STEPS} steps`), steps.map(step)),
    attempts.length > 1 && h("section", { key: "attempts" }, h("h2", {}, "Attempts"), attempts.map(attempt)),
    deliveries.length > 0 && h("section", { key: "deliveries" }, h("h2", {}, "Webhooks"), deliveries.map(delivery)),
    lines.node,
  ];
}

function output(run) {
  return run.state === "succeeded" ? value(run.output) : faint(ENDED.has(run.state) ? "None." : "None yet.");
}

function actions(page, run, again) {
  const route = path("runs", run.id);
  const refused = page.may("submit") ? null : "Your token may not do this; it needs the scope submit.";
  const button = (name, text, click, extra) =>
    run.actions.includes(name) && h("button", { key: name, disabled: refused !== null, title: refused, on: { click }, ...extra }, text);
  const cancel = async () => {
    const running = HELD.has(run.state);
    const reason = h("input", { name: "reason", maxlength: 200, "aria-label": "Reason", placeholder: "Why (is kept with the run)" });
    const fields = await asked("Cancel this run?", [
      h("p", {}, running ? "It runs now: its worker is told to stop, and nothing of what it still reports is kept." : "It will not run."),
      reason,
    ], "Cancel the run", true);
    if (fields) await act(page, () => post(`${route}/cancel`, { reason: fields.reason || null }), (after) => `The run is ${after.state}.`);
    again();
  };
  const rerun = async () => {
    const created = await act(page, () => post(`${route}/rerun`), () => "A new run was created with the same payload.");
    if (created) location.hash = to("runs", created.id);
  };
  const change = async () => {
    const local = new Date(Date.parse(run.due_at) - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
    const fields = await asked("Change this run", [
      h("label", { for: "priority" }, "Priority: a higher one goes first"),
      h("input", { id: "priority", name: "priority", type: "number", value: run.priority, required: true }),
      h("label", { for: "due" }, "Due, in your own time zone"),
      h("input", { id: "due", name: "due", type: "datetime-local", step: 1, value: local, required: true }),
    ], "Change");
    if (!fields) return;
    const changes = {};
    if (Number(fields.priority) !== run.priority) changes.priority = Number(fields.priority);
    if (fields.due !== local) changes.scheduled_for = new Date(fields.due).toISOString();
    if (Object.keys(changes).length) await act(page, () => patch(route, changes), (after) => `The run is ${after.state}.`);
    again();
  };
  return [button("patch", "Change", change), button("rerun", "Run again", rerun), button("cancel", "Cancel", cancel, { class: "danger" })];
}

function why(page, reasons, again) {
  const help = ({ code, data }) => [
    data.run && [" ", runLink(data.run, "Look at it")],
    data.runs?.length > 0 && [" See ", data.runs.map((id) => [runLink(id), " "])],
    code === "no_worker" && command(starting(data)),
    code === "paused" && [" ", switching(page, data, true, again)],
  ];
  return h("div", { class: "callout", key: "why" }, h("h2", {}, "Why it does not run"),
    h("ul", {}, reasons.map((reason) => h("li", {}, reason.text, help(reason)))));
}

function starting({ queue, tags }) {
  return ["windlass work shop:app", `--queue=${quoted(queue)}`, ...tags.map((tag) => `--tag=${quoted(tag)}`)].join(" ");
}

/** A word quoted for a shell. */
const quoted = (word) => (/^[\w.-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function far(progress) {
  const percent = typeof progress.fraction === "number" && `${Math.floor(progress.fraction * 100)} %`;
  return h("div", { class: "far", key: "progress" }, bar(progress), h("span", {}, percent, " ", plain(progress.message)));
}

function failure({ code, message, detail }) {
  return [h("p", { class: "message" }, h("code", {}, code), " ", message), detail && h("pre", { class: "trace", tabindex: "0" }, detail)];
}

function about(run) {
  const { policy, priority, queue } = run;
  const ready = Math.max(Date.parse(run.due_at), Date.parse(run.created_at));
  return facts(
    ["Job", h("a", { href: to("runs", undefined, { job: run.job }), title: "All its runs" }, run.job)],
    ["Handler", policy.handler],
    ["Queue", [h("a", { href: to("runs", undefined, { state: "queued", queue }) }, queue), priority !== 0 && ` · priority ${priority}`]],
    run.ahead !== null && ["Ahead of it", number(run.ahead) + (run.ahead === MAX_AHEAD ? " or more" : "")],
    run.schedule !== null && ["Schedule", h("a", { href: to("schedules", run.schedule) }, run.schedule)],
    run.group !== null && ["Group", [h("span", { class: "mono" }, run.group), ` · place ${run.place}`]],
    ["Tries", `${tries(run)} of ${run.max_attempts}${run.requeues ? ` · ${run.requeues} returned` : ""}`],
    ["Worker", run.worker],
    ["Created", moment(run.created_at)],
    run.due_at !== run.created_at && ["Due", moment(run.due_at)],
    ["Started", moment(run.started_at)],
    ["Finished", moment(run.finished_at)],
    ["Waited", run.started_at && duration(Math.max(0, Date.parse(run.started_at) - ready))],
    ["Took", run.started_at && (between(run.started_at, run.finished_at) ?? (HELD.has(run.state) && when(run.started_at, "for")))],
    ["Asked to stop", moment(run.cancel_asked_at)],
    ["Reason", run.reason],
    ["Limit of a try", policy.timeout && duration(policy.timeout)],
    ["Limit in all", run.max_runtime && duration(run.max_runtime)],
    ["Kept", run.keep && (run.keep === "forever" ? run.keep : `${duration(run.keep)} from its end`)],
    policy.solver && ["Program", h("code", {}, policy.solver.url)]);
}

const faint = (text) => h("p", { class: "faint" }, text);

const moment = (iso) => iso && [at(iso), " ", h("span", { class: "faint" }, when(iso))];

/** How long it was in each state, as a line of colours. */
function strip(events, run) {
  const ends = [...events.slice(1).map((event) => event.at), run.finished_at ?? new Date(now()).toISOString()];
  const first = Date.parse(events[0]?.at);
  const whole = Math.max(1, Date.parse(ends.at(-1)) - first);
  const parts = events.map(({ state, at: from }, index) => [state, Date.parse(from) - first, Date.parse(ends[index]) - Date.parse(from)]);
  return h("svg:svg", { class: "strip", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    parts.filter(([state]) => !ENDED.has(state)).map(([state, from, length]) => {
      const width = Math.max(0, (length / whole) * 1000);
      const title = h("svg:title", {}, `${state} for ${duration(length)}`);
      return h("svg:rect", { "data-state": state, x: (from / whole) * 1000, width, y: 0, height: 10 }, title);
    }));
}

function timeline(events) {
  return h("ol", { class: "timeline" }, events.map((event, index) =>
    h("li", { key: event.rev, "data-state": event.state },
      h("time", { datetime: event.at, title: at(event.at) }, clock(event.at)),
      h("span", { class: "faint gap" }, index > 0 && `+${between(events[index - 1].at, event.at)}`),
      h("span", { class: "move" }, event.move), pill(event.state),
      h("span", { class: "faint" }, [event.attempt > 1 && `attempt ${event.attempt}`, event.worker].filter(Boolean).join(" · ")),
      event.detail && h("code", { class: "detail" }, JSON.stringify(event.detail)))));
}

function step({ n, key, output, at: ended }) {
  return h("details", { key: n, class: "step" }, h("summary", {}, h("code", {}, key), " ", h("span", { class: "faint" }, at(ended))), value(output));
}

function delivery({ id, type, origin, webhook, status, tries, finished_at: finished, error }) {
  const text = [type, `to ${origin ?? `webhook ${webhook}`}`, `${tries} ${tries === 1 ? "attempt" : "attempts"}`];
  return h("p", { key: id }, h("b", {}, status), " ",
    h("span", { class: "faint" }, text.join(" · "), finished && [" · ", at(finished)]),
    error && h("span", { class: "short" }, ` ${error}`));
}

function attempt({ n, outcome, worker, claimed_at: claimed, started_at: started, finished_at: finished, error, payload }) {
  const began = started ?? claimed;
  return h("details", { key: n, class: "attempt" },
    h("summary", {}, `${n}. `, pill(outcome), " ",
      h("span", { class: "faint" }, [worker, began && at(began), between(began, finished)].filter(Boolean).join(" · ")),
      error && h("span", { class: "short" }, ` ${error.code}: ${error.message}`)),
    error ? failure(error) : faint("No error."),
    payload !== undefined && [h("p", { class: "faint" }, "Its payload, before the run was changed:"), value(payload)]);
}
