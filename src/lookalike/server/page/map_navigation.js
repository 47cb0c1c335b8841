// Moving from point to point on the map. Positions are [x, y] in pixels, or null for points that are filtered out.

/** Index of the position nearest to a pixel and closer than `maxDistance`; -1 if there is none. */
export function nearest(positions, [x, y], maxDistance = Infinity) {
  let bestIndex = -1;
  let bestDistance = maxDistance;
  positions.forEach((position, index) => {
    if (!position) return;
    const distance = Math.hypot(position[0] - x, position[1] - y);
    if (distance >= bestDistance) return;
    bestIndex = index;
    bestDistance = distance;
  });
  return bestIndex;
}

/** Index of the next position in a direction; sideways distance counts twice. Returns `from` if there is none. */
export function nextInDirection(positions, from, [x, y], [right, down]) {
  let bestIndex = from;
  let bestCost = Infinity;
  positions.forEach((position, index) => {
    if (index === from || !position) return;
    const [dx, dy] = [position[0] - x, position[1] - y];
    const forward = dx * right + dy * down;
    const sideways = Math.abs(dx * down) + Math.abs(dy * right);
    const cost = forward + 2 * sideways;
    if (forward <= 0.5 || cost >= bestCost) return;
    bestIndex = index;
    bestCost = cost;
  });
  return bestIndex;
}

/** Index of the next position in the list (step 1) or the previous one (step -1), wrapping around; -1 if none is left. */
export function nextInList(positions, from, step) {
  const count = positions.length;
  const start = from < 0 && step < 0 ? count : from;
  for (let offset = 1; offset <= count; offset += 1) {
    const index = (start + step * offset + count * 2) % count;
    if (positions[index]) return index;
  }
  return -1;
}
