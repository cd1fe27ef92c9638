// Uses of the client that the compiler must accept, and mistakes that it must find.
import { ApiError, Artifacts, Event, Page, Repo, paginate } from './client/artifacts.js';

const api = new Artifacts({ url: 'http://127.0.0.1:8790', token: '' });
const account: string = await api.account();
for await (const r of paginate((query) => api.reposList('team', query))) {
  const repo: Repo = r;
  console.log(account, repo.name, repo.last_push_at?.length);
}
const page: Page<Repo> = await api.reposList('team', { sort: 'name', direction: 'asc' }, { signal: AbortSignal.timeout(1) });
for await (const e of api.eventsStream({ type: 'pushed' })) {
  const event: Event = e;
  console.log(event.source.repoName, page.result_info.cursor);
}
const token = await api.tokensCreate('team', { repo: 'app', refs: [['refs/heads/**', ['no-delete']], ['refs/notes/*']] });
const bytes: Uint8Array = await api.reposFileGet('team', 'app', { ref: 'main', path: 'README.md' });
try {
  await api.reposGet('team', token.id);
} catch (e) {
  if (e instanceof ApiError) console.log(e.status, e.code, e.errors[0]?.source?.pointer, bytes.length);
}
// @ts-expect-error: the name is missing
await api.reposCreate('team', { description: 'x' });
// @ts-expect-error: no such order
await api.reposList('team', { sort: 'size' });
// @ts-expect-error: path is missing
await api.reposFileGet('team', 'app', { ref: 'main' });
