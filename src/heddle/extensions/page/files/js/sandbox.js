// A worker that runs one function of the user. The policy of this file (files.py) lets it run text as
// code and reach nothing: no network, no further scripts. What is left of the browser is removed.

const run = self.postMessage.bind(self);
for (const name of ['indexedDB', 'caches', 'BroadcastChannel', 'Worker', 'navigator', 'fetch']) {
  for (let at = self; at; at = Object.getPrototypeOf(at)) {
    if (Object.hasOwn(at, name)) delete at[name];
  }
}

self.onmessage = async ({ data: { code, given } }) => {
  self.onmessage = null;
  try {
    const made = new Function('arguments_', `"use strict"; return (${code}\n)(arguments_);`);
    const result = await made(given);
    run({ result: typeof result === 'string' ? result : JSON.stringify(result ?? null) });
  } catch (error) {
    run({ error: String(error) });
  }
};
