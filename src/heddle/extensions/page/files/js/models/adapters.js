// The adapters of the server: which models they change, load and unload.

import { button, el } from '../dom.js';
import { Latest } from '../latest.js';
import { Outcome } from './action.js';

/** The list of `GET /lora-adapters`, and the form of `POST /v1/load_lora_adapter`. */
export class AdaptersPane {
  /**
   * @param {import('../main.js').App} app
   * @param {() => any} changed Called after an action.
   */
  constructor(app, changed) {
    Object.assign(this, { _app: app, _changed: changed });
    this._reads = new Latest();
    this._body = el('div.pane-body');
    this._name = el('input', { required: true, autocomplete: 'off' });
    this._path = el('input', { required: true, autocomplete: 'off', spellcheck: 'false' });
    this._outcome = new Outcome(app);
    const form = el(
      'form.row.engram-form',
      { onsubmit: (event) => this._load(event) },
      el('label.field', {}, 'Name', this._name),
      el('label.field', {}, 'Folder or file below the models’ folder', this._path),
      button('Load', () => {}, { props: { type: 'submit' } }),
    );
    this.node = el(
      'section.pane',
      { 'aria-label': 'Adapters' },
      el('h2', {}, 'Adapters'),
      this._body,
      form,
      this._outcome.node,
    );
    this._refresh();
  }

  async _refresh() {
    const isLatest = this._reads.begin();
    try {
      const adapters = await this._app.api.json('/lora-adapters');
      if (!isLatest()) return;
      const rows = adapters.map((one) => this._row(one));
      this._body.replaceChildren(...(rows.length ? rows : [el('p.hint', {}, 'There is no adapter.')]));
    } catch (error) {
      this._body.replaceChildren(el('p.problem', {}, error.message));
    }
  }

  _row(adapter) {
    const usual = adapter.scale ? `, times ${adapter.scale} in requests that name none` : '';
    const text = ` changes ${adapter.model}${usual}`;
    return el(
      'div.engram',
      {},
      el('span', {}, el('b', {}, adapter.name), el('span.hint', { title: adapter.path }, text)),
      button('Unload', () => this._unload(adapter.name), { kind: 'small' }),
    );
  }

  async _load(event) {
    event.preventDefault();
    const body = { lora_name: this._name.value.trim(), lora_path: this._path.value.trim() };
    await this._post('load', body, 'Loading…', `${body.lora_name} is loaded.`);
  }

  _unload(name) {
    return this._post('unload', { lora_name: name }, 'Unloading…', `${name} is unloaded.`);
  }

  async _post(what, body, doing, done) {
    await this._outcome.run(doing, async () => {
      await this._app.api.request(`/v1/${what}_lora_adapter`, { method: 'POST', body });
      return done;
    });
    await Promise.all([this._refresh(), this._changed()]);
  }
}
