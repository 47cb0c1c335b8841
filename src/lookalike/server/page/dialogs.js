// Dialogs: the model card, one result in full, and the request for a key.

import { copyPaths, download, openOriginal, pathOf } from "./basket.js";
import { $, breakable, element } from "./dom.js";
import { distanceOf, labelOf, number, percentOf } from "./format.js";
import { paintWeights, weightsOf } from "./heatmap.js";
import { MatchView } from "./match.js";
import { fitFrame, loaded, showPicture } from "./pictures.js";
import { state } from "./state.js";

const FIRST_METRICS = ["MAP@R", "P@1", "P@R"];
const MOST_METRICS = 4;
const EXPLAINED = {
  "P@1": "How often the nearest picture is of the same class",
  "P@R": "Share of the R nearest that are of the same class, if the class has R other pictures",
  "MAP@R": "How well the R nearest are ranked, if the class has R other pictures; 100 % means all of them first",
};

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
  const metrics = Object.entries(card.figures ?? {}).filter(
    ([name, value]) => typeof value === "number" && value <= 1 && name !== "R@1", // R@1 is P@1
  );
  const rank = ([name]) => (FIRST_METRICS.includes(name) ? FIRST_METRICS.indexOf(name) : FIRST_METRICS.length);
  return metrics.sort((one, other) => rank(one) - rank(other));
}

/** Shows the model card, the answer of GET /model. */
export function showCard(card) {
  const metrics = sortedMetrics(card);
  $("card-metrics").replaceChildren();
  for (const [name, value] of metrics.slice(0, MOST_METRICS)) {
    const percent = `${(100 * value).toFixed(1)} %`;
    const before = card.baseline?.[name];
    const detail = before === undefined ? name : `${name}; backbone alone ${(100 * before).toFixed(1)} %`;
    $("card-metrics").append(element("p", { title: EXPLAINED[name] ?? "" }, element("b", {}, percent), element("span", {}, detail)));
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
    ["Sees", card.view === "whole" ? "the whole picture" : "the centre of the picture"],
    ["Distance", card.distance],
    ["Probabilities", card.calibration ?? "none: not calibrated on labels"],
    ["Index", `${backend}, ${kind}, ${number(count)} pictures`],
    ["Fingerprint", card.fingerprint],
  ]);
  $("card").showModal();
}

/**
 * Shows one result in full; arrow keys move to the others.
 * onMore(entry): "More like this" was clicked.  onShow(entry): it is shown.
 */
export class Viewer {
  constructor({ onMore, onShow }) {
    this.onShow = onShow;
    this.entries = [];
    this.index = 0;
    this.showsWeights = false;
    this.matchView = new MatchView();
    $("viewer-more").addEventListener("click", () => {
      $("viewer").close();
      onMore(this.entries[this.index]);
    });
    $("viewer-copy").addEventListener("click", () => this.run($("viewer-copy"), (entry) => copyPaths([entry])));
    $("viewer-open").addEventListener("click", () => this.run($("viewer-open"), openOriginal));
    $("viewer-original").addEventListener("click", () => this.run($("viewer-original"), (entry) => download([entry], "original")));
    $("viewer-previous").addEventListener("click", () => this.step(-1));
    $("viewer-next").addEventListener("click", () => this.step(1));
    $("viewer").addEventListener("keydown", (event) => {
      if (event.target.closest("input, textarea")) return; // arrows move in the text
      if (event.key === "ArrowLeft") this.step(-1);
      if (event.key === "ArrowRight") this.step(1);
    });
  }

  /** Runs an action on the shown entry; its button says whether it failed. */
  async run(button, action) {
    const text = button.dataset.text ?? button.textContent;
    button.dataset.text = text;
    try {
      button.textContent = (await action(this.entries[this.index])) ?? text;
    } catch (error) {
      button.textContent = error.message;
    }
    setTimeout(() => (button.textContent = text), 2000);
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
      ["The same", typeof entry.probability === "number" ? `${percentOf(entry)} %` : ""],
      ["Near-duplicates", (entry.duplicates ?? []).map(({ name }) => name).join(", ")],
      ["File", entry.name],
      ...Object.entries(entry.metadata ?? {}).map(([name, value]) => [name, asText(value)]),
    ]);
    if (state.card?.may_write) this.showPath(entry);
    const image = $("viewer-picture");
    image.alt = `${labelOf(entry)}, ${entry.name}`;
    image.removeAttribute("src");
    showPicture(image, entry.id, 1024, { now: true });
    fitFrame(image, "55vh");
    $("viewer-weights").hidden = true;
    if (this.showsWeights) this.explain(entry);
    this.matchView.show(entry, { colours: !this.showsWeights });
    this.onShow(entry);
  }

  /** Shows where the file lies, for those who may know. */
  async showPath(entry) {
    const place = element("dd", { id: "viewer-path" }, "…");
    $("viewer-facts").append(element("dt", {}, "Path"), place);
    try {
      place.replaceChildren(...breakable(await pathOf(entry)));
    } catch (error) {
      place.textContent = error.message;
    }
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
