// A region of the query, drawn with the pointer or changed with the keyboard. All values are fractions of the picture.

const SMALLEST = 0.05; // of a side; a smaller region is an accident
const KEY_STEP = 0.02;
const START = { left: 0.2, top: 0.2, width: 0.6, height: 0.6 };
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/**
 * A region on a stage.
 *
 * onChoose(region or null): search with the region, or with the whole picture.  onChange(): the region has changed.
 */
export class Region {
  constructor(stage, box, shade, { onChoose, onChange }) {
    Object.assign(this, { stage, box, shade, onChoose, onChange });
    this.value = null; // { left, top, width, height }
    this.valueBefore = null; // when the drag began
    this.cropping = false;
    this.onDrag = null; // function of the pointer's position while it is down
    stage.addEventListener("pointerdown", (event) => this.onPointerDown(event));
    stage.addEventListener("pointermove", (event) => this.onDrag?.(this.positionOf(event)));
    stage.addEventListener("pointerup", () => this.onPointerUp());
    stage.addEventListener("pointercancel", () => this.onPointerUp());
    box.addEventListener("keydown", (event) => this.onKey(event));
  }

  /** Sets the region; null for none. */
  set(value) {
    this.value = value;
    this.draw();
  }

  /** Starts with a region in the middle and focuses it; a touch then draws instead of scrolling. */
  start() {
    this.cropping = true;
    this.stage.classList.add("cropping");
    if (!this.value) this.set(START);
    this.box.focus();
  }

  /** Removes the region. */
  clear() {
    this.cropping = false;
    this.stage.classList.remove("cropping");
    this.set(null);
  }

  draw() {
    this.box.hidden = !this.value;
    this.shade.hidden = !this.value;
    if (this.value) {
      this.shade.style.clipPath = pathAround(this.value);
      for (const [side, value] of Object.entries(this.value)) this.box.style[side] = `${100 * value}%`;
      this.box.setAttribute("aria-label", description(this.value));
    }
    this.onChange();
  }

  positionOf(event) {
    const { left, top, width, height } = this.stage.getBoundingClientRect();
    return [clamp((event.clientX - left) / width, 0, 1), clamp((event.clientY - top) / height, 0, 1)];
  }

  /** Starts to move the region, to drag a corner, or to draw a new one. */
  onPointerDown(event) {
    if (event.button !== 0 || (event.pointerType === "touch" && !this.cropping)) return;
    event.preventDefault();
    this.stage.setPointerCapture(event.pointerId);
    const before = this.value;
    const [x, y] = this.positionOf(event);
    const corner = event.target.dataset?.corner;
    if (before && !corner && event.target === this.box) {
      this.onDrag = ([toX, toY]) => this.set(moved(before, toX - x, toY - y));
    } else {
      const anchor = corner ? oppositeCorner(before, corner) : [x, y];
      this.onDrag = (position) => this.set(spanned(anchor, position));
    }
    this.valueBefore = before;
  }

  onPointerUp() {
    if (!this.onDrag) return;
    this.onDrag = null;
    if (this.value === this.valueBefore) return;
    if (Math.min(this.value.width, this.value.height) < SMALLEST) this.set(this.valueBefore);
    else this.onChoose(this.value);
  }

  onKey(event) {
    const direction = ARROWS[event.key];
    if (direction) {
      const [dx, dy] = direction.map((step) => step * KEY_STEP);
      this.set(event.shiftKey ? resized(this.value, dx, dy) : moved(this.value, dx, dy));
    } else if (event.key === "Enter") {
      this.onChoose(this.value);
    } else if (event.key === "Escape") {
      this.onChoose(null);
    } else {
      return;
    }
    event.preventDefault();
  }
}

function description(region) {
  const percent = (side) => Math.round(100 * region[side]);
  const size = `Region of ${percent("width")} by ${percent("height")} per cent`;
  return `${size}, ${percent("left")} from the left, ${percent("top")} from the top`;
}

/** A clipping path of everything but the region. */
function pathAround({ left, top, width, height }) {
  const [west, north, east, south] = [left, top, left + width, top + height].map((value) => `${100 * value}%`);
  const hole = `${west} ${north}, ${west} ${south}, ${east} ${south}, ${east} ${north}, ${west} ${north}`;
  return `polygon(evenodd, 0 0, 100% 0, 100% 100%, 0 100%, 0 0, ${hole})`;
}

/** The region between two corners. */
function spanned([x, y], [toX, toY]) {
  return { left: Math.min(x, toX), top: Math.min(y, toY), width: Math.abs(toX - x), height: Math.abs(toY - y) };
}

/** The corner opposite to "nw", "ne", "sw" or "se". */
function oppositeCorner({ left, top, width, height }, corner) {
  return [corner.includes("w") ? left + width : left, corner.includes("n") ? top + height : top];
}

function moved(region, dx, dy) {
  const left = clamp(region.left + dx, 0, 1 - region.width);
  const top = clamp(region.top + dy, 0, 1 - region.height);
  return { ...region, left, top };
}

function resized(region, dx, dy) {
  const width = clamp(region.width + dx, SMALLEST, 1 - region.left);
  const height = clamp(region.height + dy, SMALLEST, 1 - region.top);
  return { ...region, width, height };
}
