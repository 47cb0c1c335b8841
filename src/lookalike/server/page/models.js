// The models of the index: one is chosen, or two answer the same query side by side.

import * as api from "./api.js";
import { $, element } from "./dom.js";
import { distanceOf, labelOf, plural } from "./format.js";
import { Grid } from "./grid.js";
import { state, whereOf } from "./state.js";

export const BOTH = "*"; // no name of a model

/** The choice of the model, and the results of the second one. `handlers` as for a Grid; `onChange()` after a choice. */
export class Models {
  constructor({ onChange, ...handlers }) {
    this.onChange = onChange;
    this.names = [];
    this.request = null; // AbortController
    this.grid = new Grid($("second-hits"), {
      ...handlers,
      describe: (hit, index) => `Result ${index + 1} of the second model: ${labelOf(hit)}, distance ${distanceOf(hit)}`,
    });
    $("model").addEventListener("change", () => this.choose($("model").value));
  }

  /** Lists the models of GET /model. */
  create({ models }) {
    this.names = models;
    $("model-control").hidden = models.length < 2;
    const options = models.map((name) => element("option", { value: name, textContent: name }));
    if (models.length > 1) {
      options.push(element("option", { value: BOTH, textContent: `${models[0]} beside ${models[1]}` }));
    }
    $("model").replaceChildren(...options);
  }

  /** Lists the models again after the first one was replaced. The choice stays if it still exists. */
  async replace(card) {
    const usedFirst = !state.model || state.model === this.names[0];
    this.create(card);
    if (usedFirst || (state.model !== BOTH && !this.names.includes(state.model))) state.model = "";
    api.useModel(state.model === BOTH ? this.names[0] : state.model);
    state.card = await api.retryWhileBusy(() => api.model(api.modelInUse()));
    this.show();
  }

  /** Takes a choice over; the next searches use it. */
  async choose(name) {
    state.model = name;
    const first = name === BOTH ? this.names[0] : name;
    api.useModel(first);
    state.card = await api.retryWhileBusy(() => api.model(first));
    this.onChange();
  }

  /** Brings the control in line with the state. */
  show() {
    if (this.names.length) $("model").value = state.model || this.names[0];
    const beside = state.model === BOTH;
    $("second").hidden = $("first-title").hidden = !beside;
    $("answers").classList.toggle("beside", beside);
    if (!beside) return;
    $("first-title").textContent = this.names[0];
    $("second-title").textContent = this.names[1];
  }

  /** Searches with the second model, if both answer. */
  async search() {
    this.request?.abort();
    this.show();
    if (state.model !== BOTH) return;
    const request = new AbortController();
    this.request = request;
    this.grid.showSkeleton(Math.min(state.k, 12));
    $("second-status").textContent = "Searching …";
    const { signal } = request;
    const options = { ...state, where: whereOf(state), confidence: "", model: this.names[1], signal };
    try {
      const { hits } = await api.retryWhileBusy(() => api.search(state.query, options), signal);
      if (this.request !== request) return;
      this.grid.clear();
      this.grid.add(hits);
      $("second-status").textContent = plural(hits.length, "result");
    } catch (error) {
      if (this.request !== request || error.name === "AbortError") return;
      this.grid.clear();
      $("second-status").textContent = error.message;
    }
  }
}
