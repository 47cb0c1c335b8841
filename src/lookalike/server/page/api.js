// The server's interface, and the one place that knows the key.

const STORED = "lookalike-key";
let askForKey = async () => null;
let asking = null; // one question at a time, however many requests were refused
let kept = null; // where the browser allows no storage

export class ServerError extends Error {
  constructor(message, { status = 0, code = "", retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

/** `ask(refused)` gives a key, or null if nobody has one; `refused` says that there was one and it was wrong. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

export function key() {
  try {
    return sessionStorage.getItem(STORED) ?? kept;
  } catch {
    return kept;
  }
}

function keepKey(value) {
  kept = value;
  try {
    sessionStorage.setItem(STORED, value);
  } catch {
    // the key then lasts as long as the page
  }
}

/** Waits for somebody to type a key; true if there is a new one. */
async function newKey(refused) {
  asking ??= askForKey(refused).finally(() => (asking = null));
  const given = await asking;
  if (given) keepKey(given);
  return Boolean(given);
}

/** GET, or POST if there are fields; what is undefined, null or "" is left out of them. */
async function send(path, { fields, signal } = {}) {
  for (;;) {
    const used = key();
    const form = fields && new FormData();
    for (const [name, value] of Object.entries(fields ?? {})) {
      if (value instanceof Blob) form.append(name, value, value.name || "picture");
      else if (value !== undefined && value !== null && value !== "") form.append(name, String(value));
    }
    let answer;
    try {
      const headers = used ? { "X-API-Key": used } : {};
      answer = await fetch(path, { method: form ? "POST" : "GET", body: form, signal, headers });
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      throw new ServerError("The server does not answer. Is it still running?", { code: "unreachable" });
    }
    if (answer.ok) return answer;
    if (answer.status === 401 && (used !== key() || (await newKey(Boolean(used))))) continue;
    throw await problemOf(answer);
  }
}

async function problemOf(answer) {
  const { error } = await answer.json().catch(() => ({}));
  const wait = Number.parseFloat(answer.headers.get("Retry-After"));
  return new ServerError(error?.message || `The server answered ${answer.status}.`, {
    status: answer.status,
    code: error?.code ?? "",
    retryAfter: Number.isFinite(wait) ? wait : null,
  });
}

const json = async (path, options) => (await send(path, options)).json();

export const model = () => json("model");
export const labels = async () => (await json("labels")).labels;
export const item = (id) => json(`items/${encodeURIComponent(id)}`);
export const points = () => json("map");

export function items({ after, where, limit, signal }) {
  const asked = new URLSearchParams({ limit });
  if (after) asked.set("after", after);
  if (where) asked.set("where", where);
  return json(`items?${asked}`, { signal });
}

const fieldsOf = ({ id, picture }, crop) => ({
  id,
  picture,
  crop: crop && [crop.left, crop.top, crop.width, crop.height].map((value) => value.toFixed(4)).join(","),
});

export const search = (query, { crop, k, where, rerank, signal }) =>
  json("search", { fields: { ...fieldsOf(query, crop), k, where, rerank }, signal });

export const explain = (query, crop, signal) => json("explain", { fields: fieldsOf(query, crop), signal });

export const imageAddress = (id, side) => `items/${encodeURIComponent(id)}/image?side=${side}`;
export const imageBlob = async (address) => (await send(address)).blob();

/** The filter that leaves one label. */
export const whereLabel = (label) => (label === null ? "" : `label="${label.replace(/[\\"]/g, "\\$&")}"`);
