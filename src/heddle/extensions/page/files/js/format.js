// Numbers as readers want them: short, with units.

/**
 * @param {number} value
 * @returns {string} Such as `7.2`, `640` or `12,400`.
 */
export function count(value) {
  return value > 0 && value < 10 && !Number.isInteger(value)
    ? value.toFixed(1)
    : Math.round(value).toLocaleString('en');
}

/**
 * @param {number|null|undefined} value
 * @returns {string} Such as `1.5 GB`; `–` for none.
 */
export function bytes(value) {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let place = 0;
  while (value >= 999.5 && place < units.length - 1) {
    value /= 1000;
    place += 1;
  }
  return `${place && value < 99.5 ? value.toFixed(1) : Math.round(value)} ${units[place]}`;
}

/**
 * @param {number} seconds
 * @returns {string} Such as `820 µs`, `4.2 ms`, `1.3 s` or `2 h 5 min`.
 */
export function duration(seconds) {
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.0995) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 99.5) return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/**
 * @param {number} part
 * @param {number} whole
 * @returns {string} Such as `42%`; `–` of nothing.
 */
export function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)}%` : '–';
}

/**
 * @param {number} number
 * @param {string} noun In the singular.
 * @returns {string} Such as `1 token` or `3 tokens`.
 */
export function many(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
}
