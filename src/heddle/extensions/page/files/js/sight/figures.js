// The figures above the lanes: rates with a line of the last minute, percentiles, shares.

import { el } from '../dom.js';
import { count, duration, share } from '../format.js';
import { Canvas } from './canvas.js';

const POINTS = 60;

/**
 * What a card shows of the states of the shown models.
 * @typedef {{title: string, value: (states: Object[]) => string, unit?: string,
 *   note?: (states: Object[]) => string, line?: (states: Object[]) => number}} Card
 */

/** @type {Card[]} */
const CARDS = [
  {
    title: 'Output',
    value: (all) => count(sum(all, 'tokens_per_second')),
    unit: 'tokens/s',
    line: (all) => sum(all, 'tokens_per_second'),
  },
  {
    title: 'Prompts',
    value: (all) => count(sum(all, 'prompt_tokens_per_second')),
    unit: 'tokens/s',
    line: (all) => sum(all, 'prompt_tokens_per_second'),
  },
  {
    title: 'Running',
    value: (all) => count(sum(all, 'running')),
    note: (all) => `${count(sum(all, 'waiting'))} wait`,
    line: (all) => sum(all, 'running'),
  },
  percentiles('First token', 'ttft_ms'),
  percentiles('Between tokens', 'itl_ms'),
  {
    title: 'From the cache',
    value: (all) => share(sum(all, 'hit_tokens'), sum(all, 'query_tokens')),
    note: (all) => `${count(sum(all, 'hit_tokens'))} of ${count(sum(all, 'query_tokens'))} prompt tokens`,
  },
  {
    title: 'Guesses right',
    value: (all) => share(sum(all, 'accepted_tokens'), sum(all, 'drafted_tokens')),
    note: (all) => `${count(sum(all, 'accepted_tokens'))} of ${count(sum(all, 'drafted_tokens'))}`,
  },
  {
    title: 'At work',
    value: (all) => share(Math.max(0, ...all.map((one) => one.utilisation)), 1),
    note: (all) => `${count(sum(all, 'preemptions'))} preemptions`,
    line: (all) => Math.max(0, ...all.map((one) => one.utilisation)),
  },
];

function percentiles(title, name) {
  const shown = (all) => all.map((one) => one[name]).filter(Boolean);
  const worst = (all, rank) => Math.max(...shown(all).map((one) => one[rank])) / 1000;
  return {
    title,
    value: (all) => (shown(all).length ? duration(worst(all, 'p50')) : '–'),
    unit: 'p50',
    note: (all) =>
      shown(all).length
        ? `p90 ${duration(worst(all, 'p90'))} · p99 ${duration(worst(all, 'p99'))}`
        : 'none in the last minute',
  };
}

/** The row of cards. */
export class Figures {
  constructor() {
    this._cards = CARDS.map((card) => new CardView(card));
    this.node = el('div.cards', {}, ...this._cards.map((one) => one.node));
  }

  /** @param {Object[]} states The events `state` of the shown models. */
  show(states) {
    if (states.length) for (const one of this._cards) one.show(states);
  }

  /** @returns {[string, string][]} Titles and texts, for the table. */
  get texts() {
    return this._cards.map((one) => one.text);
  }

  /** Forget the lines. */
  clear() {
    for (const one of this._cards) one.points = [];
  }

  /** End the drawing. */
  close() {
    for (const one of this._cards) one.canvas?.close();
  }
}

class CardView {
  constructor(card) {
    this._card = card;
    this.points = [];
    this._value = el('b');
    this._note = el('span.gauge-note');
    const value = el('span.gauge-value', {}, this._value, card.unit ? el('small', {}, card.unit) : '');
    this.node = el('div.gauge', {}, el('span.gauge-title', {}, card.title), value, this._note);
    if (!card.line) return;
    const box = el('div.spark');
    this.node.append(box);
    this.canvas = new Canvas(box, { 'aria-hidden': 'true' }, () => this._draw());
  }

  show(states) {
    const { value, note, line } = this._card;
    this._value.textContent = value(states);
    this._note.textContent = note ? note(states) : '';
    if (!line) return;
    this.points = [...this.points.slice(1 - POINTS), line(states)];
    this._draw();
  }

  get text() {
    const { title, unit } = this._card;
    const note = this._note.textContent;
    return [title, `${this._value.textContent} ${unit ?? ''}${note ? `, ${note}` : ''}`];
  }

  _draw() {
    const { canvas, points } = this;
    if (!canvas) return;
    const context = canvas.begin();
    if (points.length < 2) return;
    const most = Math.max(...points, 1e-9);
    const place = (index) => [
      canvas.width * (1 - (points.length - 1 - index) / (POINTS - 1)),
      canvas.height - 1 - (points[index] / most) * (canvas.height - 3),
    ];
    context.beginPath();
    points.forEach((_, index) => context.lineTo(...place(index)));
    context.strokeStyle = getComputedStyle(canvas.node).color;
    context.lineWidth = 1.5;
    context.stroke();
    context.lineTo(canvas.width, canvas.height);
    context.lineTo(place(0)[0], canvas.height);
    context.globalAlpha = 0.12;
    context.fillStyle = context.strokeStyle;
    context.fill();
    context.globalAlpha = 1;
  }
}

function sum(states, name) {
  return states.reduce((total, one) => total + (one[name] ?? 0), 0);
}
