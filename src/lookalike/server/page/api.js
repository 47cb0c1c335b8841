// The client of the HTTP API. Only this module knows the key.

const STORAGE_NAME = "lookalike-key";
const BUSY = 503;
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

async function fetchOnce(path, fields, usedKey, signal) {
  const options = { method: "GET", signal, headers: {} };
  if (fields) Object.assign(options, { method: "POST", body: toForm(fields) });
  if (usedKey) options.headers["X-API-Key"] = usedKey;
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Is it still running?", { code: "unreachable" });
  }
}

/** Sends GET, or POST if there are fields. Asks for a key and repeats the request if one is needed. */
async function send(path, { fields, signal } = {}) {
  for (;;) {
    const usedKey = key();
    const response = await fetchOnce(path, fields, usedKey, signal);
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
export async function retryWhileBusy(request, signal) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await request();
    } catch (error) {
      if (error.status !== BUSY || attempt === ATTEMPTS || signal?.aborted) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfter ?? 1)));
    }
  }
}

/** GET /model */
export const model = () => json("model");

/** GET /labels: [{ label, count }] */
export const labels = async () => (await json("labels")).labels;

/** GET /items/{id} */
export const item = (id) => json(`items/${encodeURIComponent(id)}`);

/** GET /map: { points, sampled } */
export const points = () => json("map");

/** GET /items: one page, { items, next } */
export function items({ after, where, limit, signal }) {
  const parameters = new URLSearchParams({ limit });
  if (after) parameters.set("after", after);
  if (where) parameters.set("where", where);
  return json(`items?${parameters}`, { signal });
}

function queryFields({ id, picture }, crop) {
  const fields = { id, picture };
  if (crop) {
    const fractions = [crop.left, crop.top, crop.width, crop.height];
    fields.crop = fractions.map((value) => value.toFixed(4)).join(",");
  }
  return fields;
}

/** POST /search: { hits, took_ms } */
export function search(query, { crop, k, where, rerank, signal }) {
  return json("search", { fields: { ...queryFields(query, crop), k, where, rerank }, signal });
}

/** POST /explain: weights in rows x columns over the whole picture */
export const explain = (query, crop, signal) => json("explain", { fields: queryFields(query, crop), signal });

/** The address of an item's picture, at most `side` pixels large. */
export const imageAddress = (id, side) => `items/${encodeURIComponent(id)}/image?side=${side}`;

/** Downloads a picture; unlike an <img>, this sends the key. */
export async function imageBlob(address) {
  const response = await send(address);
  return response.blob();
}

/** The filter for one label; "" for null, which means all labels. */
export function whereLabel(label) {
  if (label === null) return "";
  return `label="${label.replace(/[\\"]/g, "\\$&")}"`;
}
