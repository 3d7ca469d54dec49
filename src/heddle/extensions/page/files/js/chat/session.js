// The open conversation: its tree, its settings, and the answers that run.

import { newId } from '../dom.js';
import { runFunction } from './functions.js';
import { addEvent, bodyOf } from './request.js';
import { branchesAt, leafBelow, pathTo, resultsBelow } from './tree.js';

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
   * @param {Object[]|null} messages Null: the conversation is new, and not on disk.
   */
  constructor(app, conversation, messages) {
    super();
    this._app = app;
    this._isNew = messages === null;
    this.conversation = conversation;
    this.messages = new Map((messages ?? []).map((one) => [one.id, one]));
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

  /** @returns {string[]} The models that answer the next message. */
  get models() {
    const { chosen } = this._app.models;
    return this.settings.other ? [chosen, this.settings.other] : [chosen];
  }

  /** @returns {import('./tree.js').Message[]} The shown branch. */
  get path() {
    return pathTo(this.messages, this.conversation.head);
  }

  // Each method below changes what is shown before it waits: the user's next action meets the new state.

  /**
   * Send a message of the user, and begin the answers.
   * @param {string} content
   * @param {{pictures?: import('./pictures.js').Picture[], parent?: string|null}} [how] The pictures
   *   with it; the message before it, by default the last one.
   */
  async send(content, { pictures = [], parent = this.conversation.head } = {}) {
    this._rounds = 0;
    this.conversation.title ||= titleOf(content) || (pictures[0]?.name ?? '');
    const shown = pictures.length ? { pictures } : {};
    const message = this._make({ parent, role: 'user', content, ...shown });
    this._add([message]);
    await this.answer(message.id, { before: [message] });
  }

  /**
   * Begin an answer, or two of them side by side.
   * @param {string} parent
   * @param {{avoid?: number, before?: Object[], isShown?: boolean}} [how] A seed that the answer must
   *   not have; messages that are saved together with the answer; whether it is shown.
   */
  async answer(parent, { avoid, before = [], isShown = true } = {}) {
    const { other, params } = this.settings;
    const given = params.seed === undefined || params.seed === avoid ? null : params.seed;
    const seed = given ?? crypto.getRandomValues(new Uint32Array(1))[0];
    const pair = other ? newId() : undefined;
    const answers = this.models.map((model, place) =>
      this._make({ parent, role: 'assistant', content: '', model, pair, seed: seed + place }),
    );
    this._add(answers, isShown ? answers[0].id : this.conversation.head);
    await this._runAll(answers, false, [...before, ...answers]);
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
    for (const name of ['failure', 'tokens', 'calls']) delete message[name];
    await this._runAll([message], Boolean(message.content || message.reasoning), []);
  }

  /**
   * Continue from a place inside of an answer with another token, in a new branch.
   * @param {import('./tree.js').Message} message
   * @param {{reasoning?: string, content: string}} text All up to there, with the token.
   */
  async branchFrom(message, text) {
    const { parent, model, seed } = message;
    const branch = this._make({ parent, role: 'assistant', model, seed, ...text });
    this._add([branch]);
    await this._runAll([branch], true, [branch]);
  }

  /**
   * Answer calls by hand, or after their functions have run. Another branch stays if it is shown.
   * @param {import('./tree.js').Message} answer
   * @param {[{id: string}, string][]} results Calls, each with the text for the model.
   */
  async addResults(answer, results) {
    const isShown = this.path.includes(answer);
    let parent = resultsBelow(this.messages, answer).at(-1)?.id ?? answer.id;
    const made = results.map(([call, content]) => {
      const one = this._make({ parent, role: 'tool', content, callId: call.id });
      parent = one.id;
      return one;
    });
    this._add(made, isShown ? parent : this.conversation.head);
    if (this.resultsOf(answer).size === answer.calls.length) {
      await this.answer(parent, { before: made, isShown });
    } else {
      const saved = this.saveConversation(made);
      this._tellPath();
      await saved;
    }
  }

  /**
   * @param {import('./tree.js').Message} answer
   * @returns {Map<string, string>} The results of its calls, by id.
   */
  resultsOf(answer) {
    const results = resultsBelow(this.messages, answer);
    return new Map(results.map((one) => [one.callId, one.content]));
  }

  /**
   * Show another branch.
   * @param {import('./tree.js').Message} message
   * @param {number} by -1: the one before, 1: the next one.
   */
  async turn(message, by) {
    const branches = branchesAt(this.messages, message);
    const other = branches[branches.indexOf(message) + by];
    if (other) await this.choose(other);
  }

  /**
   * Show the branch of a message.
   * @param {import('./tree.js').Message} message
   */
  async choose(message) {
    await this.show(leafBelow(this.messages, message.id));
  }

  /**
   * Make a message the end of the shown branch.
   * @param {string} id
   */
  async show(id) {
    this.conversation.head = id;
    const saved = this.saveConversation();
    this._tellPath();
    await saved;
  }

  /**
   * Give the conversation another title.
   * @param {string} title
   */
  async rename(title) {
    this.conversation.title = title;
    const saved = this._app.store.rename(this.conversation.id, title);
    this._tellPath();
    await saved;
  }

  /** @returns {boolean} Whether an answer ran, and stops now. */
  stop() {
    for (const controller of this.running.values()) controller.abort();
    return this.running.size > 0;
  }

  /**
   * Save the settings and what is shown.
   * @param {Object[]} [messages] New ones.
   */
  async saveConversation(messages = []) {
    this.conversation.updated = Date.now();
    const { id, updated, head, settings, title } = this.conversation;
    if (this._isNew) {
      this._isNew = false;
      await this._app.store.add(this.conversation, messages);
    } else {
      await this._app.store.save(id, { updated, head, settings, title }, messages);
    }
  }

  _make(fields) {
    const message = { id: newId(), conversation: this.conversation.id, ...fields };
    message.created = Math.max(Date.now(), (this._latest ?? 0) + 1); // an order without ties
    this._latest = message.created;
    return message;
  }

  _add(messages, head = messages.at(-1).id) {
    for (const one of messages) this.messages.set(one.id, one);
    this.conversation.head = head;
  }

  /** Run answers to their end. `fresh` are the messages that are not on disk. */
  async _runAll(answers, continues, fresh) {
    for (const one of answers) this.running.set(one.id, new AbortController());
    const saved = this.saveConversation(fresh);
    this._tellPath();
    await Promise.all([saved, ...answers.map((one) => this._run(one, continues))]);
  }

  async _run(answer, continues) {
    const { signal } = this.running.get(answer.id);
    const save = () => this._app.store.save(answer.conversation, {}, [answer]);
    answer.finish = '';
    const saving = setInterval(save, SAVE_EVERY);
    let results = [];
    try {
      await this._stream(answer, continues, signal);
      results = await this._call(answer, signal);
    } catch (error) {
      noteEnd(answer, error, signal);
    }
    clearInterval(saving);
    this.running.delete(answer.id);
    const saved = save();
    this._tell(answer);
    if (results.length) await this.addResults(answer, results);
    else this._tellPath();
    await saved;
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

  /** Run the functions of an answer's calls, those that have code. The answer runs meanwhile. */
  async _call(answer, signal) {
    const results = [];
    if (answer.finish !== 'tool_calls' || this._rounds++ >= MOST_ROUNDS) return results;
    this._tellPath(); // shows the calls
    for (const call of answer.calls) {
      const found = this.functions.find((one) => one.name === call.name);
      if (found?.code) results.push([call, await runFunction(found, call, signal)]);
    }
    return results;
  }

  _tell(answer) {
    this.dispatchEvent(new CustomEvent('answer', { detail: answer }));
  }

  _tellPath() {
    this.dispatchEvent(new Event('path'));
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
