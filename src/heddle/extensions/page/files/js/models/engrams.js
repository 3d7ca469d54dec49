// The engram tables of the server: what they hold, how often they were asked, load and unload.

import { button, el } from '../dom.js';
import { count, share } from '../format.js';
import { Latest } from '../latest.js';
import { Outcome } from './action.js';

/** The list of `GET /v1/engrams`, and the form of `POST /v1/engrams/load`. */
export class EngramsPane {
  /** @param {import('../main.js').App} app */
  constructor(app) {
    this._app = app;
    this._reads = new Latest();
    this._body = el('div.pane-body');
    this._name = el('input', { required: true, autocomplete: 'off' });
    this._path = el('input', { required: true, autocomplete: 'off', spellcheck: 'false' });
    this._outcome = new Outcome(app);
    const form = el(
      'form.row.engram-form',
      { onsubmit: (event) => this._load(event) },
      el('label.field', {}, 'Name', this._name),
      el('label.field', {}, 'File on the server', this._path),
      button('Load', () => {}, { props: { type: 'submit' } }),
    );
    this.node = el(
      'section.pane',
      { 'aria-label': 'Engram tables' },
      el('h2', {}, 'Engram tables'),
      this._body,
      form,
      this._outcome.node,
    );
    this._refresh();
  }

  async _refresh() {
    const isLatest = this._reads.begin();
    try {
      const { data } = await this._app.api.json('/v1/engrams');
      if (!isLatest()) return;
      const rows = data.map((one) => this._row(one));
      this._body.replaceChildren(...(rows.length ? rows : [el('p.hint', {}, 'No table is loaded.')]));
    } catch (error) {
      this._body.replaceChildren(el('p.problem', {}, error.message));
    }
  }

  _row(table) {
    const asked = `found ${share(table.found, table.looked_up)} of ${count(table.looked_up)} look-ups`;
    const models = table.models.join(', ') || 'no loaded model';
    const text = `${count(table.entries)} entries, ${asked}, for ${models}`;
    return el(
      'div.engram',
      {},
      el('span', {}, el('b', {}, table.name), el('span.hint', { title: table.path }, ` ${text}`)),
      button('Unload', () => this._unload(table.name), { kind: 'small' }),
    );
  }

  async _load(event) {
    event.preventDefault();
    const body = { name: this._name.value.trim(), path: this._path.value.trim() };
    await this._post('load', body, 'Loading…', `${body.name} is loaded.`);
  }

  _unload(name) {
    return this._post('unload', { name }, 'Unloading…', `${name} is unloaded.`);
  }

  async _post(what, body, doing, done) {
    await this._outcome.run(doing, async () => {
      await this._app.api.json(`/v1/engrams/${what}`, { method: 'POST', body });
      return done;
    });
    await this._refresh();
  }
}
