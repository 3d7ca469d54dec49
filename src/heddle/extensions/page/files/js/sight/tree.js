// The prefix tree: a bar for each run of tokens, from its first position to its last.

import { el } from '../dom.js';
import { bytes, count, duration, many } from '../format.js';
import { Latest } from '../latest.js';
import { box } from './side.js';

const EVERY_MS = 5000;
const MOST = 300;
const MOST_ROWS = 80;

/** Asks for the tree every five seconds while it is shown. */
export class TreeBox {
  /**
   * @param {import('../main.js').App} app
   * @param {() => string[]} shown The names of the shown models.
   */
  constructor(app, shown) {
    this._app = app;
    this._shown = shown;
    this._ending = new AbortController();
    this._reads = new Latest();
    this._body = el('div.pane-body.tree', { tabindex: 0, role: 'group', 'aria-label': 'Runs of tokens' });
    this._hint = el('p.hint');
    this.node = box('Prefix tree', this._hint, this._body);
    this._timer = setTimeout(() => this.refresh(), 0);
  }

  /** End the asking. */
  close() {
    clearTimeout(this._timer);
    this._ending.abort();
  }

  /** Ask now. */
  async refresh() {
    clearTimeout(this._timer);
    const isLatest = this._reads.begin();
    if (!document.hidden && this._app.health.isWell) await this._read(isLatest);
    if (!this._ending.signal.aborted && isLatest()) this._timer = setTimeout(() => this.refresh(), EVERY_MS);
  }

  async _read(isLatest) {
    const { signal } = this._ending;
    const rows = [];
    let [nodes, leftOut] = [0, 0];
    try {
      for (const name of this._shown()) {
        const path = `/v1/prefix_cache/tree?most=${MOST}&model=${encodeURIComponent(name)}`;
        const tree = await this._app.api.json(path, { signal });
        nodes += tree.nodes.length;
        leftOut += tree.left_out;
        rows.push(...rowsOf(tree.nodes));
      }
    } catch (error) {
      if (!signal.aborted && isLatest() && !error.isLoss) this._hint.textContent = error.message;
      return;
    }
    if (!isLatest()) return; // other models are shown meanwhile
    this._hint.textContent = nodes
      ? `${many(rows.length, 'run')} by position${leftOut ? `, ${count(leftOut)} nodes not shown` : ''}`
      : 'Nothing is cached yet.';
    const most = Math.max(1, ...rows.map(({ node }) => node.start + node.tokens));
    this._body.replaceChildren(...rows.slice(0, MOST_ROWS).map((one) => rowNode(one, most)));
  }
}

/** The nodes, children below their parents, with the most recently used first. */
function rowsOf(nodes) {
  const children = new Map();
  for (const node of nodes) {
    const list = children.get(node.parent) ?? [];
    list.push(node);
    children.set(node.parent, list);
  }
  const rows = [];
  const stack = (children.get(null) ?? []).toReversed().map((node) => ({ node, depth: 0 }));
  while (stack.length) {
    const one = stack.pop();
    if (one.node.tokens) rows.push(one);
    const below = children.get(one.node.id) ?? [];
    stack.push(...below.toReversed().map((node) => ({ node, depth: one.depth + 1 })));
  }
  return rows;
}

function rowNode({ node, depth }, most) {
  const age = node.in_use ? 'in use' : node.age < 0.1 ? 'now' : `${duration(node.age)} ago`;
  const bar = el(`i${node.in_use ? '.in-use' : ''}`);
  bar.style.left = `${(100 * node.start) / most}%`;
  bar.style.width = `${Math.max(0.4, (100 * node.tokens) / most)}%`;
  bar.style.opacity = String(node.in_use ? 1 : Math.max(0.35, 1 - Math.log10(1 + node.age) / 5));
  const where = `${many(node.tokens, 'token')} from ${count(node.start)}, ${bytes(node.bytes)}`;
  const text = `${where}, used by ${many(node.hits, 'request')}, ${age}`;
  return el(
    'div.tree-row',
    { title: text },
    el('span.tree-bar', { 'aria-hidden': 'true' }, bar),
    el('span.unseen', {}, `depth ${depth}: ${text}`),
    el('span', { 'aria-hidden': 'true' }, count(node.tokens)),
    el('span', { 'aria-hidden': 'true' }, node.hits ? many(node.hits, 'hit') : ''),
    el('span', { 'aria-hidden': 'true' }, age),
  );
}
