// Pictures of messages: read from files, made smaller, and shown.

import { showPicture } from '../dialogs.js';
import { el, visible } from '../dom.js';

/**
 * @typedef {Object} Picture
 * @property {string} name Of its file.
 * @property {string} url A data URL, which has the whole file.
 */

/** Types of files that every browser and the server read. */
export const TYPES = ['image/png', 'image/jpeg', 'image/webp', 'image/gif'];

const LONGEST_SIDE = 2048;
const MOST_BYTES = 2 << 20; // a request has all pictures of its branch, and by default at most 32 MB

/** What the page takes, and what it does to it. */
export const HELP =
  `Add pictures: PNG, JPEG, WebP or GIF. Those of more than ${LONGEST_SIDE} pixels a side or 2 MB` +
  ' are made smaller in this browser.';

/** How a picture is written: the first way that is small enough, else the last one. */
const WAYS = [['image/png'], ['image/jpeg', 0.9], ['image/jpeg', 0.7]];

const URLS = new RegExp(`^data:(?:${TYPES.join('|')});base64,[A-Za-z0-9+/]+={0,2}$`);

/**
 * Read the file of a picture. One that is too large becomes smaller.
 * @param {File} file
 * @returns {Promise<Picture>}
 */
export async function readPicture(file) {
  const name = visible(file.name);
  if (!TYPES.includes(file.type)) throw new Error(`${name} is no PNG, JPEG, WebP or GIF.`);
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${name} cannot be read as a picture.`);
  });
  try {
    return { name, url: await dataUrl(await fitting(file, bitmap)) };
  } finally {
    bitmap.close();
  }
}

/**
 * @param {any} url Of a file from elsewhere.
 * @returns {boolean} Whether it is a picture, and no address of a server.
 */
export function isPictureUrl(url) {
  return typeof url === 'string' && URLS.test(url);
}

/**
 * A picture as a button, which shows it large.
 * @param {Picture} picture
 * @returns {HTMLElement}
 */
export function thumbnail(picture) {
  const { name, url } = picture;
  const image = el('img', { src: url, alt: '' });
  const props = { type: 'button', 'aria-label': `Enlarge ${name}`, title: name };
  return el('button.picture', { ...props, onclick: () => showPicture(name, url) }, image);
}

async function fitting(file, bitmap) {
  const longest = Math.max(bitmap.width, bitmap.height);
  if (longest <= LONGEST_SIDE && file.size <= MOST_BYTES) return file;
  const ways = file.type === 'image/jpeg' ? WAYS.slice(1) : WAYS;
  const canvas = drawn(bitmap, Math.min(1, LONGEST_SIDE / longest));
  let blob;
  for (const [type, quality] of ways) {
    blob = await new Promise((resolve) => canvas.toBlob(resolve, type, quality));
    if (!blob) throw new Error(`${visible(file.name)} cannot be made smaller.`);
    if (blob.size <= MOST_BYTES) break;
  }
  return blob;
}

function drawn(bitmap, scale) {
  const [width, height] = [bitmap.width, bitmap.height].map((one) => Math.ceil(one * scale));
  const canvas = el('canvas', { width, height });
  const context = canvas.getContext('2d');
  context.imageSmoothingQuality = 'high';
  context.fillStyle = 'white'; // JPEG would make what is transparent black
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  return canvas;
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
