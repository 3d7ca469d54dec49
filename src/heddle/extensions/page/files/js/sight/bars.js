// Bars of parts, in elements that screen readers can read.

import { el } from '../dom.js';

/**
 * Make a bar of parts.
 * @param {{name: string, size: number, kind: string, text?: string}[]} parts `kind` is a CSS class.
 * @param {number} whole
 * @returns {HTMLElement}
 */
export function stacked(parts, whole) {
  const pieces = parts
    .filter((one) => one.size > 0)
    .map((one) => {
      const node = el(`i.${one.kind}`, { title: `${one.name}: ${one.text ?? one.size}` });
      node.style.width = `${Math.min(100, (100 * one.size) / (whole || 1))}%`;
      return node;
    });
  return el('div.stacked', { 'aria-hidden': 'true' }, ...pieces);
}

/**
 * Make a line of a legend: a mark, a name, a figure.
 * @param {string} kind A CSS class.
 * @param {string} name
 * @param {string} text
 * @returns {HTMLElement}
 */
export function marked(kind, name, text) {
  return el('li', {}, el(`i.mark.${kind}`), name, el('b', {}, text));
}
