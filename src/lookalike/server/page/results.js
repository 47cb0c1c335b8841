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
  show(answer, searchAllLabels) {
    const { hits } = answer;
    state.hits = hits;
    this.grid.clear();
    if (answer.nothing) {
      this.showNothing(answer);
      return;
    }
    this.grid.add(hits);
    if (hits.length) {
      $("status").textContent = summary(answer);
      return;
    }
    $("status").textContent = "No results";
    if (state.confidence) {
      showNotice(`No picture is the same with a probability of ${Math.round(100 * state.confidence)} % or more.`);
    } else if (Object.keys(state.filters).length) {
      showNotice("No picture matches these filters.");
    } else if (state.label === null) {
      showNotice("There is no other picture in the collection.");
    } else {
      const text = `No picture ${withLabel(state)} to compare with.`;
      showNotice(text, { action: "Search all labels", onAction: searchAllLabels });
    }
  }

  /** Says that nothing looks the same; the nearest pictures are shown on request. */
  showNothing({ hits, p_value: pValue }) {
    $("status").textContent = "Nothing here looks the same";
    const share = `${Math.max(0.1, 100 * pValue).toFixed(1)} %`;
    const text = `Nothing here looks the same. Of queries with a picture of their kind here, at most ${share} are as far from everything.`;
    const onAction = () => {
      $("notice-action").hidden = true;
      this.grid.add(hits);
    };
    showNotice(text, { action: "Show the nearest anyway", onAction: hits.length ? onAction : null });
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

function summary({ hits, left_out: leftOut, took_ms: milliseconds }) {
  let text = plural(hits.length, "result");
  if (state.label !== null) text += ` ${withLabel(state)}`;
  text += state.rerank === "none" ? ", nearest: " : ", re-ranked, first: ";
  text += `${labelOf(hits[0])} at ${distanceOf(hits[0])}`;
  if (Number.isFinite(milliseconds)) text += `, ${Math.max(1, Math.round(milliseconds))} ms`;
  if (leftOut) text += "; the picture itself is in the collection and left out";
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
