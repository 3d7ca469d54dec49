// The views of the page. Each is a module in views/ that exports `mount(root, app)`, which fills
// `root` and returns a function that ends the view.

/**
 * @typedef {Object} View
 * @property {string} name Its hash route: `#/name`.
 * @property {string} title Its name in the header.
 * @property {string} hotkey The key that shows it, together with Alt.
 * @property {() => Promise<{mount: (root: HTMLElement, app: Object) => (() => void)}>} load
 */

/** @type {View[]} */
export const VIEWS = [
  { name: 'chat', title: 'Chat', hotkey: '1', load: () => import('./views/chat.js') },
  { name: 'sight', title: 'Sight', hotkey: '2', load: () => import('./views/sight.js') },
  { name: 'models', title: 'Models', hotkey: '3', load: () => import('./views/models.js') },
];
