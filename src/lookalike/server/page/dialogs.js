// Dialogs: the model card, one result in full, and the request for a key.

import { $, breakable, element } from "./dom.js";
import { distanceOf, labelOf, number } from "./format.js";
import { paintWeights, weightsOf } from "./heatmap.js";
import { fitFrame, loaded, showPicture } from "./pictures.js";

const FIRST_METRICS = ["MAP@R", "P@1", "P@R"];
const MOST_METRICS = 4;

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    const onBackdrop = event.target === dialog;
    if (onBackdrop || event.target.closest("[data-close]")) dialog.close();
  });
}

/** Fills a <dl> with names and values; missing values are left out. */
function showFacts(list, facts) {
  list.replaceChildren();
  for (const [name, value] of facts) {
    if (value === null || value === undefined || value === "") continue;
    list.append(element("dt", {}, name), element("dd", {}, String(value)));
  }
}

function asText(value) {
  if (value !== null && typeof value === "object") return JSON.stringify(value);
  return value;
}

/** The metrics of a card as [name, value], the most important ones first. */
function sortedMetrics(card) {
  const metrics = Object.entries(card.figures ?? {}).filter(([, value]) => typeof value === "number" && value <= 1);
  const rank = ([name]) => (FIRST_METRICS.includes(name) ? FIRST_METRICS.indexOf(name) : FIRST_METRICS.length);
  return metrics.sort((one, other) => rank(one) - rank(other));
}

/** Shows the model card, the answer of GET /model. */
export function showCard(card) {
  const metrics = sortedMetrics(card);
  $("card-metrics").replaceChildren();
  for (const [name, value] of metrics.slice(0, MOST_METRICS)) {
    const percent = `${(100 * value).toFixed(1)} %`;
    $("card-metrics").append(element("p", {}, element("b", {}, percent), element("span", {}, name)));
  }
  $("card-note").textContent = metrics.length
    ? "Measured during training, on classes that were held out."
    : "No metrics are stored with this model.";
  const { backend, kind, count } = card.index;
  showFacts($("card-facts"), [
    ["Name", card.name],
    ["Trained on", card.trained_on],
    ["Classes", number(card.classes)],
    ["Steps", number(card.steps)],
    ["Backbone", card.backbone],
    ["Pooling", card.pooling],
    ["Vector", `${number(card.dim)} numbers`],
    ["Input", `${card.input_size} × ${card.input_size} pixels`],
    ["Distance", card.distance],
    ["Index", `${backend}, ${kind}, ${number(count)} pictures`],
    ["Fingerprint", card.fingerprint],
  ]);
  $("card").showModal();
}

/** Shows one result in full; arrow keys move to the others. `onMore(entry)`: "More like this" was clicked. */
export class Viewer {
  constructor({ onMore }) {
    this.entries = [];
    this.index = 0;
    this.showsWeights = false;
    $("viewer-more").addEventListener("click", () => {
      $("viewer").close();
      onMore(this.entries[this.index]);
    });
    $("viewer-previous").addEventListener("click", () => this.step(-1));
    $("viewer-next").addEventListener("click", () => this.step(1));
    $("viewer").addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") this.step(-1);
      if (event.key === "ArrowRight") this.step(1);
    });
  }

  /** Opens the dialog at one of the results. */
  open(entries, index, showsWeights) {
    this.entries = entries;
    this.showsWeights = showsWeights;
    this.show(index);
    $("viewer").showModal();
    $("viewer-more").focus();
  }

  step(offset) {
    const index = this.index + offset;
    if (index >= 0 && index < this.entries.length) this.show(index);
  }

  show(index) {
    this.index = index;
    const entry = this.entries[index];
    // Not disabled: a disabled button would lose the focus.
    $("viewer-previous").setAttribute("aria-disabled", index === 0);
    $("viewer-next").setAttribute("aria-disabled", index === this.entries.length - 1);
    $("viewer-title").replaceChildren(...breakable(labelOf(entry)));
    showFacts($("viewer-facts"), [
      ["Result", `${index + 1} of ${this.entries.length}`],
      ["Distance", distanceOf(entry)],
      ["File", entry.name],
      ...Object.entries(entry.metadata ?? {}).map(([name, value]) => [name, asText(value)]),
    ]);
    const image = $("viewer-picture");
    image.alt = `${labelOf(entry)}, ${entry.name}`;
    image.removeAttribute("src");
    showPicture(image, entry.id, 1024, { now: true });
    fitFrame(image, "55vh");
    $("viewer-weights").hidden = true;
    if (this.showsWeights) this.explain(entry);
  }

  async explain(entry) {
    const [image, overlay] = [$("viewer-picture"), $("viewer-weights")];
    try {
      const [explanation] = await Promise.all([weightsOf(entry.id), loaded(image)]);
      if (this.entries[this.index] !== entry) return;
      paintWeights(overlay, explanation, image);
      overlay.hidden = false;
    } catch {
      overlay.hidden = true;
    }
  }
}

/** Asks for a key; resolves to null if the dialog is closed. `refused`: the last key was wrong. */
export function askForKey(refused) {
  const dialog = $("key");
  $("key-text").textContent = refused
    ? "That key was not accepted. Please check it."
    : "Ask the operator of this server for one. It is kept in this tab only.";
  $("key-value").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    let answer = null;
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      answer = $("key-value").value.trim() || null;
      dialog.close();
    };
    dialog.addEventListener("close", () => resolve(answer), { once: true });
  });
}
