// Draws a lane for each slot: who holds it, prefill, decode, guesses, and the queue below.

import { count } from '../format.js';

/** Pixels left of the lanes, for their names. @type {number} */
export const GUTTER = 58;
const AXIS = 18;
const TOP = 4;
const HEAD = 18;
const QUEUE_ROWS = 5;
const QUEUE_ROW = 5;
const QUEUE = QUEUE_ROWS * QUEUE_ROW + 10;
const LEAST = 7;
const MOST = 30;
const SEPARATED = 5;
const FONT = '11px system-ui, sans-serif';

/** @typedef {{kind: 'head'|'slot'|'queue', model: Object, slot: number, y: number, height: number}} Row */

/**
 * Place the rows of all models.
 * @param {import('./record.js').ModelRecord[]} models
 * @param {number} room The height that may be used without scrolling.
 * @returns {{rows: Row[], height: number}}
 */
export function placed(models, room) {
  const heads = models.length > 1 ? HEAD : 0;
  const slots = models.reduce((sum, one) => sum + one.runs.length, 0);
  const left = room - TOP - AXIS - models.length * (heads + QUEUE);
  const lane = Math.max(LEAST, Math.min(MOST, Math.floor(left / Math.max(1, slots))));
  const rows = [];
  let y = TOP;
  const add = (kind, model, slot, height) => {
    rows.push({ kind, model, slot, y, height });
    y += height;
  };
  for (const model of models) {
    if (heads) add('head', model, -1, HEAD);
    for (let slot = 0; slot < model.runs.length; slot += 1) add('slot', model, slot, lane);
    add('queue', model, -1, QUEUE);
  }
  return { rows, height: y + AXIS };
}

/** Draws the rows that are in sight. */
export class LanePainter {
  /** @param {import('./viewport.js').Viewport} viewport */
  constructor(viewport) {
    this._viewport = viewport;
  }

  /**
   * @param {import('./canvas.js').Canvas} canvas
   * @param {Row[]} rows
   * @param {number} scrolled
   * @param {Object<string, string>} colours
   * @param {{model: string, request: number}|null} chosen
   * @param {number} now
   */
  draw(canvas, rows, scrolled, colours, chosen, now) {
    const context = canvas.begin();
    Object.assign(this, { _context: context, _colours: colours, _chosen: chosen, _now: now, _outline: null });
    context.font = FONT;
    context.textBaseline = 'middle';
    const shown = rows.filter(
      (row) => row.y + row.height > scrolled && row.y < scrolled + canvas.height - AXIS,
    );
    context.save();
    context.beginPath();
    context.rect(0, 0, canvas.width, canvas.height - AXIS);
    context.clip();
    this._wide = new Set(models(shown).filter((one) => isWide(one, this._viewport)));
    for (const row of shown) this._row(row, row.y - scrolled);
    context.beginPath();
    context.rect(this._viewport.left, 0, this._viewport.width, canvas.height - AXIS);
    context.clip();
    for (const model of this._wide) {
      this._steps(
        model,
        shown.filter((one) => one.kind === 'slot'),
        scrolled,
      );
    }
    if (this._outline) this._frame(this._outline);
    context.restore();
    this._axis(canvas);
  }

  _row(row, y) {
    const { _context: context, _colours: colours } = this;
    const { left, width } = this._viewport;
    if (row.kind === 'head') {
      context.fillStyle = colours.ink;
      context.textAlign = 'left';
      context.fillText(row.model.name, 0, y + row.height / 2);
      return;
    }
    context.save();
    context.beginPath();
    context.rect(left, y, width, row.height);
    context.clip();
    if (row.kind === 'slot') this._lane(row, y);
    else this._queue(row.model, y);
    context.restore();
    this._label(row, y);
  }

  _label(row, y) {
    const { _context: context, _colours: colours } = this;
    const isQueue = row.kind === 'queue';
    if (!isQueue && row.height < 10 && row.slot % 4) return;
    const waiting = isQueue ? row.model.waiting.length : 0;
    context.fillStyle = colours['ink-soft'];
    context.textAlign = 'right';
    const text = isQueue ? (waiting ? `${count(waiting)} wait` : 'queue') : String(row.slot);
    context.fillText(text, GUTTER - 6, y + row.height / 2 + (isQueue ? 1 : 0));
  }

