// The log of a run. It follows the end until the reader scrolls up.

import { h } from "./dom.js";
import { clock, number } from "./format.js";

const MOST = 10_000; // lines that are kept in the page; earlier ones are left out

/** A node, and `add`, which appends lines. */
export function log() {
  let [fresh, cursor, attempt, dropped] = [[], 0, 1, 0];
  const nothing = h("p", { class: "faint" }, "No line yet.");
  const above = h("p", { class: "faint", hidden: true });
  const lines = h("div", { class: "lines", role: "log", "aria-live": "off", "aria-label": "Log", tabindex: "0", hidden: true });
  const toEnd = () => lines.scrollTo(0, lines.scrollHeight);
  const follow = h("button", { class: "follow", hidden: true, on: { click: toEnd } }, "↓ Follow");
  new ResizeObserver(() => follow.hidden && toEnd()).observe(lines); // also when it is first shown
  const look = () => { follow.hidden = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24; };
  lines.addEventListener("scroll", look, { passive: true });

  const written = (line) => {
    const begins = line.attempt !== attempt && h("div", { class: "break" }, `attempt ${line.attempt}`);
    attempt = line.attempt;
    const time = h("time", { datetime: line.at }, clock(line.at));
    return [begins, h("div", { class: "line" }, time, h("span", {}, line.line))].filter(Boolean);
  };
  const draw = () => {
    nothing.hidden = true;
    lines.hidden = false;
    lines.append(...fresh.flatMap(written));
    fresh = [];
    for (; lines.childNodes.length > MOST; dropped++) lines.firstChild.remove();
    above.hidden = dropped === 0;
    above.textContent = `${number(dropped)} earlier lines are left out; windlass logs prints them all.`;
    if (follow.hidden) toEnd();
  };
  const add = (line) => {
    if (line.cursor <= cursor) return;
    cursor = line.cursor;
    if (fresh.push(line) === 1) requestAnimationFrame(draw);
  };
  return { node: h("section", { class: "log", key: "log" }, h("h2", {}, "Log"), nothing, above, lines, follow), add };
}
