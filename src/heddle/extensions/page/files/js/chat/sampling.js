// The sampling parameters, from the server's own table, and presets of them.

import { askForText } from '../dialogs.js';
import { button, el } from '../dom.js';
import { Latest } from '../latest.js';

/** Presets of the page. */
const PRESETS = {
  precise: { temperature: 0 },
  balanced: { temperature: 0.7, top_p: 0.95, min_p: 0.05 },
  creative: { temperature: 1.2, min_p: 0.05, repetition_penalty: 1.05 },
};
const FIRST = ['temperature', 'max_tokens', 'top_p', 'top_k', 'min_p', 'seed'];

/** The editor of a conversation's parameters. */
export class Sampling {
  /**
   * @param {import('../main.js').App} app
   * @param {Object} settings Its `params` change in place.
   * @param {() => void} save
   */
  constructor(app, settings, save) {
    this._app = app;
    this._settings = settings;
    this._save = save;
    this._own = {};
    this._reads = new Latest();
    this._rows = null;
    this._presets = el('select', { onchange: () => this._apply(this._presets.value) });
    this._first = el('div');
    this._rest = el('div');
    this._onModels = () => this._read();
    app.models.addEventListener('change', this._onModels);
    this.node = el(
      'section.sampling',
      { 'aria-label': 'Sampling' },
      el(
        'div.row',
        {},
        el('label.field', {}, 'Preset', this._presets),
        button('Keep', () => this._keep(), {
          kind: 'plain',
          props: { title: 'Keep these values as a preset' },
        }),
      ),
      this._first,
      el('details.section', {}, el('summary', {}, 'All parameters'), this._rest),
    );
    this._read();
  }

  /** End the listening. */
  close() {
    this._app.models.removeEventListener('change', this._onModels);
  }

  async _read() {
    const { models, api, store } = this._app;
    if (!models.chosen) return;
    const isLatest = this._reads.begin();
    const own = await store.preference('presets', {});
    const path = `/page/parameters?model=${encodeURIComponent(models.chosen)}`;
    const rows = await api.json(path).then(
      (table) => table.data,
      () => this._rows ?? [],
    );
    if (!isLatest() || JSON.stringify([own, rows]) === JSON.stringify([this._own, this._rows])) return;
    this._own = own;
    this._rows = rows;
    this._show(); // only if something changed: the user may be writing into a field
  }

  _show() {
    const names = ['', ...Object.keys(PRESETS), ...Object.keys(this._own)];
    const options = names.map((one) => el('option', { value: one }, one || 'of the model'));
    this._presets.replaceChildren(...options);
    this._presets.value = this._settings.preset;
    const isFirst = (row) => FIRST.includes(row.name);
    const field = (row) => this._field(row);
    const first = FIRST.map((name) => this._rows.find((row) => row.name === name)).filter(Boolean);
    this._first.replaceChildren(...first.map(field));
    this._rest.replaceChildren(...this._rows.filter((row) => !isFirst(row)).map(field));
  }

  _apply(name) {
    this._settings.preset = name;
    this._settings.params = { ...(PRESETS[name] ?? this._own[name] ?? {}) };
    this._save();
    this._show();
  }

  async _keep() {
    const name = await askForText('Save as a preset', 'Name');
    if (!name || name in PRESETS) return;
    const params = { ...this._settings.params };
    this._settings.preset = name;
    this._save();
    const add = (all) => ({ ...all, [name]: params });
    this._own = await this._app.store.changePreference('presets', {}, add);
    this._show();
  }

  _field(row) {
    const id = `parameter-${row.name}`;
    const problem = el('p.problem', { role: 'alert' });
    const input = inputOf(row, this._settings.params[row.name]);
    input.id = id;
    input.setAttribute('aria-describedby', `${id}-doc`);
    input.addEventListener('change', () => this._change(row, input, problem));
    return el(
      'div.parameter',
      {},
      el('label', { for: id }, row.name),
      input,
      el('p.hint', { id: `${id}-doc` }, `${plain(row.doc)} ${plain(row.range)}`),
      problem,
    );
  }

  _change(row, input, problem) {
    try {
      const value = valueOf(row, input);
      if (value === undefined) delete this._settings.params[row.name];
      else this._settings.params[row.name] = value;
      problem.textContent = '';
    } catch (error) {
      problem.textContent = error.message;
    }
    this._save();
  }
}

function inputOf(row, value) {
  const hint = row.default === null ? 'none' : JSON.stringify(row.default);
  if (row.kind === 'switch') return choice(['', 'true', 'false'], value, hint);
  if (row.kind === 'choice') return choice(['', ...row.choices], value, hint);
  if (row.kind === 'number' || row.kind === 'integer') {
    const step = row.kind === 'integer' ? 1 : 'any';
    return el('input', {
      type: 'number',
      min: row.min,
      max: row.max,
      step,
      placeholder: hint,
      value: value ?? '',
    });
  }
  const isList = row.kind === 'strings' && Array.isArray(value);
  const text = isList ? value.join('\n') : value === undefined ? '' : JSON.stringify(value);
  return el('textarea', { rows: 1, placeholder: hint, value: text, spellcheck: 'false' });
}

function choice(values, value, hint) {
  const options = values.map((one) => el('option', { value: one }, one || `default (${hint})`));
  const select = el('select', {}, ...options);
  select.value = value === undefined ? '' : String(value);
  return select;
}

function valueOf(row, input) {
  const text = input.value;
  if (input.validity.badInput) throw new Error('This is no number.');
  if (!text.trim()) return undefined;
  if (!input.validity.valid) throw new Error(input.validationMessage);
  if (row.kind === 'switch') return text === 'true';
  if (row.kind === 'choice') return text;
  if (row.kind === 'strings') return text.split('\n').filter(Boolean);
  if (row.kind === 'number' || row.kind === 'integer') return Number(text);
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Documentation without its marks of Markdown. */
function plain(text) {
  return text.replace(/\[([^\]]*)\]\([^)]*\)/g, '$1').replace(/`/g, '');
}
