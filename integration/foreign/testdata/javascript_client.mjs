// Calls every operation by the client for JavaScript. The directory of the test is clients.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const { ApiError, Artifacts, Client, paginate } = await import(pathToFileURL(join(process.cwd(), 'typescript/artifacts.js')));

// Methods that were not called yet.
const missing = new Set(Object.getOwnPropertyNames(Artifacts.prototype));
missing.delete('constructor');
const token = process.env.ARTIFACTFS_SERVER_TOKEN;
const api = new Proxy(new Artifacts({ url: process.env.ARTIFACTFS_SERVER, token }), {
  get(target, name) {
    missing.delete(name);
    const value = target[name];
    return typeof value === 'function' ? value.bind(target) : value;
  },
});
const refused = (call, status, code) => assert.rejects(call, (e) => e instanceof ApiError && e.status === status && e.code === code);

// Namespaces and repositories.
assert.match(await api.account(), /^[0-9a-f]{32}$/);
assert.equal((await api.accountsList()).result[0].id, await api.account());
assert.equal((await api.namespacesCreate({ namespace: 'team', jurisdiction: 'eu' })).jurisdiction, 'eu');
await refused(api.namespacesCreate({ namespace: 'team' }), 409, 10201);
await api.namespacesCreate({ namespace: 'other' });
const names = [];
for await (const n of paginate((q) => api.namespacesList(q), { limit: 1 })) names.push(n.namespace);
assert.deepEqual(names, ['other', 'team']);
await api.namespacesDelete('other');
await refused(api.namespacesGet('other'), 404, 10200);
const app = await api.reposCreate('team', { name: 'app', description: 'ä "quoted" / name', default_branch: 'main' });
for (let i = 0; i < 4; i++) await api.reposCreate('team', { name: `r${i}`, read_only: i % 2 === 1 });
assert.equal((await api.namespacesGet('team')).repo_count, 5);
const repos = [];
for await (const r of paginate((q) => api.reposList('team', q), { limit: 2, sort: 'name', direction: 'asc' })) repos.push(r.name);
assert.deepEqual(repos, ['app', 'r0', 'r1', 'r2', 'r3']);
const pages = [];
for await (const r of paginate((q) => api.reposList('team', q), { limit: 2, page: 1, search: 'R' })) pages.push(r.name);
assert.equal(pages.length, 4);
assert.equal((await api.reposGet('team', 'app')).description, 'ä "quoted" / name');
assert.equal((await api.reposDelete('team', 'r0')).id.length > 0, true);
await refused(api.reposGet('team', 'r0'), 404, 10200);
await refused(api.reposImport('team', 'bad', { url: 'http://127.0.0.1/x.git' }), 400, 10100);
await assert.rejects(api.reposImport('team', 'bad', { url: 'https://127.0.0.1:1/x.git' }), ApiError);
await assert.rejects(api.importGet('team', 'app'), ApiError);
await assert.rejects(api.importRefresh('team', 'app'), ApiError);

// Events arrive while the test pushes.
const stop = new AbortController();
const first = (stream) => stream.next().then(({ value }) => value);
const pushed = first(api.eventsStream({ type: 'pushed', after: 0 }, { signal: stop.signal }));
const ofNamespace = first(api.namespaceEventsStream('team', { type: 'pushed', after: 0 }, { signal: stop.signal }));
const ofRepo = first(api.repoEventsStream('team', 'app', { type: 'pushed', after: 0 }, { signal: stop.signal }));

