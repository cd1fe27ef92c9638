package githttp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/replicatest"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/receive"
	"github.com/artifactfs/artifactfs/server/records"
)

// contents returns all refs and the ids of all objects of a repository as a text.
func (w *world) contents(dir string) string {
	w.t.Helper()
	w.do(dir, "fsck", "--strict", "--no-dangling")
	objects := strings.Fields(w.do(dir, "cat-file", "--batch-all-objects",
		"--batch-check=%(objectname):%(objecttype):%(objectsize)"))
	slices.Sort(objects)
	return w.do(dir, "for-each-ref") + "\n" + w.do(dir, "symbolic-ref", "HEAD") + "\n" + strings.Join(objects, "\n")
}

// history creates commits on several branches, with merges, tags and notes.
func (w *world) history(dir string) {
	w.t.Helper()
	for i := range 4 {
		w.do(dir, "checkout", "-q", "-b", fmt.Sprintf("topic/%d", i))
		w.commit(dir, fmt.Sprintf("dir%d/file", i), strings.Repeat(fmt.Sprintln("line", i), 50))
		w.commit(dir, "file", fmt.Sprintln("text", i))
		w.do(dir, "checkout", "-q", "main")
		w.do(dir, "merge", "-q", "--no-ff", "-m", "merge", fmt.Sprintf("topic/%d", i))
		w.do(dir, "tag", "-a", "-m", "tag", fmt.Sprintf("v%d", i))
		w.do(dir, "notes", "add", "-m", fmt.Sprint("note ", i))
		w.do(dir, "update-ref", fmt.Sprintf("refs/afs/j/s/main/%d", i), "HEAD~1")
	}
}

func TestClonesEqualThoseOfHTTPBackend(t *testing.T) {
	w := newWorld(t, Limits{})
	for _, format := range []string{"sha1", "sha256"} {
		_, ours := w.repo("r-"+format, format)
		_, theirs := w.bare(format)
		work := w.work(format)
		w.history(work)
		for _, url := range []string{ours, theirs} {
			w.do(work, "push", "-q", url, "refs/*:refs/*")
		}
		w.commit(work, "more", "one commit")
		for _, url := range []string{ours, theirs} {
			w.do(work, "push", "-q", url, "main")
		}
		if format == "sha1" {
			w.comparePartialClones(ours, theirs)
		}
		for _, version := range map[string][]string{"sha1": versions, "sha256": versions[2:]}[format] {
			var found []string
			for _, url := range []string{ours, theirs} {
				dir := t.TempDir()
				w.do(dir, "-c", "protocol.version="+version, "clone", "-q", "--mirror", url, "c")
				found = append(found, w.contents(dir+"/c"))
			}
			if found[0] != found[1] || strings.Count(found[0], "\n") < 40 {
				t.Errorf("%s, version %s: clone of our server:\n%s\nof http-backend:\n%s", format, version, found[0], found[1])
			}
		}
	}
}

// comparePartialClones clones from two servers partially and shallowly, and compares the results.
func (w *world) comparePartialClones(ours, theirs string) {
	for i, c := range [][]string{
		{"--filter=blob:none", "--no-checkout"}, {"--depth=3", "--branch=topic/2"}, {"--filter=tree:0", "--no-checkout"},
		{"--depth=1"},
		{"--single-branch", "--no-tags"}, {"--shallow-exclude=v3"},
	} {
		for _, version := range versions[2*min(i/2, 1):] {
			var found []string
			for _, url := range []string{ours, theirs} {
				dir := w.t.TempDir()
				w.do(dir, append(append([]string{"-c", "protocol.version=" + version, "clone", "-q"}, c...), url, "c")...)
				dir += "/c"
				text := w.do(dir, "for-each-ref") + w.do(dir, "rev-list", "--objects", "--missing=print", "--all")
				if strings.HasPrefix(c[0], "--depth") {
					w.do(dir, "-c", "protocol.version="+version, "fetch", "-q", "--deepen=1")
					text += w.do(dir, "rev-list", "--all")
					w.do(dir, "-c", "protocol.version="+version, "fetch", "-q", "--unshallow")
					text += w.do(dir, "rev-list", "--all")
				}
				if strings.HasPrefix(c[0], "--filter") {
					text += w.do(dir, "cat-file", "-p", "HEAD:dir1/file")
				}
				lines := strings.Split(text, "\n")
				slices.Sort(lines)
				found = append(found, strings.Join(lines, "\n"))
			}
			if found[0] != found[1] {
				w.t.Errorf("clone %v, version %s: of our server:\n%s\nof http-backend:\n%s", c, version, found[0], found[1])
			}
		}
	}
}

