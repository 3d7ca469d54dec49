// Shows the tokens of an answer, coloured by probability, and what could have stood in their place.

import { button, el, visible } from '../dom.js';

const MOST = 3000;

/**
 * The tokens of an answer.
 * @param {import('./tree.js').Message} message
 * @param {(content: string) => void} goOn Continues the answer's text up to a token with another one.
 * @returns {HTMLElement}
 */
export function tokensOf(message, goOn) {
  const tokens = message.tokens.slice(0, MOST);
  const places = placesOf(message);
  const others = el('div.others', { 'aria-live': 'polite' });
  const show = (place) => showOthers(others, message, place, places, goOn);
  const list = el(
    'div.tokens',
    { dir: 'auto', role: 'group', 'aria-label': 'Tokens of the answer' },
    ...tokens.map((one, place) => tokenOf(one, () => show(place))),
  );
  list.addEventListener('keydown', moveFocus);
  list.firstChild?.setAttribute('tabindex', '0');
  const rest = message.tokens.length - tokens.length;
  const note = rest > 0 ? el('p.hint', {}, `${rest} more tokens are not shown.`) : null;
  return el('div.token-view', {}, list, note, others);
}

function tokenOf(token, show) {
  const node = button(visible(token.text), show, {
    kind: `token.p${levelOf(token.p)}`,
    props: { tabindex: '-1', onmouseenter: show, onfocus: show, title: percent(token.p) },
  });
  if (token.text.includes('\n')) node.classList.add('ends-line');
  return node;
}

/** Arrow keys walk through the tokens: they are one stop of the Tab key. */
function moveFocus(event) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by || !event.target.matches('.token')) return;
  const next = by > 0 ? event.target.nextElementSibling : event.target.previousElementSibling;
  if (!next) return;
  event.preventDefault();
  event.target.setAttribute('tabindex', '-1');
  next.setAttribute('tabindex', '0');
  next.focus();
}

function showOthers(root, message, place, places, goOn) {
  const token = message.tokens[place];
  const before = places?.[place];
  const rows = token.top.map((one) => {
    const isChosen = one.text === token.text;
    const use = button('Go on from here with this one', () => goOn(before + textOf([one])), {
      kind: 'small',
    });
    return el(
      `li${isChosen ? '.chosen' : ''}`,
      {},
      el('code', { dir: 'auto' }, visible(one.text) || '␀'),
      el('meter', { min: 0, max: 1, value: String(one.p), 'aria-label': 'probability' }),
      el('span.figure', {}, percent(one.p)),
      isChosen || before === undefined ? null : use,
    );
  });
  root.replaceChildren(el('ul', {}, ...rows));
}

/** The text of the answer before each token; null if its tokens do not make its text. */
function placesOf({ tokens, content }) {
  // Tokens of reasoning and of marks come first, and text that a continued answer had before them.
  for (let from = 0; from < tokens.length; from++) {
    const whole = textOf(tokens.slice(from)).trimEnd();
    const start = content.trimEnd().length - whole.length;
    if (start < 0 || !content.startsWith(whole, start)) continue;
    const before = content.slice(0, start);
    return tokens.map((_, at) => (at < from ? undefined : before + textOf(tokens.slice(from, at))));
  }
  return null;
}

/** The text of tokens: a character may lie in several of them. */
function textOf(tokens) {
  return new TextDecoder().decode(new Uint8Array(tokens.flatMap((one) => one.bytes)));
}

function levelOf(p) {
  if (p >= 0.9) return 4;
  if (p >= 0.6) return 3;
  if (p >= 0.3) return 2;
  return p >= 0.1 ? 1 : 0;
}

function percent(p) {
  return `${(100 * p).toFixed(p < 0.01 ? 2 : p < 0.1 ? 1 : 0)} %`;
}
