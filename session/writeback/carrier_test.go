package writeback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// place is a mounted remote, a blobless store of it, a git directory with a working tree that has the store as its alternate, as that
// of a mount has, and the session's repository.
type place struct {
	t       testing.TB
	origin  *gittest.Repo
	store   string // git directory of the store
	git     string // git directory of the mount
	work    string // working tree of the mount
	session string // git directory of the session's repository
	mu      sync.Mutex
	repo    *session.Repo
	base    object.ID
	format  object.Format
}

func run(t testing.TB, dir string, stdin string, args ...string) string {
	t.Helper()
	out, err := try(t, dir, stdin, args...)
	if err != nil {
		t.Fatalf("git %v failed: %v\n%s", args, err, out)
	}
	return out
}

func try(t testing.TB, dir string, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin, cmd.Env = dir, strings.NewReader(stdin), gittest.Env()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out) + stderr.String(), err
	}
	return strings.TrimSpace(string(out)), nil
}

const sessionName = "s1"

func newPlace(t testing.TB, f object.Format) *place {
	t.Helper()
	root := t.TempDir()
	origin, err := gittest.New(filepath.Join(root, "origin"), gittest.RepoOptions{Format: f})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := origin.History(5); err != nil {
		t.Fatal(err)
	}
	if _, err := origin.Sized(4, 5); err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, origin: origin, store: filepath.Join(root, "store"), git: filepath.Join(root, "git"), work: filepath.Join(root, "work"), session: filepath.Join(root, "session.git"), format: f}
	p.base = object.MustID(run(t, origin.Path, "", "rev-parse", "main"))
	run(t, root, "", "clone", "-q", "--bare", "--filter=blob:none", "--no-local", "file://"+origin.Path, p.store)
	run(t, root, "", "init", "-q", "--object-format="+f.String(), "-b", "main", "--separate-git-dir", p.git, p.work)
	if err := os.WriteFile(filepath.Join(p.git, "objects/info/alternates"), []byte(p.store+"/objects\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"extensions.partialClone", "origin"}, {"remote.origin.url", "file://" + origin.Path}, {"remote.origin.promisor", "true"}, {"remote.origin.partialclonefilter", "blob:none"},
		{"core.repositoryFormatVersion", "1"}, {"gc.auto", "0"}, {"user.name", "a"}, {"user.email", "a@b"}, {"remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"}} {
		run(t, p.work, "", "config", c[0], c[1])
	}
	run(t, p.work, "", "update-ref", "refs/remotes/origin/main", p.base.String())
	run(t, p.work, "", "update-ref", "refs/heads/main", p.base.String())
	run(t, p.work, "", "pack-refs", "--all")
	run(t, p.work, "", "read-tree", "HEAD") // no files are checked out, because a mount would show them
	return p
}

func (p *place) open() (*session.Repo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.repo != nil {
		return p.repo, nil
	}
	repo, err := session.OpenRepo(p.session, session.RepoOptions{Format: p.format, Session: sessionName, Remote: "file://" + p.origin.Path,
		Borrow: []string{p.store + "/objects"}, Fresh: []string{p.git + "/objects"}})
	if err == nil {
		p.repo = repo
		p.t.Cleanup(func() { repo.Close() })
	}
	return repo, err
}

// commit changes a file as a user does, and returns the new commit. It ignores the files that are not checked out.
func (p *place) commit(name, content string, args ...string) object.ID {
	p.t.Helper()
	file := filepath.Join(p.work, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
	run(p.t, p.work, "", "add", name)
	tree := run(p.t, p.work, "", "write-tree", "--missing-ok")
	_ = tree
	run(p.t, p.work, "", append([]string{"commit", "-q", "-m", name}, args...)...)
	return object.MustID(run(p.t, p.work, "", "rev-parse", "HEAD"))
}

// FromCache does nothing: a place has no cache of contents.
func (p *place) FromCache(context.Context, []object.ID) error { return nil }

// Provide and Missing have the signatures of those of fetch.Store: they fetch contents from the mounted remote into the store.
func (p *place) Missing(ids []object.ID) []object.ID {
	packs, err := odb.Open(p.store+"/objects", p.format)
	if err != nil {
		p.t.Fatal(err)
	}
	defer packs.Close()
	var missing []object.ID
	for _, id := range ids {
		if !packs.Has(id) {
			missing = append(missing, id)
		}
	}
	return missing
}

func (p *place) Provide(ctx context.Context, wanted, along []object.ID) error {
	var in strings.Builder
	for _, id := range append(wanted, along...) {
		fmt.Fprintln(&in, id)
	}
	cmd := exec.CommandContext(ctx, "git", "fetch", "-q", "--no-tags", "--refmap=", "--filter=blob:none", "--stdin", "origin")
	cmd.Dir, cmd.Stdin, cmd.Env = p.store, strings.NewReader(in.String()), gittest.Env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("git fetch: %w: %s", err, out)
	}
	return nil
}

