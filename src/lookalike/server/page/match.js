// Why a result is similar: the query and the result side by side, with matching regions in the same colours.

import { match, retryWhileBusy } from "./api.js";
import { $, element } from "./dom.js";
import { labelOf } from "./format.js";
import { fitFrame, showPicture } from "./pictures.js";
import { state } from "./state.js";

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#e69f00", "#56b4e9", "#cc79a7", "#009e73"]; // as in inference/match.py
const percent = (share) => `${Math.round(100 * share)} %`;
const amount = (value) => value.toFixed(3).replace("-", "−");

/**
 * The parts of a similarity as texts: in percent, or, if places that do not match take part of it away again and
 * percentages would not add up to 100, as amounts.
 */
function partsOf({ cosine, inside_share: inside, regions }) {
  const isShare = (share) => share >= 0 && share <= 1;
  if (cosine > 0 && isShare(inside) && isShare(regions.reduce((sum, { share }) => sum + share, 0))) return percent;
  return (share) => amount(share * cosine);
}

/** Draws the matches of the current query and one result in the viewer. */
export class MatchView {
  constructor() {
    this.request = null; // AbortController of the current request
    this.answer = null;
    for (const side of ["a", "b"]) {
      const svg = $(`match-${side}`);
      svg.addEventListener("pointermove", ({ target }) => this.light(side, [target.dataset.cell]));
      svg.addEventListener("pointerleave", () => this.light(side, []));
    }
  }

  /** Shows the query beside a result; with `colours`, also the regions that match. */
  async show(entry, { colours }) {
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    this.clear();
    $("match-query").hidden = true;
    if (!state.query || state.query.text) return;
    this.showQuery();
    if (!state.card?.can_match || !colours) return;
    $("match-summary").textContent = "Comparing the places of both pictures …";
    $("match").hidden = false;
    try {
      const { query, crop } = state;
      const { signal } = request;
      const answer = await retryWhileBusy(() => match(query, crop, entry.id, signal), signal);
      if (this.request === request) this.paint(answer);
    } catch (error) {
      if (this.request !== request || error.name === "AbortError") return;
      $("match-summary").textContent = `The regions cannot be shown: ${error.message}`;
    }
  }

  clear() {
    this.answer = null;
    $("match").hidden = true;
    $("match-regions").replaceChildren();
    for (const side of ["a", "b"]) {
      $(`match-${side}`).replaceChildren();
      $(`match-${side}`).classList.remove("lit");
    }
  }

  showQuery() {
    const image = $("match-picture");
    const { query } = state;
    image.alt = `The query: ${query.id ? labelOf(query) : query.name}`;
    if (query.picture) image.src = query.address;
    else showPicture(image, query.id, 1024, { now: true });
    $("match-query").hidden = false;
    fitFrame(image, "55vh");
  }

  paint(answer) {
    this.answer = answer;
    const partOf = partsOf(answer);
    const regionOf = { a: new Map(), b: new Map() };
    answer.regions.forEach((region, number) => {
      for (const side of ["a", "b"]) {
        for (const cell of region[`cells_${side}`]) regionOf[side].set(cell, number);
      }
      $("match-regions").append(this.createButton(region, number, partOf));
    });
    for (const side of ["a", "b"]) this.paintCells(side, regionOf[side]);
    this.summarise(answer, partOf);
  }

  summarise({ cosine, inside_share: insideShare }, partOf) {
    let text = `Similarity ${amount(cosine)}`;
    if (cosine > 0) {
      const verb = partOf === percent ? "lies" : "comes from what lies";
      text += `: ${partOf(insideShare)} ${verb} on the object and ${partOf(1 - insideShare)} on the border (the outermost ring of cells)`;
    }
    $("match-summary").textContent = `${text}. Point at a place to see its partners.`;
  }

  createButton(region, number, partOf) {
    const text = `Region ${number + 1}: ${partOf(region.share)}`;
    const button = element("button", { type: "button", textContent: text });
    button.style.setProperty("--region", COLOURS[number]);
    const light = () => this.light("a", region.cells_a);
    for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, light);
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => this.light("a", []));
    return element("li", {}, button);
  }

  paintCells(side, regionOf) {
    const { rows, columns, box } = this.answer[side];
    const [left, top, width, height] = box;
    for (let cell = 0; cell < rows * columns; cell += 1) {
      const rect = document.createElementNS(SVG, "rect");
      rect.setAttribute("x", left + (width * (cell % columns)) / columns);
      rect.setAttribute("y", top + (height * Math.floor(cell / columns)) / rows);
      rect.setAttribute("width", width / columns);
      rect.setAttribute("height", height / rows);
      rect.dataset.cell = cell;
      if (regionOf.has(cell)) rect.style.setProperty("--region", COLOURS[regionOf.get(cell)]);
      $(`match-${side}`).append(rect);
    }
  }

  /** Lights cells of one side and, on the other side, the cells by how much they match these. */
  light(side, cells) {
    const { answer } = this;
    const chosen = new Set(cells.filter((cell) => cell !== undefined).map(Number));
    const other = side === "a" ? "b" : "a";
    for (const name of ["a", "b"]) $(`match-${name}`).classList.toggle("lit", chosen.size > 0);
    if (!answer || !chosen.size) return;
    const value = (cell, partner) => (side === "a" ? answer.matrix[cell][partner] : answer.matrix[partner][cell]);
    const partners = [...$(`match-${other}`).children];
    const strengths = partners.map((_, partner) => [...chosen].reduce((sum, cell) => sum + value(cell, partner), 0));
    const strongest = Math.max(...strengths, 1e-12);
    partners.forEach((rect, partner) => {
      rect.classList.remove("chosen");
      rect.style.setProperty("--partner", Math.max(0, (0.75 * strengths[partner]) / strongest).toFixed(3));
    });
    [...$(`match-${side}`).children].forEach((rect, cell) => {
      rect.classList.toggle("chosen", chosen.has(cell));
      rect.style.setProperty("--partner", "0");
    });
  }
}
