// Quantises a model of the server to a new file, shows how far it is, and cancels it.

import { button, el } from '../dom.js';
import { bytes, share } from '../format.js';
import { Outcome } from './action.js';

const ROUTE = '/v1/models/quantize';
const CHOICES = 'models-to-quantise';

/** The one pane of each app: the work goes on while another view is shown. */
const panes = new WeakMap();

/** The form of `POST /v1/models/quantize`. */
export class QuantisePane {
  /**
   * The pane of the app.
   * @param {import('../main.js').App} app
   * @param {import('./routes.js').Routes} routes
   * @param {() => any} changed Called after the work.
   * @returns {QuantisePane}
   */
  static of(app, routes, changed) {
    if (!panes.has(app)) panes.set(app, new QuantisePane(app, routes));
    const pane = panes.get(app);
    pane._changed = changed;
    return pane;
  }

  constructor(app, routes) {
    this._app = app;
    this._changed = () => {};
    this._working = null;
    this._known = el('datalist', { id: CHOICES });
    const text = { autocomplete: 'off', spellcheck: 'false' };
    this._model = el('input', { ...text, required: true, list: CHOICES, placeholder: 'a model of the list' });
    this._name = el('input', { ...text, placeholder: 'its name and the type' });
    this._type = el('select', {}, ...typesOf(routes).map((one) => el('option', { value: one }, one)));
    this._bar = el('progress', { max: 1, hidden: true, 'aria-label': 'Quantised' });
    this._outcome = new Outcome(app);
    this._send = button('Quantise', () => {}, { kind: 'main', props: { type: 'submit' } });
    this._cancel = button('Cancel', () => this._working?.abort(), { props: { hidden: true } });
    this.node = this._form();
    this._list();
    app.models.addEventListener('change', () => this._list());
  }

  _form() {
    const hint =
      'The new file comes into --models-dir. Answers go first, so it may take long beside many of them.' +
      ' If you close this tab, the work ends and no file stays.';
    const form = el(
      'form.pane-form',
      { onsubmit: (event) => this._submit(event) },
      el('label.field', {}, 'Model', this._model),
      this._known,
      el('label.field', {}, 'Type of matrices', this._type),
      el('label.field', {}, 'Name of the new file', this._name),
      el('p.hint', {}, hint),
      el('div.choices', {}, this._send, this._cancel),
      this._bar,
      this._outcome.node,
    );
    return el('section.pane', { 'aria-label': 'Quantise a model' }, el('h2', {}, 'Quantise a model'), form);
  }

  _list() {
    const own = this._app.models.all.filter((one) => !one.parent);
    this._known.replaceChildren(...own.map((one) => el('option', { value: one.id })));
  }

  async _submit(event) {
    event.preventDefault();
    const [model, type] = [this._model.value.trim(), this._type.value];
    const body = { model, type, name: this._name.value.trim() || nameOf(model, type) };
    this._setWorking(new AbortController());
    await this._outcome.run('Asking…', () => this._quantise(body, this._working.signal));
    this._setWorking(null);
    this._changed();
  }

  _setWorking(working) {
    this._working = working;
    this._send.disabled = Boolean(working);
    this._cancel.hidden = !working;
    if (!working) this._bar.hidden = true;
  }

  async _quantise(body, signal) {
    try {
      let last = {};
      for await (const report of this._app.api.documents(ROUTE, body, signal)) {
        if (report.error) throw new Error(report.error.message);
        last = report;
        if (report.total) this._show(report);
      }
      if (last.status !== 'success') throw new Error('The server ended the report before the work.');
      const kept = last.kept ? ` Already quantised, so they stay as they are: ${last.kept}.` : '';
      return `${last.model} is written: ${bytes(last.bytes)}.${kept}`;
    } catch (error) {
      if (signal.aborted) return 'Cancelled. No file stays.';
      throw error;
    }
  }

  _show({ status, total, completed }) {
    this._outcome.tell(`${status}: ${bytes(completed)} of ${bytes(total)}, ${share(completed, total)}`);
    this._bar.hidden = false;
    this._bar.value = completed / total;
  }
}

function typesOf(routes) {
  return routes.fields(ROUTE).find((one) => one.name === 'type')?.choices ?? [];
}

/** A name for the new file: the last part of the model's name, and the type. */
function nameOf(model, type) {
  const last = model.split('/').pop().replace(/\.gguf$/, '');
  return `${last.replace(/[^\w.+-]/g, '-')}-${type}`;
}
