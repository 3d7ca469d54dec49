// Conversations, messages and preferences of this browser, in IndexedDB.

const NAME = 'heddle';
const VERSION = 1;

/** The database. Each method answers when the data are on disk. */
export class Store {
  /** @param {IDBDatabase} database */
  constructor(database) {
    this._database = database;
  }

  /**
   * Open the database, and make it at the first time.
   * @returns {Promise<Store>}
   */
  static open() {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      const database = request.result;
      database.createObjectStore('conversations', { keyPath: 'id' });
      const messages = database.createObjectStore('messages', { keyPath: 'id' });
      messages.createIndex('conversation', 'conversation');
      database.createObjectStore('preferences', { keyPath: 'name' });
    };
    return done(request).then((database) => new Store(database));
  }

  /** @returns {Promise<Object[]>} All conversations, the latest first. */
  async conversations() {
    const all = await done(this._objects('conversations', 'readonly').getAll());
    return all.sort((a, b) => b.updated - a.updated);
  }

  /**
   * @param {string} id
   * @returns {Promise<Object[]>} The messages of a conversation, in order of their making.
   */
  async messages(id) {
    const index = this._objects('messages', 'readonly').index('conversation');
    const all = await done(index.getAll(id));
    return all.sort((a, b) => a.created - b.created);
  }

  /**
   * Add a conversation.
   * @param {Object} conversation
   * @param {Object[]} [messages]
   */
  async add(conversation, messages = []) {
    await this._change(['conversations', 'messages'], (conversations, objects) => {
      conversations.put(conversation);
      for (const one of messages) objects.put(one);
    });
  }

  /**
   * Save messages and fields of a conversation. A title that it has stays: another tab may have
   * given it. Nothing of a deleted conversation is saved: its answer may still run.
   * @param {string} id
   * @param {Object} fields
   * @param {Object[]} [messages]
   */
  async save(id, fields, messages = []) {
    await this._change(['conversations', 'messages'], (conversations, objects) => {
      then(conversations.get(id), (known) => {
        if (!known) return;
        conversations.put({ ...known, ...fields, title: known.title || (fields.title ?? '') });
        for (const one of messages) objects.put(one);
      });
    });
  }

  /**
   * Give a conversation another title.
   * @param {string} id
   * @param {string} title
   */
  async rename(id, title) {
    await this._change(['conversations'], (conversations) => {
      then(conversations.get(id), (known) => known && conversations.put({ ...known, title }));
    });
  }

  /**
   * Delete a conversation with its messages.
   * @param {string} id
   */
  async remove(id) {
    await this._change(['conversations', 'messages'], (conversations, objects) => {
      conversations.delete(id);
      then(objects.index('conversation').getAllKeys(id), (keys) => {
        for (const one of keys) objects.delete(one);
      });
    });
  }

  /**
   * @param {string} name
   * @param {any} otherwise
   * @returns {Promise<any>} A preference; `otherwise` if it was never saved.
   */
  async preference(name, otherwise) {
    const found = await done(this._objects('preferences', 'readonly').get(name));
    return found ? found.value : otherwise;
  }

  /**
   * @param {string} name
   * @param {any} value
   */
  async savePreference(name, value) {
    await this.changePreference(name, value, () => value);
  }

  /**
   * Change a preference as it is on disk now, whatever was read before.
   * @param {string} name
   * @param {any} otherwise Its value if it was never saved.
   * @param {(value: any) => any} change
   * @returns {Promise<any>} The new value.
   */
  async changePreference(name, otherwise, change) {
    let value;
    await this._change(['preferences'], (preferences) => {
      then(preferences.get(name), (known) => {
        value = change(known ? known.value : otherwise);
        preferences.put({ name, value });
      });
    });
    return value;
  }

  /** Change objects in one transaction: all changes come to be, or none. */
  _change(names, change) {
    const transaction = this._database.transaction(names, 'readwrite');
    change(...names.map((name) => transaction.objectStore(name)));
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
  }

  _objects(name, mode) {
    return this._database.transaction(name, mode).objectStore(name);
  }
}

function then(request, go) {
  request.onsuccess = () => go(request.result);
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
