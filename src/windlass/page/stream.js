// Server-sent events, read with fetch so that the token is sent in a header.

import { ask, passing } from "./api.js";

const SILENCE = 60_000; // the hub sends a comment more often than this
const LONGEST_WAIT = 30_000;
const HIDDEN = 30_000; // a hidden page closes its connection: a browser has only a few for one host

/**
 * Follow a stream until `signal` is aborted or `onEvent` returns true: after the event `from`, or from now on. It reconnects automatically,
 * after its last event. `onEvent({type, data})` gets each event, `onState(state, wait)` gets "open" and "lost"; a refusal is thrown.
 */
export async function follow(route, { query, from = null, signal, onEvent, onState }) {
  const place = { id: from, retry: 1_000 };
  let failures = 0;
  while (!signal.aborted) {
    await seen(signal);
    const connection = new AbortController();
    const watch = hiding(() => connection.abort());
    try {
      const headers = { Accept: "text/event-stream", ...(place.id && { "Last-Event-ID": place.id }) };
      const answer = await ask(route, { query, headers, signal: AbortSignal.any([signal, connection.signal]) });
      failures = 0;
      if (answer.status === 204) return; // the stream is over
      onState("open");
      if (await read(answer.body, place, onEvent, connection)) return;
    } catch (error) {
      const aborted = signal.aborted || connection.signal.aborted;
      if (error.status === 400 && place.id) place.id = null; // this offset is no longer known: continue from now on
      else if (!aborted && !passing(error)) throw error;
    } finally {
      watch();
      connection.abort();
    }
    if (document.hidden || signal.aborted) continue;
    const wait = Math.min(place.retry * 2 ** failures++, LONGEST_WAIT) * (0.5 + Math.random() / 2);
    onState("lost", wait);
    await Promise.race([pause(wait, signal), happening("online", window, signal)]);
  }
}

async function read(body, place, onEvent, connection) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const parse = parser(place);
  for (;;) {
    const quiet = setTimeout(() => connection.abort(), SILENCE);
    const { done, value } = await reader.read().catch(() => ({ done: true })).finally(() => clearTimeout(quiet));
    if (done) return false;
    for (const event of parse(value)) if (onEvent(event)) return true;
  }
}

/** Parses pieces of text into complete events, by the rules of the HTML standard; `place` keeps the id of the last complete one. */
export function parser(place) {
  let rest = "";
  let { id } = place;
  let type = "message";
  let data = [];
  return function* (text) {
    // A carriage return at the very end may be the first half of a line's end.
    const lines = (rest + text).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (line === "") {
        place.id = id;
        if (data.length) yield { type, data: data.join("\n") };
        [type, data] = ["message", []];
      } else if (name === "data") data.push(value);
      else if (name === "event") type = value;
      else if (name === "id" && !value.includes("\0")) id = value;
      else if (name === "retry" && /^\d+$/.test(value)) place.retry = Number(value);
    }
  };
}

/** Call back when the page has been hidden for a while; the returned function ends the watch. */
function hiding(act) {
  let timer;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(act, HIDDEN);
  };
  document.addEventListener("visibilitychange", look);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
  };
}

function happening(name, target, signal) {
  return new Promise((resolve) => {
    target.addEventListener(name, resolve, { once: true, signal });
    signal.addEventListener("abort", resolve, { once: true });
  });
}

/** Wait until the page is visible. */
export async function seen(signal) {
  while (document.hidden && !signal.aborted) await happening("visibilitychange", document, signal);
}

/** Wait, but no longer than the view is open. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = ms === Infinity ? null : setTimeout(resolve, ms);
    signal.addEventListener("abort", () => [clearTimeout(timer), resolve()], { once: true });
  });
}
