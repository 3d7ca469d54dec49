// The open conversation: its tree, its settings, and the answers that run.

import { newId } from '../dom.js';
import { runFunction } from './functions.js';
import { addEvent, bodyOf } from './request.js';
import { branchesAt, leafBelow, pathTo } from './tree.js';

const SAVE_EVERY = 2000;
const MOST_ROUNDS = 8;

/** Settings of a new conversation. */
export const FRESH = {
  system: '',
  params: {},
  preset: '',
  logprobs: false,
  schema: '',
  functions: [],
  choice: 'auto',
  other: '',
};

/**
 * One conversation. Dispatches `path` when its messages change, and `answer`, whose `detail` is the
 * message, when a running answer grows or ends.
 */
export class Session extends EventTarget {
  /**
   * @param {import('../main.js').App} app
   * @param {Object} conversation
   * @param {Object[]} messages
   */
  constructor(app, conversation, messages) {
    super();
    this._app = app;
    this.conversation = conversation;
    this.messages = new Map(messages.map((one) => [one.id, one]));
    /** @type {Map<string, AbortController>} The running answers. */
    this.running = new Map();
    /** @type {Object[]} All functions that the user has defined. */
    this.functions = [];
    this._rounds = 0;
  }

  /**
   * @param {Object} settings Of the conversation before, which a new one keeps.
   * @returns {Object} A conversation without messages.
   */
  static fresh(settings) {
    const now = Date.now();
    const kept = structuredClone({ ...FRESH, ...settings });
    return { id: newId(), title: '', created: now, updated: now, head: null, settings: kept };
  }

  /** @returns {Object} */
  get settings() {
    return this.conversation.settings;
  }

  /** @returns {import('./tree.js').Message[]} The shown branch. */
  get path() {
    return pathTo(this.messages, this.conversation.head);
  }

  /**
   * Send a message of the user, and begin the answers.
   * @param {string} content
   * @param {string|null} [parent] The message before it; by default the last one.
   */
  async send(content, parent = this.conversation.head) {
    this._rounds = 0;
    if (!this.conversation.title) this.conversation.title = titleOf(content);
    const message = this._make({ parent, role: 'user', content });
    await this._keep([message]);
    await this.answer(message.id);
  }

  /**
   * Begin an answer, or two of them side by side.
   * @param {string} parent
   * @param {{avoid?: number}} [how] A seed that the answer must not have.
   */
  async answer(parent, { avoid } = {}) {
    const { other, params } = this.settings;
    const given = params.seed === undefined || params.seed === avoid ? null : params.seed;
    const seed = given ?? crypto.getRandomValues(new Uint32Array(1))[0];
    const names = other ? [this._app.models.chosen, other] : [this._app.models.chosen];
    const pair = other ? newId() : undefined;
    const answers = names.map((model, place) =>
      this._make({ parent, role: 'assistant', content: '', model, pair, seed: seed + place }),
    );
    await this._keep(answers, answers[0].id);
    await Promise.all(answers.map((one) => this._run(one, false)));
  }

  /**
   * Answer the same messages again, with another seed.
   * @param {import('./tree.js').Message} message
   */
  async regenerate(message) {
    await this.answer(message.parent, { avoid: message.seed });
  }

  /**
   * Continue an answer where it ended.
   * @param {import('./tree.js').Message} message
   */
  async continueAnswer(message) {
    delete message.failure;
    delete message.tokens;
    if (!message.content) delete message.reasoning; // the server continues texts only
    await this._run(message, Boolean(message.content));
  }

  /**
   * Continue from a place inside of an answer with another token, in a new branch.
   * @param {import('./tree.js').Message} message
   * @param {string} content The text up to there, with the token.
   */
  async branchFrom(message, content) {
    const { parent, model, seed, reasoning } = message;
    const branch = this._make({ parent, role: 'assistant', content, model, seed, reasoning });
    await this._keep([branch]);
    await this._run(branch, true);
  }

