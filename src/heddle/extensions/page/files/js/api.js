// Speaks with the server: requests with the key, and streams of events.

/** The page may be behind a path prefix, where other servers have other keys. */
const KEY = `heddle-key ${location.pathname}`;

/** An error of the server, or of the way to it. */
export class Failure extends Error {
  /**
   * @param {string} message
   * @param {number} status The HTTP status; 0: the server did not answer.
   */
  constructor(message, status) {
    super(message);
    this.status = status;
  }

  /** @returns {boolean} Whether the server did not answer, or stopped in the middle. */
  get isLoss() {
    return this.status === 0;
  }
}

/**
 * The server, as the page uses it. The key stays in this tab. Dispatches `key` when the user has given
 * one, and `refused` when the user gave none.
 */
export class Api extends EventTarget {
  /** @param {(message: string) => Promise<string|null>} askUser Asks the user for a key. */
  constructor(askUser) {
    super();
    this._askUser = askUser;
    this._asking = null;
    this._isRefused = false;
    /** Called when the server may be away. */
    this.onDoubt = () => {};
  }

  /**
   * Send a request, and ask for a key if the server wants one. A user who has given none is asked
   * again only for an action: a request that has a method and is not `isQuiet`.
   * @param {string} path From the page's address on, which a proxy may have put behind a prefix.
   * @param {{method?: string, body?: any, signal?: AbortSignal, isQuiet?: boolean}} [options]
   *   The body becomes JSON.
   * @returns {Promise<Response>} A response with a status of success.
   */
  async request(path, options = {}) {
    for (;;) {
      const sent = sessionStorage.getItem(KEY);
      const response = await this._fetch(path, options, sent);
      if (response.ok) return response;
      const message = await messageOf(response);
      if (response.status !== 401) throw new Failure(message, response.status);
      const isAction = Boolean(options.method) && !options.isQuiet;
      if (!(await this._newKey(sent, message, isAction))) throw new Failure(message, 401);
    }
  }

  /**
   * Send a request, and read its answer as JSON.
   * @param {string} path
   * @param {{method?: string, body?: any, signal?: AbortSignal, isQuiet?: boolean}} [options]
   * @returns {Promise<any>}
   */
  async json(path, options) {
    return (await this.request(path, options)).json();
  }

  /**
   * The events of a streamed answer.
   * @param {string} path
   * @param {any} body
   * @param {AbortSignal} signal
   * @returns {AsyncGenerator<any>}
   */
  async *events(path, body, signal) {
    const response = await this.request(path, { method: 'POST', body, signal });
    let complete = false;
    for await (const data of this._data(response, signal)) {
      if (data === '[DONE]') {
        complete = true;
        break;
      }
      const event = JSON.parse(data);
      if (event.error) {
        this.onDoubt(); // a server that stops says so, and is gone then
        throw new Failure(event.error.message ?? 'the answer failed', 500);
      }
      yield event;
    }
    if (!complete) throw this._lost();
  }

  /**
   * The named events of a GET route, until the server ends them.
   * @param {string} path
   * @param {AbortSignal} signal
   * @returns {AsyncGenerator<[string, any]>} Name and data.
   */
  async *watch(path, signal) {
    let name = '';
    for await (const line of this._lines(await this.request(path, { signal }), signal)) {
      if (line.startsWith('event: ')) name = line.slice(7);
      else if (line.startsWith('data: ')) yield [name, JSON.parse(line.slice(6))];
    }
  }

  /**
   * The documents of an answer of JSON lines.
   * @param {string} path
   * @param {any} body
   * @param {AbortSignal} signal
   * @returns {AsyncGenerator<any>}
   */
  async *documents(path, body, signal) {
    const response = await this.request(path, { method: 'POST', body, signal });
    for await (const line of this._lines(response, signal)) if (line) yield JSON.parse(line);
  }

  async *_data(response, signal) {
    for await (const line of this._lines(response, signal)) {
      if (line.startsWith('data: ')) yield line.slice(6);
    }
  }

  async *_lines(response, signal) {
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        throw signal.aborted ? error : this._lost();
      });
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split('\n');
      rest = lines.pop();
      yield* lines;
    }
  }

  async _fetch(path, { method = 'GET', body, signal }, key) {
    const headers = {};
    if (key) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers['content-type'] = 'application/json';
    const text = body === undefined ? undefined : JSON.stringify(body);
    try {
      return await fetch(path.slice(1), { method, headers, body: text, signal, credentials: 'omit' });
    } catch (error) {
      throw signal?.aborted ? error : this._lost();
    }
  }

  _lost() {
    this.onDoubt();
    return new Failure('The server does not answer.', 0);
  }

  async _newKey(sent, message, isAction) {
    if (sessionStorage.getItem(KEY) !== sent) return true;
    return this._isRefused && !isAction ? false : this.askForKey(message);
  }

  /**
   * Ask for a key once, however many requests wait for it.
   * @param {string} message Why.
   * @returns {Promise<boolean>} Whether the user has given one.
   */
  askForKey(message) {
    this._asking ??= this._ask(message).finally(() => {
      this._asking = null;
    });
    return this._asking;
  }

  async _ask(message) {
    const key = await this._askUser(message);
    this._isRefused = !key;
    if (key) sessionStorage.setItem(KEY, key);
    this.dispatchEvent(new Event(key ? 'key' : 'refused'));
    return Boolean(key);
  }

  /**
   * Wait until the user has given a key.
   * @param {AbortSignal} signal Ends the waiting, too.
   * @returns {Promise<void>}
   */
  givenKey(signal) {
    return new Promise((resolve) => {
      this.addEventListener('key', () => resolve(), { once: true, signal });
      signal.addEventListener('abort', () => resolve(), { once: true });
    });
  }
}

async function messageOf(response) {
  const text = await response.text().catch(() => '');
  try {
    const { error } = JSON.parse(text);
    return error.message ?? String(error);
  } catch {
    return text.slice(0, 300) || `The server answered ${response.status}.`;
  }
}
