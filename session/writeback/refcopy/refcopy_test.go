package refcopy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/mounted"
)

func TestMain(m *testing.M) { os.Exit(mounted.WithoutConfig(m.Run)) }

func copier(p *mounted.Place, o Options) *Copier {
	o.Repo, o.Session, o.GitDir, o.Format = p.Open, mounted.SessionName, p.Git, p.Format
	o.Watch = mounted.PollWatch(p.T)
	o.Refs = func() []packedrefs.Ref { return []packedrefs.Ref{{Name: "refs/heads/main", ID: p.Base}} }
	c := New(o)
	p.T.Cleanup(c.Close)
	return c
}

func TestCopier(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			p := mounted.New(t, f)
			c := copier(p, Options{})
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if p.Repo != nil {
				t.Fatal("the session's repository was created although there is no ref to copy")
			}
			one := p.Commit("d/new.txt", "one")
			start := time.Now()
			await.Until(t, "the commit is in the session repository",
				func() bool { return p.InSession("refs/heads/main") == one.String() })
			t.Logf("carried within %v", time.Since(start))
			if p.Repo.Owned(p.Base) {
				t.Error("a commit of the mounted remote was copied into the session's repository")
			}
			// An amended commit, a new branch, a tag, a note, a removed branch, and packed refs.
			two := p.Commit("d/new.txt", "two", "--amend")
			await.Until(t, "the amended commit is in the session repository",
				func() bool { return p.InSession("refs/heads/main") == two.String() })
			if kept := p.Kept(); len(kept) != 1 || kept[0] != one.String() {
				t.Errorf("kept refs after an amended commit: got %v, want %v", kept, one)
			}
			mounted.Run(t, p.Work, "", "checkout", "-q", "-b", "feature/x")
			three := p.Commit("three.txt", "three")
			mounted.Run(t, p.Work, "", "tag", "-a", "-m", "v", "v1")
			mounted.Run(t, p.Work, "", "tag", "light")
			mounted.Run(t, p.Work, "", "notes", "--ref", "agent", "add", "-m", "note")
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"refs/heads/feature/x", "refs/tags/v1", "refs/tags/light", "refs/notes/agent",
				"refs/heads/main"} {
				if got, want := p.InSession(name), mounted.Run(t, p.Work, "", "rev-parse", name); got != want {
					t.Errorf("%s in the session's repository: got %q, want %s", name, got, want)
				}
			}
			if head := mounted.Run(t, p.Session, "", "symbolic-ref", "HEAD"); head != "refs/heads/feature/x" {
				t.Errorf("HEAD of the session's repository: got %s, want refs/heads/feature/x", head)
			}
			mounted.Run(t, p.Work, "", "pack-refs", "--all", "--prune")
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			mounted.Run(t, p.Work, "", "checkout", "-q", "--detach")
			mounted.Run(t, p.Work, "", "branch", "-q", "-D", "feature/x")
			mounted.Run(t, p.Work, "", "tag", "-d", "light")
			// The branch feature could not be created while feature/x existed.
			mounted.Run(t, p.Work, "", "branch", "feature", three.String())
			await.Until(t, "branch feature replaces branch feature/x",
				func() bool { return p.InSession("refs/heads/feature") == three.String() })
			if got := p.InSession("refs/heads/feature/x") + p.InSession("refs/tags/light"); got != "" {
				t.Errorf("refs that were removed in the mount still exist: %s", got)
			}
			if kept := p.Kept(); len(kept) != 2 {
				t.Errorf("kept refs after the removals: got %v, want 2", kept)
			}
			mounted.Run(t, p.Session, "", "fsck", "--connectivity-only")
			// A new Copier continues. It finds the refs that were removed before it started.
			c.Close()
			mounted.Run(t, p.Work, "", "branch", "-q", "-D", "feature")
			mounted.Run(t, p.Work, "", "update-ref", "refs/heads/main", p.Base.String())
			c = copier(p, Options{})
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := p.InSession("refs/heads/feature"); got != "" {
				t.Errorf("refs/heads/feature after its removal: got %s, want none", got)
			}
			if got := p.InSession("refs/heads/main"); got != p.Base.String() {
				t.Errorf("refs/heads/main: got %s, want %s", got, p.Base)
			}
		})
	}
}

// TestCopierMissingObject checks that a ref whose object is missing is not copied until the object exists again, and
// that the other refs are copied.
func TestCopierMissingObject(t *testing.T) {
	for _, embedded := range []bool{false, true} {
		var o Options
		p := mounted.New(t, object.SHA1)
		one := p.Commit("a", "one")
		mounted.Run(t, p.Work, "", "tag", "-a", "-m", "t", "v1")
		tag := mounted.Run(t, p.Work, "", "rev-parse", "v1")
		lost := filepath.Join(p.Git, "objects", tag[:2], tag[2:])
		if err := os.Rename(lost, lost+".away"); err != nil {
			t.Fatal(err)
		}
		if embedded {
			o.Provide = p
		}
		c := copier(p, o)
		if err := c.Flush(t.Context()); !errors.Is(err, odb.ErrNotFound) || !strings.Contains(err.Error(), "v1") {
			t.Errorf("flush with a missing object: got %v, want an error that names v1", err)
		}
		if got := p.InSession("refs/heads/main"); got != one.String() {
			t.Errorf("refs/heads/main: got %q, want %s", got, one)
		}
		two := p.Commit("a", "two")
		c.Flush(t.Context())
		if got := p.InSession("refs/heads/main"); got != two.String() {
			t.Errorf("refs/heads/main: got %q, want %s", got, two)
		}
		if err := os.Rename(lost+".away", lost); err != nil {
			t.Fatal(err)
		}
		if err := c.Flush(t.Context()); err != nil || p.InSession("refs/tags/v1") != tag {
			t.Errorf("flush after the object was restored: got error %v and v1 at %q, want %s", err,
				p.InSession("refs/tags/v1"), tag)
		}
	}
}

