// The view of chats: the list, the conversation with its field, and the panel of settings.

import { Composer } from '../chat/composer.js';
import { ConversationList } from '../chat/list.js';
import { Panel } from '../chat/panel.js';
import { Session } from '../chat/session.js';
import { Thread } from '../chat/thread.js';
import { button, el } from '../dom.js';

/**
 * The sessions that are shown, or whose answers run: they go on while another one is shown.
 * @type {Map<string, Session>}
 */
const live = new Map();

/**
 * Fill `root` with the view.
 * @param {HTMLElement} root
 * @param {import('../main.js').App} app
 * @returns {() => void} Ends the view.
 */
export function mount(root, app) {
  const view = new ChatView(root, app);
  view.open(app.rest());
  return () => view.close();
}

class ChatView {
  constructor(root, app) {
    this._app = app;
    this._session = null;
    this._panel = null;
    this._thread = null;
    this._functions = [];
    this._asked = 0;
    this._list = new ConversationList(app, {
      open: (id) => app.go(`chat/${id}`),
      create: () => this._create(),
      stop: (id) => live.get(id)?.stop(),
    });
    this._composer = new Composer(
      (text) => this._do(() => this._session.send(text)),
      () => this._session.stop(),
    );
    this._middle = el('div.middle');
    this._side = el('div.side');
    this._grid = el(
      'div.chat',
      {},
      el('div.left', { id: 'left' }, this._list.node),
      el(
        'div.center',
        {},
        this._drawers(),
        el('div.room', { onclick: () => this._closeDrawers() }, this._middle, this._composer.node),
      ),
      this._side,
    );
    root.append(this._grid);
    this._removers = this._shortcuts();
    this._onHash = () => this.open(app.rest());
    addEventListener('hashchange', this._onHash);
  }

  /**
   * Show a conversation.
   * @param {string} id Empty: the latest one, or a new one.
   */
  async open(id) {
    if (id && id === this._session?.conversation.id) return;
    const asked = ++this._asked;
    const session = await this._sessionOf(id);
    if (asked === this._asked) this._show(session); // else another one was asked for meanwhile
  }

  /** Read a conversation, and the functions of the user. */
  async _sessionOf(id) {
    const { store } = this._app;
    this._functions = await store.preference('functions', []);
    const all = await store.conversations();
    const found = all.find((one) => one.id === id) ?? (id ? undefined : all[0]);
    if (live.has(found?.id)) return live.get(found.id);
    const conversation = found ?? Session.fresh(this._session?.settings ?? all[0]?.settings);
    const messages = found ? await store.messages(found.id) : [];
    return new Session(this._app, conversation, messages);
  }

  /** End the view. Running answers go on. */
  close() {
    this._asked++;
    removeEventListener('hashchange', this._onHash);
    for (const remove of this._removers) remove();
    this._leave();
  }

  /** Leave the shown session. It is kept as long as its answers run. */
  _leave() {
    const session = this._session;
    this._session = null;
    this._thread?.close();
    this._panel?.close();
    if (session && !session.running.size) live.delete(session.conversation.id);
  }

  /** Show a new conversation at once: the next key may belong to its message. */
  _create() {
    this._asked++;
    this._show(new Session(this._app, Session.fresh(this._session?.settings), []));
    history.replaceState(null, '', '#/chat');
    this._composer.field.focus();
  }

  _show(session) {
    session.functions = this._functions;
    this._leave();
    live.set(session.conversation.id, session);
    this._session = session;
    this._panel = new Panel(this._app, session);
    this._thread = new Thread(this._app, session);
    this._side.replaceChildren(this._panel.node);
    this._middle.replaceChildren(this._thread.node);
    this._thread.goToEnd();
    session.addEventListener('path', () => this._onPath(session));
    this._onPath(session);
    this._closeDrawers();
  }

  _onPath(session) {
    if (session !== this._session) {
      if (!session.running.size) live.delete(session.conversation.id);
      return;
    }
    this._composer.setRunning(session.running.size > 0);
    if (session.path.length && this._app.rest() !== session.conversation.id) {
      history.replaceState(null, '', `#/chat/${session.conversation.id}`);
    }
    this._list.refresh(session.conversation.id);
  }

  /** The buttons that show the list and the panel where there is little room. */
  _drawers() {
    const toggle = (name) => () => {
      const isOpen = this._grid.classList.contains(name);
      this._closeDrawers();
      this._grid.classList.toggle(name, !isOpen);
    };
    return el(
      'div.drawers',
      {},
      button('Conversations', toggle('shows-list'), { icon: 'list', kind: 'quiet' }),
      button('Settings', toggle('shows-panel'), { icon: 'tune', kind: 'quiet' }),
    );
  }

  _closeDrawers() {
    this._grid.classList.remove('shows-list', 'shows-panel');
  }

  _shortcuts() {
    const { shortcuts } = this._app;
    return [
      shortcuts.add('Ctrl+K', 'Search conversations', () => {
        this._grid.classList.add('shows-list');
        this._list.search.select();
        this._list.search.focus();
      }),
      shortcuts.add('Alt+N', 'Begin a new conversation', () => {
        this._create();
      }),
      shortcuts.add('Alt+S', 'Show or hide the settings', () => {
        this._grid.classList.toggle('shows-panel');
        this._grid.classList.toggle('hides-panel');
      }),
      shortcuts.add('/', 'Write a message', () => this._composer.field.focus()),
      shortcuts.add('Escape', 'Stop the answer', () => {
        this._closeDrawers();
        return this._session.stop();
      }),
      shortcuts.add('Alt+C', 'Copy the last answer', () => {
        const last = this._session.path.findLast((one) => one.role === 'assistant');
        if (last) navigator.clipboard?.writeText(last.content);
      }),
    ];
  }

  async _do(work) {
    if (this._session.running.size) return;
    await work();
  }
}
