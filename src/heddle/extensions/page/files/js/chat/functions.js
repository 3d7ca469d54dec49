// Functions that the user defines, and that a model may call: their editor, and their run.

import { ask } from '../dialogs.js';
import { el } from '../dom.js';

const SECONDS = 5;
const MOST_RESULT = 100000;

const EXAMPLE = {
  name: 'add',
  description: 'Add two numbers',
  parameters: JSON.stringify(
    {
      type: 'object',
      properties: { a: { type: 'number' }, b: { type: 'number' } },
      required: ['a', 'b'],
      additionalProperties: false,
    },
    null,
    2,
  ),
  code: '({ a, b }) => a + b',
};

/**
 * Run the code of a function in a worker that reaches nothing, for a few seconds at most.
 * @param {{code: string}} definition
 * @param {{arguments: string}} call
 * @param {AbortSignal} [signal] Ends the run; the promise is rejected then.
 * @returns {Promise<string>} The result, or the error, as text for the model.
 */
export function runFunction(definition, call, signal) {
  return new Promise((resolve, reject) => {
    const worker = new Worker('page/js/sandbox.js');
    const end = (text) => {
      clearTimeout(timer);
      worker.terminate();
      if (signal?.aborted) reject(signal.reason);
      else resolve(text.slice(0, MOST_RESULT));
    };
    signal?.addEventListener('abort', () => end(''));
    const timer = setTimeout(
      () => end(`error: the function took over ${SECONDS} s`),
      SECONDS * 1000,
    );
    worker.onmessage = ({ data }) =>
      end(data.error ? `error: ${data.error}` : (data.result ?? 'null'));
    worker.onerror = (event) => end(`error: ${event.message ?? 'the function cannot run'}`);
    try {
      worker.postMessage({
        code: definition.code,
        given: JSON.parse(call.arguments || '{}'),
      });
    } catch {
      end('error: the arguments are not valid JSON');
    }
  });
}

/**
 * Edit a function in a dialog.
 * @param {Object|null} definition Null: a new one.
 * @returns {Promise<Object|null|'remove'>} The edited one; null: nothing changes.
 */
export function editFunction(definition) {
  const known = definition ?? EXAMPLE;
  const field = {
    name: el('input', { value: known.name, autocomplete: 'off', spellcheck: 'false' }),
    description: el('input', { value: known.description }),
    parameters: el('textarea.code', { rows: 8, value: known.parameters, spellcheck: 'false' }),
    code: el('textarea.code', { rows: 5, value: known.code ?? '', spellcheck: 'false' }),
  };
  const problem = el('p.problem', { role: 'alert' });
  const read = () => {
    const made = Object.fromEntries(
      Object.entries(field).map(([name, one]) => [name, one.value.trim()]),
    );
    problem.textContent = faultOf(made);
    return problem.textContent ? undefined : made;
  };
  const content = [
    labelled('Name', field.name),
    labelled('What it does, for the model', field.description),
    labelled('Parameters, as a JSON schema', field.parameters),
    labelled('JavaScript that runs in a sandbox; empty: you answer by hand', field.code),
    problem,
  ];
  const choices = [
    { label: 'Cancel', value: null },
    { label: 'Save', value: read, kind: 'main' },
  ];
  if (definition) choices.splice(1, 0, { label: 'Remove', value: 'remove' });
  return ask(definition ? 'Edit the function' : 'A new function', content, choices);
}

function labelled(text, field) {
  return el('label.field', {}, text, field);
}

function faultOf({ name, parameters }) {
  if (!/^[A-Za-z0-9_-]{1,64}$/.test(name))
    return 'The name must be 1 to 64 letters, digits, _ or -.';
  try {
    const schema = JSON.parse(parameters || '{}');
    return schema && typeof schema === 'object' && !Array.isArray(schema)
      ? ''
      : 'The schema must be an object.';
  } catch (error) {
    return `The schema is not valid JSON: ${error.message}`;
  }
}
