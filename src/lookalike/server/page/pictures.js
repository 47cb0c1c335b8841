// Pictures of the collection in <img> elements.
//
// An <img> cannot send the key. With a key its picture is fetched when it comes into sight and shown from memory.

import { imageAddress, imageBlob, key } from "./api.js";

const REMEMBERED = 600;
const fetched = new Map(); // address -> promise of a blob: URL, oldest first
const waiting = new WeakMap(); // <img> -> address

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      fill(target, waiting.get(target));
    }
  },
  { rootMargin: "200px" },
);

/** Shows the picture of an item, at most `side` pixels large; `now` does not wait until it is in sight. */
export function show(image, id, side, { now = false } = {}) {
  const address = imageAddress(id, side);
  watcher.unobserve(image);
  image.draggable = false;
  image.classList.remove("missing");
  image.onerror = () => image.classList.add("missing");
  if (!key()) {
    image.loading = now ? "eager" : "lazy";
    image.src = address;
    return;
  }
  waiting.set(image, address);
  image.removeAttribute("src");
  if (now) fill(image, address);
  else watcher.observe(image);
}

async function fill(image, address) {
  if (!fetched.has(address)) {
    const promise = imageBlob(address).then((blob) => URL.createObjectURL(blob));
    promise.catch(() => fetched.delete(address));
    fetched.set(address, promise);
    if (fetched.size > REMEMBERED) {
      const [oldest, old] = fetched.entries().next().value;
      fetched.delete(oldest);
      old.then(URL.revokeObjectURL, () => {});
    }
  }
  try {
    const source = await fetched.get(address);
    if (waiting.get(image) === address) image.src = source;
  } catch {
    if (waiting.get(image) === address) image.classList.add("missing");
  }
}

/** Resolves when the picture has been decoded, also if it cannot be. */
export const settled = (image) =>
  image.complete && image.src
    ? Promise.resolve()
    : new Promise((done) => {
        image.addEventListener("load", done, { once: true });
        image.addEventListener("error", done, { once: true });
      });

/** The frame around a picture as wide as there is room, but the picture not higher than `highest`, a CSS length. */
export async function fit(image, highest) {
  await settled(image);
  const shape = image.naturalWidth / image.naturalHeight || 1;
  image.parentElement.style.width = `min(100%, calc(${highest} * ${shape.toFixed(4)}))`;
}
