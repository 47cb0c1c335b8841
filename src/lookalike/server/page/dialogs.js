// What opens over the page: the model's card, one picture in full, the question for a key.

import { $, breakable, distanceOf, element, labelOf, number } from "./common.js";
import { fit, settled, show } from "./pictures.js";
import { paint, weightsOf } from "./weights.js";

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    // A click beside the dialog has the dialog itself as its target.
    if (event.target.closest("[data-close]") || event.target === dialog) dialog.close();
  });
}

/** Names and values, without those that are not known. */
function facts(list, entries) {
  const known = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const lines = known.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]);
  list.replaceChildren(...lines);
}

const asText = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : value);
const percent = (value) => `${(100 * value).toFixed(1)} %`;

/** What the model was trained on and how good it was found to be. */
export function showCard(card) {
  const figures = Object.entries(card.figures ?? {}).filter(([, value]) => typeof value === "number" && value <= 1);
  const first = ["MAP@R", "P@1", "P@R"];
  const order = (name) => (first.includes(name) ? first.indexOf(name) : first.length);
  figures.sort(([one], [other]) => order(one) - order(other));
  const boxes = figures
    .slice(0, 4)
    .map(([name, value]) => element("p", {}, element("b", {}, percent(value)), element("span", {}, name)));
  $("card-figures").replaceChildren(...boxes);
  $("card-note").textContent = figures.length
    ? "Measured during training, on classes that were held out."
    : "No figures were kept with this model.";
  const { backend, kind, count } = card.index;
  facts($("card-facts"), [
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

/** One result in full; the arrow keys go on to the others. */
export class Viewer {
  constructor({ more }) {
    Object.assign(this, { more, entries: [], place: 0, weights: false });
    $("viewer-more").addEventListener("click", () => {
      $("viewer").close();
      this.more(this.entries[this.place]);
    });
    $("viewer-previous").addEventListener("click", () => this.step(-1));
    $("viewer-next").addEventListener("click", () => this.step(1));
    $("viewer").addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") this.step(-1);
      if (event.key === "ArrowRight") this.step(1);
    });
  }

  open(entries, place, weights) {
    Object.assign(this, { entries, weights });
    this.turnTo(place);
    $("viewer").showModal();
    $("viewer-more").focus();
  }

  step(by) {
    const place = this.place + by;
    if (place >= 0 && place < this.entries.length) this.turnTo(place);
  }

  async turnTo(place) {
    this.place = place;
    const entry = this.entries[place];
    const [image, canvas] = [$("viewer-picture"), $("viewer-weights")];
    // Not disabled: the focus would be lost with the button it is on.
    $("viewer-previous").setAttribute("aria-disabled", place === 0);
    $("viewer-next").setAttribute("aria-disabled", place === this.entries.length - 1);
    $("viewer-title").replaceChildren(...breakable(labelOf(entry)));
    facts($("viewer-facts"), [
      ["Result", `${place + 1} of ${this.entries.length}`],
      ["Distance", distanceOf(entry)],
      ["File", entry.name],
      ...Object.entries(entry.metadata ?? {}).map(([name, value]) => [name, asText(value)]),
    ]);
    image.alt = `${labelOf(entry)}, ${entry.name}`;
    canvas.hidden = true;
    image.removeAttribute("src");
    show(image, entry.id, 1024, { now: true });
    fit(image, "55vh");
    if (!this.weights) return;
    try {
      const [explained] = await Promise.all([weightsOf(entry.id), settled(image)]);
      if (this.entries[this.place] !== entry) return;
      paint(canvas, explained, image);
      canvas.hidden = false;
    } catch {
      canvas.hidden = true;
    }
  }
}

/** Asks for the key; null if the question is closed unanswered. */
export function askForKey(refused) {
  const dialog = $("key");
  $("key-words").textContent = refused
    ? "That key was not accepted. Please look at it again."
    : "Whoever runs it can give you one. It is kept in this tab only.";
  $("key-value").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    let given = null;
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      given = $("key-value").value.trim() || null;
      dialog.close();
    };
    dialog.addEventListener("close", () => resolve(given), { once: true });
  });
}
