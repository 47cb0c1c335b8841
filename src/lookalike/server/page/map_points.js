// The points of the map, in columns: a hundred thousand objects would be slow.

export const UNITS = 65535; // along a side of the map, see server/polygon.py
const MOST_CELLS = 256; // of the search grid, along a side

/** The points of GET /map. Coordinates are from 0 to 1; items are { id, label, name }. */
export class Points {
  constructor({ ids = [], names = [], labels = [], label = [], x = [], y = [], clusters = [], revision = "" } = {}) {
    Object.assign(this, { ids, names, labels, clusters, revision });
    this.labelIndex = Uint32Array.from(label);
    this.unitX = Int32Array.from(x);
    this.unitY = Int32Array.from(y);
    this.x = Float64Array.from(x, (value) => value / UNITS);
    this.y = Float64Array.from(y, (value) => value / UNITS);
    this.indices = new Map(ids.map((id, index) => [id, index]));
    this.buildGrid();
  }

  get length() {
    return this.ids.length;
  }

  /** The item of a point. */
  item(index) {
    return { id: this.ids[index], label: this.labels[this.labelIndex[index]], name: this.names[index] };
  }

  /** The point of an item; -1 if it is not on the map. */
  indexOf(id) {
    return this.indices.get(id) ?? -1;
  }

  /** Sorts the points by the cells of a grid, in which the nearest one is looked for. */
  buildGrid() {
    this.side = Math.min(MOST_CELLS, Math.max(1, Math.floor(Math.sqrt(this.length) / 2)));
    const cells = Uint32Array.from(this.x, (x, index) => this.cell(this.y[index]) * this.side + this.cell(x));
    this.starts = new Uint32Array(this.side * this.side + 1);
    for (const cell of cells) this.starts[cell + 1] += 1;
    for (let cell = 0; cell < this.side * this.side; cell += 1) this.starts[cell + 1] += this.starts[cell];
    const next = this.starts.slice();
    this.order = new Uint32Array(this.length);
    cells.forEach((cell, index) => (this.order[next[cell]++] = index));
  }

  cell(value) {
    return Math.min(this.side - 1, Math.max(0, Math.floor(value * this.side)));
  }

  /** The active point nearest to a coordinate and closer than `maxDistance`; -1 if there is none. */
  nearest(x, y, maxDistance, active) {
    let best = -1;
    let bestSquare = maxDistance * maxDistance;
    const [left, right] = [this.cell(x - maxDistance), this.cell(x + maxDistance)];
    const [top, bottom] = [this.cell(y - maxDistance), this.cell(y + maxDistance)];
    for (let row = top; row <= bottom; row += 1) {
      for (let place = this.starts[row * this.side + left]; place < this.starts[row * this.side + right + 1]; place += 1) {
        const index = this.order[place];
        const square = (this.x[index] - x) ** 2 + (this.y[index] - y) ** 2;
        if (square >= bestSquare || !active[index]) continue;
        best = index;
        bestSquare = square;
      }
    }
    return best;
  }
}
