// The same figures as a table, for screen readers and for whoever likes tables.

import { button, el } from '../dom.js';
import { count, duration } from '../format.js';

const HEADS = ['Model', 'Slot', 'State', 'Client', 'Prompt', 'Cached', 'Output', 'First token', ''];
const MOST_WAITING = 50;

/** A table in a fold. It changes only while it is open. */
export class SlotTable {
  /** @param {(model: string, request: number) => void} choose */
  constructor(choose) {
    this._choose = choose;
    this._rows = [];
    this._caption = el('ul.table-figures');
    this._body = el('tbody');
    const head = el(
      'tr',
      {},
      ...HEADS.map((one) => el('th', { scope: 'col' }, one || el('span.unseen', {}, 'More'))),
    );
    const table = el(
      'table.slots',
      {},
      el('caption.unseen', {}, 'Slots and waiting requests'),
      el('thead', {}, head),
      this._body,
    );
    this.node = el(
      'details.pane.fold',
      {},
      el('summary', {}, 'As a table'),
      this._caption,
      el('div.wide', {}, table),
    );
  }

  /**
   * @param {import('./record.js').ModelRecord[]} models
   * @param {[string, string][]} figures
   */
  show(models, figures) {
    if (!this.node.open) return;
    this._caption.replaceChildren(
      ...figures.map(([name, text]) => el('li', {}, `${name}: `, el('b', {}, text))),
    );
    const lines = models.flatMap(linesOf);
    while (this._rows.length < lines.length) this._addRow();
    this._rows.forEach((row, place) => row.show(lines[place]));
  }

  _addRow() {
    const row = new Row(this._choose);
    this._rows.push(row);
    this._body.append(row.node);
  }
}

/** A row that stays, and changes only the cells that differ: that costs the least time. */
class Row {
  constructor(choose) {
    this._cells = HEADS.slice(1).map(() => el('td'));
    const show = () => choose(this._line.model.name, this._line.one.id);
    this._more = button('Life', show, { kind: 'small' });
    this.node = el('tr', {}, ...this._cells, el('td', {}, this._more));
  }

  show(line) {
    this.node.hidden = !line;
    if (!line) return;
    this._line = line;
    textsOf(line).forEach((text, place) => {
      if (this._cells[place].textContent !== text) this._cells[place].textContent = text;
    });
    this._more.hidden = !line.one;
    if (line.one) this._more.setAttribute('aria-label', `Life of request ${line.one.id}`);
  }
}

function linesOf(model) {
  const { running } = model;
  const slots = model.runs.map((_, slot) => ({ model, slot: String(slot), one: running.get(slot) }));
  const waiting = model.waiting.slice(0, MOST_WAITING);
  return [...slots, ...waiting.map((one) => ({ model, slot: 'none', one }))];
}

function textsOf({ model, slot, one }) {
  if (!one) return [model.name, slot, 'free', '', '', '', '', ''];
  const counts = [one.prompt_tokens, one.cached_tokens, one.output_tokens].map(count);
  return [model.name, slot, one.state, one.client, ...counts, firstOf(one)];
}

function firstOf(one) {
  return one.first_token ? duration(one.first_token - one.submitted) : '';
}