// TestCopierWithoutGitDirectory checks that no ref counts as removed if the git directory cannot be read. A missing
// git directory is an error, and no refs of the session repository are removed.
func TestCopierWithoutGitDirectory(t *testing.T) {
	p := mounted.New(t, object.SHA1)
	var failure atomic.Pointer[error]
	c := copier(p, Options{Failed: func(err error) { failure.Store(&err) }})
	one := p.Commit("a", "a")
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(p.Git, p.Git+".away"); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("flush without a git directory: got %v, want os.ErrNotExist", err)
	}
	if got := p.InSession("refs/heads/main"); got != one.String() {
		t.Errorf("refs/heads/main: got %q, want %s", got, one)
	}
	os.Rename(p.Git+".away", p.Git)
	await.Until(t, "the copier works again", func() bool { return *failure.Load() == nil })
}

// TestCopierSkipsRemoteRefs checks that refs that do not belong to the session are not copied: fetched tags, and
// branches that equal those of the mounted remote.
func TestCopierSkipsRemoteRefs(t *testing.T) {
	p := mounted.New(t, object.SHA1)
	c := copier(p, Options{})
	mounted.Run(t, p.Origin.Path, "", "tag", "theirs", "main")
	mounted.Run(t, p.Origin.Path, "", "tag", "-a", "-m", "x", "annotated", "main")
	mounted.Run(t, p.Work, "", "fetch", "-q", "--tags", "origin")
	mounted.Run(t, p.Work, "", "branch", "ours", "main")
	mounted.Run(t, p.Work, "", "tag", "mine", "main~1")
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"refs/tags/theirs": false, "refs/tags/annotated": false,
		"refs/heads/main": false, "refs/heads/ours": true, "refs/tags/mine": true} {
		if got := p.InSession(name) != ""; got != want {
			t.Errorf("%s exists in the session's repository: got %v, want %v", name, got, want)
		}
	}
}

// TestEmbeddedRepoServesGit checks that stock git can fetch from a Repo that is the session remote, and that git fsck
// finds no error in it. To copy refs needs no contents of the mounted remote, except those of files that a commit
// moves.
func TestEmbeddedRepoServesGit(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			p := mounted.New(t, f)
			c := copier(p, Options{Provide: p})
			copied := filepath.Join(t.TempDir(), "copy")
			mounted.Run(t, "/", "", "clone", "-q", p.Origin.Path, copied)
			away := func(f func()) {
				t.Helper()
				if err := os.Rename(p.Origin.Path, p.Origin.Path+".away"); err != nil {
					t.Fatal(err)
				}
				f()
				if err := os.Rename(p.Origin.Path+".away", p.Origin.Path); err != nil {
					t.Fatal(err)
				}
			}
			check := func(branch string, want object.ID) {
				t.Helper()
				away(func() {
					if err := c.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
					mounted.Run(t, copied, "", "fetch", "-q", p.Session, "+refs/heads/*:refs/session/*")
					if got := mounted.Run(t, copied, "", "rev-parse", "refs/session/"+branch); got != want.String() {
						t.Errorf("branch %s of the clone: got %s, want %v", branch, got, want)
					}
					for _, dir := range []string{copied, p.Session} {
						if out, err := mounted.Try(t, dir, "", "fsck", "--strict", "--connectivity-only"); err != nil ||
							strings.Contains(out, "missing") {
							t.Errorf("git fsck in %s: %v: %s", dir, err, out)
						}
					}
				})
			}
			mounted.Run(t, p.Work, "", "branch", "later")
			one := p.Commit("d0001/new.txt", "one")
			check("main", one)
			if got := p.InSession("refs/heads/later"); got != p.Base.String() {
				t.Errorf("branch later: got %s, want %v", got, p.Base)
			}
			two := p.Commit("two.txt", "two")
			check("main", two)
			mounted.Run(t, p.Work, "", "checkout", "-q", "-f", "-b", "old", p.Base.String()+"~2")
			three := p.Commit("three.txt", "three")
			check("old", three)
			mounted.Run(t, p.Work, "", "merge", "-q", "-m", "both", "main")
			both := object.MustID(mounted.Run(t, p.Work, "", "rev-parse", "HEAD"))
			check("old", both)
			mounted.Run(t, p.Work, "", "tag", "-a", "-m", "v", "v1")
			// A clone needs the mounted remote, because the Repo lacks its history and contents.
			into := filepath.Join(t.TempDir(), "clone")
			cmd := exec.Command("git", "clone", "-q", "-b", "old", "--depth=1", "file://"+p.Session, into)
			cmd.Env = append(gittest.Env(), "GIT_NO_LAZY_FETCH=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("git clone with lazy fetching: %v: %s", err, out)
			}
			if out := mounted.Run(t, into, "", "status", "--porcelain"); out != "" {
				t.Errorf("git status in the clone: got %s, want no changes", out)
			}
			mounted.Run(t, p.Work, "", "update-ref", "refs/heads/old", p.Base.String())
			check("old", p.Base)
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
