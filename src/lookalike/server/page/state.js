// State that the modules of the page share.

/**
 * What is searched for, and what was found.
 *
 * query: an item of the collection, { id, label, name }, or a file, { picture, name, address }, with its blob: URL.
 * crop: { left, top, width, height } in fractions of the picture, or null.
 * label: the label to search in; null for all, "" for pictures without one.
 * k, rerank: fields of POST /search.
 * weights: whether heat maps are shown.
 * hits: the results.  labels: all labels with counts.  card: the answer of GET /model.
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

const MOST_RESULTS = 200; // limit of the server
const DEFAULT_RESULTS = 12;

function parseCount(text) {
  const count = Number(text);
  if (!text?.trim() || !Number.isFinite(count)) return DEFAULT_RESULTS;
  return Math.round(count);
}

/** Parses a number of results and brings it into the allowed range. */
export function toCount(text) {
  return Math.min(MOST_RESULTS, Math.max(1, parseCount(text)));
}

/** Explains why another number of results is shown than the text asks for; "" if it is the same. */
export function countLimit(text) {
  const count = parseCount(text);
  if (count > MOST_RESULTS) return `at most ${MOST_RESULTS}`;
  if (count < 1) return "at least 1";
  return "";
}
