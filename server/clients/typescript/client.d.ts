/** One error of an answer. */
export interface ApiErrorItem {
  code: number;
  message: string;
  documentation_url?: string;
  source?: { pointer?: string };
}

/** An answer that is not a success. `code` is that of the first error, such as 10200 for what does not exist. */
export declare class ApiError extends Error {
  readonly status: number;
  readonly errors: ApiErrorItem[];
  readonly code: number | undefined;
}

export interface ClientOptions {
  /** URL of the server without path, such as http://127.0.0.1:8790 or https://api.cloudflare.com. */
  url: string;
  /** Token for the REST API. */
  token: string;
  /** Account of the server, 32 hexadecimal digits. The client asks the server for it if it is not given. */
  account?: string;
  /** Replaces the global fetch. */
  fetch?: typeof globalThis.fetch;
}

export interface CallOptions {
  signal?: AbortSignal;
}

export declare class Client {
  constructor(options: ClientOptions);
  /** Returns the account of the server. */
  account(): Promise<string>;
}

/** One page of a list. */
export interface Page<T> {
  result: T[];
  result_info: {
    per_page: number;
    count: number;
    cursor?: string;
    page?: number;
    total_pages?: number;
    total_count?: number;
  };
}

/** Yields the results of all pages of a list: `for await (const repo of paginate((q) => api.reposList('default', q)))`. */
export declare function paginate<T, Q extends object>(list: (query: Q) => Promise<Page<T>>, query?: Q): AsyncGenerator<T, void, undefined>;
