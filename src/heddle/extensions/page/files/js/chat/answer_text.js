// Shows a text that grows: finished blocks as rendered Markdown, the rest as it is.

import { button, copyText, el } from '../dom.js';
import { MOST_RENDERED, piecesOf, render } from '../markdown.js';

const PAUSE = 250;
const STEP = 60000;

/** Texts are rendered when they come near to the screen. */
const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) entry.target.onseen?.();
  },
  { rootMargin: '600px' },
);

/** One text of a message. */
export class AnswerText {
  /** @param {import('../api.js').Api} api */
  constructor(api) {
    this._api = api;
    this._tail = el('p.plain', { dir: 'auto' });
    this._more = button('', () => this._showMore(), { kind: 'more' });
    this._more.hidden = true;
    this.node = el('div.text', { dir: 'auto' }, this._tail, this._more);
    this.node.onseen = () => {
      this._isSeen = true;
      seen.unobserve(this.node);
      this._plan();
    };
    seen.observe(this.node);
    this._most = STEP;
    this._text = '';
    this._reset();
  }

  /**
   * Show a text.
   * @param {string} text
   * @param {boolean} isFinished Whether it grows no more.
   */
  show(text, isFinished) {
    if (!text.startsWith(this._text.slice(0, this._done))) this._reset();
    this._text = text;
    this._isFinished = isFinished;
    this._showTail();
    this._plan();
  }

  get _shown() {
    return this._text.slice(0, this._most);
  }

  _reset() {
    this._text = '';
    this._done = 0;
    this._last = 0;
    this._timer = null;
    while (this._tail.previousSibling) this._tail.previousSibling.remove();
  }

  _showTail() {
    const rest = this._shown.slice(this._done);
    if (this._tail.textContent !== rest) this._tail.textContent = rest;
    this._tail.hidden = !rest;
    const left = this._text.length - this._most;
    this._more.hidden = left <= 0;
    const [next, all] = [Math.min(left, STEP), left].map((one) => one.toLocaleString());
    if (left > 0) this._more.textContent = `Show ${next} of ${all} more characters`;
  }

  _showMore() {
    this._most += STEP;
    this._showTail();
    this._plan();
  }

  /** Render soon, at most four times a second. */
  _plan() {
    if (this._timer !== null || !this._isSeen || this._done >= this._shown.length) return;
    const wait = Math.max(0, this._last + PAUSE - performance.now());
    this._timer = setTimeout(() => this._render(), wait);
  }

  async _render() {
    const isWhole = this._isFinished || this._text.length > this._most;
    const pieces = piecesOf(this._shown.slice(this._done), isWhole).slice(0, 16);
    let failed = false;
    if (pieces.length) {
      const parts = await this._rendered(pieces);
      failed = parts === null;
      if (parts) this._add(pieces, parts);
    }
    this._last = performance.now();
    this._timer = null;
    if (!failed && pieces.length) this._plan();
  }

  /** The rendered pieces; null if the server does not answer now: the text stays plain. */
  async _rendered(pieces) {
    const short = pieces.filter((one) => one.length <= MOST_RENDERED);
    try {
      const parts = short.length ? await render(this._api, short) : [];
      return pieces.map((one) =>
        one.length <= MOST_RENDERED ? parts.shift() : el('p.plain', { dir: 'auto' }, one),
      );
    } catch {
      return null;
    }
  }

  _add(pieces, parts) {
    const text = pieces.join('');
    if (!this._text.startsWith(text, this._done)) return; // another text is shown meanwhile
    for (const part of parts) this._tail.before(isolated(part));
    this._done += text.length;
    this._showTail();
  }
}

/** Each block finds its own direction. */
function isolated(part) {
  const blocks = 'p, li, h1, h2, h3, h4, h5, h6, td, th, blockquote, ul, ol';
  for (const one of part.querySelectorAll?.(blocks) ?? []) one.setAttribute('dir', 'auto');
  for (const one of part.querySelectorAll?.('pre') ?? []) {
    one.setAttribute('tabindex', '0'); // to scroll by keys
    one.setAttribute('role', 'region');
    one.setAttribute('aria-label', `Code: ${one.dataset.language}`);
    const copy = () => copyText(one.querySelector('code').textContent);
    one.append(button('Copy the code', copy, { icon: 'copy', kind: 'quiet' }));
  }
  return part;
}
