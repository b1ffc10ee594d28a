// Calls to the hub. The token lives in sessionStorage, goes into a header, and never into an address.

import { setClock } from "./format.js";

const ROOT = new URL("../api/v1/", import.meta.url);
const TOKEN = "windlass.token";

export class Problem extends Error {
  constructor(status, { detail, hint = "", code = "" }) {
    super(detail);
    Object.assign(this, { status, detail, hint, code });
  }
}

/** Whether an error is transient. */
export const passing = ({ status }) => status === 0 || status === 429 || status >= 500;

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  keep: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** The path of a route: every part is escaped. */
export const path = (...parts) => parts.map(encodeURIComponent).join("/");

/** A successful answer, as a Response. Without a valid token it throws a Problem of status 401. */
export async function ask(route, { method = "GET", query = {}, body, headers = {}, signal } = {}) {
  const url = new URL(route, ROOT);
  for (const [name, value] of Object.entries(query)) if ((value ?? "") !== "") url.searchParams.set(name, value);
  const sent = { Accept: "application/json", ...headers };
  if (token.get()) sent.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let answer;
  try {
    const how = { cache: "no-store", credentials: "omit", redirect: "error" };
    answer = await fetch(url, { method, headers: sent, signal, body: JSON.stringify(body), ...how });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, { detail: "The hub does not answer.", hint: "The page goes on trying; see whether the hub runs." });
  }
  if (answer.headers.get("Date")) setClock(answer.headers.get("Date"));
  if (!answer.ok) throw new Problem(answer.status, await reason(answer));
  return answer;
}

async function reason(answer) {
  try {
    const { detail, hint, code } = await answer.json();
    if (typeof detail === "string") return { detail, hint, code };
  } catch {
    // not an answer of the hub: something between the hub and this page has answered
  }
  return { detail: `The hub answered ${answer.status} ${answer.statusText}.`, hint: "" };
}

/** The JSON answer of a route. */
export async function call(route, options) {
  const answer = await ask(route, options);
  const text = await answer.text();
  return text ? JSON.parse(text, exact) : null;
}

export const get = (route, query, signal) => call(route, { query, signal });
export const post = (route, body = {}) => call(route, { method: "POST", body });
export const patch = (route, body) => call(route, { method: "PATCH", body });

// Numbers that JavaScript cannot hold are shown as they were written, where the browser can tell how that was.
function exact(key, value, context) {
  const kept = typeof value !== "number" || Number.isSafeInteger(value) || (Number.isFinite(value) && !Number.isInteger(value));
  return kept || !context?.source || !JSON.rawJSON ? value : JSON.rawJSON(context.source);
}
