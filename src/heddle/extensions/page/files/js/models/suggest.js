// Suggests models for the server's machine, and fetches them.

import { button, el } from '../dom.js';
import { bytes, count } from '../format.js';
import { Outcome } from './action.js';

const USES = { chat: 'Chats', embeddings: 'Embeddings', reranking: 'Reranking' };
const STEPS = { chat: 'tokens/s', embeddings: 'queries/s', reranking: 'queries/s' };

/** The list of `GET /v1/models/suggest`. */
export class SuggestPane {
  /**
   * @param {import('../main.js').App} app
   * @param {((model: string) => boolean)|null} pull Begins to fetch a model, unless another download
   *   runs: then it returns false. Null: the server fetches none.
   */
  constructor(app, pull) {
    Object.assign(this, { _app: app, _pull: pull });
    this._list = el('div.pane-body');
    this._outcome = new Outcome(app);
    this._ask = button('Suggest models', () => this._show(), { kind: 'main' });
    const hint = 'The server measures its memory for 0.3 s. Answers that run are slower meanwhile.';
    this.node = el(
      'section.pane',
      { 'aria-label': 'Suggestions' },
      el('h2', {}, 'Suggestions'),
      el('p.hint', {}, hint),
      el('div.choices', {}, this._ask),
      this._outcome.node,
      this._list,
    );
  }

  async _show() {
    this._ask.disabled = true;
    await this._outcome.run('Measuring…', async () => {
      const { machine, data } = await this._app.api.json('/v1/models/suggest');
      this._list.replaceChildren(...Object.keys(USES).flatMap((use) => this._rows(use, data)));
      const { available_bytes: free, bytes_per_second: rate } = machine;
      return `The server has ${bytes(free)} of memory free, and reads ${bytes(rate)}/s.`;
    });
    this._ask.disabled = false;
  }

  _rows(use, all) {
    const rows = all.filter((one) => one.use === use).map((one) => this._row(one));
    return [el('h3', {}, USES[use]), ...rows];
  }

  _row(model) {
    const { id, use, best, fits, note } = model;
    const speed = `at most ${count(model.steps_per_second)} ${STEPS[use]}`;
    const memory = `${bytes(model.memory_bytes)} of memory${fits ? '' : ', more than is free'}`;
    const facts = `${note}; ${memory}, ${bytes(model.download_bytes)} to fetch, ${speed}`;
    const props = { 'aria-label': `Fetch ${id}` };
    const fetch = this._pull && button('Fetch', () => this._fetch(id), { kind: 'small', props });
    return el(
      'div.suggestion',
      {},
      el('span', {}, el('b', {}, id), best ? ' (the best one here) ' : ' ', el('span.hint', {}, facts)),
      fetch,
    );
  }

  _fetch(model) {
    if (!this._pull(model)) this._outcome.tell('Another download runs. Wait for its end.', 'problem');
  }
}
