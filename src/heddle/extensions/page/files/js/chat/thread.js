// Shows the branch of a conversation, and follows it while an answer grows.

import { arrange, el } from '../dom.js';
import { openAddress } from '../dialogs.js';
import { MessageView } from './message.js';
import { pairOf } from './tree.js';

const NEAR = 80;

/** The messages of a session. */
export class Thread {
  /**
   * @param {import('../main.js').App} app
   * @param {import('./session.js').Session} session
   */
  constructor(app, session) {
    this._app = app;
    this._session = session;
    this._views = new Map();
    this._due = new Set();
    this._list = el('div.messages');
    this.node = el('section.thread', { 'aria-label': 'Conversation', tabindex: 0 }, this._list);
    this.node.addEventListener('click', (event) => {
      const link = event.target.closest('.link');
      if (link) openAddress(link.dataset.address);
    });
    this._listening = new AbortController();
    const { signal } = this._listening;
    session.addEventListener('path', () => this._showPath(), { signal });
    session.addEventListener('answer', ({ detail }) => this._grow(detail), { signal });
    this._showPath();
  }

  /** Follow the session no more. */
  close() {
    this._listening.abort();
  }

  /** Scroll to the last message. */
  goToEnd() {
    this.node.scrollTop = this.node.scrollHeight;
  }

  _showPath() {
    const follows = this._isAtEnd();
    const path = this._session.path.filter((one) => one.role !== 'tool');
    const rows = path.map((one) => this._row(one));
    arrange(this._list, rows.length ? rows : [empty(this._app)]);
    if (follows) this.goToEnd();
  }

  _row(message) {
    const pair = pairOf(this._session.messages, message);
    const nodes = pair.map((one) => this._view(one).node);
    if (pair.length < 2) return nodes[0];
    const row = nodes[0].closest('.pair') ?? el('div.pair');
    arrange(row, nodes);
    return row;
  }

  _view(message) {
    const known = this._views.get(message.id);
    known?.update();
    const view = known ?? new MessageView(this._app, this._session, message);
    this._views.set(message.id, view);
    return view;
  }

  /** Show the growth of answers once for each frame. */
  _grow(answer) {
    if (!this._session.running.has(answer.id)) this._announce(answer);
    if (!this._due.size) requestAnimationFrame(() => this._showGrowth());
    this._due.add(answer.id);
  }

  _showGrowth() {
    const follows = this._isAtEnd();
    for (const id of this._due) this._views.get(id)?.updateText();
    this._due.clear();
    if (follows) this.goToEnd();
  }

  _announce({ content, failure }) {
    this._app.announce(failure ?? `Answer: ${content.slice(0, 2000)}`);
  }

  _isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.node;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }
}

function empty(app) {
  const name = app.models.chosen || 'The model';
  return el(
    'div.empty',
    {},
    el('p.big', {}, 'Say something.'),
    el(
      'p',
      {},
      `${name} answers on this server. Nothing leaves it: conversations stay in this browser.`,
    ),
  );
}
