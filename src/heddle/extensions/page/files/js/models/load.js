// Loads a model under a name, with settings.

import { button, el } from '../dom.js';
import { Outcome } from './action.js';
import { SettingsForm } from './form.js';

const OWN = ['model', 'name', 'keep_alive', 'wait'];

/** The form of `POST /v1/models/load`. */
export class LoadPane {
  /**
   * @param {import('../main.js').App} app
   * @param {import('./routes.js').Routes} routes
   * @param {() => any} changed
   */
  constructor(app, routes, changed) {
    Object.assign(this, { _app: app, _changed: changed });
    this._model = el('input', {
      required: true,
      autocomplete: 'off',
      spellcheck: 'false',
      placeholder: 'file, folder, alias or hf:ORG/NAME',
    });
    this._name = el('input', { autocomplete: 'off', spellcheck: 'false', placeholder: 'its own' });
    this._alive = el('input', { type: 'number', min: 0, placeholder: 'as the server is set' });
    this._settings = new SettingsForm(
      routes.fields('/v1/models/load').filter((one) => !OWN.includes(one.name)),
    );
    this._outcome = new Outcome(app);
    this._send = button('Load', () => {}, { kind: 'main', props: { type: 'submit' } });
    const form = el(
      'form.pane-form',
      { onsubmit: (event) => this._submit(event) },
      el('label.field', {}, 'Model', this._model),
      el('label.field', {}, 'Name in requests', this._name),
      el('label.field', {}, 'Seconds without a request until it is unloaded; 0: never', this._alive),
      this._settings.node,
      el('div.choices', {}, this._send),
      this._outcome.node,
    );
    this.node = el('section.pane', { 'aria-label': 'Load a model' }, el('h2', {}, 'Load a model'), form);
  }

  async _submit(event) {
    event.preventDefault();
    const body = { model: this._model.value.trim(), wait: false, ...this._settings.values };
    if (this._name.value.trim()) body.name = this._name.value.trim();
    if (this._alive.value) body.keep_alive = Number(this._alive.value);
    this._send.disabled = true;
    await this._outcome.run('Asking…', async () => {
      const { id } = await this._app.api.json('/v1/models/load', { method: 'POST', body });
      return `${id} loads; the list above shows how far it is.`;
    });
    this._send.disabled = false;
    this._changed();
  }
}
