// What every part of the page uses.

export const $ = (id) => document.getElementById(id);

/** What is searched for, and what was found.
 *
 * A query is { id, label, name } of the collection, or { picture, name, address }: a file, and where it is to be seen.
 * A crop is { left, top, width, height } in fractions. label: null for all of them, "" for pictures without one.
 * rerank: as the server calls it.
 */
export const state = {
  query: null,
  crop: null,
  label: null,
  k: 12,
  rerank: "none",
  weights: false,
  hits: [],
  labels: [],
  card: null,
};

export const MOST = 200; // results that the server gives
const USUAL = 12;
const wanted = (text) => (text?.trim() && Number.isFinite(Number(text)) ? Math.round(Number(text)) : USUAL);
export const toCount = (text) => Math.min(MOST, Math.max(1, wanted(text)));
/** Why a number of results is not the one that was asked for; "" where it is. */
export const countLimit = (text) => (wanted(text) > MOST ? `at most ${MOST}` : wanted(text) < 1 ? "at least 1" : "");

/** An element with properties; texts among its children stay texts. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export const labelOf = ({ label }) => label || "no label";
export const withLabel = ({ label }) => (label ? `with the label ${label}` : "without a label");

/** A text that may break after any of _-./, as the nodes it consists of. */
export const breakable = (text) =>
  (text.match(/[^_./-]*[_./-]+|[^_./-]+/g) ?? []).flatMap((part) => [part, element("wbr")]);

export const distanceOf = ({ distance }) => distance.toFixed(3);
export const number = (value) => (typeof value === "number" ? value.toLocaleString("en") : value);
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
