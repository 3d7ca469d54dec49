// Starts the page: the header, the views by hash routes, the watch over the server.

import { Api } from './api.js';
import { ask, askForText, showShortcuts, tell } from './dialogs.js';
import { button, el } from './dom.js';
import { Health } from './health.js';
import { Models } from './models.js';
import { Shortcuts } from './shortcuts.js';
import { Store } from './store.js';
import { VIEWS } from './views.js';

/**
 * What views get.
 * @typedef {Object} App
 * @property {Api} api
 * @property {Store} store
 * @property {Models} models
 * @property {Shortcuts} shortcuts
 * @property {Health} health
 * @property {(text: string) => void} announce Tells screen readers.
 * @property {(route: string) => void} go Shows another route, such as `chat/ID`.
 * @property {(route: string) => void} named Names what is shown in the address, unless the user has
 *   just asked for something else.
 * @property {() => string} rest The route behind the view's name.
 */

async function start() {
  const live = document.getElementById('live');
  const api = new Api((message) =>
    askForText('This server needs a key', 'API key', { type: 'password', hint: message }),
  );
  const store = await Store.open();
  const models = new Models(api, store);
  const health = new Health(document.getElementById('banner'), () => {
    app.announce('The server answers again.');
    models.refresh().catch(() => {});
  });
  api.onDoubt = () => health.suspect();
  api.addEventListener('key', () => models.refresh().catch(() => {}));
  const app = {
    api,
    store,
    models,
    health,
    shortcuts: new Shortcuts(),
    announce: (text) => {
      live.textContent = text;
    },
    go: (route) => {
      location.hash = `#/${route}`;
    },
    named: (route) => router.name(route),
    rest: () => routeOf().rest,
  };
  const router = new Router(app);
  fillBar(app);
  addShortcuts(app);
  router.start();
  await models.refresh().catch((error) => {
    if (!error.isLoss && error.status !== 401) tell('No models', error.message);
  });
}

function fillBar(app) {
  const links = VIEWS.map((view) => el('a', { href: `#/${view.name}` }, view.title));
  const help = button('Shortcuts (?)', () => showShortcuts(app.shortcuts.list), {
    kind: 'quiet',
  });
  help.replaceChildren('?');
  help.setAttribute('aria-label', 'Shortcuts');
  document
    .getElementById('bar')
    .append(
      el(
        'span.brand',
        {},
        el('img', { src: 'page/mark.svg', alt: '', width: 22, height: 22 }),
        el('h1', {}, 'Heddle'),
      ),
      el('nav.views', { 'aria-label': 'Views' }, ...links),
      modelField(app.models),
      keyButton(app.api),
      help,
    );
}

function modelField(models) {
  const select = el('select', { onchange: () => models.choose(select.value) });
  models.addEventListener('change', () => {
    select.replaceChildren(...models.all.map((one) => el('option', { value: one.id }, one.id)));
    select.value = models.chosen;
  });
  return el('label.model', {}, el('span.unseen', {}, 'Model'), select);
}

/** A button that asks for the key that the user did not give. */
function keyButton(api) {
  const ask = () => api.askForKey('The server answers requests with a key only.');
  const node = button('Give a key', ask, { kind: 'small', props: { hidden: true } });
  api.addEventListener('key', () => (node.hidden = true));
  api.addEventListener('refused', () => (node.hidden = false));
  return node;
}

function addShortcuts(app) {
  app.shortcuts.add('?', 'List the shortcuts', () => {
    showShortcuts(app.shortcuts.list);
  });
  for (const view of VIEWS) {
    app.shortcuts.add(`Alt+${view.hotkey}`, `Show ${view.title}`, () => app.go(view.name));
  }
}

/** Shows the view of the hash route. */
class Router {
  constructor(app) {
    this._app = app;
    this._root = document.getElementById('main');
    this._shown = null;
    this._seen = '';
    this._unmount = () => {};
  }

  /** @param {string} route What is shown now. */
  name(route) {
    if (location.hash !== this._seen) return; // the event of a link that was just clicked is to come
    if (!route.startsWith(this._shown?.name ?? '')) return; // another view is being loaded
    this._seen = `#/${route}`;
    if (location.hash !== this._seen) history.replaceState(null, '', this._seen);
  }

  start() {
    const show = () => this._show().catch((error) => tellLoss(error.message));
    addEventListener('hashchange', show);
    show();
  }

  async _show() {
    this._seen = location.hash;
    const { name } = routeOf();
    const view = VIEWS.find((one) => one.name === name) ?? VIEWS[0];
    if (this._shown === view) return;
    this._shown = view;
    const { mount } = await view.load().catch((error) => {
      if (this._shown === view) this._shown = null;
      throw error;
    });
    if (this._shown !== view) return;
    this._unmount();
    this._root.replaceChildren();
    this._unmount = mount(this._root, this._app);
    document.title = `${view.title} · Heddle`;
    for (const link of document.querySelectorAll('.views a')) {
      const isHere = link.getAttribute('href') === `#/${view.name}`;
      if (isHere) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
  }
}

/** Tell that a view cannot be loaded. A browser loads its file again only with the page. */
async function tellLoss(message) {
  const choices = [
    { label: 'Close', value: false },
    { label: 'Load the page again', value: true, kind: 'main' },
  ];
  const again = await ask('The view cannot be loaded', [el('p.wrapped', {}, message)], choices);
  if (again) location.reload();
}

function routeOf() {
  const [name, rest = ''] = location.hash.replace(/^#\//, '').split('/');
  return { name: name || VIEWS[0].name, rest };
}

start().catch((error) => tell('The page cannot start', String(error.message ?? error)));
