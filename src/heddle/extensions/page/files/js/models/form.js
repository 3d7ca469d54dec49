// A form of a route's settings. Empty fields are not sent, so the server keeps its own values.

import { el } from '../dom.js';

/** The fields of settings, in a fold with a filter. */
export class SettingsForm {
  /** @param {{name: string, doc: string, kind: string}[]} fields */
  constructor(fields) {
    this._fields = fields.map((one) => new Field(one));
    const filter = el('input', {
      type: 'search',
      placeholder: 'Find a setting',
      'aria-label': 'Find a setting',
    });
    filter.addEventListener('input', () => {
      for (const one of this._fields) one.filter(filter.value.trim().toLowerCase());
    });
    this.node = el(
      'details.settings',
      {},
      el('summary', {}, 'Settings'),
      el('p.hint', {}, 'Empty fields keep the value that the server has.'),
      filter,
      el('div.settings-fields', {}, ...this._fields.map((one) => one.node)),
    );
  }

  /** @returns {Object<string, any>} The settings that were given. */
  get values() {
    const given = this._fields.map((one) => [one.name, one.value]);
    return Object.fromEntries(given.filter(([, value]) => value !== null));
  }
}

class Field {
  constructor({ name, doc, kind }) {
    this.name = name;
    this._words = `${name} ${doc}`.toLowerCase();
    this._kind = kind;
    this._input =
      kind === 'switch'
        ? el(
            'select',
            {},
            ...['', 'true', 'false'].map((value) =>
              el('option', { value }, { '': 'as it is', true: 'on', false: 'off' }[value]),
            ),
          )
        : el('input', {
            autocomplete: 'off',
            spellcheck: 'false',
            inputmode: kind === 'number' ? 'decimal' : null,
          });
    this.node = el('label.field', {}, el('code', {}, name), this._input, el('span.hint', {}, doc));
  }

  /** The value as JSON; null: none. A number that is none goes to the server, which explains. */
  get value() {
    const text = this._input.value.trim();
    if (!text) return null;
    if (this._kind === 'switch') return text === 'true';
    return this._kind === 'number' && Number.isFinite(Number(text)) ? Number(text) : text;
  }

  filter(word) {
    this.node.hidden = !this._words.includes(word);
  }
}
