// The picture that is searched with: shown, cropped, and with the weights it has.

import * as api from "./api.js";
import { $, breakable, labelOf, state } from "./common.js";
import { fit, settled, show } from "./pictures.js";
import { Region } from "./region.js";
import { paint, patiently } from "./weights.js";

export class QueryPanel {
  /** `search()` when a region is to be searched with, or the whole picture again. */
  constructor(search) {
    this.search = search;
    this.region = new Region($("stage"), $("region"), $("shade"), {
      chosen: (crop) => this.choose(crop),
      changed: () => this.showButtons(),
    });
    $("crop").addEventListener("click", () => this.region.start());
    $("search-region").addEventListener("click", () => this.choose(this.region.value));
    $("whole").addEventListener("click", () => this.choose(null));
  }

  set(query, crop) {
    Object.assign(state, { query, crop });
    const image = $("query-picture");
    image.classList.remove("missing");
    image.removeAttribute("src");
    $("query").hidden = !query;
    this.refuse(false);
    $("drop").classList.toggle("compact", Boolean(query));
    $("choose").textContent = query ? "Another picture" : "Choose a picture";
    if (crop) this.region.set(crop);
    else this.region.clear();
    if (!query) return;
    if (query.picture) {
      image.onerror = () => image.classList.add("missing"); // a kind of picture that the server may know all the same
      image.src = query.address;
    } else {
      show(image, query.id, 1024, { now: true });
    }
    fit(image, "18rem");
    image.alt = `The query: ${query.id ? labelOf(query) : query.name}`;
    $("query-title").replaceChildren(...breakable(query.id ? labelOf(query) : query.name));
    $("query-detail").textContent = query.id ? query.name : "";
    this.explain();
  }

  /** Of a picture that cannot be searched with, no part can. */
  refuse(refused) {
    $("crop").disabled = $("stage").inert = refused;
  }

  choose(crop) {
    state.crop = crop;
    if (crop) {
      this.showButtons();
    } else {
      this.region.clear();
      $("crop").focus();
    }
    this.explain();
    this.search();
  }

  showButtons() {
    const { value } = this.region;
    $("crop").hidden = Boolean(value);
    $("whole").hidden = !value;
    $("search-region").hidden = !value || value === state.crop;
  }

  /** The query's weights: of the region, if one was searched with. */
  async explain() {
    const canvas = $("query-weights");
    this.explaining?.abort();
    const mine = (this.explaining = new AbortController());
    canvas.hidden = true;
    if (!state.weights || !state.query) return;
    const { query, crop } = state;
    try {
      const ask = patiently(() => api.explain(query, crop, mine.signal), mine.signal);
      const [explained] = await Promise.all([ask, settled($("query-picture"))]);
      if (this.explaining !== mine) return;
      paint(canvas, explained, $("query-picture"));
      canvas.hidden = false;
    } catch {
      canvas.hidden = true; // the search itself says what is wrong
    }
  }
}
