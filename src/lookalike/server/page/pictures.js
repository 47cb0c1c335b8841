// Pictures of the collection in <img> elements.
//
// An <img> cannot send the key. With a key, its picture is downloaded when it comes into view and shown from memory.

import { imageAddress, imageBlob, key } from "./api.js";

const CACHE_SIZE = 600;
const cache = new Map(); // address -> promise of a blob: URL, oldest first
const wantedAddress = new WeakMap(); // <img> -> address

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      showDownloaded(target, wantedAddress.get(target));
    }
  },
  { rootMargin: "200px" },
);

/** Shows the picture of an item, at most `side` pixels large; with `now` even before it is in view. */
export function showPicture(image, id, side, { now = false } = {}) {
  const address = imageAddress(id, side);
  observer.unobserve(image);
  image.draggable = false;
  image.classList.remove("missing");
  image.onerror = () => image.classList.add("missing");
  if (!key()) {
    image.loading = now ? "eager" : "lazy";
    image.src = address;
    return;
  }
  wantedAddress.set(image, address);
  image.removeAttribute("src");
  if (now) showDownloaded(image, address);
  else observer.observe(image);
}

/** Downloads a picture, or takes it from the cache; resolves to a blob: URL. */
function download(address) {
  if (!cache.has(address)) {
    const promise = imageBlob(address).then((blob) => URL.createObjectURL(blob));
    promise.catch(() => cache.delete(address));
    cache.set(address, promise);
    if (cache.size > CACHE_SIZE) {
      const [oldestAddress, oldest] = cache.entries().next().value;
      cache.delete(oldestAddress);
      oldest.then(URL.revokeObjectURL, () => {});
    }
  }
  return cache.get(address);
}

async function showDownloaded(image, address) {
  try {
    const url = await download(address);
    if (wantedAddress.get(image) === address) image.src = url;
  } catch {
    if (wantedAddress.get(image) === address) image.classList.add("missing");
  }
}

/** Resolves when a picture has loaded or failed to load. */
export function loaded(image) {
  if (image.complete && image.src) return Promise.resolve();
  return new Promise((resolve) => {
    image.addEventListener("load", resolve, { once: true });
    image.addEventListener("error", resolve, { once: true });
  });
}

/** Makes the frame as wide as possible while the picture is at most `maxHeight` high, a CSS length. */
export async function fitFrame(image, maxHeight) {
  await loaded(image);
  const aspectRatio = image.naturalWidth / image.naturalHeight || 1;
  image.parentElement.style.width = `min(100%, calc(${maxHeight} * ${aspectRatio.toFixed(4)}))`;
}
