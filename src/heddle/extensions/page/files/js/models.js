// The models of the server, and the one that new answers come from.

import { Latest } from './latest.js';

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
    this._reads = new Latest();
    /** @type {Object[]} */
    this.all = [];
    this.chosen = '';
  }

  /** Read the list. The last choice stays if the server still has it. */
  async refresh() {
    const isLatest = this._reads.begin();
    const last = await this._store.preference('model', '');
    const { data } = await this._api.json('/v1/models');
    if (!isLatest()) return;
    this.all = this.withEyes(data);
    const wanted = this.chosen || last; // as it is now: the user may have chosen meanwhile
    const found = this.all.find((one) => one.id === wanted) ?? this.all[0];
    this.chosen = found?.id ?? '';
    this.dispatchEvent(new Event('change'));
  }

  /**
   * @param {Object[]} data Of `GET /v1/models`.
   * @returns {Object[]} The same; models that are not loaded see what they saw when they were.
   */
  withEyes(data) {
    const eyes = new Map(this.all.map((one) => [one.id, one.modalities]));
    return data.map((one) => ({ modalities: eyes.get(one.id), ...one }));
  }

  /** @param {string} id */
  async choose(id) {
    this.chosen = id;
    this.dispatchEvent(new Event('change'));
    await this._store.savePreference('model', id);
  }

  /**
   * @param {string[]} names
   * @returns {string} Why a message to these models has no pictures; empty if it may have some. Of a
   *   model that has not been loaded while the page is open, this is not known.
   */
  whyNoPictures(names) {
    const isBlind = (one) => names.includes(one.id) && one.modalities?.vision === false;
    const blind = this.all.find(isBlind);
    return blind ? `${blind.id} sees no pictures.` : '';
  }

  /** @returns {Object|undefined} What the list says of the chosen model. */
  get details() {
    return this.all.find((one) => one.id === this.chosen);
  }
}