// pollWatch replaces the daemon's inotify watch: it polls the mtime of a directory.
func pollWatch(t testing.TB) func(dir string, wake chan<- struct{}) (func(), bool, error) {
	var mu sync.Mutex
	watched := map[string]os.FileInfo{}
	return func(dir string, wake chan<- struct{}) (func(), bool, error) {
		st, err := os.Stat(dir)
		if err != nil {
			return nil, false, err
		}
		mu.Lock()
		defer mu.Unlock()
		if before := watched[dir]; before != nil && os.SameFile(before, st) {
			return nil, false, nil
		}
		watched[dir] = st
		ctx, cancel := context.WithCancel(context.Background())
		var done sync.WaitGroup
		done.Go(func() {
			last := st.ModTime()
			for tick := time.NewTicker(2 * time.Millisecond); ; {
				select {
				case <-ctx.Done():
					tick.Stop()
					return
				case <-tick.C:
				}
				if st, err := os.Stat(dir); err == nil && !st.ModTime().Equal(last) {
					last = st.ModTime()
					select {
					case wake <- struct{}{}:
					default:
					}
				}
			}
		})
		return func() {
			cancel()
			done.Wait()
			mu.Lock()
			defer mu.Unlock()
			if watched[dir] == st {
				delete(watched, dir)
			}
		}, true, nil
	}
}

func (p *place) copier(o RefCopierOptions) *RefCopier {
	o.Repo, o.Session, o.GitDir, o.Format = p.open, sessionName, p.git, p.format
	if o.Watch == nil {
		o.Watch = pollWatch(p.t)
	}
	o.Refs = func() []packedrefs.Ref { return []packedrefs.Ref{{Name: "refs/heads/main", ID: p.base}} }
	c := NewRefCopier(o)
	p.t.Cleanup(c.Close)
	return c
}

func (p *place) inSession(name string) string {
	out, err := try(p.t, p.session, "", "rev-parse", "-q", "--verify", name)
	if err != nil {
		return ""
	}
	return out
}

func (p *place) kept() []string {
	out := run(p.t, p.session, "", "for-each-ref", "--format=%(objectname)", session.KeptPrefix(sessionName))
	return strings.Fields(out)
}

