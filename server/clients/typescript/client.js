// The part of the client that is not generated: requests, errors, pages and streams. It uses fetch only, so it runs in Node.js 18
// and later and in workers.

/** ApiError is an answer that is not a success. */
export class ApiError extends Error {
  constructor(status, errors, request) {
    const first = errors[0];
    super(`${request}: ${first ? first.message : `HTTP status ${status}`}`);
    this.name = 'ApiError';
    this.status = status;
    this.errors = errors;
    this.code = first?.code;
  }
}

const attempts = 4;

/** Client sends requests to one server. The generated class Artifacts adds a method for each operation. */
export class Client {
  #url; #token; #fetch; #account;

  constructor({ url, token, account, fetch = globalThis.fetch }) {
    this.#url = url.replace(/\/+$/, '');
    this.#token = token;
    this.#fetch = fetch;
    this.#account = account;
  }

  /** Returns the account of the server. It asks the server for it, once, unless it was given. */
  async account() {
    if (!this.#account) {
      const answer = await this.#send('GET', '/client/v4/accounts', 'page', {});
      const { result: [first] } = await answer.json();
      if (!first) throw new Error('GET /client/v4/accounts: the server has no account for this token');
      this.#account = first.id;
    }
    return this.#account;
  }

  /** Sends a request and returns the answer in the form that kind names. Generated methods call it. */
  async call(method, path, kind, { query, body, signal } = {}) {
    const answer = await this.#send(method, path, kind, { query, body, signal });
    switch (kind) {
      case 'none': await answer.arrayBuffer(); return undefined;
      case 'bytes': return new Uint8Array(await answer.arrayBuffer());
      case 'text': return answer.text();
      case 'json': return answer.json();
      case 'result': return (await answer.json()).result;
      case 'page': { const { result, result_info } = await answer.json(); return { result, result_info }; }
      default: throw new TypeError(`unknown kind of answer ${kind}`);
    }
  }

  /** Sends a request and yields the values of a stream: server-sent events, or lines of JSON. */
  async *stream(method, path, { query, signal } = {}) {
    const answer = await this.#send(method, path, 'stream', { query, signal });
    const events = (answer.headers.get('content-type') ?? '').startsWith('text/event-stream');
    let data = [];
    for await (const line of lines(answer.body)) {
      if (!events) {
        if (line) yield JSON.parse(line);
      } else if (line.startsWith('data:')) {
        data.push(line.slice(5).replace(/^ /, ''));
      } else if (line === '' && data.length) {
        yield JSON.parse(data.join('\n'));
        data = [];
      }
    }
  }

  async #send(method, path, kind, { query, body, signal }) {
    if (path.includes('{account}')) path = path.replace('{account}', segment(await this.account()));
    const url = new URL(this.#url + path);
    for (const [name, value] of Object.entries(query ?? {})) {
      for (const v of [value].flat()) if (v !== undefined && v !== null) url.searchParams.append(name, String(v));
    }
    const headers = { accept: kind === 'stream' ? 'text/event-stream, application/x-ndjson' : '*/*' };
    if (this.#token) headers.authorization = `Bearer ${this.#token}`;
    const raw = body instanceof Uint8Array;
    if (body !== undefined) headers['content-type'] = raw ? 'application/octet-stream' : 'application/json';
    const data = body === undefined || raw ? body : JSON.stringify(body);
    for (let attempt = 1; ; attempt++) {
      const answer = await this.#fetch(url, { method, headers, signal, body: data });
      if (answer.ok) return answer;
      const text = await answer.text();
      // The server is busy or its database is away. Only requests that may be repeated are.
      const after = Number(answer.headers.get('retry-after'));
      if ((answer.status === 503 || answer.status === 429) && after > 0 && method !== 'POST' && attempt < attempts) {
        await new Promise((done) => setTimeout(done, Math.min(after, 10) * 1000));
        continue;
      }
      throw new ApiError(answer.status, errorsOf(text), `${method} ${path}`);
    }
  }
}

function errorsOf(text) {
  try {
    const { errors } = JSON.parse(text);
    if (Array.isArray(errors)) return errors;
  } catch {
    // The answer is not an envelope, for example that of a proxy.
  }
  return text ? [{ code: 0, message: text.trim().slice(0, 200) }] : [];
}

async function* lines(body) {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const chunk of body) {
    const parts = (rest + decoder.decode(chunk, { stream: true })).split('\n');
    rest = parts.pop();
    for (const line of parts) yield line.replace(/\r$/, '');
  }
  if (rest) yield rest;
}

/** Encodes a value as one segment of a path. */
export const segment = (value) => encodeURIComponent(value);

/** Encodes a path, whose slashes are kept. */
export const segments = (value) => String(value).split('/').map(encodeURIComponent).join('/');

/** Yields the results of all pages of a list: `for await (const repo of paginate((q) => api.reposList('default', q)))`. */
export async function* paginate(list, query = {}) {
  for (;;) {
    const { result, result_info: info } = await list(query);
    yield* result;
    if (info.cursor) query = { ...query, cursor: info.cursor };
    else if (query.cursor === undefined && info.page && info.page < (info.total_pages ?? 0)) query = { ...query, page: info.page + 1 };
    else return;
  }
}
