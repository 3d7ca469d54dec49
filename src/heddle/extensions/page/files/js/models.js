// The models of the server, and the one that new answers come from.

/** Knows the models' names, and which one is chosen. Tells listeners of changes. */
export class Models extends EventTarget {
  /**
   * @param {import('./api.js').Api} api
   * @param {import('./store.js').Store} store
   */
  constructor(api, store) {
    super();
    this._api = api;
    this._store = store;
    /** @type {Object[]} */
    this.all = [];
    this.chosen = '';
  }

  /** Read the list. The last choice stays if the server still has it. */
  async refresh() {
    const wanted = this.chosen || (await this._store.preference('model', ''));
    this.all = (await this._api.json('/v1/models')).data;
    const found = this.all.find((one) => one.id === wanted) ?? this.all[0];
    this.chosen = found?.id ?? '';
    this.dispatchEvent(new Event('change'));
  }

  /** @param {string} id */
  async choose(id) {
    this.chosen = id;
    this.dispatchEvent(new Event('change'));
    await this._store.savePreference('model', id);
  }

  /** @returns {Object|undefined} What the list says of the chosen model. */
  get details() {
    return this.all.find((one) => one.id === this.chosen);
  }
}
