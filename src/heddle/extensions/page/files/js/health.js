// Watches whether the server answers, and shows a thin banner while it does not.

import { Latest } from './latest.js';

const SOON = 1000;
const LATER = 15000;

/** Asks `/health` now and then, and each second while the server is away. */
export class Health {
  /**
   * @param {HTMLElement} banner
   * @param {() => void} onReturn Called when the server answers again.
   */
  constructor(banner, onReturn) {
    this._banner = banner;
    this._onReturn = onReturn;
    this.isWell = true;
    this._checks = new Latest();
    this._timer = setTimeout(() => this._check(), LATER);
  }

  /** A request got no answer: look at once. */
  suspect() {
    clearTimeout(this._timer);
    this._check();
  }

  async _check() {
    clearTimeout(this._timer);
    const isLatest = this._checks.begin();
    const trouble = await troubleOf();
    if (!isLatest()) return;
    this._show(trouble);
    this._timer = setTimeout(() => this._check(), trouble ? SOON : LATER);
  }

  _show(trouble) {
    const wasWell = this.isWell;
    this.isWell = !trouble;
    this._banner.hidden = !trouble;
    if (this._banner.textContent !== trouble) this._banner.textContent = trouble;
    if (this.isWell && !wasWell) this._onReturn();
  }
}

/** What is wrong with the server; empty: nothing. */
async function troubleOf() {
  try {
    const response = await fetch('health', { cache: 'no-store', credentials: 'omit' });
    if (response.ok) return '';
    const { status } = await response.json();
    return `The server answers no requests now (${status}). Trying again…`;
  } catch {
    return 'The server does not answer. Trying again…';
  }
}
