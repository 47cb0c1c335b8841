// The tab with the results: waiting, hits, no hits, or an error.

import { $ } from "./dom.js";
import { distanceOf, labelOf, plural, withLabel } from "./format.js";
import { state } from "./state.js";

/** Shows the state of a search in the tab "Results". */
export class Results {
  constructor(grid) {
    this.grid = grid;
  }

  /** Marks a search as running or finished. */
  setWaiting(waiting) {
    $("results").setAttribute("aria-busy", waiting);
    $("progress").hidden = !waiting;
    $("hits").classList.toggle("stale", waiting);
    if (!waiting) return;
    $("notice").hidden = true;
    $("status").textContent = "Searching …";
    if (!this.grid.entries.length) this.grid.showSkeleton(Math.min(state.k, 12));
  }

  /** Shows the answer of a search; `searchAllLabels` is offered if the filter left nothing. */
  show({ hits, took_ms: milliseconds }, searchAllLabels) {
    state.hits = hits;
    this.grid.clear();
    this.grid.add(hits);
    if (hits.length) {
      $("status").textContent = summary(hits, milliseconds);
      return;
    }
    $("status").textContent = "No results";
    if (state.label === null) {
      showNotice("There is no other picture in the collection.");
    } else {
      const text = `No picture ${withLabel(state)} to compare with.`;
      showNotice(text, { action: "Search all labels", onAction: searchAllLabels });
    }
  }

  /** Shows an error; `retrySeconds` until an automatic retry, or null. */
  fail(error, retrySeconds, { action, onAction }) {
    this.grid.clear();
    state.hits = [];
    $("status").textContent = "The search failed";
    let text = error.message;
    if (retrySeconds !== null) text += ` Trying again in ${retrySeconds} s.`;
    showNotice(text, { action, onAction, bad: true });
  }
}

function summary(hits, milliseconds) {
  let text = plural(hits.length, "result");
  if (state.label !== null) text += ` ${withLabel(state)}`;
  text += state.rerank === "none" ? ", nearest: " : ", re-ranked, first: ";
  text += `${labelOf(hits[0])} at ${distanceOf(hits[0])}`;
  if (Number.isFinite(milliseconds)) text += `, ${Math.max(1, Math.round(milliseconds))} ms`;
  return text;
}

/** Shows a message in place of results, with a button if there is an action. */
export function showNotice(text, { action = "", onAction = null, bad = false } = {}) {
  $("notice").classList.toggle("bad", bad);
  $("notice-text").textContent = text;
  $("notice-action").textContent = action;
  $("notice-action").hidden = !onAction;
  $("notice-action").onclick = onAction;
  $("notice").hidden = false;
}
