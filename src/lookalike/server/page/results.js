// The view of results: while they are awaited, when they are there, and when there are none.

import { $, distanceOf, labelOf, plural, state, withLabel } from "./common.js";

export class Results {
  constructor(grid) {
    this.grid = grid;
  }

  wait(waiting) {
    $("results").setAttribute("aria-busy", waiting);
    $("progress").hidden = !waiting;
    $("hits").classList.toggle("stale", waiting);
    if (!waiting) return;
    $("notice").hidden = true;
    $("status").textContent = "Searching …";
    if (!this.grid.entries.length) this.grid.skeleton(Math.min(state.k, 12));
  }

  /** `widen` is offered if it is the filter that leaves nothing. */
  show({ hits, took_ms: took }, widen) {
    state.hits = hits;
    this.grid.clear();
    this.grid.add(hits);
    if (hits.length) {
      const among = state.label === null ? "" : ` ${withLabel(state)}`;
      const plain = state.rerank === "none";
      const first = `${plain ? "nearest" : "re-ranked, first"}: ${labelOf(hits[0])} at ${distanceOf(hits[0])}`;
      const time = Number.isFinite(took) ? `, ${Math.max(1, Math.round(took))} ms` : "";
      $("status").textContent = `${plural(hits.length, "result")}${among}, ${first}${time}`;
      return;
    }
    $("status").textContent = "No results";
    if (state.label === null) {
      notice("There is no other picture in the collection.");
    } else {
      const words = `No picture ${withLabel(state)} to compare with.`;
      notice(words, { action: "Search all labels", act: widen });
    }
  }

  /** `wait`: seconds until it is tried again without being asked, or null; `act`: what `action` does. */
  fail(problem, wait, { action, act }) {
    this.grid.clear();
    state.hits = [];
    $("status").textContent = "The search failed";
    const words = wait === null ? problem.message : `${problem.message} Trying again in ${wait} s.`;
    notice(words, { action, act, bad: true });
  }
}

/** A word in place of results, with something to do about it. */
export function notice(words, { action = "", act = null, bad = false } = {}) {
  $("notice").classList.toggle("bad", bad);
  $("notice-words").textContent = words;
  $("notice-action").textContent = action;
  $("notice-action").hidden = !act;
  $("notice-action").onclick = act;
  $("notice").hidden = false;
}