func TestCarrier(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			p := newPlace(t, f)
			c := p.copier(RefCopierOptions{})
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if p.repo != nil {
				t.Fatal("the session's repository was created although there is no ref to copy")
			}
			one := p.commit("d/new.txt", "one")
			start := time.Now()
			await.Until(t, "the commit is in the session repository", func() bool { return p.inSession("refs/heads/main") == one.String() })
			t.Logf("carried within %v", time.Since(start))
			if p.repo.Owned(p.base) {
				t.Error("a commit of the mounted remote was copied into the session's repository")
			}
			// An amended commit, a new branch, a tag, a note, a removed branch, and packed refs.
			two := p.commit("d/new.txt", "two", "--amend")
			await.Until(t, "the amended commit is in the session repository", func() bool { return p.inSession("refs/heads/main") == two.String() })
			if kept := p.kept(); len(kept) != 1 || kept[0] != one.String() {
				t.Errorf("kept refs after an amended commit: got %v, want %v", kept, one)
			}
			run(t, p.work, "", "checkout", "-q", "-b", "feature/x")
			three := p.commit("three.txt", "three")
			run(t, p.work, "", "tag", "-a", "-m", "v", "v1")
			run(t, p.work, "", "tag", "light")
			run(t, p.work, "", "notes", "--ref", "agent", "add", "-m", "note")
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"refs/heads/feature/x", "refs/tags/v1", "refs/tags/light", "refs/notes/agent", "refs/heads/main"} {
				if got, want := p.inSession(name), run(t, p.work, "", "rev-parse", name); got != want {
					t.Errorf("%s in the session's repository: got %q, want %s", name, got, want)
				}
			}
			if head := run(t, p.session, "", "symbolic-ref", "HEAD"); head != "refs/heads/feature/x" {
				t.Errorf("HEAD of the session's repository: got %s, want refs/heads/feature/x", head)
			}
			run(t, p.work, "", "pack-refs", "--all", "--prune")
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, p.work, "", "checkout", "-q", "--detach")
			run(t, p.work, "", "branch", "-q", "-D", "feature/x")
			run(t, p.work, "", "tag", "-d", "light")
			// feature could not be created as long as feature/x existed.
			run(t, p.work, "", "branch", "feature", three.String())
			await.Until(t, "branch feature replaces branch feature/x", func() bool { return p.inSession("refs/heads/feature") == three.String() })
			if got := p.inSession("refs/heads/feature/x") + p.inSession("refs/tags/light"); got != "" {
				t.Errorf("refs that were removed in the mount still exist: %s", got)
			}
			if kept := p.kept(); len(kept) != 2 {
				t.Errorf("kept refs after the removals: got %v, want 2", kept)
			}
			run(t, p.session, "", "fsck", "--connectivity-only")
			// Another RefCopier continues. It notices the refs that were removed before it started.
			c.Close()
			run(t, p.work, "", "branch", "-q", "-D", "feature")
			run(t, p.work, "", "update-ref", "refs/heads/main", p.base.String())
			c = p.copier(RefCopierOptions{})
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := p.inSession("refs/heads/feature"); got != "" {
				t.Errorf("refs/heads/feature after its removal: got %s, want none", got)
			}
			if got := p.inSession("refs/heads/main"); got != p.base.String() {
				t.Errorf("refs/heads/main: got %s, want %s", got, p.base)
			}
		})
	}
}

// A ref whose object is missing is not copied until the object exists again. The other refs are copied.
func TestCarrierOfALostObject(t *testing.T) {
	for _, embedded := range []bool{false, true} {
		p := newPlace(t, object.SHA1)
		one := p.commit("a", "one")
		run(t, p.work, "", "tag", "-a", "-m", "t", "v1")
		tag := run(t, p.work, "", "rev-parse", "v1")
		lost := filepath.Join(p.git, "objects", tag[:2], tag[2:])
		if err := os.Rename(lost, lost+".away"); err != nil {
			t.Fatal(err)
		}
		c := p.copier(RefCopierOptions{Embedded: embedded, Provide: p})
		if err := c.Flush(t.Context()); !errors.Is(err, odb.ErrNotFound) || !strings.Contains(err.Error(), "v1") {
			t.Errorf("flush with a missing object: got %v, want an error that names v1", err)
		}
		if got := p.inSession("refs/heads/main"); got != one.String() {
			t.Errorf("refs/heads/main: got %q, want %s", got, one)
		}
		two := p.commit("a", "two")
		c.Flush(t.Context())
		if got := p.inSession("refs/heads/main"); got != two.String() {
			t.Errorf("refs/heads/main: got %q, want %s", got, two)
		}
		if err := os.Rename(lost+".away", lost); err != nil {
			t.Fatal(err)
		}
		if err := c.Flush(t.Context()); err != nil || p.inSession("refs/tags/v1") != tag {
			t.Errorf("flush after the object was restored: got error %v and v1 at %q, want %s", err, p.inSession("refs/tags/v1"), tag)
		}
	}
}

// If the git directory cannot be read, no ref counts as removed.
// A missing git directory is a failure, and does not remove refs of the session repository.
func TestCarrierWithoutGitDirectory(t *testing.T) {
	p := newPlace(t, object.SHA1)
	var failure atomic.Pointer[error]
	c := p.copier(RefCopierOptions{Failed: func(err error) { failure.Store(&err) }})
	one := p.commit("a", "a")
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(p.git, p.git+".away"); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("flush without a git directory: got %v, want os.ErrNotExist", err)
	}
	if got := p.inSession("refs/heads/main"); got != one.String() {
		t.Errorf("refs/heads/main: got %q, want %s", got, one)
	}
	os.Rename(p.git+".away", p.git)
	await.Until(t, "the copier works again", func() bool { return *failure.Load() == nil })
}

