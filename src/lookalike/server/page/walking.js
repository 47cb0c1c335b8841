// From picture to picture on the map. A spot is where one is drawn, [x, y] in pixels, or null if it is not to be met.

/** Place of the spot nearest to a pixel, closer than `reach`; -1 if there is none. */
export function nearest(spots, [x, y], reach = Infinity) {
  let [best, least] = [-1, reach];
  spots.forEach((spot, place) => {
    const distance = spot ? Math.hypot(spot[0] - x, spot[1] - y) : Infinity;
    if (distance < least) [best, least] = [place, distance];
  });
  return best;
}

/** Place of the next spot in a direction: near, and rather ahead than aside; `from` if there is none. */
export function ahead(spots, from, [x, y], [right, down]) {
  let [best, least] = [from, Infinity];
  spots.forEach((spot, place) => {
    if (place === from || !spot) return;
    const along = (spot[0] - x) * right + (spot[1] - y) * down;
    const aside = Math.abs((spot[0] - x) * down) + Math.abs((spot[1] - y) * right);
    const far = along + 2 * aside;
    if (along > 0.5 && far < least) [best, least] = [place, far];
  });
  return best;
}

/** Place of the one after `from`, or before it with a step of -1, round and round; -1 is before the first. */
export function following(spots, from, step) {
  const count = spots.length;
  const start = from < 0 && step < 0 ? count : from;
  for (let far = 1; far <= count; far += 1) {
    const place = (start + step * far + count * 2) % count;
    if (spots[place]) return place;
  }
  return -1;
}