func TestPushFromShallowAndPartialClones(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	w.history(work)
	w.do(work, "push", "-q", url, "main")
	for i, option := range []string{"--depth=1", "--filter=blob:none"} {
		dir := t.TempDir()
		w.do(dir, "clone", "-q", option, url, "c")
		id := w.commit(dir+"/c", "new", option)
		w.do(dir+"/c", "push", "-q", "origin", fmt.Sprintf("HEAD:refs/heads/b%d", i))
		if got := w.refs(repo)[fmt.Sprintf("refs/heads/b%d", i)]; got != id {
			t.Errorf("push from a clone with %s: got %s, want %s", option, got, id)
		}
	}
}

func TestLargePushes(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	random := make([]byte, 3<<20)
	for i, settings := range [][]string{
		{"-c", "http.postBuffer=1000"}, {"-c", "http.extraHeader=Expect: 100-continue"},
		{"-c", "http.version=HTTP/1.1", "-c", "http.postBuffer=100000000"},
	} {
		rand.Read(random)
		id := w.commit(work, "large", string(random))
		w.do(work, append(settings, "push", "-q", url, "main")...)
		if got := w.refs(repo)["refs/heads/main"]; got != id {
			t.Errorf("push %d: main is %s, want %s", i, got, id)
		}
	}
	var many []string
	for i := range 500 {
		many = append(many, fmt.Sprintf("HEAD:refs/heads/many/%d", i))
	}
	w.do(work, append([]string{"push", "-q", url}, many...)...)
	if got := len(w.refs(repo)); got != 501 {
		t.Errorf("refs after a push of 500: %d, want 501", got)
	}
}

func TestRoomOnDisk(t *testing.T) {
	dir := t.TempDir()
	if err := room(dir, 0); err != nil {
		t.Errorf("small push: %v", err)
	}
	if err := room(dir, 1<<60); !errors.Is(err, objects.ErrFull) {
		t.Errorf("push that is larger than the disk: got %v, want %v", err, objects.ErrFull)
	}
}

func TestConcurrentPushes(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	base := w.work("sha1")
	w.do(base, "push", "-q", url, "main")
	const clients = 4
	var dirs, ids []string
	for i := range clients {
		dir := t.TempDir()
		w.do(dir, "clone", "-q", url, "c")
		dirs, ids = append(dirs, dir+"/c"), append(ids, w.commit(dir+"/c", "file", fmt.Sprint("client ", i)))
	}
	for _, target := range []string{"refs/heads/main", "refs/heads/own-%d"} {
		var wg sync.WaitGroup
		results := make([]error, clients)
		for i, dir := range dirs {
			wg.Go(func() {
				ref := target
				if strings.Contains(target, "%d") {
					ref = fmt.Sprintf(target, i)
				}
				_, results[i] = clientGit(t.Context(), dir, "push", "-q", url, "HEAD:"+ref)
			})
		}
		wg.Wait()
		refs := w.refs(repo)
		won := 0
		for i, err := range results {
			if err == nil {
				won++
				if !strings.Contains(target, "%d") && refs["refs/heads/main"] != ids[i] {
					t.Errorf("client %d has won, but main is %s", i, refs["refs/heads/main"])
				}
			} else if text := err.Error(); !strings.Contains(text, "stale ref") && !strings.Contains(text, "rejected") {
				t.Errorf("client %d: %v", i, err)
			}
		}
		if want := map[bool]int{true: clients, false: 1}[strings.Contains(target, "%d")]; won != want {
			t.Errorf("pushes to %s: %d have succeeded, want %d: %v", target, won, want, results)
		}
	}
	dir := t.TempDir()
	w.do(dir, "clone", "-q", "--mirror", url, "c")
	w.do(dir+"/c", "fsck", "--strict")
}