  _lane(row, y) {
    const { _context: context, _colours: colours } = this;
    const { left, width } = this._viewport;
    const height = heightOf(row);
    context.fillStyle = colours.sunken;
    context.fillRect(left, y, width, height);
    const { from, to } = this._viewport;
    const runs = row.model.runs[row.slot];
    const first = firstAfter(runs, from);
    this._held(row, y, height, runs, first);
    for (let place = first; place < runs.length && runs[place].from < to; place += 1) {
      const run = runs[place];
      if (run.decode) this._decode(run, row.model, y, height);
      else this._prefill(run, row.model, y, height);
    }
  }

  /** Who holds the slot, from its first step to its end; what waited; what drains. */
  _held(row, y, height, runs, first) {
    const { _context: context, _colours: colours } = this;
    for (let place = first; place < runs.length;) {
      const { request, from } = runs[place];
      let end = place;
      while (end + 1 < runs.length && runs[end + 1].request === request) end += 1;
      const known = row.model.requests.get(request);
      const holds = known?.slot === row.slot && known.state !== 'done';
      const to = holds ? this._now : runs[end].to;
      context.fillStyle = colours.held;
      this._bar(from, to, y, height);
      if (known?.drained) {
        context.fillStyle = colours.drain;
        this._bar(known.drained, known.ended ?? this._now, y, height);
      }
      if (known) this._wait(known.submitted, known.started ?? from, y, height);
      if (this._isChosen(row.model, request)) this._outline = { from, to, y, height };
      place = end + 1;
    }
  }

  _frame({ from, to, y, height }) {
    const { _context: context, _viewport: viewport } = this;
    const x = viewport.x(from);
    context.strokeStyle = this._colours.ink;
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, Math.max(2, viewport.x(to) - x - 2), height - 2);
  }

  _isChosen(model, request) {
    return this._chosen?.request === request && this._chosen.model === model.name;
  }

  _wait(from, to, y, height) {
    const { _context: context, _colours: colours } = this;
    context.fillStyle = colours.waiting;
    const thick = height > 12 ? 3 : 2;
    this._bar(from, to, y + height - thick, thick, 0);
  }

  _prefill(run, model, y, height) {
    const { _context: context, _colours: colours } = this;
    const known = model.requests.get(run.request);
    const cached = known?.prompt_tokens ? known.cached_tokens / known.prompt_tokens : 0;
    context.fillStyle = colours.prefill;
    this._bar(run.from, run.to, y, height, 3);
    if (!cached) return;
    context.fillStyle = colours.cached;
    const part = Math.max(2, Math.round(cached * height));
    this._bar(run.from, run.to, y + height - part, part, 3);
  }

  _decode(run, model, y, height) {
    const { _context: context, _colours: colours } = this;
    context.fillStyle = colours.decode;
    const inset = height > 12 ? 2 : 1;
    this._bar(run.from, run.to, y + inset, height - 2 * inset);
    if (run.guesses && !this._wide.has(model)) this._guesses(run, y, height);
  }

  _guesses({ from, to, guesses, right }, y, height) {
    const { _context: context, _colours: colours, _viewport: viewport } = this;
    const thick = Math.max(2, Math.round(height * 0.3));
    const middle = from + ((to - from) * right) / guesses;
    context.fillStyle = colours.right;
    this._bar(from, middle, y + height - thick, thick, 0);
    context.fillStyle = colours.wrong;
    this._bar(middle, to, y + height - thick, thick, 0);
  }

  /** Where steps are wide enough: a line at the end of each, and the guesses of each. */
  _steps(model, rows, scrolled) {
    const { _context: context, _colours: colours, _viewport: viewport } = this;
    const places = new Map(rows.filter((one) => one.model === model).map((one) => [one.slot, one]));
    for (const step of stepsIn(model, viewport)) {
      const x = viewport.x(step.to) - 1;
      const isSeparated = (step.to - step.from) * viewport.scale >= SEPARATED;
      for (const [slot, , , , , guesses, right] of step.rows) {
        const row = places.get(slot);
        if (!row) continue;
        const [y, height] = [row.y - scrolled, heightOf(row)];
        if (guesses) this._guesses({ from: step.from, to: step.to, guesses, right }, y, height);
        if (!isSeparated) continue;
        context.fillStyle = colours.sunken;
        context.fillRect(x, y, 1, height);
      }
    }
  }

  _queue(model, y) {
    const { _context: context, _colours: colours, _viewport: viewport } = this;
    const top = y + 4;
    model.waiting.slice(0, QUEUE_ROWS).forEach((one, place) => {
      context.fillStyle = this._isChosen(model, one.id) ? colours.ink : colours.waiting;
      this._bar(one.submitted, this._now, top + place * QUEUE_ROW, QUEUE_ROW - 2);
    });
    context.fillStyle = colours.line;
    context.fillRect(viewport.left, y + QUEUE - 4, viewport.width, 1);
  }

  _bar(from, to, y, height, least = 1) {
    const { _viewport: viewport } = this;
    const x = viewport.x(from);
    const width = Math.max(least, viewport.x(to) - x);
    if (x + width < viewport.left || x > viewport.left + viewport.width) return;
    this._context.fillRect(x, y, width, height);
  }

  _axis(canvas) {
    const { _context: context, _colours: colours, _viewport: viewport } = this;
    const y = canvas.height - AXIS;
    const every = [0.25, 0.5, 1, 2, 5, 10].find((one) => one * viewport.scale > 55) ?? 20;
    context.fillStyle = colours['ink-soft'];
    context.textAlign = 'center';
    const behind = viewport.isPaused ? this._now - viewport.to : 0;
    const first = Math.ceil(behind / every) * every;
    for (let ago = first; ago <= behind + viewport.seconds; ago += every) {
      const x = viewport.x(viewport.to + behind - ago);
      if (x < viewport.left + 12) break;
      context.fillRect(x, y, 1, 4);
      const text = ago ? `−${Number(ago.toFixed(2))} s` : 'now';
      context.textAlign = x > viewport.left + viewport.width - 16 ? 'right' : 'center';
      context.fillText(text, x, y + 11);
    }
  }
}

