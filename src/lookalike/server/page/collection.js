// The collection itself: page by page as a grid, and at one glance as a map.

import * as api from "./api.js";
import { $, labelOf, number, plural, state } from "./common.js";
import { Grid } from "./grid.js";
import { CollectionMap } from "./map.js";
import { patiently } from "./weights.js";

const PAGE = 48; // pictures at a time
const EMPTY = "The collection is empty: index a folder of pictures first.";

export class Collection {
  /** `choose(item)` when one is to be searched with. */
  constructor(choose) {
    this.following = null; // where the next page begins
    this.grid = new Grid($("items"), {
      choose,
      describe: (entry) => `Search with ${labelOf(entry)}, ${entry.name}`,
    });
    $("more-items").addEventListener("click", () => this.list(this.following));
  }

  async list(after = null) {
    this.listing?.abort();
    const mine = (this.listing = new AbortController());
    const more = $("more-items");
    more.disabled = true;
    if (!after) this.grid.skeleton(12);
    try {
      const where = api.whereLabel(state.label);
      const page = await api.items({ after, where, limit: PAGE, signal: mine.signal });
      if (this.listing !== mine) return;
      this.append(page, after);
      more.textContent = "Show more";
      more.hidden = !page.next;
    } catch (problem) {
      if (this.listing !== mine || problem.name === "AbortError") return;
      if (!after) this.grid.clear();
      $("collection-status").textContent = problem.message;
      this.following = after;
      more.textContent = "Try again";
      more.hidden = false;
    }
    more.disabled = false;
  }

  append({ items, next }, after) {
    const before = after ? this.grid.entries.length : 0;
    if (!after) this.grid.clear();
    this.grid.add(items);
    this.following = next;
    const count = this.grid.entries.length;
    const known = state.labels.find(({ label }) => label === state.label);
    const total = state.label === null ? state.card.index.count : known.count;
    const shown = total > count ? `${number(count)} of ${plural(total, "picture")}` : plural(count, "picture");
    $("collection-status").textContent = count ? `${shown}; choose one to search with` : EMPTY;
    if (after) this.grid.focus(before);
  }
}

export class MapView {
  constructor(choose) {
    this.summary = "";
    this.asked = null;
    this.map = new CollectionMap(
      { frame: $("map-frame"), canvas: $("map-canvas"), tip: $("map-tip"), legend: $("map-legend") },
      { choose, name: (point, place) => this.name(point, place) },
    );
    $("zoom-in").addEventListener("click", () => this.map.zoom(1.5));
    $("zoom-out").addEventListener("click", () => this.map.zoom(1 / 1.5));
    $("zoom-reset").addEventListener("click", () => this.map.reset());
  }

  name(point, place) {
    const words = point && `${labelOf(point)}, picture ${place + 1} of ${this.map.points.length}`;
    $("map-status").textContent = words ?? this.summary;
  }

  async open() {
    if (this.asked) return;
    $("map-status").textContent = "Drawing the map …";
    this.asked = patiently(api.points);
    try {
      const { points, sampled } = await this.asked;
      this.map.setPoints(points);
      this.highlight();
      this.summary = points.length ? plural(points.length, "picture") + (sampled ? ", drawn by lot" : "") : EMPTY;
    } catch (problem) {
      this.asked = null; // asked again when the map is opened again
      this.summary = problem.message;
    }
    $("map-status").textContent = this.summary;
  }

  /** Marks the query and its results, and lets other labels step back. */
  highlight() {
    const results = state.hits.map(({ id }) => id);
    this.map.highlight({ label: state.label, query: state.query?.id ?? null, results });
  }
}
