// Rules that create runs.

import { get, patch, path, post } from "./api.js";
import { h } from "./dom.js";
import { at, duration, number, when } from "./format.js";
import { act, command, empty, facts, heads, pages, runLink, steadily, tags, to, value } from "./parts.js";

const COUNT = 100;
const MISSED = { skip: "are left out", latest: "the latest is caught up", all: "all are caught up" };
const OVERLAP = { allow: "both run", skip: "the new one is left out", queue: "the new one waits", cancel: "the old one is cancelled" };

export async function schedules(page) {
  page.title("Schedules");
  const after = page.query.get("after") ?? "";
  const load = async () => {
    const { schedules: records, cursor } = await get("schedules", { after, count: COUNT }, page.signal);
    page.draw(
      h("div", { class: "head" }, h("h1", {}, "Schedules")),
      records.length ? table(page, records, list.soon) : nothing(after),
      pages("schedules", after, cursor));
    return 3_000;
  };
  const list = steadily(page, load);
  await list.ended;
}

function nothing(after) {
  if (after) return empty("No more schedules.");
  const how = h("p", {}, "Write one beside a job with @app.cron(...), or make one here:");
  return empty("There are no schedules yet.", how, command("windlass schedules add KEY JOB --cron '0 3 * * *'"));
}

function table(page, records, again) {
  const row = (item) => h("tr", { key: item.key, class: item.enabled ? null : "off" },
    h("td", { class: "name" }, h("a", { href: to("schedules", item.key) }, item.key), h("span", { class: "faint" }, " → ", item.job)),
    h("td", { class: "what" }, item.in_words, " ", h("code", { class: "faint" }, item.expr)),
    h("td", { "data-name": "Next" }, item.enabled ? when(item.next_at, "due") ?? "never again" : "off"),
    h("td", { "data-name": "Last" }, item.last_run ? h("a", { href: to("runs", item.last_run) }, when(item.last_at)) : when(item.last_at)),
    h("td", { "data-name": "Made" }, number(item.fired), item.skipped > 0 && ` · ${number(item.skipped)} left out`),
    h("td", { class: "actions" }, actions(page, item, again)));
  return h("table", { class: "plain", key: "list" }, heads("Schedule", "When", "Next", "Last", "Made", ""), h("tbody", {}, records.map(row)));
}

function actions(page, item, again) {
  const route = path("schedules", item.key);
  const button = (scope, text, click) => {
    const title = page.may(scope) ? null : `Your token may not do this; it needs the scope ${scope}.`;
    return h("button", { key: scope, disabled: title !== null, title, on: { click } }, text);
  };
  const trigger = async () => {
    const created = await act(page, () => post(`${route}/trigger`), () => "A run was created.");
    if (created) location.hash = to("runs", created.id);
  };
  const turn = async () => {
    await act(page, () => patch(route, { enabled: !item.enabled }), (after) => `${after.key} is ${after.enabled ? "on" : "off"}.`);
    again();
  };
  return [button("submit", "Run now", trigger), button("admin", item.enabled ? "Turn off" : "Turn on", turn)];
}

/** 2026-01-31T03:00:00+01:00 in a readable form. */
const wall = (local) => local.replace("T", " ").replace(/(Z|[+-]\d\d:\d\d)$/, " $1");

export async function schedule(page) {
  const route = path("schedules", page.rest);
  page.title(page.rest);
  const load = async () => {
    const ask = (part, query) => get(`${route}/${part}`, query, page.signal);
    const [item, { next }, { skips }] = await Promise.all([
      get(route, {}, page.signal), ask("preview", { count: 10 }), ask("skips", { count: 20 }),
    ]);
    page.draw(...one(page, item, next, skips, view.soon));
    return 3_000;
  };
  const view = steadily(page, load);
  await view.ended;
}

function one(page, item, next, skips, again) {
  return [
    h("div", { class: "head" },
      h("h1", {}, item.key),
      h("div", { class: "actions" }, actions(page, item, again)),
      h("p", {}, item.in_words, !item.enabled && " · turned off")),
    h("section", { key: "facts" }, facts(
      ["Job", h("a", { href: to("runs", undefined, { job: item.job }) }, item.job)],
      ["Rule", h("code", {}, item.expr)], ["Zone", item.zone],
      ["Last", item.last_run ? runLink(item.last_run, when(item.last_at)) : when(item.last_at)],
      ["Made", `${number(item.fired)} runs`],
      ["Missed ones", MISSED[item.missed]], ["When the one before still runs", OVERLAP[item.overlap]],
      item.jitter > 0 && ["Spread over", duration(item.jitter)],
      ["Comes from", item.by_code ? "code" : "a person"])),
    h("div", { class: "columns", key: "values" },
      h("section", {}, h("h2", {}, "Next"), next.length ? h("ol", { class: "next" }, next.map(coming)) : "Never again."),
      h("section", {}, h("h2", {}, "Payload"), value(item.payload))),
    skips.length > 0 && h("section", { key: "skips" }, h("h2", {}, "Left out"), h("ul", {}, skips.map(leftOut))),
  ];
}

function coming({ at: instant, local, clock_changes: changes }) {
  return h("li", { key: instant },
    h("span", { class: "mono" }, wall(local)), " ",
    h("span", { class: "faint" }, when(instant, "due"), " "), changes && tags(["clocks change"]));
}

function leftOut({ first_at: first, last_at: last, number: many, reason }) {
  return h("li", {}, many > 1 ? `${number(many)} from ${at(first)} to ${at(last)}` : at(first), ": ", reason);
}
