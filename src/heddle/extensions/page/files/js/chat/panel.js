// The settings of a conversation: system prompt, sampling, form of answers, functions, comparison.

import { button, el } from '../dom.js';
import { editFunction } from './functions.js';
import { Sampling } from './sampling.js';

/** The panel beside the conversation. */
export class Panel {
  /**
   * @param {import('../main.js').App} app
   * @param {import('./session.js').Session} session
   */
  constructor(app, session) {
    this._app = app;
    this._session = session;
    this._functions = el('div.functions');
    this._other = el('select', { onchange: () => this._set('other', this._other.value) });
    this._onModels = () => this._showModels();
    app.models.addEventListener('change', this._onModels);
    this._sampling = new Sampling(app, session.settings, () => session.saveConversation());
    this.node = el(
      'aside.panel',
      { 'aria-label': 'Settings of this conversation' },
      el('label.field', {}, 'System prompt', this._text('system', 4)),
      this._sampling.node,
      section('Tokens', this._logprobs()),
      section('Answer as JSON', this._schema()),
      section('Functions', this._functions),
      section('Two answers side by side', el('label.field', {}, 'Second model', this._other)),
    );
    this._showModels();
    this.showFunctions();
  }

  /** End the listening. */
  close() {
    this._app.models.removeEventListener('change', this._onModels);
    this._sampling.close();
  }

  _set(name, value) {
    this._session.settings[name] = value;
    this._session.saveConversation();
  }

  _text(name, rows) {
    const field = el('textarea', { rows, dir: 'auto', value: this._session.settings[name] });
    const keep = () => {
      this._session.settings[name] = field.value; // at once: a shortcut may begin a new conversation
    };
    field.addEventListener('input', keep);
    field.addEventListener('change', () => this._session.saveConversation());
    return field;
  }

  _logprobs() {
    const box = el('input', {
      type: 'checkbox',
      checked: this._session.settings.logprobs,
      onchange: () => this._set('logprobs', box.checked),
    });
    return el('label.check', {}, box, 'Keep probabilities, and what else could have come');
  }

  _schema() {
    const field = this._text('schema', 6);
    field.classList.add('code');
    field.spellcheck = false;
    const problem = el('p.problem', { role: 'alert' });
    const check = () => {
      problem.textContent = schemaFault(field.value);
      field.setAttribute('aria-invalid', String(Boolean(problem.textContent)));
    };
    field.addEventListener('input', check);
    check();
    return el('div', {}, el('label.field', {}, 'JSON schema; empty: any text', field), problem);
  }

  _showModels() {
    const options = this._app.models.all.map((one) => el('option', { value: one.id }, one.id));
    this._other.replaceChildren(el('option', { value: '' }, 'none'), ...options);
    this._other.value = this._session.settings.other;
  }

  /** Show the functions of the user. */
  showFunctions() {
    const rows = this._session.functions.map((one, place) => this._functionRow(one, place));
    const add = button('Add a function', () => this._edit(-1), { kind: 'small' });
    this._functions.replaceChildren(...rows, add, this._choice());
  }

  _choice() {
    const words = { auto: 'when it wants to', required: 'always', none: 'never' };
    const options = Object.entries(words).map(([value, text]) => el('option', { value }, text));
    const select = el('select', { onchange: () => this._set('choice', select.value) }, ...options);
    select.value = this._session.settings.choice;
    return el('label.field', {}, 'The model calls them', select);
  }

  _functionRow(definition, place) {
    const { name } = definition;
    const chosen = this._session.settings.functions;
    const toggle = () => {
      const others = chosen.filter((one) => one !== name);
      this._set('functions', box.checked ? [...others, name] : others);
    };
    const box = el('input', {
      type: 'checkbox',
      checked: chosen.includes(name),
      onchange: toggle,
    });
    const edit = button(`Edit ${name}`, () => this._edit(place), {
      icon: 'edit',
      kind: 'quiet',
    });
    return el('div.row', {}, el('label.check', {}, box, el('code', {}, name)), edit);
  }

  async _edit(place) {
    const { functions, settings } = this._session;
    const former = functions[place];
    const edited = await editFunction(former ?? null);
    if (!edited) return;
    const change = (all) => changed(all, former, edited);
    const show = (all) => {
      functions.splice(0, Infinity, ...all);
      this.showFunctions();
    };
    if (edited.name && !former) settings.functions.push(edited.name);
    show(change(functions)); // at once: the next message may need it
    this._session.saveConversation();
    show(await this._app.store.changePreference('functions', [], change));
  }
}

/** The functions, with one that was added, edited or removed. */
function changed(all, former, edited) {
  const place = all.findIndex((one) => one.name === former?.name);
  const others = all.filter((one) => one.name !== former?.name);
  if (edited === 'remove') return others;
  others.splice(place < 0 ? others.length : place, 0, edited);
  return others;
}

function section(title, ...content) {
  return el('details.section', {}, el('summary', {}, title), ...content);
}

function schemaFault(text) {
  if (!text.trim()) return '';
  try {
    const schema = JSON.parse(text);
    const isObject = schema && typeof schema === 'object' && !Array.isArray(schema);
    return isObject ? '' : 'The schema must be an object.';
  } catch (error) {
    return `Not valid JSON: ${error.message}`;
  }
}
