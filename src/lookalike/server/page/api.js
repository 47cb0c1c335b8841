// The client of the HTTP API. Only this module knows the key.

const STORAGE_NAME = "lookalike-key";
const BUSY = 503;
const TOO_SLOW = 504;
const UNAUTHORISED = 401;
const ATTEMPTS = 4; // while the server is busy

let askForKey = async () => null;
let openQuestion = null; // promise of a key; one dialog serves all refused requests
let keyInMemory = null; // used where the browser allows no storage

/** A request that failed; `status` is 0 if there was no answer, `retryAfter` is in seconds or null. */
export class ServerError extends Error {
  constructor(message, { status = 0, code = "", retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** Sets the function that asks the user: `ask(refused)` resolves to a key or null; `refused` means the last was wrong. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Returns the current key, or null. */
export function key() {
  try {
    return sessionStorage.getItem(STORAGE_NAME) ?? keyInMemory;
  } catch {
    return keyInMemory;
  }
}

function storeKey(value) {
  keyInMemory = value;
  try {
    sessionStorage.setItem(STORAGE_NAME, value);
  } catch {
    // Without storage the key lasts as long as the page.
  }
}

/** Asks the user for a key; resolves to whether there is a new one. */
async function requestKey(refused) {
  openQuestion ??= askForKey(refused).finally(() => (openQuestion = null));
  const answer = await openQuestion;
  if (answer) storeKey(answer);
  return Boolean(answer);
}

/** Builds a form; fields that are undefined, null or "" are left out. */
function toForm(fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    if (value instanceof Blob) form.append(name, value, value.name || "picture");
    else if (value !== undefined && value !== null && value !== "") form.append(name, String(value));
  }
  return form;
}

async function fetchOnce(path, fields, usedKey, signal, method) {
  const options = { method: method ?? "GET", signal, headers: {} };
  if (fields) Object.assign(options, { method: "POST", body: toForm(fields) });
  if (usedKey) options.headers["X-API-Key"] = usedKey;
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Is it still running?", { code: "unreachable" });
  }
}

/** Sends GET, POST if there are fields, or another method. Asks for a key and repeats the request if one is needed. */
async function send(path, { fields, signal, method } = {}) {
  for (;;) {
    const usedKey = key();
    const response = await fetchOnce(path, fields, usedKey, signal, method);
    if (response.ok) return response;
    if (response.status === UNAUTHORISED) {
      const changedMeanwhile = usedKey !== key();
      if (changedMeanwhile || (await requestKey(Boolean(usedKey)))) continue;
    }
    throw await toError(response);
  }
}

async function toError(response) {
  const { error } = await response.json().catch(() => ({}));
  const seconds = Number.parseFloat(response.headers.get("Retry-After"));
  return new ServerError(error?.message || `The server answered ${response.status}.`, {
    status: response.status,
    code: error?.code ?? "",
    retryAfter: Number.isFinite(seconds) ? seconds : null,
  });
}

async function json(path, options) {
  const response = await send(path, options);
  return response.json();
}

/** Calls `request()` again while the server is busy, a few times. */
export async function retryWhileBusy(request, signal, statuses = [BUSY]) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await request();
    } catch (error) {
      if (!statuses.includes(error.status) || attempt === ATTEMPTS || signal?.aborted) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfter ?? 1)));
    }
  }
}

let usedModel = ""; // name of the model that answers; "" for the first

/** Sets the model that answers searches, heat maps and matches. */
export function useModel(name) {
  usedModel = name;
}

/** The name of the model that answers. */
export const modelInUse = () => usedModel;

/** GET /model */
export const model = (name = "") => json(name ? `model?${new URLSearchParams({ model: name })}` : "model");

/** GET /labels: [{ label, count }] */
export const labels = async () => (await json("labels")).labels;

/** GET /items/{id} */
export const item = (id) => json(`items/${encodeURIComponent(id)}`);

/** GET /map: see map_points.js */
const map = () => json("map");

/** GET /map. A large one may take longer than a request; the server goes on with it, and a later request gets it. */
export const loadMap = () => retryWhileBusy(map, null, [BUSY, TOO_SLOW]);

/** GET /map/progress: { revision, method, progress } */
export const mapProgress = () => json("map/progress");

/** GET /items: one page, { items, next } */
export function items({ after, where, area, limit, signal }) {
  const parameters = new URLSearchParams({ limit });
  if (after) parameters.set("after", after);
  if (where) parameters.set("where", where);
  for (const [name, value] of Object.entries(areaFields(area))) parameters.set(name, value);
  return json(`items?${parameters}`, { signal });
}

function queryFields({ id, picture, text }, crop) {
  const fields = { id, picture, text, model: usedModel };
  if (crop) {
    const fractions = [crop.left, crop.top, crop.width, crop.height];
    fields.crop = fractions.map((value) => value.toFixed(4)).join(",");
  }
  return fields;
}

