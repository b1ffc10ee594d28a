// Parts shared by several views.

import { passing, post } from "./api.js";
import { h } from "./dom.js";
import { json } from "./format.js";
import { follow, pause, seen } from "./stream.js";

/** The address of a view of this page. */
export function to(place, rest, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#/${place}${rest === undefined ? "" : `/${encodeURIComponent(rest)}`}${search && `?${search}`}`;
}

export const runLink = (id, text) => h("a", { class: "mono", href: to("runs", id), title: id }, text ?? id);

/** What went wrong, and what to do about it. */
export function problem({ message, hint }) {
  return h("div", { class: "problem", role: "alert" }, h("p", {}, message), hint && h("p", { class: "hint" }, hint));
}

/** A message about an action. A success disappears after a while. */
export function notice(what) {
  const place = document.querySelector(".notices");
  const close = h("button", { class: "quiet", "aria-label": "Close", on: { click: () => note.remove() } }, "×");
  const note = h("div", { class: "notice" }, what instanceof Error ? problem(what) : h("p", {}, what), close);
  place.append(note);
  while (place.childNodes.length > 4) place.firstChild.remove();
  if (!(what instanceof Error)) setTimeout(() => note.remove(), 6_000);
}

/** Perform an action, and show its outcome. */
export async function act(page, doing, done) {
  try {
    const answer = await doing();
    if (done) notice(done(answer));
    return answer;
  } catch (error) {
    page.refused(error);
    notice(error);
    return null;
  }
}

/** A dialog with fields; null when it is cancelled. */
export function asked(title, children, button, danger = false) {
  return new Promise((resolve) => {
    const submit = (event) => {
      event.preventDefault();
      resolve(Object.fromEntries(new FormData(event.target)));
      dialog.close();
    };
    const close = () => {
      resolve(null);
      dialog.remove();
    };
    const dialog = h("dialog", { "aria-label": title, on: { close } }, h("form", { on: { submit } },
      h("h2", {}, title), children,
      h("div", { class: "buttons" },
        h("button", { type: "button", on: { click: () => dialog.close() } }, "Back"),
        h("button", { class: danger ? "danger" : "main" }, button))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A button that pauses or resumes a queue, a job or the system. */
export function switching(page, { scope, name }, paused, again) {
  const what = scope === "system" ? "Everything" : `The ${scope} ${name}`;
  const refused = page.may("admin") ? null : "Your token may not do this; it needs the scope admin.";
  const resume = async () => {
    await act(page, () => post("resume", { scope, name }), () => `${what} goes on.`);
    again();
  };
  const stop = async () => {
    const reason = h("input", { name: "reason", maxlength: 200, "aria-label": "Reason", placeholder: "Why (shown with the pause)" });
    const fields = await asked(`Pause ${scope} ${name}?`, [h("p", {}, "No more of its runs start. Running ones continue."), reason], "Pause", true);
    if (fields) await act(page, () => post("pause", { scope, name, reason: fields.reason || null }), () => `${what} is paused.`);
    again();
  };
  return h("button", { disabled: refused !== null, title: refused, on: { click: paused ? resume : stop } }, paused ? "Resume" : "Pause");
}

/** A line for a shell, and a button that copies it. */
export function command(line) {
  const copy = async (event) => {
    await navigator.clipboard.writeText(line);
    event.target.textContent = "Copied";
  };
  const button = navigator.clipboard && h("button", { class: "quiet", on: { click: copy } }, "Copy"); // there is none without TLS
  return h("div", { class: "command" }, h("code", {}, line), button);
}

export const empty = (title, ...rest) => h("div", { class: "empty" }, h("p", { class: "title" }, title), rest);

/** Names and values; those without a value are left out. */
export function facts(...rows) {
  const facts = rows.filter((row) => row && (row[1] || row[1] === 0));
  return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value))));
}

export const heads = (...names) => h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name))));

/** Links to the other pages of a list that is ordered by name. */
export function pages(place, after, cursor) {
  return h("nav", { class: "pages", key: "pages", "aria-label": "Pages" },
    after && h("a", { href: to(place) }, "← First page"),
    cursor && h("a", { href: to(place, undefined, { after: cursor }), rel: "next" }, "More →"));
}

/** A value as JSON text. */
export const value = (what) => h("pre", { class: "json", tabindex: "0" }, json(what));

export const tags = (names) => (names ?? []).map((name) => h("span", { class: "tag" }, name));

/**
 * Call `load` again and again. It returns the milliseconds until the next time; `soon()` makes it sooner, though never before `least`
 * has passed. `ended` is rejected when the hub refuses; while it does not answer, the view keeps trying.
 */
export function steadily(page, load, least = 1_000) {
  let [wake, requested, failures] = [() => {}, false, 0];
  const turn = async () => {
    let next = 0;
    requested = false;
    try {
      await seen(page.signal);
      next = await load();
      failures = 0;
      page.connection("reads", "live");
    } catch (error) {
      if (!passing(error)) throw error;
      failures = Math.min(failures + 1, 15);
      page.connection("reads", "lost", error.status ? error.detail : "no answer");
    }
    await pause(least + 1_000 * failures, page.signal);
    if (!requested) await Promise.race([pause(next - least, page.signal), new Promise((resolve) => { wake = resolve; })]);
  };
  const loop = async () => {
    while (!page.signal.aborted) await turn();
  };
  return { soon: () => { requested = true; wake(); }, ended: loop() };
}

/** Follow events, and show the state of the connection. */
export async function live(page, route, { query, from, onEvent, opened, over }) {
  const onState = (state, wait) => {
    if (state === "open") {
      page.connection("stream", "live");
      opened();
    } else if (state === "lost") page.connection("stream", "lost", `no connection, next try in ${Math.ceil(wait / 1_000)} s`);
  };
  await follow(route, { query, from, signal: page.signal, onEvent, onState });
  page.connection("stream", "wait", over);
}
