// The panel with the query: its picture, the crop, and its heat map.

import * as api from "./api.js";
import { $, breakable } from "./dom.js";
import { labelOf } from "./format.js";
import { paintWeights } from "./heatmap.js";
import { fitFrame, loaded, showPicture } from "./pictures.js";
import { Region } from "./region.js";
import { state } from "./state.js";

/** Shows the query; `onSearch()` when a region, or the whole picture again, is to be searched with. */
export class QueryPanel {
  constructor(onSearch) {
    this.onSearch = onSearch;
    this.request = null; // AbortController of the current explanation
    this.region = new Region($("stage"), $("region"), $("shade"), {
      onChoose: (crop) => this.chooseCrop(crop),
      onChange: () => this.showButtons(),
    });
    $("crop").addEventListener("click", () => this.region.start());
    $("search-region").addEventListener("click", () => this.chooseCrop(this.region.value));
    $("whole").addEventListener("click", () => this.chooseCrop(null));
  }

  /** Makes a picture the query; null for none. */
  set(query, crop) {
    state.query = query;
    state.crop = crop;
    $("query").hidden = !query;
    $("query").classList.toggle("words", Boolean(query?.text));
    $("drop").classList.toggle("compact", Boolean(query));
    $("choose").textContent = query ? "Another picture" : "Choose a picture";
    this.setUsable(true);
    if (crop) this.region.set(crop);
    else this.region.clear();
    this.showPicture(query);
    this.explain();
  }

  showPicture(query) {
    const image = $("query-picture");
    image.classList.remove("missing");
    image.removeAttribute("src");
    if (!query) return;
    if (query.text) {
      $("query-title").textContent = `“${query.text}”`;
      $("query-detail").textContent = "";
      return;
    }
    const title = query.id ? labelOf(query) : query.name;
    if (query.picture) {
      image.onerror = () => image.classList.add("missing"); // the server may know more formats than the browser
      image.src = query.address;
    } else {
      showPicture(image, query.id, 1024, { now: true });
    }
    fitFrame(image, "18rem");
    image.alt = `The query: ${title}`;
    $("query-title").replaceChildren(...breakable(title));
    $("query-detail").textContent = query.id && query.name !== title ? query.name : "";
  }

  /** Disables cropping for a picture that the server refuses. */
  setUsable(usable) {
    $("crop").disabled = !usable;
    $("stage").inert = !usable;
  }

  chooseCrop(crop) {
    state.crop = crop;
    if (crop) {
      this.showButtons();
    } else {
      this.region.clear();
      $("crop").focus();
    }
    this.explain();
    this.onSearch();
  }

  showButtons() {
    const { value } = this.region;
    $("crop").hidden = Boolean(value);
    $("whole").hidden = !value;
    $("search-region").hidden = !value || value === state.crop;
  }

  /** Shows the heat map of the query, or of its crop, if heat maps are switched on. */
  async explain() {
    const overlay = $("query-weights");
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    overlay.hidden = true;
    if (!state.weights || !state.query || state.query.text) return;
    const { query, crop } = state;
    const { signal } = request;
    try {
      const explaining = api.retryWhileBusy(() => api.explain(query, crop, signal), signal);
      const [explanation] = await Promise.all([explaining, loaded($("query-picture"))]);
      if (this.request !== request) return;
      paintWeights(overlay, explanation, $("query-picture"));
      overlay.hidden = false;
    } catch {
      overlay.hidden = true; // the search reports the error
    }
  }
}
