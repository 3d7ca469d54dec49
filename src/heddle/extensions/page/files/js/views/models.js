// The view of models: what is loaded and how, and what an operator does with models.

import { el } from '../dom.js';
import { Latest } from '../latest.js';
import { ModelList } from '../models/list.js';
import { LoadPane } from '../models/load.js';
import { MorePane } from '../models/more.js';
import { PullPane } from '../models/pull.js';
import { QuantisePane } from '../models/quantise.js';
import { Routes } from '../models/routes.js';
import { SuggestPane } from '../models/suggest.js';
import { TablesPane } from '../models/tables.js';

const EVERY_MS = 3000;

/**
 * Fill `root` with the view.
 * @param {HTMLElement} root
 * @param {import('../main.js').App} app
 * @returns {() => void} Ends the view.
 */
export function mount(root, app) {
  const view = new ModelsView(root, app);
  return () => view.close();
}

class ModelsView {
  constructor(root, app) {
    this._app = app;
    this._routes = new Routes(app.api);
    const changed = () => this._refresh();
    this._list = new ModelList(app, this._routes, changed);
    this._problem = el('p.problem', { role: 'alert' });
    this._panes = el('div.model-panes');
    this._changed = changed;
    root.append(el('div.models', {}, this._problem, this._list.node, this._panes));
    this._timer = null;
    this._reads = new Latest();
    this._isClosed = false;
    this._refresh();
  }

  async _addPanes() {
    await this._routes.read();
    if (this._panes.childNodes.length) return; // another read was faster
    const pull = this._routes.has('/api/pull') ? new PullPane(this._app, this._changed) : null;
    const begin = pull && ((model) => pull.begin(model));
    const panes = [
      this._routes.has('/v1/models/load') && new LoadPane(this._app, this._routes, this._changed),
      pull,
      this._routes.has('/v1/models/suggest') && new SuggestPane(this._app, begin),
      this._routes.has('/v1/models/quantize') && QuantisePane.of(this._app, this._routes, this._changed),
      this._routes.has('/lora-adapters') && TablesPane.ofAdapters(this._app, this._changed),
      this._routes.has('/v1/engrams') && TablesPane.ofEngrams(this._app, this._changed),
      new MorePane(),
    ];
    this._panes.replaceChildren(...panes.filter(Boolean).map((one) => one.node));
  }

  /** End the view. What the server does for it goes on. */
  close() {
    this._isClosed = true;
    clearTimeout(this._timer);
  }

  async _refresh() {
    clearTimeout(this._timer);
    const isLatest = this._reads.begin();
    try {
      if (!document.hidden) await this._read(isLatest);
    } catch (error) {
      if (!error.isLoss && isLatest()) this._problem.textContent = error.message;
    }
    if (!this._isClosed && isLatest()) this._timer = setTimeout(() => this._refresh(), EVERY_MS);
  }

  async _read(isLatest) {
    const { data } = await this._app.api.json('/v1/models');
    if (!isLatest()) return;
    this._list.show(data);
    if (!this._panes.childNodes.length) await this._addPanes();
    this._problem.textContent = '';
    await this._refreshChoice(data);
  }

  /** Let the choice in the header follow when models come or go, or others of them see pictures. */
  async _refreshChoice(models) {
    const told = (all) => JSON.stringify(all.map(({ id, modalities }) => [id, modalities]));
    const known = this._app.models;
    if (told(known.withEyes(models)) !== told(known.all)) await known.refresh();
  }
}
