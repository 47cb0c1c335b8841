// A region of the query: drawn with the pointer, or moved and sized with the keyboard. All in fractions of the picture.

const LEAST = 0.05; // of a side: less than this is a slip of the hand
const STEP = 0.02;
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

export class Region {
  /** `chosen(region or null)` when a region is to be searched with; `changed()` at every change of what is drawn. */
  constructor(stage, box, shade, { chosen, changed }) {
    Object.assign(this, { stage, box, shade, chosen, changed, value: null, cropping: false });
    stage.addEventListener("pointerdown", (event) => this.begin(event));
    stage.addEventListener("pointermove", (event) => this.drag?.(this.place(event)));
    stage.addEventListener("pointerup", () => this.finish());
    stage.addEventListener("pointercancel", () => this.finish());
    box.addEventListener("keydown", (event) => this.press(event));
  }

  set(value) {
    this.value = value;
    this.draw();
  }

  /** A region to start from, with the focus on it; touch then draws instead of scrolling. */
  start() {
    this.cropping = true;
    this.stage.classList.add("cropping");
    if (!this.value) this.set({ left: 0.2, top: 0.2, width: 0.6, height: 0.6 });
    this.box.focus();
  }

  clear() {
    this.cropping = false;
    this.stage.classList.remove("cropping");
    this.set(null);
  }

  draw() {
    this.box.hidden = this.shade.hidden = !this.value;
    if (this.value) {
      this.shade.style.clipPath = around(this.value);
      for (const [side, value] of Object.entries(this.value)) this.box.style[side] = `${100 * value}%`;
      const percent = (side) => Math.round(100 * this.value[side]);
      const size = `Region of ${percent("width")} by ${percent("height")} per cent`;
      this.box.setAttribute("aria-label", `${size}, ${percent("left")} from the left, ${percent("top")} from the top`);
    }
    this.changed();
  }

  place(event) {
    const { left, top, width, height } = this.stage.getBoundingClientRect();
    return [clamp((event.clientX - left) / width, 0, 1), clamp((event.clientY - top) / height, 0, 1)];
  }

  begin(event) {
    if (event.button !== 0 || (event.pointerType === "touch" && !this.cropping)) return;
    event.preventDefault();
    this.stage.setPointerCapture(event.pointerId);
    const before = this.value;
    const [x, y] = this.place(event);
    const corner = event.target.dataset?.corner;
    if (before && !corner && event.target === this.box) {
      this.drag = ([toX, toY]) => this.set(moved(before, toX - x, toY - y));
    } else {
      const anchor = corner ? opposite(before, corner) : [x, y];
      this.drag = ([toX, toY]) => this.set(between(anchor, [toX, toY]));
    }
    this.before = before;
  }

  finish() {
    if (!this.drag) return;
    this.drag = null;
    if (this.value === this.before) return;
    if (Math.min(this.value.width, this.value.height) < LEAST) this.set(this.before);
    else this.chosen(this.value);
  }

  press(event) {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (direction) {
      const [x, y] = direction.map((one) => one * STEP);
      this.set(event.shiftKey ? sized(this.value, x, y) : moved(this.value, x, y));
    } else if (event.key === "Enter") {
      this.chosen(this.value);
    } else if (event.key === "Escape") {
      this.chosen(null);
    } else {
      return;
    }
    event.preventDefault();
  }
}

/** All but the region, as a clipping path. */
function around({ left, top, width, height }) {
  const [west, north, east, south] = [left, top, left + width, top + height].map((value) => `${100 * value}%`);
  const hole = `${west} ${north}, ${west} ${south}, ${east} ${south}, ${east} ${north}, ${west} ${north}`;
  return `polygon(evenodd, 0 0, 100% 0, 100% 100%, 0 100%, 0 0, ${hole})`;
}

const between = ([x, y], [toX, toY]) => ({
  left: Math.min(x, toX),
  top: Math.min(y, toY),
  width: Math.abs(toX - x),
  height: Math.abs(toY - y),
});

const opposite = ({ left, top, width, height }, corner) => [
  corner.includes("w") ? left + width : left,
  corner.includes("n") ? top + height : top,
];

const moved = (region, x, y) => ({
  ...region,
  left: clamp(region.left + x, 0, 1 - region.width),
  top: clamp(region.top + y, 0, 1 - region.height),
});

const sized = (region, x, y) => ({
  ...region,
  width: clamp(region.width + x, LEAST, 1 - region.left),
  height: clamp(region.height + y, LEAST, 1 - region.top),
});