  /**
   * Answer a call by hand, or after its function has run.
   * @param {import('./tree.js').Message} answer
   * @param {{id: string}} call
   * @param {string} content
   */
  async addResult(answer, call, content) {
    const last = this.path.at(-1);
    const parent = last.role === 'tool' || last.id === answer.id ? last.id : answer.id;
    await this._keep([this._make({ parent, role: 'tool', content, callId: call.id })]);
    if (this.resultsOf(answer).size === answer.calls.length) {
      await this.answer(this.conversation.head);
    }
  }

  /**
   * @param {import('./tree.js').Message} answer
   * @returns {Map<string, string>} The results of its calls in the shown branch, by id.
   */
  resultsOf(answer) {
    const path = this.path;
    const after = path.slice(path.findIndex((one) => one.id === answer.id) + 1);
    const end = after.findIndex((one) => one.role !== 'tool');
    const tools = end < 0 ? after : after.slice(0, end);
    return new Map(tools.map((one) => [one.callId, one.content]));
  }

  /**
   * Show another branch.
   * @param {import('./tree.js').Message} message
   * @param {number} by -1: the one before, 1: the next one.
   */
  async turn(message, by) {
    const branches = branchesAt(this.messages, message);
    const other = branches[branches.indexOf(message) + by];
    if (other) await this.show(leafBelow(this.messages, other.id));
  }

  /**
   * Make a message the end of the shown branch.
   * @param {string} id
   */
  async show(id) {
    this.conversation.head = id;
    await this.saveConversation();
    this.dispatchEvent(new Event('path'));
  }

  /** @returns {boolean} Whether an answer ran, and stops now. */
  stop() {
    for (const controller of this.running.values()) controller.abort();
    return this.running.size > 0;
  }

  /** Save settings and title. */
  async saveConversation() {
    this.conversation.updated = Date.now();
    await this._app.store.saveConversation(this.conversation);
  }

  _make(fields) {
    const message = { id: newId(), conversation: this.conversation.id, ...fields };
    message.created = Math.max(Date.now(), (this._latest ?? 0) + 1); // an order without ties
    this._latest = message.created;
    return message;
  }

  async _keep(messages, head = messages.at(-1).id) {
    for (const one of messages) this.messages.set(one.id, one);
    this.conversation.head = head;
    await this._app.store.saveMessages(messages);
    await this.saveConversation();
    this.dispatchEvent(new Event('path'));
  }

  /** Run one answer to its end. */
  async _run(answer, continues) {
    const controller = new AbortController();
    this.running.set(answer.id, controller);
    this.dispatchEvent(new Event('path'));
    answer.finish = '';
    const saving = setInterval(() => this._app.store.saveMessages([answer]), SAVE_EVERY);
    try {
      await this._stream(answer, continues, controller.signal);
    } catch (error) {
      noteEnd(answer, error, controller.signal);
    }
    clearInterval(saving);
    this.running.delete(answer.id);
    await this._app.store.saveMessages([answer]);
    this._tell(answer);
    this.dispatchEvent(new Event('path'));
    await this._call(answer);
  }

  async _stream(answer, continues, signal) {
    const path = pathTo(this.messages, answer.parent);
    const functions = this.functions.filter((one) => this.settings.functions.includes(one.name));
    const body = bodyOf({ settings: this.settings, functions, path, answer, continues });
    for await (const event of this._app.api.events('/v1/chat/completions', body, signal)) {
      addEvent(answer, event);
      this._tell(answer);
    }
  }

  /** Run the functions of an answer's calls, those that have code. */
  async _call(answer) {
    if (answer.finish !== 'tool_calls' || this._rounds++ >= MOST_ROUNDS) return;
    for (const call of answer.calls) {
      const found = this.functions.find((one) => one.name === call.name);
      if (found?.code) await this.addResult(answer, call, await runFunction(found, call));
    }
  }

  _tell(answer) {
    this.dispatchEvent(new CustomEvent('answer', { detail: answer }));
  }
}

/** Note why an answer has ended before its end. */
function noteEnd(answer, error, signal) {
  if (signal.aborted) {
    answer.finish = 'stopped';
    return;
  }
  answer.finish = error.isLoss ? 'lost' : 'failed';
  answer.failure = error.isLoss ? 'The server went away during this answer.' : error.message;
}

function titleOf(content) {
  const line = content.trim().split('\n')[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}
