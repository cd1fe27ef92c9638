package integration

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// Programs in a container can change .git, but the daemon, which is outside of the container, runs no program that .git
// names, and follows no links there.
func TestDaemonIsSafeFromAContainer(t *testing.T) {
	w := newWorld(t)
	w.history("app.git")
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	m := w.mount(url, "--git-dir", "inside", "--wait", "git")
	home := m.gitDir()
	ran, victim := w.place("ran"), w.place("victim")
	check(t, os.WriteFile(victim, []byte("of the host\n"), 0o644))
	w.sh(m.Dir, `mkdir -p .git/hooks
for hook in reference-transaction post-index-change post-checkout; do printf '#!/bin/sh\necho hook >>`+ran+`\n' >.git/hooks/$hook; chmod +x .git/hooks/$hook; done
printf '#!/bin/sh\necho monitor >>`+ran+`\nexit 1\n' >.git/monitor; chmod +x .git/monitor
git init -q sub; git -C sub -c user.name=u -c user.email=u@x commit -q --allow-empty -m sub
for dir in . sub; do
	git -C $dir config core.fsmonitor "$PWD/.git/monitor"
	for name in evil e=vil; do git -C $dir config filter.$name.clean 'echo filter >>`+ran+`; cat'; done
done
git config --file .git/more filter.included.clean 'echo included >>`+ran+`; cat'; git config include.path more
git add sub 2>/dev/null
git config remote.evil.url "ext::sh -c 'echo remote >>`+ran+`'"; git config remote.evil.promisor true; git config protocol.ext.allow always
git config gpg.program '`+ran+`'; git config commit.gpgSign true
printf '*.a filter=evil\n*.b filter=e=vil\n*.c filter=included\n' >.gitattributes; echo x >x.a; echo x >x.b; echo x >x.c; echo y >>known/a
echo 1234567890123456789012345678901234567890 >.git/refs/heads/missing
rm -f .git/logs/HEAD; ln -s `+victim+` .git/logs/HEAD
ln -s `+victim+` .git/FETCH_HEAD; ln -s `+victim+` .git/artifactfs-x`)
	if err := os.Remove(ran); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	unharmed := func(when string) {
		t.Helper()
		if text, err := os.ReadFile(ran); err == nil {
			t.Errorf("%s: the daemon has run programs of the container: %s", when, text)
			os.Remove(ran)
		}
		if text, err := os.ReadFile(victim); err != nil || string(text) != "of the host\n" {
			t.Errorf("%s: the daemon has written to a file of the host: %s, %v", when, text, err)
		}
	}
	before := m.checkpoint()
	unharmed("checkpoint")
	for _, args := range [][]string{
		{"switch", "-C", m.Dir, "missing"}, {"switch", "-C", m.Dir, "--create", "made"},
		{"switch", "-C", m.Dir, "--detach", "HEAD"}, {"refresh", m.Dir},
		{"session", "note", "-C", m.Dir, `{"a":1}`}, {"session", "restore", "-C", m.Dir, before.ID},
		{"session", "annotate", "-C", m.Dir, "HEAD", "--message", "x"}, {"checkpoint", m.Dir},
	} {
		r := w.afs(args...)
		t.Logf("%v: %s", args, r)
		unharmed(strings.Join(args, " "))
	}
	syscall.Kill(w.serving(), syscall.SIGKILL) // the worker
	m.checkpoint()
	unharmed("takeover")
	w.unmount(m)
	unharmed("unmount")
	m = w.mount(url, "--session", m.Session, "--git-dir", "inside", "--wait", "git")
	m.checkpoint()
	unharmed("resume")
	outside := w.place("outside")
	check(t, os.Mkdir(outside, 0o755))
	w.sh(m.Dir, `rm -rf .git/refs/remotes/origin; ln -s `+outside+` .git/refs/remotes/origin`)
	w.afs("unmount", m.Dir) // not everything can be pushed
	m = w.mount(url, "--session", m.Session, "--git-dir", "outside", "--wait", "git")
	w.afs("refresh", m.Dir)
	w.afs("switch", "-C", m.Dir, "--create", "later")
	unharmed("mount with .git outside")
	if names, err := os.ReadDir(outside); err != nil || len(names) > 0 {
		t.Errorf("the daemon has written to a directory of the host: %v, %v", names, err)
	}
	w.sh(m.Dir, "git status")
	w.afs("unmount", m.Dir)
	mounts, err := mountinfo.Self()
	check(t, err)
	if _, ok := mounts.At(home); ok {
		t.Errorf("%s is still a mount point", home)
	}
}

// What a container puts into .git neither ends the daemon nor makes requests of other mounts wait, and its own mount
// can be unmounted.
func TestContainerDoesNotHarmOtherMounts(t *testing.T) {
	w := newWorld(t)
	r := w.repo("app.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"a": {Data: []byte("a\n")}, "b": {Data: []byte("b\n")}})
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	args := []string{"--git-dir", "inside", "--wait", "git", "--prefetch", "none", "--history", "none"}
	bad, good := w.mount(url, args...), w.mount(url, args...)
	worker := w.serving()
	objects := strings.Fields(w.git(r.Path, "rev-parse", "main:a", "main:b"))
	w.sh(bad.Dir, `for id in `+strings.Join(objects, " ")+`; do
	mkdir -p .git/objects/$(echo $id | cut -c1-2); mkfifo .git/objects/$(echo $id | cut -c1-2)/$(echo $id | cut -c3-); done`)
	for _, name := range []string{"a", "b"} {
		if out := w.sh(good.Dir, "timeout -s KILL 60 cat "+name); out != name {
			t.Errorf("%s in the other mount: got %q", name, out)
		}
	}
	for _, name := range []string{"refs/heads/x", "packed-refs", "index", "logs/refs/stash", "info/attributes",
		"config", "HEAD"} {
		for _, make := range []string{"truncate -s 15T ", "mkfifo "} {
			w.sh(bad.Dir, `mkdir -p $(dirname .git/`+name+`); mv .git/`+name+` .git/saved || true; `+make+`.git/`+name+
				`; echo >>changed`)
			t.Logf("%s%s: %s", make, name, w.afs("checkpoint", bad.Dir))
			w.sh(bad.Dir, `rm .git/`+name+`; mv .git/saved .git/`+name+` || true`)
			good.checkpoint()
		}
	}
	if now := w.serving(); now != worker {
		t.Errorf("the daemon's worker %d was replaced by %d", worker, now)
	}
	w.sh(bad.Dir, `mv .git/artifactfs .git/moved; mkdir .git/artifactfs; mkfifo .git/artifactfs/helper`)
	syscall.Kill(worker, syscall.SIGKILL)
	good.checkpoint()
	w.unmount(bad)
}
