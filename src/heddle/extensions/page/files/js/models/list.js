// The list of models: state, size, device, use, and what can be done with each.

import { ask } from '../dialogs.js';
import { button, el } from '../dom.js';
import { bytes, count, duration, many } from '../format.js';
import { Outcome } from './action.js';
import { SettingsForm } from './form.js';

/** A card for each model. */
export class ModelList {
  /**
   * @param {import('../main.js').App} app
   * @param {import('./routes.js').Routes} routes
   * @param {() => any} changed Called after an action.
   */
  constructor(app, routes, changed) {
    Object.assign(this, { _app: app, _routes: routes, _changed: changed });
    this._cards = new Map();
    this.node = el('section.model-list', { 'aria-label': 'Models of this server' });
  }

  /** @param {Object[]} models Of `GET /v1/models`. Adapters, which have a parent, have no cards. */
  show(models) {
    const own = models.filter((one) => !one.parent);
    for (const [name, card] of this._cards) {
      if (own.some((one) => one.id === name)) continue;
      card.node.remove();
      this._cards.delete(name);
    }
    for (const one of own) {
      let card = this._cards.get(one.id);
      if (!card) {
        card = new ModelCard(this._app, this._routes, one.id, this._changed);
        this._cards.set(one.id, card);
        this.node.append(card.node);
      }
      card.show(one);
    }
  }
}

class ModelCard {
  constructor(app, routes, name, changed) {
    Object.assign(this, { _app: app, _routes: routes, _name: name, _changed: changed });
    this._state = el('span.state');
    this._progress = el('progress', { max: 1, hidden: true, 'aria-label': `Loading ${name}` });
    this._facts = el('dl.facts');
    this._outcome = new Outcome(app);
    this._load = button('Load', () => this._post('load', 'Loading…', {}), { kind: 'small' });
    this._reload = button('Reload…', () => this._askReload(), { kind: 'small' });
    this._unload = button('Unload…', () => this._askUnload(), { kind: 'small' });
    this._aliases = el('span.hint');
    this.node = el(
      'article.model-card',
      { 'aria-label': name },
      el(
        'div.model-head',
        {},
        el('h2', {}, name),
        this._state,
        this._aliases,
        el('span.model-actions', {}, this._load, this._reload, this._unload),
      ),
      this._progress,
      this._facts,
      this._outcome.node,
    );
  }

  show(model) {
    const { value, progress, reason } = model.status;
    this._state.textContent = value;
    this._state.className = `state state-${value}`;
    this._progress.hidden = value !== 'loading';
    if (progress !== undefined) this._progress.value = progress;
    const isLoaded = model.max_model_len !== undefined;
    this._load.hidden = isLoaded || value === 'loading';
    this._reload.hidden = this._unload.hidden = !isLoaded;
    this._aliases.textContent = model.aliases?.length ? `also ${model.aliases.join(', ')}` : '';
    const facts = factsOf(model);
    if (reason) facts.unshift(['Reason', reason]);
    this._facts.replaceChildren(
      ...facts.map(([name, text]) => el('div', {}, el('dt', {}, name), el('dd', {}, text))),
    );
  }

  async _post(what, doing, body) {
    const done = { load: 'Loaded.', reload: 'Loaded again.', unload: 'Unloaded.' }[what];
    await this._outcome.run(doing, async () => {
      await this._app.api.json(`/v1/models/${what}`, {
        method: 'POST',
        body: { model: this._name, ...body },
      });
      return done;
    });
    this._changed();
  }

  async _askReload() {
    await this._routes.read();
    const fields = this._routes.fields('/v1/models/reload').filter((one) => one.name !== 'model');
    const form = new SettingsForm(fields);
    form.node.open = true;
    const hint =
      'Its requests wait for the new load and go on. A setting that would change their tokens is refused.';
    const choices = [
      { label: 'Cancel', value: null },
      { label: 'Reload', value: () => form.values, kind: 'main' },
    ];
    const values = await ask(`Reload ${this._name}`, [el('p.hint', {}, hint), form.node], choices);
    if (values) await this._post('reload', 'Loading again…', values);
  }

  async _askUnload() {
    const seconds = el('input', { type: 'number', min: 0, placeholder: 'as the server is set' });
    const move = el('input', { type: 'checkbox' });
    const content = [
      el('p', {}, 'Accepted requests finish first, or their time is up.'),
      el('label.field', {}, 'Most seconds for them', seconds),
      el('label.check', {}, move, 'Move them at once to another loaded copy of the model'),
    ];
    const choices = [
      { label: 'Cancel', value: null },
      {
        label: 'Unload',
        kind: 'main',
        value: () => ({ move: move.checked, ...(seconds.value ? { seconds: Number(seconds.value) } : {}) }),
      },
    ];
    const values = await ask(`Unload ${this._name}`, content, choices);
    if (values) await this._post('unload', 'Unloading…', values);
  }
}

function factsOf(model) {
  if (model.max_model_len === undefined) return [['File', model.root]];
  const facts = [
    ['In flight', many(model.in_flight, 'request')],
    ['Context', `${count(model.max_model_len)} tokens`],
    ['Memory', bytes(model.memory_bytes)],
    ['Loaded for', duration(model.uptime_seconds)],
    ['Model', `${model.architecture}, ${millions(model.parameters)} parameters, ${model.quantisation}`],
    ['Keys and values', model.kv_type],
  ];
  if (model.device_memory) {
    const { free, total } = model.device_memory;
    facts.push(['Free on the device', `${bytes(free)} of ${bytes(total)}`]);
  }
  return [...facts, ['Device', model.device], ['File', model.root]];
}

function millions(number) {
  return number < 1e9 ? `${Math.round(number / 1e6)} million` : `${(number / 1e9).toFixed(1)} billion`;
}
