// The boxes beside and below the lanes: queue, memory, limits.

import { button, el } from '../dom.js';
import { bytes, count, share } from '../format.js';
import { marked, stacked } from './bars.js';

/**
 * @param {string} title
 * @param {...(Node|string|null)} content
 * @returns {HTMLElement}
 */
export function box(title, ...content) {
  return el('section.pane', { 'aria-label': title }, el('h2', {}, title), ...content);
}

/** Who waits. */
export class QueueBox {
  constructor() {
    this._list = el('div.pane-body');
    this.node = box('Queue by client', this._list);
  }

  /** @param {import('./record.js').ModelRecord[]} models */
  show(models) {
    const counts = new Map();
    for (const { state } of models) {
      for (const [client, number] of state?.queue ?? []) {
        counts.set(client, (counts.get(client) ?? 0) + number);
      }
    }
    const all = [...counts].sort((a, b) => b[1] - a[1]);
    const most = all[0]?.[1] ?? 1;
    const rows = all.map(([client, number]) =>
      el(
        'div.queue-row',
        {},
        el('span', {}, client),
        stacked([{ name: client, size: number, kind: 'k-waiting' }], most),
        el('b', {}, count(number)),
      ),
    );
    this._list.replaceChildren(...(rows.length ? rows : [el('p.hint', {}, 'Nobody waits.')]));
  }
}

/** Where the memory is. */
export class MemoryBox {
  constructor() {
    this._body = el('div.pane-body');
    this.node = box('Memory', this._body);
  }

  /** @param {import('./record.js').ModelRecord[]} models */
  show(models) {
    const seen = models.filter((one) => one.state);
    const process = seen[0]
      ? el('p.hint', {}, `The process holds ${bytes(seen[0].state.process_bytes)}.`)
      : '';
    this._body.replaceChildren(...seen.map((one) => memoryOf(one)), process);
  }
}

function memoryOf({ name, sizes, state }) {
  const { model_bytes: model, cache_bytes: cache, disk_bytes: disk } = state.memory;
  const used = state.pages_used * sizes.page_bytes;
  const kept = Math.min(state.cached_bytes, Math.max(0, cache - used));
  const running = Math.max(0, Math.min(used, cache));
  const free = Math.max(0, cache - running - kept);
  const parts = [
    { name: 'model', size: model, kind: 'k-decode', text: bytes(Math.max(0, model)) },
    { name: 'cache in use', size: running, kind: 'k-prefill', text: bytes(running) },
    { name: 'cached prefixes', size: kept, kind: 'k-cached', text: bytes(kept) },
    { name: 'free cache', size: free, kind: 'k-free', text: bytes(free) },
  ];
  const lines = parts.map((one) => marked(one.kind, one.name, one.text));
  if (disk !== null) lines.push(marked('k-disk', 'disk', bytes(disk)));
  return el(
    'div.memory',
    {},
    el(
      'h3',
      {},
      name,
      el('small', {}, ` ${sizes.device} · ${count(state.pages_used)} of ${count(state.pages_total)} pages`),
    ),
    stacked(parts, model + cache),
    el('ul.marks', {}, ...lines),
  );
}

/** What steps take of what the machine can. */
export class LimitsBox {
  /** @param {import('../main.js').App} app */
  constructor(app) {
    this._app = app;
    this._body = el('div.pane-body');
    this._problem = el('p.problem', { role: 'alert' });
    this._button = button('Measure limits', () => this._measure(), { kind: 'small' });
    const hint = 'Streams pause for a second or two. Needs an admin key.';
    this.node = box(
      'Limits of the machine',
      this._body,
      el('div.measure', {}, this._button, el('span.hint', {}, hint)),
      this._problem,
    );
  }

  /** @param {import('./record.js').ModelRecord[]} models */
  show(models) {
    this._models = models;
    const all = models.map((one) => one.state?.limits).filter(Boolean);
    const total = (name) => all.reduce((sum, one) => sum + (one[name] ?? 0), 0);
    const peak = (name) => Math.max(0, ...all.map((one) => one[name] ?? 0));
    this._body.replaceChildren(
      rate(
        'Memory reads',
        total('bytes_per_second'),
        peak('peak_bytes_per_second'),
        (one) => `${bytes(one)}/s`,
      ),
      rate(
        'Multiply-adds',
        total('operations_per_second'),
        peak('peak_operations_per_second'),
        (one) => `${bytes(one).replace(/B$/, '')}/s`,
      ),
    );
  }

  async _measure() {
    this._button.disabled = true;
    this._button.textContent = 'Measuring…';
    this._problem.textContent = '';
    try {
      for (const { name } of this._models ?? []) {
        await this._app.api.json('/v1/engine/limits', { method: 'POST', body: { model: name } });
      }
    } catch (error) {
      this._problem.textContent = error.message;
    }
    this._button.disabled = false;
    this._button.textContent = 'Measure limits';
  }
}

function rate(name, value, peak, text) {
  const parts = peak ? [{ name, size: value, kind: 'k-accent', text: text(value) }] : [];
  return el(
    'div.limit',
    {},
    el('div.limit-head', {}, el('span', {}, name), el('b', {}, peak ? share(value, peak) : text(value))),
    stacked(parts, peak),
    el('p.hint', {}, peak ? `${text(value)} of ${text(peak)}` : 'of a peak that is not measured yet'),
  );
}
