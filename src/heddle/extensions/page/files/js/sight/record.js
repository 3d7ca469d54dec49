// What was seen of the engines in the last minute: steps, runs of steps in each slot, requests.

const KEPT_SECONDS = 66;
const GUESS_SECONDS = 0.5;

/**
 * Steps of one request in one slot, one after the other: one chunk of a prompt, or many decodes.
 * @typedef {{request: number, decode: number, from: number, to: number, start: number,
 *   tokens: number, steps: number, guesses: number, right: number, last: number}} Run
 */

/**
 * @typedef {{number: number, from: number, to: number, ms: number, rows: number[][],
 *   prefill: number, decode: number}} Step
 */

/** One model. */
export class ModelRecord {
  /** @param {Object} sizes Its entry in the event `hello`. */
  constructor(sizes) {
    this.sizes = sizes;
    this.name = sizes.name;
    /** @type {Step[]} */
    this.steps = [];
    /** @type {Run[][]} By slot. */
    this.runs = Array.from({ length: sizes.slots }, () => []);
    /** @type {Map<number, Object>} By id. */
    this.requests = new Map();
    this.state = null;
    this.lost = 0;
  }

  /** @param {{lost: number, steps: any[][]}} data The event `steps`. */
  addSteps({ lost, steps }) {
    this.lost += lost;
    for (const [number, end, ms, rows] of steps) {
      const step = { number, from: end - ms / 1000, to: end, ms, rows, prefill: 0, decode: 0 };
      for (const row of rows) this._addRow(step, row);
      this.steps.push(step);
    }
  }

  /** @param {{requests: Object[]}} data The event `requests`. */
  addRequests({ requests }, now) {
    for (const one of requests) {
      const former = this.requests.get(one.id);
      const lane = one.slot ?? former?.lane ?? null;
      const drained = one.state === 'draining' ? (former?.drained ?? now) : former?.drained;
      this.requests.set(one.id, { ...one, lane, drained });
    }
  }

  /**
   * Forget what ended long ago.
   * @param {number} now
   */
  forget(now) {
    const oldest = now - KEPT_SECONDS;
    dropBefore(this.steps, oldest);
    for (const runs of this.runs) dropBefore(runs, oldest);
    for (const [id, one] of this.requests) if (one.ended && one.ended < oldest) this.requests.delete(id);
  }

  /** @returns {Object[]} The requests that wait for a slot, the oldest first. */
  get waiting() {
    return [...this.requests.values()]
      .filter((one) => one.state === 'waiting')
      .sort((a, b) => a.submitted - b.submitted);
  }

  /** @returns {Map<number, Object>} The requests that hold a slot, by slot. */
  get running() {
    const held = [...this.requests.values()].filter((one) => one.slot !== null && one.state !== 'done');
    return new Map(held.map((one) => [one.slot, one]));
  }

  /**
   * The steps of one request, as far as the record goes back.
   * @param {number} id
   * @returns {{step: Step, row: number[]}[]}
   */
  stepsOf(id) {
    const found = [];
    for (const step of this.steps) {
      const row = step.rows.find((one) => one[1] === id);
      if (row) found.push({ step, row });
    }
    return found;
  }

  _addRow(step, [slot, request, decode, start, tokens, guesses, right]) {
    if (decode) step.decode += tokens;
    else step.prefill += tokens;
    const runs = (this.runs[slot] ??= []);
    const last = runs.at(-1);
    const fits =
      decode &&
      last?.decode &&
      last.request === request &&
      last.last === step.number - 1 &&
      (!(guesses || last.guesses) || step.to - last.from < GUESS_SECONDS);
    if (fits) {
      last.to = step.to;
      last.last = step.number;
      last.steps += 1;
      last.tokens += tokens;
      last.guesses += guesses;
      last.right += right;
      return;
    }
    const { from, to, number } = step;
    runs.push({ request, decode, from, to, start, tokens, steps: 1, guesses, right, last: number });
    const known = this.requests.get(request);
    if (known) known.lane = slot;
  }
}

/** All models, and the server's clock. */
export class SightRecord {
  constructor() {
    this.clear();
  }

  /** Forget all: a new connection brings the last minute again. */
  clear() {
    /** @type {Map<string, ModelRecord>} */
    this.models = new Map();
    this.hello = null;
    this.changes = 0;
    this._offset = -Infinity;
  }

  /** @returns {number} The server's clock now, in seconds. */
  get now() {
    return performance.now() / 1000 + this._offset;
  }

  /**
   * Take an event of the server.
   * @param {string} name
   * @param {any} data
   */
  take(name, data) {
    this.changes += 1;
    if (name === 'hello') return this._greet(data);
    const model = this.models.get(data.model);
    if (!model) return;
    if (name === 'steps') model.addSteps(data);
    else if (name === 'requests') model.addRequests(data, this.now);
    else if (name === 'state') {
      model.state = data;
      this._tick(data.t);
      model.forget(data.t);
    }
  }

  _greet(hello) {
    this.hello = hello;
    this._tick(hello.now);
    const known = this.models;
    this.models = new Map();
    for (const sizes of hello.models) {
      const former = known.get(sizes.name);
      const isSame = former?.sizes.since === sizes.since;
      this.models.set(sizes.name, isSame ? former : new ModelRecord(sizes));
    }
  }

  /** Set the clock by a time that the server sent. The frame that came fastest is right. */
  _tick(time) {
    this._offset = Math.max(this._offset, time - performance.now() / 1000);
  }
}

function dropBefore(list, oldest) {
  let end = 0;
  while (end < list.length && list[end].to < oldest) end += 1;
  if (end) list.splice(0, end);
}
