// The tab with the map: loads the points on first use, follows their layout, and offers what to do with a selection.

import * as api from "./api.js";
import { EMPTY_COLLECTION } from "./collection.js";
import { $, element } from "./dom.js";
import { labelOf, number, plural } from "./format.js";
import { CollectionMap } from "./map.js";
import { asText } from "./map_lasso.js";
import { Points } from "./map_points.js";
import { state } from "./state.js";

const ZOOM_STEP = 1.5;
const POLL_SECONDS = 2; // while a better layout is being computed
const MOST_LISTED = 50; // clusters, for screen readers
const LASSO_HELP = "Draw around the pictures. By keyboard: arrows move, Enter sets a corner, and again closes; Escape ends.";

/** The map with its buttons and status line; `onChoose(item)`, `onArea(area or null)`; `basket` takes selected items. */
export class MapView {
  constructor(onChoose, { onArea, basket }) {
    Object.assign(this, { onArea, basket });
    this.summary = "";
    this.requested = false;
    this.following = false;
    this.place = null; // { query, crop, at }: where the query lies
    this.selection = null; // { indices, corners }
    this.map = new CollectionMap(
      { frame: $("map-frame"), canvas: $("map-canvas"), tip: $("map-tip"), legend: $("map-legend") },
      {
        onChoose,
        onPoint: (item, index) => this.describe(item, index),
        onSelect: (indices, corners) => this.showSelection(indices, corners),
      },
    );
    $("zoom-in").addEventListener("click", () => this.map.zoom(ZOOM_STEP));
    $("zoom-out").addEventListener("click", () => this.map.zoom(1 / ZOOM_STEP));
    $("zoom-reset").addEventListener("click", () => this.map.reset());
    $("lasso").addEventListener("click", () => this.switchLasso());
    $("map-to-basket").addEventListener("click", () => this.fillBasket());
    $("map-filter").addEventListener("click", () => this.filter());
    $("map-deselect").addEventListener("click", () => this.map.select(null));
    $("area-clear").addEventListener("click", () => onArea(null));
  }

  describe(item, index) {
    let text = this.summary;
    if (item) text = `${labelOf(item)}, picture ${number(index + 1)} of ${number(this.map.points.length)}`;
    $("map-status").textContent = text;
  }

  /** Loads the map, unless that was done; a failed attempt is repeated at the next opening. */
  async open() {
    if (this.requested) {
      this.locate();
      return;
    }
    this.requested = true;
    $("map-status").textContent = "Drawing the map …";
    try {
      await this.load();
      this.follow();
    } catch (error) {
      this.requested = false;
      this.summary = error.message;
    }
    $("map-status").textContent = this.summary;
  }

  /** Loads the map again, now or when it is opened: labels have changed. */
  refresh() {
    this.requested = false;
    if (!$("map").hidden) this.open();
  }

  async load() {
    const answer = await api.loadMap();
    this.map.setPoints(new Points(answer));
    this.note = answer.note;
    this.summary = answer.ids.length ? plural(answer.ids.length, "picture") : EMPTY_COLLECTION;
    if (answer.sampled) this.summary += ", a random sample";
    $("map-status").textContent = this.summary;
    $("map-note").textContent = answer.ids.length ? `Layout: ${this.note}.` : "";
    const texts = this.map.clusterTexts().slice(0, MOST_LISTED);
    $("map-clusters").replaceChildren(...texts.map((text) => element("li", {}, text)));
    this.place = null;
    this.highlight();
    this.locate();
  }

  /** Shows how far a better layout is, and takes it over. */
  async follow() {
    if (this.following) return;
    this.following = true;
    await this.poll();
    this.following = false;
  }

  async poll() {
    for (;;) {
      const { progress, revision } = await api.mapProgress().catch(() => ({ progress: null, revision: "" }));
      if (revision && revision !== this.map.points.revision) {
        await this.load().catch(() => {});
        continue;
      }
      if (progress === null) return;
      const done = `${Math.floor(100 * progress)} %`;
      $("map-note").textContent = `Layout: ${this.note}. A better one is being computed: ${done}.`;
      await new Promise((resolve) => setTimeout(resolve, 1000 * POLL_SECONDS));
    }
  }

  /** Marks the query and its results, and dims other labels. */
  highlight() {
    const { query, crop } = state;
    const isItem = query?.id && !crop && !state.like.length && !state.unlike.length;
    const place = this.place?.query === query && this.place?.crop === crop ? this.place.at : null;
    const shown = query && { id: isItem ? query.id : null, place };
    this.map.highlight({ label: state.label, query: shown, results: state.hits.map(({ id }) => id) });
  }

  /** Finds the place of a query that is not a point of the map. */
  async locate() {
    const { query, crop, like, unlike } = state;
    const isPoint = query?.id && !crop && !like.length && !unlike.length;
    if (!query || isPoint || !this.map.points.length) return;
    try {
      const { place } = await api.search(query, { crop, like, unlike, k: 1 });
      if (state.query !== query || state.crop !== crop) return;
      this.place = { query, crop, at: place };
      this.highlight();
    } catch {
      // the search reports the error
    }
  }

  switchLasso() {
    const on = $("lasso").getAttribute("aria-pressed") !== "true";
    $("lasso").setAttribute("aria-pressed", on);
    this.map.setLasso(on);
    $("map-status").textContent = on ? LASSO_HELP : this.summary;
    if (on) $("map-canvas").focus({ focusVisible: false });
  }

  showSelection(indices, corners) {
    this.selection = indices && { indices, corners };
    $("lasso").setAttribute("aria-pressed", false);
    $("map-selection").hidden = !indices;
    $("map-status").textContent = this.summary;
    if (!indices) return;
    $("map-selected").textContent = `${plural(indices.length, "picture")} in the area`;
    $("map-to-basket").disabled = $("map-filter").disabled = !indices.length;
  }

  fillBasket() {
    this.basket.set(this.selection.indices.map((index) => this.map.points.item(index)), true);
  }

  filter() {
    const { corners, indices } = this.selection;
    this.onArea({ corners: asText(corners), revision: this.map.points.revision, count: indices.length });
  }
}

/** Says that searches stay within an area of the map. */
export function showArea() {
  $("area").hidden = !state.area;
  if (state.area) $("area-text").textContent = `Only the ${plural(state.area.count, "picture")} selected on the map.`;
}
