// An action on the server: it runs, shows that it runs, and says what went wrong.

import { button, el } from '../dom.js';
import { Latest } from '../latest.js';

/** In the server's error to a key that may use the server, but not this route. */
const LACKS_ADMIN = 'needs an admin key';

/** Where the outcome of an action is told. */
export class Outcome {
  /** @param {import('../main.js').App} app */
  constructor(app) {
    this._app = app;
    this._text = el('span');
    this._other = button('Use another key', () => this._again(), { kind: 'small', props: { hidden: true } });
    this.node = el('p.outcome', { role: 'status', hidden: true }, this._text, ' ', this._other);
    this._run = null;
    this._runs = new Latest();
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
    const isLatest = this._runs.begin();
    this._run = () => this.run(doing, run);
    this.tell(doing);
    try {
      const done = await run();
      if (isLatest()) this.tell(done, 'good');
      return true;
    } catch (error) {
      if (!isLatest()) return false;
      this.tell(error.message, 'problem');
      this._trouble = error.message;
      this._other.hidden = !error.message.includes(LACKS_ADMIN);
      return false;
    }
  }

  async _again() {
    if (await this._app.api.askForKey(this._trouble)) this._run?.();
  }
}
