// The colours of the canvases, from the variables of css/sight.css.

/** What the legend shows, in order: the variable's name and the words. */
export const KINDS = [
  ['waiting', 'waits'],
  ['cached', 'prompt from the cache'],
  ['prefill', 'prefill'],
  ['decode', 'decode'],
  ['right', 'guesses right'],
  ['wrong', 'guesses wrong'],
  ['drain', 'drains'],
];

const OTHERS = ['ground', 'raised', 'sunken', 'line', 'line-strong', 'ink', 'ink-soft', 'accent', 'held'];

/**
 * Read the colours as they are now.
 * @param {HTMLElement} node An element of the view.
 * @returns {Object<string, string>}
 */
export function coloursOf(node) {
  const probe = document.createElement('i');
  node.append(probe);
  const names = [...KINDS.map(([name]) => name), ...OTHERS];
  const colours = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`; // resolves light-dark()
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return colours;
}

/**
 * Call a function when the browser changes between light and dark.
 * @param {() => void} run
 * @returns {() => void} Ends it.
 */
export function onScheme(run) {
  const query = matchMedia('(prefers-color-scheme: dark)');
  query.addEventListener('change', run);
  return () => query.removeEventListener('change', run);
}