// Contents.
const dir = mkdtempSync(join(tmpdir(), 'client-'));
const git = (...args) => execFileSync('git', ['-C', dir, ...args], { encoding: 'utf8' }).trim();
git('init', '-q', '-b', 'main');
writeFileSync(join(dir, 'a b ä.txt'), 'one\n');
git('add', '.');
git('commit', '-q', '-m', 'one');
writeFileSync(join(dir, 'a b ä.txt'), 'two\n');
git('commit', '-q', '-am', 'two');
git('branch', 'feature/x');
const secret = app.token.split('?')[0];
git('push', '-q', app.remote.replace('://', `://x:${secret}@`), 'main', 'feature/x');
for (const event of await Promise.all([pushed, ofNamespace, ofRepo])) {
  assert.equal(event.type, 'cf.artifacts.repo.pushed');
  assert.equal(event.source.repoName, 'app');
  assert.match(event.payload.after, /^[0-9a-f]{40}$/);
}
stop.abort();
const [head, tree, blob] = ['HEAD', 'HEAD^{tree}', 'HEAD:a b ä.txt'].map((x) => git('rev-parse', x));
const log = await api.reposLogGet('team', 'app', { ref: 'main', limit: 10 });
assert.deepEqual(log.map((c) => c.message), ['two', 'one']);
assert.deepEqual(await api.reposLogGet('team', 'app', { offset: 1 }), log.slice(1));
assert.equal((await api.reposCommitGet('team', 'app', head)).treeHash, tree);
assert.deepEqual((await api.reposTreeGet('team', 'app', tree)).map((e) => [e.name, e.type, e.hash]), [['a b ä.txt', 'blob', blob]]);
const text = (bytes) => new TextDecoder().decode(bytes);
assert.equal(text(await api.reposBlobGet('team', 'app', blob)), 'two\n');
assert.equal(text(await api.reposFileGet('team', 'app', { ref: 'main', path: 'a b ä.txt' })), 'two\n');
assert.equal(text(await api.reposRawGet('team', 'app', 'feature/x', 'a b ä.txt')), 'two\n');
await refused(api.reposFileGet('team', 'app', { ref: 'main', path: 'none' }), 404, 10200);
assert.deepEqual((await api.refsList('team', 'app', { prefix: 'refs/heads/' })).result.map((r) => r.name), ['refs/heads/feature/x', 'refs/heads/main']);
const diff = await api.diffGet('team', 'app', { base: 'main~1', head: 'main', patch: true }).catch(() =>
  api.diffGet('team', 'app', { base: log[1].hash, head: 'main', patch: true }));
assert.equal(diff.changes[0].path, 'a b ä.txt');
assert.match(diff.patch, /\+two/);
const fork = await api.reposFork('team', 'app', { name: 'fork', commit: log[1].hash });
assert.equal(text(await api.reposFileGet('team', fork.name, { ref: 'main', path: 'a b ä.txt' })), 'one\n');

// Sessions.
execFileSync('sh', [process.env.MAKE_SESSION, dir]);
git('push', '-q', app.remote.replace('://', `://x:${secret}@`), 'refs/afs/*:refs/afs/*');
const work = ['team', 'app', 'work'];
const sessions = [];
for await (const s of paginate((q) => api.sessionsList('team', 'app', q), { limit: 1 })) sessions.push(s.name);
assert.deepEqual(sessions, ['work']);
assert.equal((await api.sessionsGet(...work)).state, 'paused');
await refused(api.sessionsGet('team', 'app', 'none'), 404, 10200);
assert.equal((await api.sessionsChange(...work, { title: 'Work', add_tags: ['x'] })).title, 'Work');
const points = (await api.sessionsCheckpointsList(...work)).result;
assert.deepEqual(points.map((p) => p.head), [git('rev-parse', 'work')]);
assert.equal((await api.sessionsPinsSet(...work, 'good')).checkpoint, points[0].id);
await api.sessionsPinsRemove(...work, 'good');
const { thread } = await api.sessionsAnnotationsCreate(...work, { path: 'c', line: 1, text: 'why?' });
assert.equal((await api.sessionsAnnotationsList(...work)).result[0].now.state, 'same');
assert.equal(thread.on.quote, 'three');
const compared = await api.compare('team', 'app', { p: ['work@', 'main'] });
assert.deepEqual(compared.sides.map((s) => [s.name, s.added]), [['work@', 1], ['main', 0]]);
assert.deepEqual(compared.shared, []);
const asked = await api.sessionsApprovalsCreate(...work, { action: 'merge', branch: 'main' });
assert.equal((await api.sessionsApprovalsList(...work)).result[0].status, 'open');
assert.equal((await api.sessionsApprovalsDeny(...work, asked.id, { text: 'x' })).status, 'denied');
assert.equal((await api.sessionsApprovalsGrant(...work, asked.id, { text: 'x' })).status, 'open');
assert.equal((await api.sessionsApprovalsWithdraw(...work, asked.id, { text: 'x' })).status, 'withdrawn');
assert.equal((await api.policyGet('team', 'app')).policy, null);
assert.deepEqual((await api.policySet('team', 'app', { policy: { version: 1 }, expect: '' })).policy, { version: 1 });
await refused(api.policySet('team', 'app', { policy: { version: 1 }, expect: '' }), 409, 10901);
assert.equal((await api.sessionsMerge(...work, { branch: 'main' })).after, git('rev-parse', 'work'));
const value = new Uint8Array([0, 255, 10]);
const entry = await api.cacheValueSet('team', 'app', value, { key: 'k/1', expect: 'none' });
assert.deepEqual(await api.cacheValueGet('team', 'app', { key: 'k/1' }), value);
assert.equal((await api.cacheGet('team', 'app', { key: 'k/1' })).sha256, entry.sha256);
assert.deepEqual((await api.cacheList('team', 'app')).result.map((e) => e.key), ['k/1']);
await assert.rejects(api.cacheValueSet('team', 'app', value, { key: 'k/1', expect: 'none' }), (e) => e.errors[0].conflict.now === entry.sha256);
await api.cacheDelete('team', 'app', { key: 'k/1', expect: entry.sha256 });
await api.archive('team', 'app', { sessions: ['work'] });
assert.deepEqual((await api.archiveList('team', 'app')).result.map((s) => s.session), ['work']);
await api.archiveReopen('team', 'app', 'work');
assert.equal((await api.sessionsGet(...work)).title, 'Work');
await api.retentionSet('team', { version: 1, rules: [{ delete_after: '30d' }] });
assert.equal((await api.retentionGet('team')).version, 1);
await api.retentionPlan('team');
await api.retentionRun('team');
await api.retentionDelete('team');
assert.ok((await api.sessionsDelete(...work)).refs > 0);