func TestCollectionDuringPush(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	w.do(work, "push", "-q", url, "main", "main:refs/heads/kept")
	w.commit(work, "file", "lost")
	w.do(work, "push", "-q", url, "main:refs/heads/lost")
	collect := func(ctx context.Context, old []string) {
		now, err := w.db.Repos.ByID(ctx, repo.ID)
		if err == nil {
			err = w.db.Packs.Collect(ctx, repo.ID, now.Version, old, nil)
		}
		if err != nil {
			t.Errorf("collect garbage: %v", err)
		}
	}
	var during func(ctx context.Context)
	var err error
	w.git.receiver, err = receive.New(receive.Options{
		Dir: filepath.Join(w.dir, "git", "hooks"), Records: w.db, Replicas: w.set, Log: w.git.o.Log,
		Events: func(ctx context.Context, _ string, _ records.Repo, _ records.Token, _ []records.RefUpdate,
			_ []events.Merge) receive.MakeEvents {
			if during != nil {
				during(ctx)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	during = func(ctx context.Context) { collect(ctx, nil) }
	id := w.commit(work, "file", "three")
	w.do(work, "push", "-q", url, "main")
	if got := w.refs(repo)["refs/heads/main"]; got != id {
		t.Errorf("main after a push with a collection in between: got %s, want %s", got, id)
	}
	// The commit exists when git checks the push, and is removed before the refs change.
	during = nil
	w.do(work, "push", "-q", url, ":main")
	w.do(work, "push", "-q", url, ":lost")
	snap, err := w.db.Repos.Snapshot(t.Context(), repo.ID)
	if err != nil {
		t.Fatal(err)
	}
	var old []string
	for _, p := range snap.Packs {
		if strings.Contains(w.do(w.dir, "verify-pack", "-v", filepath.Join("objects", p.Key(".idx"))), id) {
			old = append(old, p.ID)
		}
	}
	if len(old) != 1 {
		t.Fatalf("commit %s is in packs %v", id, old)
	}
	// Another request keeps the removed pack in the replica.
	at, err := w.set.Acquire(t.Context(), repo.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Release()
	during = func(ctx context.Context) { collect(ctx, old); old = nil }
	_, token := w.token(records.Token{RepoID: repo.ID})
	zeros := strings.Repeat("0", 40)
	empty := pushBody(newPack().bytes(), zeros+" "+id+" refs/heads/main")
	if got := w.send("r", token, empty); !strings.Contains(got, "ng refs/heads/main missing necessary objects") {
		t.Errorf("push of a commit that was collected: %q", got)
	}
	if refs := w.refs(repo); refs["refs/heads/main"] != "" {
		t.Errorf("refs lead to objects that were collected: %v", refs)
	}
	during = nil
	if got := w.send("r", token, empty); !strings.Contains(got, "ng refs/heads/main missing necessary objects") {
		t.Errorf("push of a commit that is missing: %q", got)
	}
	w.do(work, "push", "-q", url, "main:refs/heads/again", "main~2:refs/heads/x")
}

// TestRestoreDuringPush undoes a push in the database, as when a standby is promoted that lacks the push, while the
// node still has its objects. No ref may point to these objects, although the generation of the repository has
// increased again to that of the replica on the node.
func TestRestoreDuringPush(t *testing.T) {
	for _, pushes := range []int{0, 1, 2} {
		w := newWorld(t, Limits{})
		repo, url := w.repo("r", "sha1")
		work := w.work("sha1")
		w.do(work, "push", "-q", url, "main")
		restore := replicatest.Backup(t, filepath.Join(w.dir, "records.db"))
		id := w.commit(work, "file", "lost")
		w.do(work, "push", "-q", url, "main:refs/heads/lost")
		at, err := w.set.Acquire(t.Context(), repo.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer at.Release()
		w.git.receiver, err = receive.New(receive.Options{
			Dir: filepath.Join(w.dir, "git", "hooks"), Records: w.db, Replicas: w.set, Log: w.git.o.Log,
			Events: func(ctx context.Context, _ string, _ records.Repo, _ records.Token, _ []records.RefUpdate,
				_ []events.Merge) receive.MakeEvents {
				restore()
				for n := range pushes { // pushes of another node
					now, err := w.db.Repos.Snapshot(ctx, repo.ID)
					if err == nil {
						_, err = w.db.Repos.Push(ctx, records.Push{RepoID: repo.ID, Version: now.Repo.Version,
							Updates: []records.RefUpdate{
								{Name: fmt.Sprint("refs/heads/other", n), Old: strings.Repeat("0", 40), New: now.Refs[0].ID},
							}})
					}
					if err != nil {
						t.Errorf("push of another node: %v", err)
					}
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, token := w.token(records.Token{RepoID: repo.ID})
		push := pushBody(newPack().bytes(), strings.Repeat("0", 40)+" "+id+" refs/heads/new")
		if got := w.send("r", token, push); !strings.Contains(got, "ng refs/heads/new missing necessary objects") {
			t.Errorf("push of a lost commit after %d other pushes: %q", pushes, got)
		}
		if refs := w.refs(repo); refs["refs/heads/new"] != "" || len(refs) != pushes+1 {
			t.Errorf("refs after %d other pushes: %v", pushes, refs)
		}
	}
}

// processes returns the commands of running processes that name the directory of the world, or that run in it.
func (w *world) processes() (commands []string) {
	pids, err := proc.PIDs()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, pid := range pids {
		args, err := proc.Of(pid).Args()
		dir, _ := proc.Of(pid).Dir()
		if command := strings.Join(args, " "); err == nil && command != "" && strings.Contains(command+dir, w.dir) {
			commands = append(commands, command)
		}
	}
	return commands
}

// quiet waits until the server has no git process and no directory of a push.
func (w *world) quiet() {
	w.t.Helper()
	await.Until(w.t, "server has ended all processes and removed all directories of pushes", func() bool {
		left, err := filepath.Glob(filepath.Join(w.dir, "replicas/repos/*/push-*"))
		if err != nil {
			w.t.Fatal(err)
		}
		trash, err := os.ReadDir(filepath.Join(w.dir, "replicas/trash"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.t.Fatal(err)
		}
		return len(left) == 0 && len(trash) == 0 && len(w.processes()) == 0 && w.git.slots.Running() == 0
	})
}
