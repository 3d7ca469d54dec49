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

  /** @param {Object} conversation */
  async saveConversation(conversation) {
    await done(this._objects('conversations', 'readwrite').put(conversation));
  }

  /** @param {Object[]} messages */
  async saveMessages(messages) {
    const objects = this._objects('messages', 'readwrite');
    await Promise.all(messages.map((one) => done(objects.put(one))));
  }

  /**
   * Delete a conversation with its messages.
   * @param {string} id
   */
  async removeConversation(id) {
    const keys = await done(
      this._objects('messages', 'readonly').index('conversation').getAllKeys(id),
    );
    const messages = this._objects('messages', 'readwrite');
    await Promise.all(keys.map((key) => done(messages.delete(key))));
    await done(this._objects('conversations', 'readwrite').delete(id));
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
    await done(this._objects('preferences', 'readwrite').put({ name, value }));
  }

  _objects(name, mode) {
    return this._database.transaction(name, mode).objectStore(name);
  }
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
