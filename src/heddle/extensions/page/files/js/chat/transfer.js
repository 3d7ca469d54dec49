// Conversations as JSON files. A file from elsewhere is checked field by field before it is kept.

import { newId, visible } from '../dom.js';
import { isPictureUrl } from './pictures.js';
import { FRESH } from './session.js';

const FORMAT = 'heddle-conversation';
const VERSION = 1;
const MOST_MESSAGES = 10000;
const ROLES = new Set(['user', 'assistant', 'tool']);
const FINISHES = new Set(['stop', 'length', 'tool_calls', 'stopped', 'lost', 'failed']);

/**
 * Write a conversation to a file of the user.
 * @param {Object} conversation
 * @param {Object[]} messages
 */
export function save(conversation, messages) {
  const text = JSON.stringify(
    { format: FORMAT, version: VERSION, conversation, messages },
    null,
    1,
  );
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  link.download = `${conversation.title.replace(/[^\p{L}\p{N} _-]/gu, '').trim() || 'conversation'}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/**
 * Read a file. Its conversation and messages get new names, so it replaces nothing.
 * @param {string} text
 * @returns {{conversation: Object, messages: Object[]}}
 */
export function read(text) {
  const file = JSON.parse(text);
  if (file?.format !== FORMAT || file.version !== VERSION) {
    throw new Error('the file is no conversation of this page');
  }
  const { conversation: given, messages } = file;
  if (!Array.isArray(messages) || messages.length > MOST_MESSAGES) {
    throw new Error(`the file must have a list of at most ${MOST_MESSAGES} messages`);
  }
  const names = new Map(messages.map((one) => [string(one?.id, 'id'), newId()]));
  const now = Date.now();
  const conversation = {
    id: newId(),
    title: string(given?.title ?? '', 'title').slice(0, 200),
    created: now,
    updated: now,
    head: names.get(given?.head) ?? null,
    settings: settingsOf(given?.settings ?? {}),
  };
  const read = messages.map((one, place) => messageOf(one, place, names, conversation.id));
  checkTree(read);
  return { conversation, messages: read };
}

/** Functions of a file are not taken: their code would run here. */
function settingsOf(given) {
  const params = given.params && typeof given.params === 'object' ? given.params : {};
  return {
    ...FRESH,
    system: string(given.system ?? '', 'system'),
    schema: string(given.schema ?? '', 'schema'),
    logprobs: given.logprobs === true,
    params,
  };
}

function messageOf(given, place, names, conversation) {
  if (!ROLES.has(given.role)) throw new Error(`message ${place} has no known role`);
  if (given.parent !== null && !names.has(given.parent))
    throw new Error(`message ${place} has no parent`);
  const message = {
    id: names.get(given.id),
    conversation,
    parent: given.parent === null ? null : names.get(given.parent),
    created: number(given.created, 'created'),
    role: given.role,
    content: string(given.content, 'content'),
  };
  for (const name of ['reasoning', 'callId', 'failure', 'model', 'pair']) {
    if (given[name] !== undefined) message[name] = string(given[name], name);
  }
  if (given.role === 'user' && given.pictures !== undefined) {
    message.pictures = list(given.pictures, 'pictures').map(pictureOf);
  }
  if (FINISHES.has(given.finish)) message.finish = given.finish;
  if (given.seed !== undefined) message.seed = number(given.seed, 'seed');
  if (given.calls !== undefined) message.calls = list(given.calls, 'calls').map(callOf);
  if (given.tokens !== undefined) message.tokens = list(given.tokens, 'tokens').map(tokenOf);
  return message;
}

function pictureOf(given) {
  if (!isPictureUrl(given?.url)) throw new Error('a picture must be a PNG, JPEG, WebP or GIF');
  return { name: visible(string(given.name, 'name')), url: given.url };
}

function callOf(given) {
  return {
    id: string(given?.id, 'id'),
    name: string(given?.name, 'name'),
    arguments: string(given?.arguments, 'arguments'),
  };
}

function tokenOf(given) {
  const plain = (one) => ({
    text: string(one?.text, 'text'),
    bytes: list(one?.bytes, 'bytes').map((byte) => number(byte, 'byte')),
    p: number(one?.p, 'p'),
  });
  return { ...plain(given), top: list(given.top, 'top').map(plain) };
}

/** Each way to a root must end. */
function checkTree(messages) {
  const parents = new Map(messages.map((one) => [one.id, one.parent]));
  const ends = new Set([null]);
  for (const { id } of messages) {
    const way = new Set();
    let at = id;
    for (; !ends.has(at); at = parents.get(at)) {
      if (way.has(at)) throw new Error('the messages of the file form a circle');
      way.add(at);
    }
    for (const one of way) ends.add(one);
  }
}

function string(value, name) {
  if (typeof value !== 'string') throw new Error(`${name} must be a text`);
  return value;
}

function number(value, name) {
  if (typeof value !== 'number' || !Number.isFinite(value))
    throw new Error(`${name} must be a number`);
  return value;
}

function list(value, name) {
  if (!Array.isArray(value)) throw new Error(`${name} must be a list`);
  return value;
}
