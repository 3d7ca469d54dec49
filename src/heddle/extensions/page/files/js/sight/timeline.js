// The timeline: lanes and steps on two canvases with one time, the pointer, the keys.

import { el } from '../dom.js';
import { count, duration, many } from '../format.js';
import { Canvas } from './canvas.js';
import { coloursOf, onScheme } from './colours.js';
import { firstAfter, GUTTER, LanePainter, placed, requestAt } from './lanes.js';
import { STRIP, StripPainter } from './strip.js';

const SLACK = 4;
const ROOM_LEAST = 180;
const ROOM_SHARE = 0.46;

/** Draws at most once a frame, and only if something moved or changed. */
export class Timeline {
  /**
   * @param {import('./record.js').SightRecord} record
   * @param {import('./viewport.js').Viewport} viewport
   * @param {{shown: () => import('./record.js').ModelRecord[],
   *   choose: (model: string, request: number) => void, moved: () => void}} view
   */
  constructor(record, viewport, view) {
    Object.assign(this, { _record: record, _viewport: viewport, _view: view });
    this._chosen = null;
    this._rows = [];
    this._drawn = -1;
    this._due = 0;
    this._build();
    this._lanePainter = new LanePainter(viewport);
    this._stripPainter = new StripPainter(viewport);
    this._endScheme = onScheme(() => {
      this._colours = null;
      this.touch();
    });
    this._frame = requestAnimationFrame(() => this._next());
  }

  /** End the drawing. */
  close() {
    cancelAnimationFrame(this._frame);
    this._endScheme();
    this._lanes.close();
    this._strip.close();
  }

  /** Draw again in the next frame. */
  touch() {
    this._drawn = -1;
  }

  /** @param {{model: string, request: number}|null} chosen The request with an outline. */
  mark(chosen) {
    this._chosen = chosen;
    this.touch();
  }

  /** @param {string} text What screen readers say of the pictures. */
  describe(text) {
    if (this._lanes.node.getAttribute('aria-label') !== text) {
      this._lanes.node.setAttribute('aria-label', text);
    }
  }

  _build() {
    const window_ = el('div.lanes-window');
    this._spacer = el('div.lanes-spacer');
    this._scroller = el(
      'div.lanes',
      { tabindex: 0, role: 'group', 'aria-label': 'Slots over time', onscroll: () => this.touch() },
      this._spacer,
      window_,
    );
    this._stripBox = el('div.strip');
    this._tip = el('div.tip', { hidden: true });
    this.node = el('div.timeline', {}, this._scroller, this._stripBox, this._tip);
    this._lanes = new Canvas(window_, { role: 'img' }, () => this.touch());
    const says = 'Steps over time: tokens of prefill and decode, and milliseconds';
    this._strip = new Canvas(this._stripBox, { role: 'img', 'aria-label': says }, () => this.touch());
    this.node.addEventListener('pointermove', (event) => this._hover(event));
    this.node.addEventListener('pointerleave', () => this._hide());
    this.node.addEventListener('pointerdown', (event) => this._press(event));
    this.node.addEventListener('wheel', (event) => this._wheel(event), { passive: false });
    this._scroller.addEventListener('keydown', (event) => this._key(event));
  }

  _next() {
    this._frame = requestAnimationFrame(() => this._next());
    const began = performance.now();
    if (!this._record.hello || began < this._due) return;
    const { _lanes: lanes, _viewport: viewport, _record: record } = this;
    const moved = viewport.advance(GUTTER, lanes.width - GUTTER, lanes.ratio);
    if (!moved && this._drawn === record.changes) return;
    this._drawn = record.changes;
    const models = this._view.shown();
    this._place(models);
    this._colours ??= coloursOf(this.node);
    const now = viewport.isPaused ? record.now : viewport.to;
    this._lanePainter.draw(lanes, this._rows, this._scroller.scrollTop, this._colours, this._chosen, now);
    this._stripPainter.draw(this._strip, models, this._colours);
    const ended = performance.now();
    this._due = ended + ended - began; // at most half of the time is for drawing
  }

  _place(models) {
    const room = Math.max(ROOM_LEAST, ROOM_SHARE * innerHeight);
    const { rows, height } = placed(models, room);
    this._rows = rows;
    const sizes = `${height} ${room} ${models.length}`;
    if (this._sizes === sizes) return;
    this._sizes = sizes;
    this._spacer.style.height = `${height}px`;
    this._scroller.style.height = `${Math.min(height, room)}px`;
    this._stripBox.style.height = `${models.length * STRIP}px`;
  }

