// The log of a run. It follows the end until the reader scrolls up.

import { h } from "./dom.js";
import { clock } from "./format.js";

const MOST = 10_000; // lines that are kept in the page; what came before them is left out

/** A node, and `add`, which takes the lines as they come. */
export function log() {
  let [fresh, cursor, attempt, dropped] = [[], 0, 1, 0];
  const nothing = h("p", { class: "faint" }, "No line yet.");
  const above = h("p", { class: "faint", hidden: true });
  const lines = h("div", { class: "lines", role: "log", "aria-live": "off", "aria-label": "Log", tabindex: "0", hidden: true });
  const follow = h("button", { class: "follow", hidden: true, on: { click: () => lines.scrollTo(0, lines.scrollHeight) } }, "↓ Follow");
  lines.addEventListener("scroll", () => { follow.hidden = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24; }, { passive: true });

  const written = (line) => {
    const begins = line.attempt !== attempt && h("div", { class: "break" }, `attempt ${line.attempt}`);
    attempt = line.attempt;
    return [begins, h("div", { class: "line" }, h("time", { datetime: line.at }, clock(line.at)), h("span", {}, line.line))].filter(Boolean);
  };
  const draw = () => {
    nothing.hidden = true;
    lines.hidden = false;
    lines.append(...fresh.flatMap(written));
    fresh = [];
    for (; lines.childNodes.length > MOST; dropped++) lines.firstChild.remove();
    above.hidden = dropped === 0;
    above.textContent = `${dropped.toLocaleString("en")} earlier lines are left out; windlass logs prints them all.`;
    if (follow.hidden) lines.scrollTo(0, lines.scrollHeight);
  };
  const add = (line) => {
    if (line.cursor <= cursor) return;
    cursor = line.cursor;
    if (fresh.push(line) === 1) requestAnimationFrame(draw);
  };
  return { node: h("div", { class: "log", own: true, key: "lines" }, nothing, above, lines, follow), add };
}
