// The search page: how what is searched with leads to what is found, and from there to the next search.

import * as api from "./api.js";
import { receive } from "./arriving.js";
import { Collection, MapView } from "./collection.js";
import { $, countLimit, distanceOf, element, labelOf, plural, state, toCount } from "./common.js";
import { askForKey, showCard, Viewer } from "./dialogs.js";
import { Grid } from "./grid.js";
import { QueryPanel } from "./query.js";
import { Results, notice } from "./results.js";
import { forgetWaiting, paintScale, patiently } from "./weights.js";

const AUTOMATIC = 3; // times that a busy server is asked again by itself
const UNUSABLE = [404, 410, 413, 415, 422]; // what is said of a picture that no second attempt makes better
const NARROW = matchMedia("(max-width: 52rem)"); // as in the style sheet

const viewer = new Viewer({ more: searchWithItem });
const hits = new Grid($("hits"), {
  choose: (_, place) => viewer.open(hits.entries, place, state.weights),
  more: searchWithItem,
  describe: (entry, place) => `Result ${place + 1}: ${labelOf(entry)}, distance ${distanceOf(entry)}`,
});
const results = new Results(hits);
const panel = new QueryPanel(search);
const collection = new Collection(searchWithItem);
const map = new MapView(searchWithItem);

// ---------------------------------------------------------------- searching

let searching = null; // AbortController of the search under way
let repetition = 0; // timer

/** Searches for what the state says. `focus`: the focus goes along to the results. */
async function search({ attempt = 1, remember = true, focus = false } = {}) {
  if (!state.query) return;
  searching?.abort();
  clearTimeout(repetition);
  const mine = (searching = new AbortController());
  forgetWaiting();
  openTab("results");
  if (remember) rememberEntry();
  results.wait(true);
  try {
    const { crop, k, label, query, rerank } = state;
    const where = api.whereLabel(label);
    const found = await api.search(query, { crop, k, where, rerank, signal: mine.signal });
    if (searching !== mine) return;
    results.wait(false);
    results.show(found, () => chooseLabel(null));
    if (focus && focusIsFree()) hits.focus(0);
  } catch (problem) {
    if (searching !== mine || problem.name === "AbortError") return;
    results.wait(false);
    const wait = problem.status === 503 && attempt <= AUTOMATIC ? (problem.retryAfter ?? 1) : null;
    const unusable = UNUSABLE.includes(problem.status);
    panel.refuse(unusable && !state.crop);
    const again = { action: "Try again", act: () => search({ remember: false }) };
    results.fail(problem, wait, unusable ? ANOTHER : again);
    if (wait !== null) repetition = setTimeout(search, 1000 * wait, { attempt: attempt + 1, remember: false, focus });
  }
  map.highlight();
}

const ANOTHER = { action: "Choose another picture", act: () => $("file").click() };

/** Whether the focus is among the pictures still, or was lost with one of them. */
const focusIsFree = () => document.activeElement === document.body || $("views").contains(document.activeElement);

function searchWithFile(file) {
  if (file.type && !file.type.startsWith("image/")) {
    openTab("results");
    notice(`${file.name || "That"} is not a picture.`, { ...ANOTHER, bad: true });
    return;
  }
  panel.set({ picture: file, name: file.name || "pasted picture", address: URL.createObjectURL(file) }, null);
  search();
  reveal();
}

function searchWithItem({ id, label, name = "" }) {
  panel.set({ id, label, name }, null);
  search({ focus: true });
  reveal();
}

/** To where the query and the nearest are; in one column, to the nearest. */
function reveal() {
  if (NARROW.matches) $("views").scrollIntoView();
  else scrollTo({ top: 0 });
}

// ---------------------------------------------------------------- where one has been

const past = []; // for the browser's back button: a file cannot be put in an address

function rememberEntry() {
  const { query, crop, label, k, rerank } = state;
  past.push({ query, crop, label, k, rerank });
  const asked = new URLSearchParams(query.id ? { id: query.id } : {});
  if (label !== null) asked.set("label", label);
  asked.set("k", k);
  if (rerank !== "none") asked.set("rerank", rerank);
  history.pushState({ place: past.length - 1 }, "", `#${asked}`);
}

