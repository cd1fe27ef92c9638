// Opens a session, mounts it, commits, and forks the result:
//
//   artifactfs serve
//   ARTIFACTFS_SERVER=http://127.0.0.1:8790 ARTIFACTFS_SERVER_TOKEN=afs_admin_... node example.mjs
//
// It needs the program artifactfs and git, and FUSE.
import { execFileSync } from 'node:child_process';
import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Artifacts } from './artifacts.js';

const api = new Artifacts({ url: process.env.ARTIFACTFS_SERVER, token: process.env.ARTIFACTFS_SERVER_TOKEN });
const namespace = 'example';
const session = `agent-${Date.now().toString(36)}`;
const dir = mkdtempSync(join(tmpdir(), 'artifactfs-example-'));

function run(command, args, { cwd = dir, token } = {}) {
  // The token of the server stays in this process; programs get only that of the repository.
  const { ARTIFACTFS_SERVER_TOKEN, ...env } = process.env;
  const out = execFileSync(command, args, {
    cwd, env: { ...env, ...(token && { ARTIFACTFS_TOKEN: token }) }, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'],
  });
  return out.trim();
}

try {
  // A repository with one commit, pushed by stock git.
  const repo = await api.reposCreate(namespace, { name: session, description: 'made by example.mjs' });
  const seed = join(dir, 'seed');
  run('git', ['init', '-q', '-b', repo.default_branch, seed]);
  writeFileSync(join(seed, 'README.md'), '# An example\n');
  run('git', ['add', '.'], { cwd: seed });
  run('git', ['commit', '-q', '-m', 'begin'], { cwd: seed });
  const helper = '!f() { test "$1" = get && echo username=x && echo "password=$ARTIFACTFS_TOKEN"; }; f';
  run('git', ['-c', `credential.helper=${helper}`, 'push', '-q', repo.remote, repo.default_branch], { cwd: seed, token: repo.token });
  console.log(`created ${namespace}/${repo.name}: ${repo.remote}`);

  // A session in it, with a token that may change the refs of this session only.
  const { plaintext: token, id } = await api.tokensCreate(namespace, { repo: repo.name, session, label: 'example', ttl: 3600 });
  const mount = join(dir, 'mount');
  run('artifactfs', ['mount', repo.remote, mount, '--session', session, '--session-remote', 'origin', '--wait', 'git'], { token });
  try {
    appendFileSync(join(mount, 'README.md'), 'Written in a mount.\n');
    run('git', ['commit', '-q', '-am', 'work of the session'], { cwd: mount });
    run('artifactfs', ['sync', mount]);
    const commit = run('git', ['rev-parse', 'HEAD'], { cwd: mount });
    console.log(`committed ${commit} in session ${session}`);

    // A fork that begins at this commit.
    const fork = await api.reposFork(namespace, repo.name, { name: `${session}-fork`, commit });
    const text = new TextDecoder().decode(await api.reposFileGet(namespace, fork.name, { ref: fork.default_branch, path: 'README.md' }));
    console.log(`forked ${namespace}/${fork.name}: README.md is\n${text}`);
  } finally {
    run('artifactfs', ['unmount', mount]);
    await api.tokensRevoke(namespace, id);
  }
} finally {
  rmSync(dir, { recursive: true, force: true });
}