/** GET /fields: [{ key, least, most, values }] */
export const fields = async () => (await json("fields")).fields;

const ids = (items) => items.map(({ id }) => id).join(",");
const areaFields = (area) => (area ? { area: area.corners, map: area.revision } : {});

/** POST /search: { hits, nothing, p_value, calibration, place, left_out, took_ms } */
export function search(query, { crop, k, where, rerank, like, unlike, group, diversity, confidence, area, model: name, signal }) {
  const examples = { like: ids(like), unlike: ids(unlike) };
  const options = { k, where, rerank, group, diversity, confidence, ...areaFields(area) };
  const fields = { ...queryFields(query, crop), ...examples, ...options };
  if (name && name !== "*") fields.model = name;
  return json("search", { fields, signal });
}

/** POST /explain: weights in rows x columns over the whole picture */
export const explain = (query, crop, signal) => json("explain", { fields: queryFields(query, crop), signal });

/** POST /match: which places of the query and of an item match */
export const match = (query, crop, other, signal) =>
  json("match", { fields: { ...queryFields(query, crop), with: other }, signal });

/** The address of an item's picture, at most `side` pixels large. */
export const imageAddress = (id, side) => `items/${encodeURIComponent(id)}/image?side=${side}`;

/** POST /export: a file with the chosen items; `kind` is "csv", "paths" or "zip" */
export async function exportItems(items, kind) {
  const response = await send("export", { fields: { ids: ids(items), kind } });
  return response.blob();
}

const named = ({ id, picture, content }) => ({ id, picture, content });

/** POST /marks: what is said about a query and a result; { mark, marks, query, count } */
export const mark = (query, other, verdict) => json("marks", { fields: { ...named(query), with: other, verdict } });

/** POST /marks/group: what is said about each two of some items */
export const markGroup = (items, verdict) => json("marks/group", { fields: { ids: ids(items), verdict } });

/** POST /marks/undo: { undone, count } */
export const undoMark = (number) => json("marks/undo", { fields: { mark: number } });

/** GET /marks: marks, and those that contradict each other */
export const marks = ({ limit }) => json(`marks?limit=${limit}`);

/** GET /marks/next: { questions, note } */
export const nextMarks = () => json("marks/next");

/** POST /labels/set: { edit, changed, skipped }, as for the next three */
export const setLabel = (items, label) => json("labels/set", { fields: { ids: ids(items), label } });

/** POST /labels/metadata; `metadata` is JSON */
export const setMetadata = (id, metadata) => json("labels/metadata", { fields: { id, metadata } });

/** POST /labels/rename */
export const renameLabel = (label, to, merge) => json("labels/rename", { fields: { label, to, merge } });

/** POST /labels/undo */
export const undoEdit = (edit) => json("labels/undo", { fields: { edit } });

/** GET /labels/history: { edits, next } */
export const edits = ({ limit }) => json(`labels/history?limit=${limit}`);

/** GET /labels/suggestions: { suggestions, note } */
export const labelSuggestions = (id) => json(`labels/suggestions?id=${encodeURIComponent(id)}`);

/** GET /improve: { state, stage, done, total, message, report, can_roll_back } */
export const improvement = () => json("improve");

/** POST /improve: starts to train the model on marks and labels */
export const improve = () => json("improve", { fields: {} });

/** POST /improve/rollback: starts to return to the model before */
export const rollBack = () => json("improve/rollback", { fields: {} });

/** DELETE /improve: stops it */
export const stopImproving = () => json("improve", { method: "DELETE" });

/** GET /doctor: { state, stage, done, total, message, examined, pictures, kinds, relabelled, dropped } */
export const examination = () => json("doctor");

/** POST /doctor: starts to examine the pictures */
export const examine = () => json("doctor", { fields: {} });

/** DELETE /doctor: stops it */
export const stopExamining = () => json("doctor", { method: "DELETE" });

/** GET /doctor/findings: { findings, total } */
export const findings = ({ kind, offset, limit }) => json(`doctor/findings?${new URLSearchParams({ kind, offset, limit })}`);

/** POST /doctor/decide: the finding with the decision */
export const decide = ({ finding }, action, label) => json("doctor/decide", { fields: { finding, action, label } });

/** GET /doctor/effect: { before, after, queries, relabelled, dropped } */
export const effect = () => json("doctor/effect");

/** POST /doctor/apply: { relabelled, dropped, edit } */
export const applyDecisions = () => json("doctor/apply", { fields: {} });

/** Downloads a file; unlike a link, this sends the key. */
export async function file(path) {
  const response = await send(path);
  return response.blob();
}

/** Downloads a picture; unlike an <img>, this sends the key. */
export const imageBlob = file;
