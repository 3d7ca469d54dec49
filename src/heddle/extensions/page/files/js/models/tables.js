// Panes for what a server loads beside its models: a list, and a form with a name and a path.

import { button, el } from '../dom.js';
import { count, share } from '../format.js';
import { Latest } from '../latest.js';
import { Outcome } from './action.js';

/**
 * What differs between panes.
 * @typedef {Object} Kind
 * @property {string} title
 * @property {string} place What the path in the form is.
 * @property {string} none What is told when nothing is loaded.
 * @property {(api: Object) => Promise<Object[]>} list Reads what is loaded.
 * @property {(one: Object) => {name: string, path: string, text: string}} row
 * @property {(what: 'load'|'unload') => string} route
 * @property {(name: string, path?: string) => Object} body Of a request to the route.
 */

/** @type {Kind} */
const ADAPTERS = {
  title: 'Adapters',
  place: 'Folder or file below the models’ folder',
  none: 'There is no adapter.',
  list: (api) => api.json('/lora-adapters'),
  row: ({ name, path, model, scale }) => {
    const usual = scale ? `, times ${scale} in requests that name none` : '';
    return { name, path, text: `changes ${model}${usual}` };
  },
  route: (what) => `/v1/${what}_lora_adapter`,
  body: (name, path) => ({ lora_name: name, lora_path: path }),
};

/** @type {Kind} */
const ENGRAMS = {
  title: 'Engram tables',
  place: 'File on the server',
  none: 'No table is loaded.',
  list: async (api) => (await api.json('/v1/engrams')).data,
  row: ({ name, path, entries, models, found, looked_up: asked }) => {
    const hits = `found ${share(found, asked)} of ${count(asked)} look-ups`;
    const users = models.join(', ') || 'no loaded model';
    return { name, path, text: `${count(entries)} entries, ${hits}, for ${users}` };
  },
  route: (what) => `/v1/engrams/${what}`,
  body: (name, path) => ({ name, path }),
};

/** One list and its form. */
export class TablesPane {
  /**
   * @param {import('../main.js').App} app
   * @param {Kind} kind
   * @param {() => any} changed Called after an action.
   */
  constructor(app, kind, changed) {
    Object.assign(this, { _app: app, _kind: kind, _changed: changed });
    this._reads = new Latest();
    this._body = el('div.pane-body');
    this._name = el('input', { required: true, autocomplete: 'off' });
    this._path = el('input', { required: true, autocomplete: 'off', spellcheck: 'false' });
    this._outcome = new Outcome(app);
    const form = el(
      'form.row.table-form',
      { onsubmit: (event) => this._load(event) },
      el('label.field', {}, 'Name', this._name),
      el('label.field', {}, kind.place, this._path),
      button('Load', () => {}, { props: { type: 'submit' } }),
    );
    const heading = el('h2', {}, kind.title);
    const props = { 'aria-label': kind.title };
    this.node = el('section.pane', props, heading, this._body, form, this._outcome.node);
    this._refresh();
  }

  /** The adapters of models. Other arguments are those of the constructor. */
  static ofAdapters(app, changed) {
    return new TablesPane(app, ADAPTERS, changed);
  }

  /** The engram tables. */
  static ofEngrams(app, changed) {
    return new TablesPane(app, ENGRAMS, changed);
  }

  async _refresh() {
    const isLatest = this._reads.begin();
    try {
      const all = await this._kind.list(this._app.api);
      if (!isLatest()) return;
      const rows = all.map((one) => this._row(this._kind.row(one)));
      this._body.replaceChildren(...(rows.length ? rows : [el('p.hint', {}, this._kind.none)]));
    } catch (error) {
      this._body.replaceChildren(el('p.problem', {}, error.message));
    }
  }

  _row({ name, path, text }) {
    return el(
      'div.table-row',
      {},
      el('span', {}, el('b', {}, name), el('span.hint', { title: path }, ` ${text}`)),
      button('Unload', () => this._post('unload', 'Unloading…', name), { kind: 'small' }),
    );
  }

  async _load(event) {
    event.preventDefault();
    await this._post('load', 'Loading…', this._name.value.trim(), this._path.value.trim());
  }

  async _post(what, doing, name, path) {
    const body = this._kind.body(name, path);
    await this._outcome.run(doing, async () => {
      await this._app.api.request(this._kind.route(what), { method: 'POST', body });
      return `${name} is ${what}ed.`;
    });
    await Promise.all([this._refresh(), this._changed()]);
  }
}
