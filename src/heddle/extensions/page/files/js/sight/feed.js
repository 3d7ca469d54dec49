// The connection to the events of the engines. It comes back when the server does.

const AGAIN_MS = [500, 1000, 2000, 4000];

/** Reads events into a record, until it is closed. */
export class Feed {
  /**
   * @param {import('../api.js').Api} api
   * @param {import('./record.js').SightRecord} record
   * @param {(trouble: string) => void} onTrouble Called with what is wrong; empty: nothing.
   */
  constructor(api, record, onTrouble) {
    this._api = api;
    this._record = record;
    this._onTrouble = onTrouble;
    this._ending = new AbortController();
    this._read();
  }

  /** End the connection. */
  close() {
    this._ending.abort();
  }

  async _read() {
    const { signal } = this._ending;
    for (let failures = 0; !signal.aborted; failures += 1) {
      const before = this._record.changes;
      try {
        await this._readOnce(signal);
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401) {
          this._onTrouble(error.message);
          await this._api.givenKey(signal);
          continue;
        }
        if (error.status > 0 && error.status < 500 && error.status !== 429) {
          this._onTrouble(error.message);
          return;
        }
        if (error.status === 501) return void this._onTrouble(error.message);
        this._onTrouble(`${error.message} Trying again…`);
      }
      if (this._record.changes !== before) failures = 0;
      await pause(AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)], signal);
    }
  }

  async _readOnce(signal) {
    let isFirst = true;
    for await (const [name, data] of this._api.watch('/v1/engine/events', signal)) {
      if (isFirst) {
        this._record.clear();
        this._onTrouble('');
      }
      isFirst = false;
      this._record.take(name, data);
    }
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
