// Makes elements. Texts become text nodes: this file never reads HTML.

const SVG = 'http://www.w3.org/2000/svg';

/** Characters that change the direction of text, by which code can look as it is not. */
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Shapes of icons, in a box of 16 by 16. */
const ICONS = {
  add: 'M8 3v10M3 8h10',
  back: 'M10 3 5 8l5 5',
  close: 'm4 4 8 8m0-8-8 8',
  copy: 'M6 6h7v7H6zM10 6V3H3v7h3',
  edit: 'm3 13 1-3 7-7 2 2-7 7zM9.5 4.5l2 2',
  forth: 'm6 3 5 5-5 5',
  go: 'M4 3v10l9-5z',
  list: 'M2 4h12M2 8h12M2 12h12',
  picture: 'M2.5 3.5h11v9h-11zM2.5 11l3-3 2.5 2.5 2.5-2 3 2.5M5.6 6.2h.01',
  redo: 'M13 8a5 5 0 1 1-1.5-3.5L13 6M13 2.5V6H9.5',
  remove: 'M3 4.5h10M6 4V2.5h4V4M4.5 4.5 5 13.5h6l.5-9M7 7v4M9 7v4',
  send: 'M8 13V3M4 7l4-4 4 4',
  stop: 'M4.5 4.5h7v7h-7z',
  tune: 'M2 5h6m3 0h3M2 11h2m3 0h7M9.5 3v4M5.5 9v4',
};

/**
 * Make an element.
 * @param {string} spec Its tag and classes: `div.card.open`.
 * @param {Object<string, any>} [props] Attributes; functions under `onclick` and alike; null: none.
 * @param {...(Node|string|null|undefined)} children
 * @returns {HTMLElement}
 */
export function el(spec, props = {}, ...children) {
  const [tag, ...classes] = spec.split('.');
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(' ');
  for (const [name, value] of Object.entries(props)) setProp(node, name, value);
  node.append(...children.filter((one) => one !== null && one !== undefined));
  return node;
}

function setProp(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (typeof value === 'function') node.addEventListener(name.slice(2), value);
  else if (name === 'value') node.value = value;
  else if (name === 'checked') node.checked = Boolean(value);
  else node.setAttribute(name, value === true ? '' : String(value));
}

/**
 * Give a node other children. Those that stay are not moved, so a field in them keeps the focus.
 * @param {HTMLElement} parent
 * @param {Node[]} nodes
 */
export function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  for (const one of [...parent.childNodes]) if (!wanted.has(one)) one.remove();
  nodes.forEach((one, place) => {
    const there = parent.childNodes[place] ?? null;
    if (there !== one) parent.insertBefore(one, there);
  });
}

/**
 * Make an icon, which screen readers skip.
 * @param {string} name One of `ICONS`.
 * @returns {SVGElement}
 */
export function icon(name) {
  const node = document.createElementNS(SVG, 'svg');
  node.setAttribute('viewBox', '0 0 16 16');
  node.setAttribute('class', 'icon');
  node.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', ICONS[name]);
  node.append(path);
  return node;
}

/**
 * Make a button.
 * @param {string} text Its text; with an icon, its label for screen readers and the tooltip.
 * @param {() => any} run
 * @param {{icon?: string, kind?: string, props?: Object<string, any>}} [how]
 * @returns {HTMLButtonElement}
 */
export function button(text, run, how = {}) {
  const spec = `button${how.kind ? `.${how.kind}` : ''}${how.icon ? '.has-icon' : ''}`;
  const props = { type: 'button', onclick: run, ...how.props };
  if (!how.icon) return el(spec, props, text);
  return el(spec, { 'aria-label': text, title: text, ...props }, icon(how.icon));
}

/**
 * Write a text with each character that changes directions as its code, such as `U+202E`.
 * @param {string} text
 * @returns {string}
 */
export function visible(text) {
  return text.replace(DIRECTIONS, (one) => {
    const code = one.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
    return `⟨U+${code}⟩`;
  });
}

/** @returns {string} A name for a new object. */
export function newId() {
  // crypto.randomUUID is missing on plain HTTP beyond this machine.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (one) => one.toString(16).padStart(2, '0')).join('');
}

/**
 * Copy a text. On plain HTTP beyond this machine browsers refuse; then it is selected in a field.
 * @param {string} text
 * @returns {Promise<boolean>} Whether it is copied.
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
