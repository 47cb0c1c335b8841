// Texts for labels, distances and counts.

/** The label of an item, or else its file name. */
export const labelOf = ({ label, name }) => label || name || "no label";

/** A phrase for "pictures ...": which label they have. */
export const withLabel = ({ label }) => (label ? `with the label ${label}` : "without a label");

/** The distance of a hit, with three digits. */
export const distanceOf = ({ distance }) => distance.toFixed(3);

/** P(same) of a hit in whole percent, never quite 0 or 100. */
export const percentOf = ({ probability }) => Math.min(99, Math.max(1, Math.round(100 * probability)));

/** A number with separators for thousands; anything else unchanged. */
export const number = (value) => (typeof value === "number" ? value.toLocaleString("en") : value);

/** A count with its noun: "1 picture", "2 pictures". */
export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
