// Shows the tokens of an answer, coloured by probability, and what could have stood in their place.

import { button, el, visible } from '../dom.js';

const MOST = 3000;

/**
 * The tokens of an answer.
 * @param {import('./tree.js').Message} message
 * @param {(text: {reasoning?: string, content: string}) => void} goOn Continues the answer up to a
 *   token with another one.
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
  const before = places[place];
  const goOnWith = (one) => {
    const text = before + textOf([one]);
    const { reasoning } = message;
    goOn(isThought(token) ? { reasoning: text, content: '' } : { reasoning, content: text });
  };
  const rows = token.top.map((one) => {
    const isChosen = one.text === token.text;
    const use = button('Go on from here with this one', () => goOnWith(one), {
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

/** The reasoning or the text of the answer before each token; undefined before other tokens. */
function placesOf({ tokens, reasoning = '', content }) {
  const thoughts = placesIn(reasoning, tokens.filter(isThought));
  const texts = placesIn(content, tokens.filter((one) => !isThought(one)));
  return tokens.map((one) => (isThought(one) ? thoughts : texts).shift());
}

/** Answers that were kept before tokens had a part have one part only. */
function isThought(token) {
  return token.part === 'reasoning';
}

/** The part of `text` before each token; empty if the tokens do not make the end of the text. */
function placesIn(text, tokens) {
  // Tokens of marks come first, and text that a continued answer had before them.
  for (let from = 0; from < tokens.length; from++) {
    const whole = textOf(tokens.slice(from)).trimEnd();
    const start = text.trimEnd().length - whole.length;
    if (start < 0 || !text.startsWith(whole, start)) continue;
    const before = text.slice(0, start);
    return tokens.map((_, at) => (at < from ? undefined : before + textOf(tokens.slice(from, at))));
  }
  return [];
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
