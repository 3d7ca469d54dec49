// Conversations as trees: each message has a parent, and a branch is a path from the root.

/**
 * @typedef {Object} Message
 * @property {string} id
 * @property {string} conversation
 * @property {string|null} parent
 * @property {number} created Milliseconds.
 * @property {'user'|'assistant'|'tool'} role
 * @property {string} content
 * @property {import('./pictures.js').Picture[]} [pictures] Of a user's message.
 * @property {string} [reasoning]
 * @property {{id: string, name: string, arguments: string}[]} [calls]
 * @property {string} [callId] Of the call that a tool's message answers.
 * @property {{text: string, bytes: number[], p: number, top: Object[]}[]} [tokens]
 * @property {string} [finish] Why the answer ended: stop, length, tool_calls, stopped, lost, failed.
 * @property {string} [failure] What went wrong, in words.
 * @property {Object} [usage]
 * @property {Object} [timings]
 * @property {string} [model]
 * @property {number} [seed]
 * @property {string} [pair] Equal in two answers that stand side by side.
 */

/**
 * @param {Map<string, Message>} messages
 * @param {string|null} id
 * @returns {Message[]} The path from the root to a message.
 */
export function pathTo(messages, id) {
  const path = [];
  for (let one = messages.get(id); one; one = messages.get(one.parent)) path.push(one);
  return path.reverse();
}

/**
 * @param {Map<string, Message>} messages
 * @param {string|null} parent
 * @returns {Message[]} The messages with this parent, oldest first.
 */
export function childrenOf(messages, parent) {
  const all = [...messages.values()].filter((one) => one.parent === parent);
  return all.sort((a, b) => a.created - b.created);
}

/**
 * The branches at a message: a pair of answers counts once.
 * @param {Map<string, Message>} messages
 * @param {Message} message
 * @returns {Message[]}
 */
export function branchesAt(messages, message) {
  const all = childrenOf(messages, message.parent).filter((one) => one.role === message.role);
  const isFirst = (one) => !one.pair || all.find((other) => other.pair === one.pair) === one;
  return isFirst(message) ? all.filter(isFirst) : [message];
}

/**
 * @param {Map<string, Message>} messages
 * @param {Message} answer
 * @returns {Message[]} The results of its calls: a chain of messages below it, the newest one.
 */
export function resultsBelow(messages, answer) {
  const results = [];
  const next = (one) => childrenOf(messages, one.id).findLast(({ role }) => role === 'tool');
  for (let one = next(answer); one; one = next(one)) results.push(one);
  return results;
}

/**
 * @param {Map<string, Message>} messages
 * @param {string} id
 * @returns {string} The newest leaf below a message.
 */
export function leafBelow(messages, id) {
  let at = id;
  for (;;) {
    const next = childrenOf(messages, at).at(-1);
    if (!next) return at;
    at = next.id;
  }
}

/**
 * @param {Map<string, Message>} messages
 * @param {Message} message
 * @returns {Message[]} The message, and the answer beside it if it is one of a pair.
 */
export function pairOf(messages, message) {
  if (!message.pair) return [message];
  return childrenOf(messages, message.parent).filter((one) => one.pair === message.pair);
}
