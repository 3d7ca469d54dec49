// Makes the body of a request from a conversation, and reads the events of its answer.

const TOP = 6;

/**
 * The body of the request for an answer.
 * @param {{settings: Object, functions: Object[], path: Object[], answer: Object, continues: boolean}} what
 *   `path` ends before the answer.
 * @returns {Object}
 */
export function bodyOf({ settings, functions, path, answer, continues }) {
  const messages = settings.system ? [{ role: 'system', content: settings.system }] : [];
  messages.push(...path.filter(hasText).map(sent));
  if (continues) messages.push(sent(answer));
  const tools = functions.map(({ name, description, parameters }) => ({
    type: 'function',
    function: { name, description, parameters: JSON.parse(parameters || '{}') },
  }));
  return {
    ...settings.params,
    model: answer.model || undefined, // the models are not read yet: the server's default
    seed: answer.seed,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    ...(continues ? { continue_final_message: true } : {}),
    ...(settings.logprobs ? { logprobs: true, top_logprobs: TOP } : {}),
    ...(tools.length ? { tools, tool_choice: choiceOf(settings, path) } : {}),
    ...formatOf(settings),
  };
}

/** After a result, the model may answer: calls that must be would never end. */
function choiceOf({ choice }, path) {
  return choice === 'required' && path.at(-1).role === 'tool' ? 'auto' : choice;
}

function formatOf({ schema }) {
  if (!schema?.trim()) return {};
  const json_schema = { name: 'answer', schema: JSON.parse(schema) };
  return { response_format: { type: 'json_schema', json_schema } };
}

/** An answer that failed before its first token says nothing to the model. */
function hasText(message) {
  return message.role !== 'assistant' || Boolean(message.content || message.calls?.length);
}

function sent(message) {
  if (message.role === 'tool') {
    return { role: 'tool', tool_call_id: message.callId, content: message.content };
  }
  const calls = message.calls?.map((one) => ({
    id: one.id,
    type: 'function',
    function: { name: one.name, arguments: one.arguments || '{}' },
  }));
  return {
    role: message.role,
    content: contentOf(message),
    ...(message.reasoning ? { reasoning_content: message.reasoning } : {}),
    ...(calls?.length ? { tool_calls: calls } : {}),
  };
}

function contentOf({ content, pictures = [] }) {
  if (!pictures.length) return content;
  const parts = pictures.map(({ url }) => ({ type: 'image_url', image_url: { url } }));
  return content ? [...parts, { type: 'text', text: content }] : parts;
}

/**
 * Add what an event says to an answer.
 * @param {Object} answer
 * @param {Object} event
 */
export function addEvent(answer, event) {
  if (event.usage) answer.usage = event.usage;
  if (event.timings) answer.timings = event.timings;
  const choice = event.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
  if (content) answer.content += content;
  if (reasoning) answer.reasoning = (answer.reasoning ?? '') + reasoning;
  for (const piece of calls ?? []) addCall(answer, piece);
  const part = reasoning ? 'reasoning' : content ? 'content' : answer.tokens?.at(-1)?.part;
  for (const one of choice.logprobs?.content ?? [])
    (answer.tokens ??= []).push({ ...tokenOf(one), part });
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

function addCall(answer, piece) {
  answer.calls ??= [];
  const call = (answer.calls[piece.index ?? 0] ??= { id: '', name: '', arguments: '' });
  if (piece.id) call.id = piece.id;
  if (piece.function?.name) call.name += piece.function.name;
  if (piece.function?.arguments) call.arguments += piece.function.arguments;
}

function tokenOf({ token, bytes, logprob, top_logprobs: top }) {
  const plain = (one) => ({ text: one.token, bytes: one.bytes ?? [], p: Math.exp(one.logprob) });
  return { ...plain({ token, bytes, logprob }), top: (top ?? []).map(plain) };
}
