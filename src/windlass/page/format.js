// Times, durations, JSON and states as text for people.

import { h } from "./dom.js";

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1_000]];

let ahead = 0;

/** Use the hub's clock when the browser's is far off. */
export function setClock(date) {
  const off = Date.parse(date) - Date.now();
  if (!Number.isNaN(off)) ahead = Math.abs(off) > 3_000 ? off : 0;
}

export const now = () => Date.now() + ahead;

/** 1_500 is "1.5 s", 5_000_000 is "1 h 23 m". */
export function duration(ms) {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const first = UNITS.findIndex(([, size]) => ms >= size);
  const [unit, size] = UNITS[first];
  const text = `${Math.floor(ms / size)} ${unit}`;
  const [less, smaller] = UNITS[first + 1] ?? [];
  const rest = smaller ? Math.floor((ms % size) / smaller) : 0;
  return rest && ms / size < 10 ? `${text} ${rest} ${less}` : text;
}

const whole = (ms) => (ms < 10_000 ? `${Math.floor(Math.max(0, ms) / 1_000)} s` : duration(ms));

const READ = {
  ago: (ms) => (ms < 0 ? `in ${whole(-ms)}` : ms < 1_000 ? "now" : `${whole(ms)} ago`),
  due: (ms) => (ms < 0 ? `in ${whole(-ms)}` : "now"),
  for: (ms) => whole(ms),
};

/** An instant relative to now, updated every second: "3 s ago", "in 5 m"; `due` has no past and `for` is the time since. */
export function when(iso, as = "ago") {
  if (!iso) return null;
  return h("time", { datetime: iso, "data-as": as, title: at(iso) }, READ[as](now() - Date.parse(iso)));
}

export function tellTimes() {
  for (const node of document.querySelectorAll("time[data-as]")) {
    const text = READ[node.dataset.as](now() - Date.parse(node.dateTime));
    if (node.firstChild.nodeValue !== text) node.firstChild.nodeValue = text;
  }
}

const DAY = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });

/** An instant in the reader's own zone: 2026-01-31 03:00:00. */
export const at = (iso) => DAY.format(new Date(iso));

/** Only the time of day, with milliseconds. */
export const clock = (iso) => `${at(iso).slice(11)}.${iso.slice(20, 23)}`;

export const between = (from, to) => (from && to ? duration(Date.parse(to) - Date.parse(from)) : null);

/** 1204 is "1,204". */
export const number = (value) => value.toLocaleString("en");

/** An optional text or number; nothing if it is missing. */
export const plain = (value) => (typeof value === "string" || Number.isFinite(value) ? String(value) : "");

export const json = (value) => JSON.stringify(value, null, 2);

/** The last group of an id: the first ones are a time, and the same for all that were created together. */
export const short = (id) => id.slice(-12);

export const pill = (state) => h("span", { class: "pill", "data-state": state }, state);

export const STATES = [
  "waiting", "scheduled", "queued", "claimed", "running", "cancelling", "succeeded", "failed", "quarantined", "cancelled", "skipped",
];
export const ENDED = new Set(["succeeded", "failed", "quarantined", "cancelled", "skipped"]);
export const HELD = new Set(["claimed", "running", "cancelling"]);
