// Cards of the calls in an answer, with their results.

import { button, el, visible } from '../dom.js';

/**
 * The cards of an answer's calls.
 * @param {import('./session.js').Session} session
 * @param {import('./tree.js').Message} message
 * @param {boolean} isRunning
 * @returns {HTMLElement[]}
 */
export function cardsOf(session, message, isRunning) {
  if (!message.calls) return [];
  const results = session.resultsOf(message);
  return message.calls.filter(Boolean).map((call) => {
    const result = results.get(call.id);
    const canAnswer = !isRunning && result === undefined && !hasCode(session, call);
    return el(
      'section.card',
      { 'aria-label': `Call of ${call.name}` },
      el('h3', {}, 'Calls ', el('code', {}, call.name)),
      el(
        'pre',
        { dir: 'ltr', tabindex: 0, role: 'region', 'aria-label': 'Arguments' },
        pretty(call.arguments),
      ),
      result === undefined ? null : el('h4', {}, 'Result'),
      result === undefined
        ? null
        : el(
            'pre',
            { dir: 'auto', tabindex: 0, role: 'region', 'aria-label': 'Result' },
            pretty(result),
          ),
      canAnswer ? answerField(session, message, call) : null,
    );
  });
}

function hasCode(session, call) {
  return Boolean(session.functions.find((one) => one.name === call.name)?.code);
}

function answerField(session, message, call) {
  const field = el('textarea', { rows: 2 });
  const send = () => session.addResults(message, [[call, field.value]]);
  return el(
    'div.by-hand',
    {},
    el('label.field', {}, 'Your result', field),
    button('Send the result', send, { kind: 'main' }),
  );
}

function pretty(text) {
  try {
    return visible(JSON.stringify(JSON.parse(text), null, 2));
  } catch {
    return visible(text);
  }
}
