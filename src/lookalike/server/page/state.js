// State that the modules of the page share.

/**
 * What is searched for, and what was found.
 *
 * query: an item of the collection, { id, label, name }, a file, { picture, name, address }, with its blob: URL, or
 *   words, { text, name }.
 * crop: { left, top, width, height } in fractions of the picture, or null.
 * label: the label to search in; null for all, "" for pictures without one.
 * k, rerank: fields of POST /search.
 * like, unlike: items that the results should and should not look like.
 * filters: metadata field -> its condition, such as year>=2020.  group, diversity, confidence: fields of POST /search.
 * area: { corners, revision, count } of the map to search in, or null.
 * model: name of the model that answers, "" for the first, "*" for two side by side.
 * weights: whether heat maps are shown.
 * hits: the results.  labels: all labels with counts.  card: the answer of GET /model.
 */
export const state = {
  query: null,
  crop: null,
  label: null,
  k: 12,
  rerank: "none",
  like: [],
  unlike: [],
  filters: {},
  group: false,
  diversity: "0",
  confidence: "",
  area: null,
  model: "",
  weights: false,
  hits: [],
  labels: [],
  card: null,
};

/** The parts of the state that make up a search. */
export const SEARCH_FIELDS = ["query", "crop", "label", "k", "rerank", "like", "unlike"];
SEARCH_FIELDS.push("filters", "group", "diversity", "confidence", "area");

/** The filter of POST /search for the chosen label and metadata. */
export function whereOf({ label, filters }) {
  const conditions = Object.values(filters);
  if (label !== null) conditions.unshift(`label=${quoted(label)}`);
  return conditions.join(", ");
}

/** A text in quotes, for a filter. */
export const quoted = (text) => `"${text.replace(/[\\"]/g, "\\$&")}"`;

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