// Tokens.
const made = await api.tokensCreate('team', { repo: 'app', scope: 'read', ttl: 60, label: 'test', refs: [['refs/heads/**', ['no-delete']]] });
const rotated = await api.tokensRotate('team', made.id);
assert.notEqual(rotated.plaintext, made.plaintext);
assert.equal((await api.tokensRevoke('team', rotated.id)).id, rotated.id);
const revoked = [];
for await (const t of paginate((q) => api.repoTokensList('team', 'app', q), { state: 'revoked', per_page: 1 })) revoked.push(t.id);
assert.deepEqual(revoked.sort(), [made.id, rotated.id].sort());
await refused(api.tokensCreate('team', { repo: 'app', ttl: 5 }), 400, 10103);
const owner = await api.controlTokensCreate({ role: 'owner', namespace: 'team', scope: 'read', label: 'owner' });
const owned = new Artifacts({ url: process.env.ARTIFACTFS_SERVER, token: owner.plaintext });
assert.equal((await owned.reposGet('team', 'app')).id, app.id);
await assert.rejects(owned.reposDelete('team', 'app'), (e) => e instanceof ApiError && e.status === 403);
const next = await api.controlTokensRotate(owner.id);
await assert.rejects(owned.reposGet('team', 'app'), (e) => e instanceof ApiError && (e.status === 401 || e.status === 403));
await api.controlTokensRevoke(next.id);
assert.equal((await api.controlTokensList({ state: 'all' })).result.some((t) => t.id === next.id && t.state === 'revoked'), true);
await assert.rejects(new Artifacts({ url: process.env.ARTIFACTFS_SERVER, token: 'wrong' }).account(), ApiError);

// Webhooks, usage, audit.
for (const [list, create, remove, dead, retry] of [
  [() => api.accountWebhooksList(), (b) => api.accountWebhooksCreate(b), (id) => api.accountWebhooksDelete(id),
    (id) => api.accountWebhooksDeadList(id), (id) => api.accountWebhooksDeadRetry(id, 1)],
  [() => api.namespaceWebhooksList('team'), (b) => api.namespaceWebhooksCreate('team', b), (id) => api.namespaceWebhooksDelete('team', id),
    (id) => api.namespaceWebhooksDeadList('team', id), (id) => api.namespaceWebhooksDeadRetry('team', id, 1)],
]) {
  const hook = await create({ url: 'http://127.0.0.1:1/hook', types: ['cf.artifacts.repo.deleted'] });
  assert.ok(hook.secret.length >= 16);
  assert.equal((await list()).result.some((h) => h.id === hook.id && h.secret === undefined), true);
  assert.deepEqual((await dead(hook.id)).result, []);
  await refused(retry(hook.id), 404, 10200);
  await remove(hook.id);
}
assert.ok((await api.repoUsageGet('team', 'app')).stored.own >= 0);
assert.ok(Array.isArray((await api.namespaceUsageGet('team', { first: '2026-01-01' })).operations));
const entries = [];
for await (const e of api.auditExport({ limit: 1000 })) entries.push(e);
assert.ok(entries.some((e) => e.method === 'POST' && e.target.endsWith('/fork') && e.result === 201));
assert.ok(!JSON.stringify(entries).includes(secret), 'the audit log contains a token');
assert.equal((await api.openapiGet()).openapi, '3.1.1');
assert.equal(await api.healthGet(), 'ok\n');
assert.equal(await api.readyGet(), 'ok\n');
assert.match(await api.metricsGet(), /^# HELP /);
assert.ok(new Client({ url: 'http://x/', token: '' }));

assert.deepEqual([...missing], []);
console.log('every operation was called');
