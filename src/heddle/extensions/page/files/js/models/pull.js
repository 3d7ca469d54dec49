// Fetches a model from the hub, and shows how far the download is.

import { button, el } from '../dom.js';
import { bytes, share } from '../format.js';
import { Outcome } from './action.js';

/** The form of `POST /api/pull`. */
export class PullPane {
  /**
   * @param {import('../main.js').App} app
   * @param {() => any} changed
   */
  constructor(app, changed) {
    Object.assign(this, { _app: app, _changed: changed });
    this._model = el('input', {
      required: true,
      autocomplete: 'off',
      spellcheck: 'false',
      placeholder: 'hf.co/ORG/NAME:QUANT',
    });
    this._bar = el('progress', { max: 1, hidden: true, 'aria-label': 'Download' });
    this._outcome = new Outcome(app);
    this._send = button('Fetch', () => {}, { kind: 'main', props: { type: 'submit' } });
    const hint =
      'If you leave this page, the download continues. The server fetches models of its catalogue,' +
      ' and those of the hub if it was started with --hub-models.';
    const form = el(
      'form.pane-form',
      { onsubmit: (event) => this._submit(event) },
      el('label.field', {}, 'Model', this._model),
      el('p.hint', {}, hint),
      el('div.choices', {}, this._send),
      this._bar,
      this._outcome.node,
    );
    this.node = el('section.pane', { 'aria-label': 'Fetch a model' }, el('h2', {}, 'Fetch a model'), form);
  }

  /**
   * Begin to fetch a model, and show it here.
   * @param {string} model
   * @returns {boolean} False: another download runs.
   */
  begin(model) {
    if (this._send.disabled) return false;
    this._model.value = model;
    this.node.scrollIntoView({ block: 'nearest' });
    this._fetch(model);
    return true;
  }

  _submit(event) {
    event.preventDefault();
    this._fetch(this._model.value.trim());
  }

  async _fetch(model) {
    this._send.disabled = true;
    await this._outcome.run('Asking…', () => this._pull(model));
    this._send.disabled = false;
    this._bar.hidden = true;
    this._changed();
  }

  async _pull(model) {
    const { signal } = new AbortController();
    let last = {};
    for await (const report of this._app.api.documents('/api/pull', { model }, signal)) {
      if (report.error) throw new Error(report.error);
      last = report;
      this._show(report);
    }
    if (last.status !== 'success') throw new Error('The server ended the report before the download.');
    return `${model} is fetched.`;
  }

  _show({ status, total, completed }) {
    const far = total ? `: ${bytes(completed)} of ${bytes(total)}, ${share(completed, total)}` : '';
    this._outcome.tell(`${status}${far}`);
    this._bar.hidden = false;
    if (total) this._bar.value = completed / total;
    else this._bar.removeAttribute('value');
  }
}
