// Moving from point to point on the map with keys. `active` says which points are not dimmed.

/** The next point in a direction; sideways distance counts twice. Returns `from` if there is none. */
export function nextInDirection({ x, y }, active, from, [right, down], leastStep) {
  let best = from;
  let bestCost = Infinity;
  for (let index = 0; index < x.length; index += 1) {
    if (index === from || !active[index]) continue;
    const [dx, dy] = [x[index] - x[from], y[index] - y[from]];
    const forward = dx * right + dy * down;
    const cost = forward + 2 * (Math.abs(dx * down) + Math.abs(dy * right));
    if (forward <= leastStep || cost >= bestCost) continue;
    best = index;
    bestCost = cost;
  }
  return best;
}

/** The next active point in the list (step 1) or the previous one (step -1), wrapping around; -1 if none is left. */
export function nextInList(active, from, step) {
  const count = active.length;
  const start = from < 0 && step < 0 ? count : from;
  for (let offset = 1; offset <= count; offset += 1) {
    const index = (start + step * offset + count * 2) % count;
    if (active[index]) return index;
  }
  return -1;
}
