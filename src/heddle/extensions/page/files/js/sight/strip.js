// Draws the steps below the lanes: their tokens, stacked, and how long they took.

import { count } from '../format.js';
import { firstAfter, GUTTER } from './lanes.js';

const FONT = '11px system-ui, sans-serif';
const PAD = 6;
const TOKENS_SHARE = 0.56;

/** The height of the strip of one model. */
export const STRIP = 104;

/** Draws one strip for each model. */
export class StripPainter {
  /** @param {import('./viewport.js').Viewport} viewport */
  constructor(viewport) {
    this._viewport = viewport;
  }

  /**
   * @param {import('./canvas.js').Canvas} canvas
   * @param {import('./record.js').ModelRecord[]} models
   * @param {Object<string, string>} colours
   */
  draw(canvas, models, colours) {
    const context = canvas.begin();
    context.font = FONT;
    context.textBaseline = 'middle';
    models.forEach((model, place) => {
      const columns = this._columns(model, canvas.ratio);
      const top = place * STRIP;
      const middle = top + STRIP * TOKENS_SHARE;
      this._tokens(context, columns, top + PAD, middle - PAD, colours);
      this._times(context, columns, middle + PAD / 2, top + STRIP - PAD, colours);
    });
  }

  /** The steps by columns of the screen; of several in one column, the largest. */
  _columns(model, ratio) {
    const { _viewport: viewport } = this;
    const size = Math.ceil(viewport.width * ratio);
    const columns = [];
    let [tokens, ms] = [1, 1];
    let last = null;
    for (let place = firstAfter(model.steps, viewport.from); place < model.steps.length; place += 1) {
      const step = model.steps[place];
      if (step.from > viewport.to) break;
      const from = Math.floor((viewport.x(step.from) - viewport.left) * ratio);
      const to = Math.max(from + 1, Math.round((viewport.x(step.to) - viewport.left) * ratio));
      tokens = Math.max(tokens, step.prefill + step.decode);
      ms = Math.max(ms, step.ms);
      if (last && from < last.from + 1) {
        last.to = Math.max(last.to, to);
        if (step.prefill + step.decode > last.prefill + last.decode) {
          last.prefill = step.prefill;
          last.decode = step.decode;
        }
        last.ms = Math.max(last.ms, step.ms);
      } else {
        last = { from, to: Math.min(size, to), prefill: step.prefill, decode: step.decode, ms: step.ms };
        columns.push(last);
      }
    }
    return { columns, tokens: roundUp(tokens), ms: roundUp(ms), ratio };
  }

  _tokens(context, { columns, tokens, ratio }, top, bottom, colours) {
    this._scale(context, `${count(tokens)} tok`, top, bottom, colours);
    const height = bottom - top;
    const draw = (name, from, amount) => {
      context.fillStyle = colours[name];
      for (const one of columns) {
        const size = amount(one);
        if (!size) continue;
        const y = bottom - ((from(one) + size) / tokens) * height;
        this._column(context, one, ratio, y, Math.max(1, (size / tokens) * height));
      }
    };
    draw(
      'decode',
      () => 0,
      (one) => one.decode,
    );
    draw(
      'prefill',
      (one) => one.decode,
      (one) => one.prefill,
    );
  }

  _times(context, { columns, ms, ratio }, top, bottom, colours) {
    this._scale(context, ms < 1 ? `${ms} ms` : `${count(ms)} ms`, top, bottom, colours);
    context.fillStyle = colours['line-strong'];
    const height = bottom - top;
    for (const one of columns) {
      const size = Math.max(1, (one.ms / ms) * height);
      this._column(context, one, ratio, bottom - size, size);
    }
  }

  _column(context, { from, to }, ratio, y, height) {
    const gap = to - from > 4 * ratio ? 1 : 0;
    const left = this._viewport.left + Math.max(0, from) / ratio;
    context.fillRect(left, y, Math.max(0.5, (to - Math.max(0, from) - gap) / ratio), height);
  }

  _scale(context, text, top, bottom, colours) {
    const { left, width } = this._viewport;
    context.fillStyle = colours.line;
    context.fillRect(left, bottom, width, 1);
    context.fillStyle = colours['ink-soft'];
    context.textAlign = 'right';
    context.fillText(text, GUTTER - 6, top + 5);
  }
}

/** The next of 1, 2, 5, 10, 20, 50 and so on. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= value);
}
