// A small command line for isomorphic-git: clone, commit, push and fetch. The tests describe its arguments (suite_test.go).
import fs from 'node:fs';
import path from 'node:path';
import git from 'isomorphic-git';
import http from 'isomorphic-git/http/node';

const [command, ...args] = process.argv.slice(2);
const token = process.env.AFS_TOKEN;
const auth = {};
if (process.env.AFS_AUTH === 'basic') {
  auth.onAuth = () => ({ username: 'x', password: token });
  auth.onAuthFailure = () => ({ cancel: true });
} else if (process.env.AFS_AUTH === 'bearer') {
  auth.headers = { Authorization: `Bearer ${token}` };
}
const author = { name: 'foreign', email: 'foreign@localhost' };

const commands = {
  async clone(url, dir, depth) {
    await git.clone({ fs, http, dir, url, depth: depth ? Number(depth) : undefined, singleBranch: Boolean(depth), ...auth });
  },
  async commit(dir, name, text) {
    fs.writeFileSync(path.join(dir, name), text);
    await git.add({ fs, dir, filepath: name });
    console.log(await git.commit({ fs, dir, author, message: `change ${name}\n` }));
  },
  async push(dir, source, target, force) {
    // isomorphic-git wants a local ref for a deletion too.
    const refs = { ref: source || 'main', remoteRef: `refs/heads/${target}`, delete: !source, force: force === 'force' };
    await git.push({ fs, http, dir, remote: 'origin', ...refs, ...auth });
  },
  async fetch(dir) {
    await git.fetch({ fs, http, dir, remote: 'origin', ...auth });
    console.log(await git.resolveRef({ fs, dir, ref: 'refs/remotes/origin/main' }));
  },
};

try {
  await commands[command](...args);
} catch (e) {
  console.error(`${e.code ?? e.name}: ${e.message} ${e.data?.response ?? JSON.stringify(e.data ?? {})}`);
  process.exit(1);
}
