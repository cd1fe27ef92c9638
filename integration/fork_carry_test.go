package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// forkRepo returns a mount with committed, uncommitted and ignored files.
func forkRepo(t *testing.T) (*world, served, mounted) {
	t.Helper()
	w, r := newTravelled(t)
	w.commit(r, map[string]gittest.File{".gitignore": {Data: []byte(forkIgnore)}})
	s := w.serve(gittest.ServerOptions{})
	return w, s, w.forkMount(s.URL("r.git"))
}

// forkIgnore is the .gitignore of mounts that are forked.
const forkIgnore = "build/\nnode_modules/\n*.o\n.env\n"

// forkable returns the same as forkRepo in a world that exists.
func (w *world) forkable() mounted {
	w.Helper()
	files := map[string]gittest.File{".gitignore": {Data: []byte(forkIgnore)}, "d0001/f0001.txt": {Data: []byte("text\n")}}
	w.commit(w.repo("r.git", object.SHA1), files)
	return w.forkMount(w.serve(gittest.ServerOptions{}).URL("r.git"))
}

// forkMount mounts a repository, and creates uncommitted and ignored files.
func (w *world) forkMount(url string) mounted {
	w.Helper()
	m := w.bare(url, "--session", "work", "--checkpoint", "off", "--wait", "git")
	w.sh(m.Dir, `mkdir -p node_modules/.bin node_modules/pkg/lib build/empty src
for i in 1 2 3 4 5 6 7 8 9; do echo "module $i" >node_modules/pkg/lib/$i.js; done
ln node_modules/pkg/lib/1.js node_modules/pkg/hard && ln -s ../pkg/lib/2.js node_modules/.bin/run
chmod 755 node_modules/pkg/lib/3.js && chmod 700 build/empty && mkfifo build/fifo
head -c 300000 /dev/urandom >build/program && echo TOKEN=1 >.env && echo object >src/a.o && echo new >src/new
echo KEY >id_rsa && echo more >>d0001/f0001.txt
touch -d '3 days ago' node_modules/pkg/lib/4.js build node_modules/.bin
touch -h -d '4 days ago' node_modules/.bin/run`)
	return m
}

// everythingIn describes all paths of a mount with attributes and contents. Hard links have the same number.
func (m mounted) everythingIn() string {
	m.w.Helper()
	return m.w.sh(m.Dir, `find . -path ./.git -prune -o -printf '%P %y %m %n %U:%G %s %T@ %l\n' |
	sed 's/^\(.* d [0-7]* \)[0-9]* /\1/' | sort
find . -path ./.git -prune -o -type f -exec sha256sum {} + | sort -k 2`)
}

// wantCarried compares a fork with an earlier result of everythingIn for its parent.
func (m mounted) wantCarried(what, want string) {
	m.w.Helper()
	got := strings.Split(m.everythingIn(), "\n")
	for _, line := range strings.Split(want, "\n") {
		if !slices.Contains(got, line) {
			m.w.Errorf("%s: lacks %q", what, line)
		}
	}
	if len(got) != strings.Count(want, "\n")+1 {
		m.w.Errorf("%s: got %d lines, want %d", what, len(got), strings.Count(want, "\n")+1)
	}
}

