// The view of chats: the list, the conversation with its field, and the panel of settings.

import { Composer } from '../chat/composer.js';
import { ConversationList } from '../chat/list.js';
import { Panel } from '../chat/panel.js';
import { HELP } from '../chat/pictures.js';
import { Session } from '../chat/session.js';
import { Thread } from '../chat/thread.js';
import { button, el } from '../dom.js';
import { Latest } from '../latest.js';

/**
 * The shown session, and those whose answers run: they go on while another one is shown.
 * @type {Map<string, Session>}
 */
const live = new Map();

/** All functions of the user, for all sessions: one list, which changes in place. */
const functions = [];

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
    this._opens = new Latest();
    this._list = new ConversationList(app, {
      open: (id) => app.go(`chat/${id}`),
      create: () => this._create(),
      stop: (id) => live.get(id)?.stop(),
      rename: (id, title) => live.get(id)?.rename(title) ?? app.store.rename(id, title),
    });
    this._composer = new Composer(app, {
      send: (text, pictures) => this._send(text, pictures),
      stop: () => this._session?.stop(),
      whyNoPictures: () => app.models.whyNoPictures(this._session?.models ?? []),
    });
    this._onModels = () => this._composer.tray.check();
    app.models.addEventListener('change', this._onModels);
    this._middle = el('div.middle');
    this._side = el('div.side', { onchange: this._onModels }); // another second model
    this._grid = el(
      'div.chat',
      {},
      el('div.left', { id: 'left' }, this._list.node),
      el('div.center', {}, this._drawers(), this._room()),
      this._side,
    );
    root.append(this._grid);
    this._removers = this._shortcuts();
    this._onHash = () => location.hash.startsWith('#/chat') && this.open(app.rest());
    addEventListener('hashchange', this._onHash);
  }

  /** The conversation and its field. Pictures are taken anywhere here. */
  _room() {
    const room = el('div.room', { onclick: () => this._closeDrawers() });
    room.append(this._middle, this._composer.node);
    this._composer.tray.listen(room);
    return room;
  }

  /**
   * Show a conversation.
   * @param {string} id Empty: the latest one, or a new one.
   */
  async open(id) {
    if (id && id === this._session?.conversation.id) return;
    const isLatest = this._opens.begin();
    await this._readFunctions();
    const session = await this._sessionOf(id);
    if (isLatest()) this._show(session); // else another one was asked for meanwhile
  }

  async _readFunctions() {
    functions.splice(0, Infinity, ...(await this._app.store.preference('functions', [])));
    this._panel?.showFunctions();
  }

  async _sessionOf(id) {
    const { store } = this._app;
    const all = await store.conversations();
    const found = all.find((one) => one.id === id) ?? (id ? undefined : all[0]);
    if (!found) {
      return new Session(this._app, Session.fresh(this._session?.settings ?? all[0]?.settings), null);
    }
    const messages = await store.messages(found.id);
    return live.get(found.id) ?? new Session(this._app, found, messages);
  }

  /** End the view. Running answers go on. */
  close() {
    this._opens.begin();
    removeEventListener('hashchange', this._onHash);
    this._app.models.removeEventListener('change', this._onModels);
    for (const remove of this._removers) remove();
    this._leave();
  }

  _leave() {
    this._session = null;
    this._shown?.abort();
    this._thread?.close();
    this._panel?.close();
    for (const [id, one] of live) if (!one.running.size) live.delete(id);
  }

  /** Show a new conversation at once: the next key may belong to its message. */
  _create() {
    this._opens.begin();
    this._show(new Session(this._app, Session.fresh(this._session?.settings), null));
    this._app.named('chat');
    this._composer.field.focus();
  }

  _show(session) {
    session.functions = functions;
    this._leave();
    this._shown = new AbortController();
    live.set(session.conversation.id, session);
    this._session = session;
    this._panel = new Panel(this._app, session);
    this._thread = new Thread(this._app, session);
    this._side.replaceChildren(this._panel.node);
    this._middle.replaceChildren(this._thread.node);
    this._thread.goToEnd();
    const { signal } = this._shown;
    session.addEventListener('path', () => this._onPath(session), { signal });
    this._onPath(session);
    this._closeDrawers();
  }

  _onPath(session) {
    this._composer.setRunning(session.running.size > 0);
    this._composer.tray.check();
    if (session.path.length) this._app.named(`chat/${session.conversation.id}`);
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
      shortcuts.add('Alt+P', HELP, () => this._composer.tray.choose()),
      shortcuts.add('Escape', 'Stop the answer', () => {
        this._closeDrawers();
        return this._session?.stop() ?? false;
      }),
      shortcuts.add('Alt+C', 'Copy the last answer', () => {
        const last = this._session?.path.findLast((one) => one.role === 'assistant');
        if (last) navigator.clipboard?.writeText(last.content);
      }),
    ];
  }

  /** Send a message, unless the first conversation is not read yet. */
  _send(text, pictures) {
    if (!this._session) return false;
    this._session.send(text, { pictures });
    return true;
  }
}