/** The address of the page can be sent to a colleague: it names a picture of the collection. */
async function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const label = asked.get("label");
  state.label = state.labels.some((each) => each.label === label) ? label : null;
  state.k = toCount(asked.get("k"));
  limitCount(asked.get("k"));
  const offered = [...$("rerank").options].map(({ value }) => value);
  state.rerank = offered.includes(asked.get("rerank")) ? asked.get("rerank") : "none";
  showControls();
  if (!asked.get("id")) {
    openTab("collection");
    return;
  }
  try {
    panel.set(await api.item(asked.get("id")), null);
    search({ remember: false });
  } catch (problem) {
    openTab("results");
    notice(problem.message, { action: "Look at the collection", act: () => openTab("collection"), bad: true });
  }
}

addEventListener("popstate", (event) => {
  const entry = past[event.state?.place];
  searching?.abort();
  if (entry) {
    Object.assign(state, { label: entry.label, k: entry.k, rerank: entry.rerank });
    limitCount(String(entry.k));
    showControls();
    panel.set(entry.query, entry.crop);
    search({ remember: false });
  } else {
    panel.set(null, null);
    fromAddress();
  }
});

// ---------------------------------------------------------------- controls

function showControls() {
  const place = state.labels.findIndex(({ label }) => label === state.label);
  $("label").value = place < 0 ? "" : String(place);
  $("k").value = state.k;
  $("rerank").value = state.rerank;
  const { help } = $("rerank").selectedOptions[0].dataset;
  $("rerank-help").textContent = help ? `${help} Distances stay those to the query.` : "";
  $("rerank-help").hidden = !help;
}

/** Says so if another number of results is shown than was asked for. */
function limitCount(asked) {
  $("k-help").textContent = countLimit(asked);
}

function chooseLabel(label) {
  state.label = label;
  showControls();
  map.highlight();
  search();
  collection.list();
}

function showWeights(on) {
  state.weights = on;
  $("legend").hidden = !on;
  hits.showWeights(on);
  panel.explain();
}

function openTab(name) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (name === "map") map.open();
  if (name !== "results" || state.query) return;
  hits.clear();
  $("status").textContent = "Nothing searched yet";
  notice("Choose, drop or paste a picture, or take one from the collection.", {
    action: "Look at the collection",
    act: () => openTab("collection"),
  });
}

function walkTabs(event) {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const here = tabs.indexOf(event.target);
  const next = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const tab = tabs.at(next % tabs.length);
  openTab(tab.id.slice("tab-".length));
  tab.focus();
}

// ---------------------------------------------------------------- the start

receive(searchWithFile);
$("skip").addEventListener("click", () => $("views").focus());
$("open-card").addEventListener("click", () => state.card && showCard(state.card));
$("weights").addEventListener("change", () => showWeights($("weights").checked));
$("label").addEventListener("change", () => chooseLabel(state.labels[$("label").value]?.label ?? null));
$("k").addEventListener("change", () => {
  limitCount($("k").value);
  state.k = toCount($("k").value);
  showControls();
  search();
});
$("rerank").addEventListener("change", () => {
  state.rerank = $("rerank").value;
  showControls();
  search();
});
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => {
    openTab(tab.id.slice("tab-".length));
    if (NARROW.matches) $("views").scrollIntoView();
  });
  tab.addEventListener("keydown", walkTabs);
}

async function start() {
  api.onKeyNeeded(askForKey);
  paintScale($("legend-scale"));
  collection.grid.skeleton(12);
  try {
    // One after the other: if a key is needed the first one asks for it.
    state.card = await patiently(api.model);
    state.labels = (await patiently(api.labels)).sort((one, other) => one.label.localeCompare(other.label));
  } catch (problem) {
    collection.grid.clear();
    $("collection-status").textContent = problem.message;
    openTab("results");
    $("status").textContent = "";
    notice(problem.message, { action: "Try again", act: () => location.reload(), bad: true });
    return;
  }
  const named = state.labels.filter(({ label }) => label).length;
  $("picture-count").textContent = plural(state.card.index.count, "picture");
  $("label-count").textContent = `, ${plural(named, "label")}`;
  $("weights-control").hidden = !state.card.has_weights;
  state.labels.forEach((entry, place) => {
    $("label").append(element("option", { value: place, textContent: `${labelOf(entry)} (${entry.count})` }));
  });
  await fromAddress();
  await collection.list();
}

start();