/** The height of a lane without the gap below. */
function heightOf(row) {
  return row.height - (row.height > 12 ? 3 : 1);
}

function models(rows) {
  return [...new Set(rows.map((one) => one.model))];
}

function stepsIn({ steps }, { from, to }) {
  const shown = steps.slice(firstAfter(steps, from));
  const end = shown.findIndex((one) => one.from > to);
  return end < 0 ? shown : shown.slice(0, end);
}

/** Whether steps of a model are wide enough to be shown one by one. */
function isWide(model, viewport) {
  const shown = stepsIn(model, viewport);
  const seconds = shown.reduce((sum, one) => sum + one.to - one.from, 0);
  return shown.length > 0 && (seconds / shown.length) * viewport.scale >= SEPARATED;
}

/**
 * What is at a place of a lane.
 * @param {Row} row
 * @param {number} y Within the row.
 * @param {number} time
 * @param {number} slack Seconds beside it that count, too.
 * @returns {Object|null} A request.
 */
export function requestAt(row, y, time, slack) {
  if (row.kind === 'queue') {
    const waiting = row.model.waiting.slice(0, QUEUE_ROWS);
    const one = waiting[Math.floor((y - 4) / QUEUE_ROW)];
    return one && one.submitted <= time + slack ? one : null;
  }
  if (row.kind !== 'slot') return null;
  const { requests } = row.model;
  const runs = row.model.runs[row.slot];
  const run = runs.findLast((one) => one.from - slack <= time && time <= one.to + slack);
  if (run) return requests.get(run.request) ?? { id: run.request };
  const mine = [...requests.values()].filter((one) => one.lane === row.slot);
  return mine.find((one) => one.submitted <= time && time <= (one.ended ?? Infinity)) ?? null;
}

/** The place of the first element that ends after a time; `list` is in order of time. */
export function firstAfter(list, time) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].to < time) low = middle + 1;
    else high = middle;
  }
  return low;
}
