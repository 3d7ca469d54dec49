// The list of conversations: search, rename, delete, export and import.

import { askForText, confirm, menu, tell } from '../dialogs.js';
import { button, el } from '../dom.js';
import { Latest } from '../latest.js';
import { read, save } from './transfer.js';

/** The list beside the conversation. */
export class ConversationList {
  /**
   * @param {import('../main.js').App} app
   * @param {{open: (id: string) => void, create: () => void, stop: (id: string) => void,
   *   rename: (id: string, title: string) => Promise<void>}} actions
   */
  constructor(app, actions) {
    this._app = app;
    this._actions = actions;
    this._all = [];
    this._open = '';
    this._reads = new Latest();
    this.search = el('input', {
      type: 'search',
      placeholder: 'Search',
      'aria-label': 'Search conversations',
      oninput: () => this._show(),
      onkeydown: (event) => this._press(event),
    });
    this._items = el('ul.conversations');
    this._file = el('input', { type: 'file', accept: 'application/json,.json', hidden: true });
    this._file.addEventListener('change', () => this._import());
    this.node = el(
      'nav.list',
      { 'aria-label': 'Conversations' },
      el('div.row', {}, this.search, button('New conversation', actions.create, { icon: 'add' })),
      this._items,
      button('Import a file', () => this._file.click(), { kind: 'quiet' }),
      this._file,
    );
  }

  /**
   * Read the list anew.
   * @param {string} [open] The id of the conversation that is shown.
   */
  async refresh(open = this._open) {
    this._open = open;
    const isLatest = this._reads.begin();
    const all = await this._app.store.conversations();
    if (!isLatest()) return;
    this._all = all;
    this._show();
  }

  _show() {
    const wanted = this.search.value.trim().toLowerCase();
    const found = this._all.filter((one) => one.title.toLowerCase().includes(wanted));
    this._items.replaceChildren(...found.map((one) => this._item(one)));
    if (!found.length)
      this._items.append(el('li.hint', {}, wanted ? 'Nothing found.' : 'No conversations yet.'));
  }

  _item(conversation) {
    const isOpen = conversation.id === this._open;
    const link = el(
      'a',
      {
        href: `#/chat/${conversation.id}`,
        dir: 'auto',
        'aria-current': isOpen ? 'true' : null,
      },
      conversation.title || 'Untitled',
    );
    const more = menu(`More about ${conversation.title || 'Untitled'}`, 'tune', () => [
      { label: 'Rename', run: () => this._rename(conversation) },
      { label: 'Export as JSON', run: () => this._export(conversation) },
      { label: 'Delete', run: () => this._remove(conversation) },
    ]);
    return el('li', {}, link, more);
  }

  _press(event) {
    if (event.key === 'Escape') {
      this.search.value = '';
      this._show();
    }
    if (event.key === 'Enter') this._items.querySelector('a')?.click();
  }

  async _rename(conversation) {
    const title = await askForText('Rename', 'Title', { value: conversation.title });
    if (!title) return;
    await this._actions.rename(conversation.id, title);
    await this.refresh();
  }

  async _remove(conversation) {
    const text = `“${conversation.title}” and all of its branches go.`;
    if (!(await confirm('Delete the conversation?', text, 'Delete'))) return;
    this._actions.stop(conversation.id);
    await this._app.store.remove(conversation.id);
    if (conversation.id === this._open) this._actions.create();
    await this.refresh();
  }

  async _export(conversation) {
    save(conversation, await this._app.store.messages(conversation.id));
  }

  async _import() {
    const [file] = this._file.files;
    this._file.value = '';
    try {
      const { conversation, messages } = read(await file.text());
      await this._app.store.add(conversation, messages);
      this._actions.open(conversation.id);
    } catch (error) {
      await tell('The file cannot be imported', error.message);
    }
  }
}
