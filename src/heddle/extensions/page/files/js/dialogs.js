// Dialogs: each is a `dialog` element, so the browser keeps the focus inside and gives it back.

import { button, copyText, el } from './dom.js';

/**
 * Show a dialog, and wait until it closes.
 * @param {string} title
 * @param {(Node|string)[]} content
 * @param {{label: string, value: any, kind?: string}[]} choices Its buttons; the last one is for Enter.
 * @returns {Promise<any>} The value of the chosen button; null after Escape.
 */
export function ask(title, content, choices) {
  return new Promise((resolve) => {
    let chosen = null;
    const close = (value) => {
      chosen = typeof value === 'function' ? value() : value;
      if (chosen !== undefined) dialog.close();
    };
    const buttons = choices.map((one, place) =>
      el(
        `button.${one.kind ?? 'plain'}`,
        place === choices.length - 1
          ? { type: 'submit', onclick: () => close(one.value) }
          : { type: 'button', onclick: () => close(one.value) },
        one.label,
      ),
    );
    const form = el(
      'form',
      { onsubmit: (event) => event.preventDefault() },
      el('h2', { id: 'dialog-title' }, title),
      ...content,
      el('div.choices', {}, ...buttons),
    );
    const dialog = el('dialog', { 'aria-labelledby': 'dialog-title' }, form);
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(chosen);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * Ask for one line of text.
 * @param {string} title
 * @param {string} label
 * @param {{value?: string, type?: string, hint?: string}} [how]
 * @returns {Promise<string|null>}
 */
export function askForText(title, label, { value = '', type = 'text', hint = '' } = {}) {
  const field = el('input', { type, value, autofocus: true, autocomplete: 'off' });
  return ask(
    title,
    [hint ? el('p', {}, hint) : '', el('label.field', {}, label, field)],
    [
      { label: 'Cancel', value: null },
      { label: 'OK', value: () => field.value.trim(), kind: 'main' },
    ],
  );
}

/**
 * Ask whether to do what cannot be undone.
 * @param {string} title
 * @param {string} text
 * @param {string} label Of the button that does it.
 * @returns {Promise<boolean>}
 */
export async function confirm(title, text, label) {
  const choices = [
    { label: 'Cancel', value: false },
    { label, value: true, kind: 'main' },
  ];
  return Boolean(await ask(title, [el('p', {}, text)], choices));
}

/**
 * Tell something.
 * @param {string} title
 * @param {string} text
 * @returns {Promise<any>}
 */
export function tell(title, text) {
  return ask(title, [el('p.wrapped', {}, text)], [{ label: 'Close', value: null, kind: 'main' }]);
}

/**
 * Show a picture as large as the window allows.
 * @param {string} name
 * @param {string} url
 * @returns {Promise<any>}
 */
export function showPicture(name, url) {
  const image = el('img.large', { src: url, alt: name });
  return ask(name, [image], [{ label: 'Close', value: null, kind: 'main' }]);
}

/**
 * Show the address of a link that a model wrote, and open or copy it only on demand.
 * @param {string} address
 */
export async function openAddress(address) {
  const canOpen = /^https?:\/\//i.test(address);
  const text = canOpen
    ? 'A model wrote this link. It leads to:'
    : 'A model wrote this link. The page does not open such addresses:';
  const choices = [
    { label: 'Cancel', value: null },
    { label: 'Copy', value: 'copy' },
  ];
  if (canOpen) choices.push({ label: 'Open in a new tab', value: 'open', kind: 'main' });
  const content = [el('p', {}, text), el('p.address', { dir: 'ltr' }, address)];
  const chosen = await ask('Link', content, choices);
  if (chosen === 'open') window.open(address, '_blank', 'noopener,noreferrer');
  if (chosen === 'copy' && !(await copyText(address))) await tell('Link', address);
}

/**
 * List the shortcuts.
 * @param {{keys: string, title: string}[]} shortcuts
 * @returns {Promise<any>}
 */
export function showShortcuts(shortcuts) {
  const rows = shortcuts.map(({ keys, title }) =>
    el('tr', {}, el('td', {}, el('kbd', {}, keys)), el('td', {}, title)),
  );
  const table = el('table.shortcuts', {}, el('tbody', {}, ...rows));
  return ask('Shortcuts', [table], [{ label: 'Close', value: null, kind: 'main' }]);
}

/**
 * Make a button that shows a menu of further buttons.
 * @param {string} label
 * @param {string} iconName
 * @param {() => {label: string, run: () => any}[]} entries
 * @returns {HTMLElement}
 */
export function menu(label, iconName, entries) {
  return button(label, () => choose(label, entries()), { icon: iconName });
}

async function choose(title, entries) {
  const list = entries.map((one) =>
    button(one.label, () => {
      chosen = one;
      list[0].closest('dialog').close();
    }),
  );
  let chosen = null;
  await ask(title, [el('div.menu', {}, ...list)], [{ label: 'Cancel', value: null }]);
  await chosen?.run();
}
