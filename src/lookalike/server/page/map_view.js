// The tab with the map: loads the points on first use and reports what is pointed at.

import * as api from "./api.js";
import { EMPTY_COLLECTION } from "./collection.js";
import { $ } from "./dom.js";
import { labelOf, plural } from "./format.js";
import { CollectionMap } from "./map.js";
import { state } from "./state.js";

const ZOOM_STEP = 1.5;

/** The map with its buttons and status line; `onChoose(point)` when a point was chosen. */
export class MapView {
  constructor(onChoose) {
    this.summary = "";
    this.requested = false;
    this.map = new CollectionMap(
      { frame: $("map-frame"), canvas: $("map-canvas"), tip: $("map-tip"), legend: $("map-legend") },
      { onChoose, onPoint: (point, index) => this.describe(point, index) },
    );
    $("zoom-in").addEventListener("click", () => this.map.zoom(ZOOM_STEP));
    $("zoom-out").addEventListener("click", () => this.map.zoom(1 / ZOOM_STEP));
    $("zoom-reset").addEventListener("click", () => this.map.reset());
  }

  describe(point, index) {
    let text = this.summary;
    if (point) text = `${labelOf(point)}, picture ${index + 1} of ${this.map.points.length}`;
    $("map-status").textContent = text;
  }

  /** Loads the map, unless that was done; a failed attempt is repeated at the next opening. */
  async open() {
    if (this.requested) return;
    this.requested = true;
    $("map-status").textContent = "Drawing the map …";
    try {
      const { points, sampled } = await api.retryWhileBusy(api.points);
      this.map.setPoints(points);
      this.highlight();
      this.summary = points.length ? plural(points.length, "picture") : EMPTY_COLLECTION;
      if (sampled) this.summary += ", a random sample";
    } catch (error) {
      this.requested = false;
      this.summary = error.message;
    }
    $("map-status").textContent = this.summary;
  }

  /** Marks the query and its results, and dims other labels. */
  highlight() {
    const results = state.hits.map(({ id }) => id);
    this.map.highlight({ label: state.label, query: state.query?.id ?? null, results });
  }
}