// shares returns the names of the shares in the state directory, without those that are being removed.
func (w *world) shares() []string {
	w.Helper()
	entries, err := os.ReadDir(filepath.Join(w.state, "shares"))
	if err != nil && !os.IsNotExist(err) {
		w.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

// A fork has everything that its parent has. Both change on their own, survive the death of the worker and of the
// daemon, and the end of the other one.
func TestForkCarriesIgnoredFiles(t *testing.T) {
	w, s, m := forkRepo(t)
	want := m.everythingIn()
	status := w.git(m.Dir, "status", "--porcelain", "--ignored")
	s.forget()
	f := m.fork("fork")
	f.wantCarried("fork", want)
	if c := f.Carried; c == nil || c.Files != 15 || c.Failed != "" || !slices.Equal(c.Secrets, []string{".env", "id_rsa"}) ||
		c.Bytes < 300000 || f.Receipt != nil {
		t.Errorf("fork: got %+v as carried, and the receipt %+v", c, f.Receipt)
	}
	if got := w.git(f.Dir, "status", "--porcelain", "--ignored"); got != status {
		t.Errorf("git status in the fork: got %q, want %q", got, status)
	}
	if st := f.status(); st.Overlay.Changed != 0 || st.Overlay.Bytes != 0 {
		t.Errorf("status of the fork: got the changes %+v, want none", st.Overlay)
	}
	// The checkpoint of the fork has none of the carried files.
	if p, of := f.checkpoint(), m.checkpoint(); p.Tree != of.Tree {
		t.Errorf("checkpoint of the fork: got tree %s, want %s", p.Tree, of.Tree)
	}
	// A second fork of the same contents needs no further share.
	if g := m.fork("second"); len(w.shares()) != 1 {
		t.Errorf("shares after two forks: got %q, want one", w.shares())
	} else {
		g.wantCarried("second fork", want)
		w.unmount(g)
	}

	w.sh(m.Dir, `echo PARENT >>node_modules/pkg/hard && rm build/program && mv node_modules/.bin node_modules/bin
echo 2 >.env`)
	f.wantCarried("fork after changes of the parent", want)
	w.sh(f.Dir, `printf FORK | dd of=build/program bs=1 seek=1000 conv=notrunc 2>/dev/null
echo more >node_modules/pkg/lib/9.js && rm -r src && truncate -s 7 node_modules/pkg/lib/5.js`)
	if got := w.sh(m.Dir, `cat node_modules/pkg/lib/5.js node_modules/pkg/lib/9.js src/a.o .env`); got !=
		"module 5\nmodule 9\nobject\n2" {
		t.Errorf("files of the parent after changes of the fork: got %q", got)
	}
	parent, fork := m.everythingIn(), f.everythingIn()
	w.until("the worker was killed", func() bool { return syscall.Kill(w.serving(), syscall.SIGKILL) == nil })
	m.wantCarried("parent after a kill of the worker", parent)
	f.wantCarried("fork after a kill of the worker", fork)
	w.ok("daemon", "--upgrade")
	m.wantCarried("parent after an upgrade", parent)
	f.wantCarried("fork after an upgrade", fork)

	// The fork of a fork, and the end of the others.
	g := f.fork("third")
	g.wantCarried("fork of the fork", fork)
	w.ok("unmount", "--discard", "--yes", m.Dir)
	w.ok("unmount", "--discard", "--yes", f.Dir)
	g.wantCarried("fork of the fork, after the end of the others", fork)
	w.killDaemon()
	w.ok("mount", g.Remote, g.Dir, "--session", g.Session, "--history", "none", "--prefetch", "none")
	g.wantCarried("fork of the fork, mounted again", fork)
	if len(w.shares()) == 0 {
		t.Error("the shares of a mount were removed")
	}
	var report struct {
		Shares []struct {
			Bytes int64
			Users []string
		}
	}
	if err := json.Unmarshal([]byte(w.ok("cache", "stat", "--json")), &report); err != nil || len(report.Shares) == 0 ||
		report.Shares[0].Bytes < 300000 || !slices.Contains(report.Shares[0].Users, "third") {
		t.Errorf("cache stat: got %+v, %v", report, err)
	}
	w.sh(g.Dir, "echo changed >src2") // otherwise nothing is kept of the session
	w.unmount(g)
	w.ok("session", "delete", "third", "--yes")
	w.ok("cache", "gc")
	if len(w.shares()) == 0 {
		t.Error("shares of deleted sessions that can be restored were removed")
	}
}

// A parent that is deleted and restored has everything, as its fork has. An unchanged fork is kept when it is unmounted
// if it has the only copies.
func TestForkAndItsParentAreDeleted(t *testing.T) {
	w, _, m := forkRepo(t)
	want := m.everythingIn()
	p := m.checkpoint("--pin", "point")
	f, g := m.fork("fork"), m.fork("other")
	w.unmount(m)
	w.ok("session", "delete", "work", "--yes")
	f.wantCarried("fork of a deleted session", want)
	w.ok("session", "undelete", "work")
	again, _ := w.mountAt(m.Remote, m.Dir, "--session", "work", "--checkpoint", "off", "--wait", "git")
	again.wantCarried("restored parent", want)
	w.sh(again.Dir, "echo changed >>node_modules/pkg/hard; rm build/program")
	w.ok("session", "restore", p.ID, "-C", again.Dir)
	if got := w.sh(again.Dir, "cat node_modules/pkg/hard"); got != "module 1\nchanged" {
		t.Errorf("ignored file after a restore: got %q, want the changed one", got)
	}
	f.wantCarried("fork after a restore of its parent", want)

	w.ok("unmount", "--discard", "--yes", g.Dir)
	w.ok("unmount", "--discard", "--yes", again.Dir)
	w.check(os.RemoveAll(filepath.Join(w.state, "trash")))
	w.ok("cache", "gc")
	w.unmount(f)
	f, _ = w.mountAt(f.Remote, f.Dir, "--session", "fork", "--checkpoint", "off", "--wait", "git")
	f.wantCarried("fork with the only copies, mounted again", want)
}
