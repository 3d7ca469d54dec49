// Rendered Markdown: the only HTML that the page inserts. It comes from the server's own route, and
// passes a list of allowed elements once more.

const TAGS = new Set(
  (
    'BLOCKQUOTE BR BUTTON CODE DEL EM H1 H2 H3 H4 H5 H6 HR LI OL P PRE S SPAN STRONG TABLE TBODY TD' +
    ' TH THEAD TR UL'
  ).split(' '),
);
const ATTRIBUTES = new Set([
  'class',
  'data-address',
  'data-language',
  'dir',
  'start',
  'title',
  'type',
]);

/** Longest text that is rendered at once. */
export const MOST_RENDERED = 16384;

/**
 * Render texts.
 * @param {import('./api.js').Api} api
 * @param {string[]} texts
 * @returns {Promise<DocumentFragment[]>}
 */
export async function render(api, texts) {
  const { html } = await api.json('/page/markdown', { method: 'POST', body: { texts }, isQuiet: true });
  return html.map(fragmentOf);
}

function fragmentOf(html) {
  const parsed = new DOMParser().parseFromString(html, 'text/html'); // runs and loads nothing
  const fragment = document.createDocumentFragment();
  for (const node of [...parsed.body.childNodes]) {
    const copy = cleaned(node);
    if (copy) fragment.append(copy);
  }
  return fragment;
}

/** A copy of a node with allowed elements and attributes only; null for another node. */
function cleaned(node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE || !TAGS.has(node.tagName)) return null;
  const copy = document.createElement(node.tagName);
  for (const { name, value } of node.attributes) {
    if (ATTRIBUTES.has(name)) copy.setAttribute(name, value);
  }
  for (const child of node.childNodes) {
    const inner = cleaned(child);
    if (inner) copy.append(inner);
  }
  return copy;
}

/**
 * Cut a text into pieces that are rendered one by one. A piece ends at an empty line outside of a
 * code fence, before a line that begins a new block.
 * @param {string} text
 * @param {boolean} isFinished Whether the text has ended; else its last block stays out.
 * @returns {string[]} Their joined text is a beginning of `text`.
 */
export function piecesOf(text, isFinished) {
  if (isFinished && text.length <= MOST_RENDERED) return text ? [text] : [];
  const cuts = cutsOf(text);
  if (isFinished && cuts.at(-1) !== text.length) cuts.push(text.length);
  const pieces = [];
  let from = 0;
  for (const [place, to] of cuts.entries()) {
    const next = cuts[place + 1];
    if (next === undefined || next - from > MOST_RENDERED) {
      if (to > from) pieces.push(text.slice(from, to));
      from = to;
    }
  }
  return pieces;
}

/** The places where a block ends for sure. */
function cutsOf(text) {
  const cuts = [];
  let fence = '';
  let wasEmpty = false;
  let at = 0;
  for (const line of text.split('\n')) {
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1] ?? '';
    if (!fence && wasEmpty && at > 0 && /^\S/.test(line)) cuts.push(at);
    if (!fence) fence = mark;
    else if (mark.startsWith(fence) && line.trim() === mark) fence = '';
    wasEmpty = line.trim() === '';
    at += line.length + 1;
  }
  return cuts;
}