// Refs that do not belong to the session are not copied: fetched tags, and branches with the values of the remote.
func TestCarrierLeavesTheRemotes(t *testing.T) {
	p := newPlace(t, object.SHA1)
	c := p.copier(RefCopierOptions{})
	run(t, p.origin.Path, "", "tag", "theirs", "main")
	run(t, p.origin.Path, "", "tag", "-a", "-m", "x", "annotated", "main")
	run(t, p.work, "", "fetch", "-q", "--tags", "origin")
	run(t, p.work, "", "branch", "ours", "main")
	run(t, p.work, "", "tag", "mine", "main~1")
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"refs/tags/theirs": false, "refs/tags/annotated": false, "refs/heads/main": false, "refs/heads/ours": true, "refs/tags/mine": true} {
		if got := p.inSession(name) != ""; got != want {
			t.Errorf("%s exists in the session's repository: got %v, want %v", name, got, want)
		}
	}
}

// If the Repo is the session remote, stock git can fetch from it, and git fsck finds no error in the Repo. Copying refs needs no contents
// of the mounted remote, except those that a commit moves.
func TestEmbeddedRepoServesGit(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			p := newPlace(t, f)
			c := p.copier(RefCopierOptions{Embedded: true, Provide: p})
			copied := filepath.Join(t.TempDir(), "copy")
			run(t, "/", "", "clone", "-q", p.origin.Path, copied)
			away := func(f func()) {
				t.Helper()
				if err := os.Rename(p.origin.Path, p.origin.Path+".away"); err != nil {
					t.Fatal(err)
				}
				f()
				if err := os.Rename(p.origin.Path+".away", p.origin.Path); err != nil {
					t.Fatal(err)
				}
			}
			check := func(branch string, want object.ID) {
				t.Helper()
				away(func() {
					if err := c.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
					run(t, copied, "", "fetch", "-q", p.session, "+refs/heads/*:refs/session/*")
					if got := run(t, copied, "", "rev-parse", "refs/session/"+branch); got != want.String() {
						t.Errorf("branch %s of the clone: got %s, want %v", branch, got, want)
					}
					for _, dir := range []string{copied, p.session} {
						if out, err := try(t, dir, "", "fsck", "--strict", "--connectivity-only"); err != nil || strings.Contains(out, "missing") {
							t.Errorf("git fsck in %s: %v: %s", dir, err, out)
						}
					}
				})
			}
			run(t, p.work, "", "branch", "later")
			one := p.commit("d0001/new.txt", "one")
			check("main", one)
			if got := p.inSession("refs/heads/later"); got != p.base.String() {
				t.Errorf("branch later: got %s, want %v", got, p.base)
			}
			two := p.commit("two.txt", "two")
			check("main", two)
			run(t, p.work, "", "checkout", "-q", "-f", "-b", "old", p.base.String()+"~2")
			three := p.commit("three.txt", "three")
			check("old", three)
			run(t, p.work, "", "merge", "-q", "-m", "both", "main")
			both := object.MustID(run(t, p.work, "", "rev-parse", "HEAD"))
			check("old", both)
			run(t, p.work, "", "tag", "-a", "-m", "v", "v1")
			// Without the history and contents, a clone needs the mounted remote.
			into := filepath.Join(t.TempDir(), "clone")
			cmd := exec.Command("git", "clone", "-q", "-b", "old", "--depth=1", "file://"+p.session, into)
			cmd.Env = append(gittest.Env(), "GIT_NO_LAZY_FETCH=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("git clone with lazy fetching: %v: %s", err, out)
			}
			if out := run(t, into, "", "status", "--porcelain"); out != "" {
				t.Errorf("git status in the clone: got %s, want no changes", out)
			}
			run(t, p.work, "", "update-ref", "refs/heads/old", p.base.String())
			check("old", p.base)
		})
	}
}

func FuzzFetchedTags(f *testing.F) {
	f.Add("1234\tnot-for-merge\ttag 'v1' of file:///x\n")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "FETCH_HEAD"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		for name := range fetchedTags(dir) {
			if !strings.HasPrefix(name, "refs/tags/") {
				t.Errorf("fetchedTags returned %q, which is not a tag", name)
			}
		}
	})
}
