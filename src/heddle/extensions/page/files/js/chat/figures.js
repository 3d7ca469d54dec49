// The figures under an answer: time, cache, guesses.

/**
 * @param {import('./tree.js').Message} message
 * @returns {string[]} Short texts.
 */
export function figuresOf({ usage, timings, model, seed }) {
  const figures = model ? [model] : [];
  if (usage) figures.push(`${usage.completion_tokens} tokens`);
  if (timings?.predicted_per_second) figures.push(`${rate(timings.predicted_per_second)} tokens/s`);
  if (timings) figures.push(`first after ${duration(timings.queue_ms + timings.prompt_ms)}`);
  if (usage) figures.push(promptOf(usage));
  if (timings?.draft_n)
    figures.push(`guesses ${timings.draft_n_accepted} of ${timings.draft_n} right`);
  if (seed !== undefined) figures.push(`seed ${seed}`);
  return figures;
}

function promptOf(usage) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  return `prompt ${usage.prompt_tokens}${cached ? `, ${cached} from the cache` : ''}`;
}

function rate(value) {
  return value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString();
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/**
 * Why an answer ended before its end, in words; empty: it did not.
 * @param {import('./tree.js').Message} message
 * @returns {string}
 */
export function endOf(message) {
  if (message.failure) return message.failure;
  if (message.finish === 'length') return 'Cut: the limit of tokens is reached.';
  return message.finish === 'stopped' ? 'Stopped.' : '';
}
