// The start of the page: the session, the current view, and the state of the connection.

import { call, get, post, token } from "./api.js";
import { h, show } from "./dom.js";
import { tellTimes } from "./format.js";
import { jobs } from "./jobs.js";
import { notice, problem } from "./parts.js";
import { run } from "./run.js";
import { runs } from "./runs.js";
import { schedule, schedules } from "./schedules.js";
import { pause } from "./stream.js";
import { workers } from "./workers.js";

const PLACES = [["runs", "Runs"], ["workers", "Workers"], ["schedules", "Schedules"], ["jobs", "Jobs"]];
const VIEWS = { runs: [runs, run], workers: [workers], schedules: [schedules, schedule], jobs: [jobs] };

const [header, main] = [document.querySelector("header"), document.querySelector("main")];
const state = { me: null, place: "runs", connection: {} };
let leave = new AbortController();
let last = {};

function drawHeader() {
  const [kind, words] = worst(Object.values(state.connection)) ?? ["wait", "connecting"];
  const link = ([place, name]) => h("a", { href: `#/${place}`, "aria-current": place === state.place && "page" }, name);
  show(header,
    h("a", { class: "brand", href: "#/runs" }, "windlass"),
    state.me && h("nav", { "aria-label": "Views" }, PLACES.map(link)),
    h("div", { class: "corner" },
      state.me && h("span", { class: "connection", "data-is": kind, role: "status" }, words),
      state.me && token.get() && h("span", { class: "who", title: `May ${state.me.scopes.join(", ")}` }, state.me.actor),
      state.me && token.get() && h("button", { class: "quiet", on: { click: signOut } }, "Sign out")));
}

const worst = (states) => ["lost", "wait", "live"].map((kind) => states.find(([is]) => is === kind)).find(Boolean);

/**
 * One part of a view reports the state of its connection.
 * "live": the view is current; "wait": not yet, or not any more; "lost": it is outdated.
 */
function connection(part, kind, words = kind) {
  state.connection[part] = [kind, words];
  drawHeader();
}

/** The context of a view: where it draws, until when, its part of the address, and the user. */
function context(signal, rest, query) {
  return {
    signal, rest, query,
    connection: (...told) => signal.aborted || connection(...told),
    draw: (...nodes) => signal.aborted || show(main, ...nodes),
    title: (text) => { if (!signal.aborted) document.title = `${text} · windlass`; },
    may: (scope) => state.me.scopes.some((has) => has === scope || has === "admin"),
    refused: (error) => { if (!signal.aborted && error.status === 401) signIn(error); },
  };
}

async function arrive() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const [, address = "", query = ""] = /^#\/([^?]*)\??(.*)$/.exec(location.hash) ?? [];
  const [place, ...rest] = address.split("/").map(decoded);
  const view = VIEWS[place]?.[Math.min(rest.length, 1)];
  if (!view) return location.replace("#/runs");
  Object.assign(state, { place, connection: {} });
  drawHeader();
  const params = new URLSearchParams(query);
  const leaf = [rest[0], params.get("cursor"), params.get("after")].join();
  if (view !== last.view || leaf !== last.leaf) { // otherwise only the filters have changed, and the old list stays until the new one is there
    show(main);
    window.scrollTo(0, 0);
    if (last.view) main.focus({ preventScroll: true }); // where the keyboard continues
  }
  last = { view, leaf };
  document.title = "windlass";
  try {
    await view(context(signal, rest[0], params));
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) signIn(error);
    else show(main, problem(error));
    if (!error.status) throw error;
  }
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function enter() {
  for (let wait = 1_000; ; wait = Math.min(wait * 2, 15_000)) {
    try {
      state.me = await get("me");
      return arrive();
    } catch (error) {
      if (error.status === 401 || (error.status === 429 && token.get())) return signIn(token.get() && error);
      show(main, problem(error));
      await pause(wait * (0.5 + Math.random() / 2), new AbortController().signal);
    }
  }
}

function signIn(error) {
  leave.abort();
  token.forget();
  [state.me, last] = [null, {}];
  document.title = "Sign in · windlass";
  drawHeader();
  const submit = (event) => {
    event.preventDefault();
    token.keep(new FormData(event.target).get("token").trim());
    enter();
  };
  show(main, h("form", { class: "sign-in", key: "sign-in", on: { submit } },
    h("h1", {}, "Sign in"),
    error && problem(error),
    h("label", { for: "token" }, "Token"),
    h("input", { type: "password", id: "token", name: "token", autocomplete: "off", required: true, spellcheck: "false" }),
    h("button", { class: "main" }, "Sign in"),
    h("p", { class: "faint" }, "The token stays in this tab. Make one, or a link that signs in:"),
    h("pre", { class: "command" }, "windlass tokens create NAME --scopes read,submit")));
  document.getElementById("token").focus();
}

/** A session is ended on the hub too; a token that was typed in is only removed from the page. */
async function signOut() {
  leave.abort();
  try {
    await call("session", { method: "DELETE" });
  } catch (error) {
    if (error.status !== 401) notice(error);
  }
  token.forget();
  enter();
}

/** A sign-in link has a ticket, which works once. It is removed from the address before anything else happens. */
async function useTicket() {
  const ticket = /^#ticket=(.+)$/.exec(location.hash)?.[1];
  if (!ticket) return;
  history.replaceState(null, "", "#/runs");
  token.forget();
  try {
    token.keep((await post("session", { ticket: decoded(ticket) })).secret);
  } catch (error) {
    notice(error);
  }
}

async function begin() {
  await useTicket();
  await enter();
}

window.addEventListener("hashchange", () => (location.hash.startsWith("#ticket=") ? begin() : state.me && arrive()));
setInterval(tellTimes, 1_000);
drawHeader();
begin();
