// What the server can do, from its own description: /openapi.json.

/** The routes of the server, and the fields of their bodies. */
export class Routes {
  /** @param {import('../api.js').Api} api */
  constructor(api) {
    this._api = api;
    this._document = { paths: {} };
  }

  /** Read the description, once. */
  async read() {
    this._reading ??= this._api.json('/openapi.json');
    try {
      this._document = await this._reading;
    } catch (error) {
      this._reading = null;
      throw error;
    }
  }

  /** @returns {boolean} Whether the server has a route. */
  has(path) {
    return path in this._document.paths;
  }

  /**
   * The fields of a POST body.
   * @param {string} path
   * @returns {{name: string, doc: string, kind: 'switch'|'number'|'text', choices: string[]|null,
   *   required: boolean}[]}
   */
  fields(path) {
    const content = this._document.paths[path]?.post?.requestBody?.content;
    const schema = this._resolved(content?.['application/json']?.schema ?? {});
    return Object.entries(schema.properties ?? {}).map(([name, one]) => ({
      name,
      doc: one.description ?? '',
      kind: kindOf(one),
      choices: this._resolved(one).enum ?? null,
      required: (schema.required ?? []).includes(name),
    }));
  }

  _resolved(schema) {
    if (!schema.$ref) return schema;
    const names = schema.$ref.replace('#/', '').split('/');
    return names.reduce((found, name) => found?.[name], this._document) ?? {};
  }
}

function kindOf(schema) {
  const types = [schema, ...(schema.anyOf ?? [])].map((one) => one.type);
  if (types.includes('boolean')) return 'switch';
  return types.includes('string') ? 'text' : 'number';
}
