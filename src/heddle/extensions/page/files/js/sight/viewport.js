// Which part of time is shown: the zoom, and whether it moves on.

/** Widths in seconds that the buttons offer. */
export const ZOOMS = [60, 30, 10, 5, 2];

/** Events arrive a tenth of a second late, so the newest moment that is shown is this old. */
const LAG = 0.25;
const KEPT = 60;

/** The shown part of time, from `from` to `to`, in the server's seconds. */
export class Viewport {
  /** @param {import('./record.js').SightRecord} record */
  constructor(record) {
    this._record = record;
    this.seconds = 30;
    this.from = 0;
    this.to = 0;
    this.isPaused = false;
    this.left = 0;
    this.width = 1;
    this.step = matchMedia('(prefers-reduced-motion: reduce)').matches ? 1 : 0;
  }

  /**
   * Move on to now, by whole pixels of the screen, so that a frame that looks the same is left out.
   * @param {number} left Where the time begins, in pixels.
   * @param {number} width
   * @param {number} ratio Pixels of the screen in a pixel.
   * @returns {boolean} Whether something moved.
   */
  advance(left, width, ratio) {
    const [formerLeft, formerWidth, formerTo] = [this.left, this.width, this.to];
    const formerFrom = this.from;
    this.left = left;
    this.width = Math.max(1, width);
    if (!this.isPaused) {
      const grain = this.step || this.seconds / (this.width * ratio);
      this.to = Math.floor((this._record.now - LAG) / grain) * grain;
    }
    this.from = this.to - this.seconds;
    return (
      formerTo !== this.to || formerFrom !== this.from || formerLeft !== left || formerWidth !== this.width
    );
  }

  /** @returns {number} Pixels of a second. */
  get scale() {
    return this.width / this.seconds;
  }

  /** @returns {number} The place of a time. */
  x(time) {
    return this.left + (time - this.from) * this.scale;
  }

  /** @returns {number} The time at a place. */
  timeAt(x) {
    return this.from + (x - this.left) / this.scale;
  }

  /**
   * Zoom to a width in seconds, around a time that keeps its place if the time stands.
   * @param {number} seconds
   * @param {number} [around]
   */
  zoom(seconds, around = this.to) {
    const wanted = Math.min(60, Math.max(2, seconds));
    if (this.isPaused) {
      const behind = (this.to - around) / this.seconds;
      this.to = around + behind * wanted;
    }
    this.seconds = wanted;
    this.pan(0);
  }

  /**
   * Move by seconds, as far as the record goes. Time stands afterwards, if it moved.
   * @param {number} seconds
   */
  pan(seconds) {
    if (seconds) this.isPaused = true;
    if (!this.isPaused) return;
    const newest = this._record.now - LAG;
    const oldest = Math.min(newest, newest - KEPT + this.seconds);
    this.to = Math.min(newest, Math.max(oldest, this.to + seconds));
  }
}
