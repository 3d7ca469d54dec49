// Keyboard shortcuts: one list, which the help shows and the page obeys.

/** Shortcuts of the page and of the view that is shown. */
export class Shortcuts {
  constructor() {
    this._all = [];
    document.addEventListener('keydown', (event) => this._press(event));
  }

  /**
   * Add a shortcut.
   * @param {string} keys Such as `Ctrl+K`, `Alt+1`, `Escape` or `?`.
   * @param {string} title
   * @param {() => (boolean|void)} run Returns false if it does nothing now.
   * @returns {() => void} Removes it.
   */
  add(keys, title, run) {
    const one = { keys, title, run };
    this._all.push(one);
    return () => {
      this._all = this._all.filter((other) => other !== one);
    };
  }

  /** @returns {{keys: string, title: string}[]} All shortcuts, in order. */
  get list() {
    return this._all.map(({ keys, title }) => ({ keys, title }));
  }

  _press(event) {
    if (document.querySelector('dialog[open]')) return;
    const pressed = nameOf(event);
    const writes = isEditable(event.target) && !event.ctrlKey && !event.metaKey && !event.altKey;
    const found = this._all.find(({ keys }) => keys === pressed);
    if (!found || (writes && pressed !== 'Escape')) return;
    if (found.run() !== false) event.preventDefault();
  }
}

function nameOf(event) {
  const key = event.key.length === 1 ? event.key.toUpperCase() : event.key;
  const control = event.ctrlKey || event.metaKey ? 'Ctrl+' : '';
  const alt = event.altKey ? 'Alt+' : '';
  const digit = event.altKey && /^Digit\d$/.test(event.code) ? event.code.slice(5) : key;
  return `${control}${alt}${digit}`;
}

function isEditable(node) {
  return node instanceof HTMLElement && node.matches('input, textarea, select, [contenteditable]');
}
