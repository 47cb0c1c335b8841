// Helpers for elements.

/** Returns the element with this id. */
export const $ = (id) => document.getElementById(id);

/** Creates an element with properties and children; children that are strings stay text. */
export function element(tag, properties = {}, ...children) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

/** Splits a text into nodes, so that it may break after any of _ - . / */
export function breakable(text) {
  const nodes = [];
  for (const part of text.match(/[^_./-]*[_./-]+|[^_./-]+/g) ?? []) nodes.push(part, element("wbr"));
  return nodes;
}
