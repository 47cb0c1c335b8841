// The tab with the collection, page by page.

import * as api from "./api.js";
import { $ } from "./dom.js";
import { labelOf, number, plural } from "./format.js";
import { Grid } from "./grid.js";
import { state, whereOf } from "./state.js";

const PAGE_SIZE = 48;

/** Shown when there are no pictures at all. */
export const EMPTY_COLLECTION = "The collection is empty: index a folder of pictures first.";

/** Lists the items with the chosen label; `onChoose(item)` when one was clicked. */
export class CollectionView {
  constructor(onChoose) {
    this.nextPage = null; // the id after which the next page begins
    this.request = null; // AbortController of the current request
    this.grid = new Grid($("items"), {
      onChoose,
      describe: (entry) => `Search with ${labelOf(entry)}, ${entry.name}`,
    });
    $("more-items").addEventListener("click", () => this.load(this.nextPage));
  }

  /** Loads the page behind an id; without one the list starts anew. */
  async load(after = null) {
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    const moreButton = $("more-items");
    moreButton.disabled = true;
    if (!after) this.grid.showSkeleton(12);
    try {
      const where = whereOf(state);
      const page = await api.items({ after, where, area: state.area, limit: PAGE_SIZE, signal: request.signal });
      if (this.request !== request) return;
      this.append(page, after);
      moreButton.textContent = "Show more";
      moreButton.hidden = !page.next;
    } catch (error) {
      if (this.request !== request || error.name === "AbortError") return;
      if (!after) this.grid.clear();
      $("collection-status").textContent = error.message;
      this.nextPage = after;
      moreButton.textContent = "Try again";
      moreButton.hidden = false;
    }
    moreButton.disabled = false;
  }

  append({ items, next }, after) {
    if (!after) this.grid.clear();
    const firstNew = this.grid.entries.length;
    this.grid.add(items);
    this.nextPage = next;
    $("collection-status").textContent = this.summary();
    if (after) this.grid.focus(firstNew);
  }

  summary() {
    const count = this.grid.entries.length;
    if (!count && !state.area) return EMPTY_COLLECTION;
    if (Object.keys(state.filters).length || state.area) return `${plural(count, "picture")}; choose one to search with`;
    let total = state.card.index.count;
    if (state.label !== null) total = state.labels.find(({ label }) => label === state.label).count;
    const shown = total > count ? `${number(count)} of ${plural(total, "picture")}` : plural(count, "picture");
    return `${shown}; choose one to search with`;
  }
}
