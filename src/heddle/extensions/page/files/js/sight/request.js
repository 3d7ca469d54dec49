// The life of one request: what it waited for, its prompt, its tokens, its end.

import { button, el } from '../dom.js';
import { count, duration, many } from '../format.js';
import { stacked } from './bars.js';
import { Canvas } from './canvas.js';

const MOST_CHUNKS = 40;
const FORGOTTEN = [['State', 'ended; the server remembers its steps only']];

/** The panel of the chosen request. */
export class RequestPanel {
  /** @param {() => void} onClose */
  constructor(onClose) {
    this._title = el('h2');
    this._close = button('Close', onClose, { icon: 'close', kind: 'quiet' });
    this._facts = el('dl.facts');
    this._life = el('div');
    this._chunks = el('div.chunks');
    const line = el('div.itl');
    this._itl = el('p.hint');
    this.node = el(
      'aside.request',
      { 'aria-label': 'Life of a request', hidden: true },
      el('div.request-head', {}, this._title, this._close),
      this._life,
      this._facts,
      el('h3', {}, 'Between tokens'),
      line,
      this._itl,
      el('h3', {}, 'Prefill'),
      this._chunks,
    );
    this._canvas = new Canvas(line, { 'aria-hidden': 'true' }, () => this._draw([]));
  }

  /** End the drawing. */
  close() {
    this._canvas.close();
  }

  /**
   * @param {import('./record.js').ModelRecord|undefined} model
   * @param {number} id
   * @param {number} now
   */
  show(model, id, now) {
    const one = model?.requests.get(id);
    this.node.hidden = false;
    if (!model || (!one && this._shown === id)) return; // what was shown stays
    this._shown = id;
    const steps = model.stepsOf(id);
    this._title.textContent = one?.label || `Request ${id}`;
    this._life.replaceChildren(...(one ? lifeOf(one, now) : []));
    this._facts.replaceChildren(...(one ? factsOf(one, now, model) : FORGOTTEN).flatMap(term));
    this._showChunks(steps.filter(({ row }) => !row[2]));
    this._draw(
      gapsOf(
        one,
        steps.filter(({ row }) => row[2]),
      ),
    );
  }

  _showChunks(chunks) {
    const most = Math.max(1, ...chunks.map(({ row }) => row[4]));
    const rows = chunks
      .slice(-MOST_CHUNKS)
      .map(({ step, row }) =>
        el(
          'div.chunk',
          { title: `step ${step.number}, from position ${row[3]}` },
          stacked([{ name: 'chunk', size: row[4], kind: 'k-prefill' }], most),
          el('span', {}, many(row[4], 'token')),
          el('span', {}, duration(step.ms / 1000)),
        ),
      );
    const none = el('p.hint', {}, 'No chunk within the last minute.');
    this._chunks.replaceChildren(...(rows.length ? rows : [none]));
  }

  _draw(gaps) {
    const { _canvas: canvas } = this;
    const context = canvas.begin();
    if (!gaps.length) {
      this._itl.textContent = 'No second token yet.';
      return;
    }
    const sorted = gaps.map((one) => one.seconds).sort((a, b) => a - b);
    const at = (rank) => sorted[Math.min(sorted.length - 1, Math.floor(rank * sorted.length))];
    const most = sorted.at(-1);
    this._itl.textContent = `p50 ${duration(at(0.5))} · p90 ${duration(at(0.9))} · most ${duration(most)}`;
    const { color } = getComputedStyle(canvas.node);
    const width = canvas.width / gaps.length;
    context.fillStyle = color;
    gaps.forEach(({ seconds }, place) => {
      const height = Math.max(1, (seconds / most) * (canvas.height - 2));
      const gap = width > 3 ? 1 : 0;
      context.fillRect(place * width, canvas.height - height, Math.max(0.7, width - gap), height);
    });
  }
}

/** The seconds between the tokens of steps, divided among the tokens that a step gave. */
function gapsOf(one, steps) {
  const gaps = [];
  let last = one?.first_token;
  for (const { step, row } of steps) {
    const tokens = 1 + row[6];
    if (last && step.to > last) gaps.push({ seconds: (step.to - last) / tokens });
    last = step.to;
  }
  return gaps;
}

function lifeOf(one, now) {
  const end = one.ended ?? now;
  const started = one.started ?? end;
  const first = one.first_token ?? (one.started ? end : started);
  const drained = one.drained ?? end;
  const parts = [
    { name: 'waited', size: started - one.submitted, kind: 'k-waiting' },
    { name: 'prefill', size: first - started, kind: 'k-prefill' },
    { name: 'decode', size: drained - first, kind: 'k-decode' },
    { name: 'drained', size: end - drained, kind: 'k-drain' },
  ].filter((part) => part.size > 0);
  const shown = parts.map((part) => ({ ...part, text: duration(part.size) }));
  const words = shown.map((part) =>
    el('li', {}, el(`i.mark.${part.kind}`), part.name, el('b', {}, part.text)),
  );
  return [stacked(shown, end - one.submitted), el('ul.marks', {}, ...words)];
}

function factsOf(one, now, model) {
  const end = one.ended ?? now;
  const output = one.most_output
    ? `${count(one.output_tokens)} of at most ${count(one.most_output)}`
    : count(one.output_tokens);
  const seconds = one.first_token ? end - one.first_token : 0;
  const facts = [
    ['State', one.finish ? `done: ${one.finish}` : one.state],
    ['Client', one.client],
    ['Slot', one.lane === null ? 'none yet' : `${one.lane} of ${model.name}`],
    ['Prompt', `${many(one.prompt_tokens, 'token')}, ${count(one.cached_tokens)} from the cache`],
    ['First token', one.first_token ? `after ${duration(one.first_token - one.submitted)}` : 'not yet'],
    ['Output', `${output} tokens`],
  ];
  if (seconds > 0 && one.output_tokens > 1) {
    facts.push(['Rate', `${count((one.output_tokens - 1) / seconds)} tokens/s`]);
  }
  if (one.drafted_tokens) {
    facts.push(['Guesses', `${count(one.accepted_tokens)} of ${count(one.drafted_tokens)} right`]);
  }
  return facts;
}

function term([name, text]) {
  return [el('dt', {}, name), el('dd', {}, text)];
}