  /** What is under the pointer: its time, and its row or model. */
  _under(event) {
    const box = this._scroller.getBoundingClientRect();
    const time = this._viewport.timeAt(event.clientX - box.left);
    if (event.clientX - box.left < GUTTER) return { time };
    if (event.clientY < box.bottom) {
      const y = event.clientY - box.top + this._scroller.scrollTop;
      const row = this._rows.find((one) => y >= one.y && y < one.y + one.height);
      const request = row && requestAt(row, y - row.y, time, SLACK / this._viewport.scale);
      return { time, row, request };
    }
    const place = Math.floor((event.clientY - box.bottom) / STRIP);
    return { time, stripOf: this._view.shown()[place] };
  }

  _hover(event) {
    if (event.buttons && this._drag) return this._pan(event);
    const { time, row, request, stripOf } = this._under(event);
    const lines = request
      ? aboutRequest(request, stepAt(row.model, time), time)
      : stripOf
        ? aboutStep(stepAt(stripOf, time))
        : [];
    if (!lines.length) return this._hide();
    this._tip.replaceChildren(...lines.map((one) => el('div', {}, one)));
    this._tip.hidden = false;
    const box = this.node.getBoundingClientRect();
    const x = event.clientX - box.left;
    const isRight = x > box.width / 2;
    this._tip.style.left = isRight ? 'auto' : `${x + 14}px`;
    this._tip.style.right = isRight ? `${box.width - x + 14}px` : 'auto';
    this._tip.style.top = `${Math.min(event.clientY - box.top + 12, box.height - 70)}px`;
    this.node.classList.toggle('points', Boolean(request));
  }

  _hide() {
    this._tip.hidden = true;
    this.node.classList.remove('points');
  }

  _press(event) {
    if (event.button !== 0) return;
    this._drag = { x: event.clientX, moved: false };
    const release = () => {
      removeEventListener('pointerup', release);
      const { moved } = this._drag;
      this._drag = null;
      const { row, request } = this._under(event);
      if (!moved && request) this._view.choose(row.model.name, request.id);
    };
    addEventListener('pointerup', release);
  }

  _pan(event) {
    const by = event.clientX - this._drag.x;
    if (!this._drag.moved && Math.abs(by) < SLACK) return;
    this._drag = { x: event.clientX, moved: true };
    this._hide();
    this._viewport.pan(-by / this._viewport.scale);
    this._view.moved();
  }

  _wheel(event) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !sideways) return;
    event.preventDefault();
    if (sideways) this._viewport.pan(event.deltaX / this._viewport.scale);
    else {
      const { time } = this._under(event);
      this._viewport.zoom(this._viewport.seconds * 1.003 ** event.deltaY, time);
    }
    this.touch();
    this._view.moved();
  }

  _key(event) {
    const by = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
    if (!by) return;
    event.preventDefault();
    this._viewport.pan(by * this._viewport.seconds);
    this._view.moved();
  }
}

function stepAt(model, time) {
  return model?.steps[firstAfter(model.steps, time)];
}

function aboutRequest(one, step, time) {
  const mine = step && step.from <= time ? step.rows.find((row) => row[1] === one.id) : null;
  const lines = [`${one.label || `request ${one.id}`}${one.client ? ` · ${one.client}` : ''}`];
  if (one.state) {
    const cached = one.cached_tokens ? ` (${count(one.cached_tokens)} cached)` : '';
    lines.push(
      `${one.state}: ${many(one.prompt_tokens, 'prompt token')}${cached}, ${count(one.output_tokens)} out`,
    );
  }
  if (mine) {
    const what = mine[2] ? 'decode' : 'prefill';
    const guesses = mine[5] ? `, ${mine[6]} of ${mine[5]} guesses right` : '';
    lines.push(
      `step ${step.number}: ${what} of ${many(mine[4], 'token')} in ${duration(step.ms / 1000)}${guesses}`,
    );
  }
  return lines;
}

function aboutStep(step) {
  if (!step) return [];
  const parts = [
    step.prefill ? `${count(step.prefill)} prefill` : '',
    step.decode ? `${count(step.decode)} decode` : '',
  ].filter(Boolean);
  return [
    `step ${step.number}: ${duration(step.ms / 1000)}`,
    `${parts.join(' + ')} tokens of ${many(step.rows.length, 'request')}`,
  ];
}
