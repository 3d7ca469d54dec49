// An action on the server: it runs, shows that it runs, and says what went wrong.

import { button, el } from '../dom.js';

/** Where the outcome of an action is told. */
export class Outcome {
  /** @param {import('../main.js').App} app */
  constructor(app) {
    this._app = app;
    this._text = el('span');
    this._other = button('Use another key', () => this._again(), { kind: 'small', props: { hidden: true } });
    this.node = el('p.outcome', { role: 'status', hidden: true }, this._text, ' ', this._other);
    this._run = null;
  }

  /** @param {string} text Empty: nothing. */
  tell(text, kind = '') {
    this.node.className = `outcome ${kind}`;
    this.node.hidden = !text;
    this._text.textContent = text;
    this._other.hidden = true;
  }

  /**
   * Run an action, and tell its outcome.
   * @param {string} doing Told meanwhile.
   * @param {() => Promise<string>} run Returns what to tell at the end.
   * @returns {Promise<boolean>} Whether it went well.
   */
  async run(doing, run) {
    this._run = () => this.run(doing, run);
    this.tell(doing);
    try {
      this.tell(await run(), 'good');
      return true;
    } catch (error) {
      this.tell(reason(error), 'problem');
      this._other.hidden = error.status !== 403;
      return false;
    }
  }

  _again() {
    this._app.api.forgetKey();
    this._run?.();
  }
}

function reason({ status, message }) {
  if (status === 401) return `This needs a key: ${message}`;
  if (status === 403) return `This needs an admin key: ${message}`;
  return message;
}
