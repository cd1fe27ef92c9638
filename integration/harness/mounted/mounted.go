// Package mounted creates, without a mount, the repositories that a session uses on a host: a remote, a store of it, a
// git directory with a working tree, and the repository of the session.
package mounted

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// WithoutConfig calls run, which runs the tests of a package, without the git configuration of the user and the
// machine. It returns the exit code of run.
func WithoutConfig(run func() int) int {
	home, err := os.MkdirTemp("", "mounted-home")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(home)
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "GIT_") && name != "GIT_EXEC_PATH" {
			os.Unsetenv(name)
		}
	}
	os.Setenv("HOME", home)
	os.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	return run()
}

// Place contains the repositories that a session uses on a host: a remote, a blobless store of the remote, a git
// directory with a working tree, whose alternate is the store, and the session's repository.
type Place struct {
	T       testing.TB
	Origin  *gittest.Repo
	Store   string        // git directory of the store
	Git     string        // git directory of the mount
	Work    string        // working tree of the mount
	Session string        // git directory of the session's repository
	Repo    *session.Repo // repository of the session; nil before Open was called
	Base    object.ID     // newest commit of the mounted remote
	Format  object.Format
	mu      sync.Mutex // held by Open
}

// Run runs git in a directory, and returns its output without white space at both ends. The test ends if git fails.
func Run(t testing.TB, dir string, stdin string, args ...string) string {
	t.Helper()
	out, err := Try(t, dir, stdin, args...)
	if err != nil {
		t.Fatalf("git %v failed: %v\n%s", args, err, out)
	}
	return out
}

// Try runs git like Run, and returns an error if git fails.
func Try(t testing.TB, dir string, stdin string, args ...string) (string, error) {
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

// SessionName is the name of the session of each Place.
const SessionName = "s1"

// New creates a Place whose mounted remote has a short history.
func New(t testing.TB, f object.Format) *Place {
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
	p := &Place{T: t, Origin: origin, Store: filepath.Join(root, "store"), Git: filepath.Join(root, "git"),
		Work: filepath.Join(root, "work"), Session: filepath.Join(root, "session.git"), Format: f}
	p.Base = object.MustID(Run(t, origin.Path, "", "rev-parse", "main"))
	Run(t, root, "", "clone", "-q", "--bare", "--filter=blob:none", "--no-local", "file://"+origin.Path, p.Store)
	Run(t, root, "", "init", "-q", "--object-format="+f.String(), "-b", "main", "--separate-git-dir", p.Git, p.Work)
	if err := os.WriteFile(filepath.Join(p.Git, "objects/info/alternates"), []byte(p.Store+"/objects\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"extensions.partialClone", "origin"}, {"remote.origin.url", "file://" + origin.Path},
		{"remote.origin.promisor", "true"}, {"remote.origin.partialclonefilter", "blob:none"},
		{"core.repositoryFormatVersion", "1"}, {"gc.auto", "0"}, {"user.name", "a"}, {"user.email", "a@b"},
		{"remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"}} {
		Run(t, p.Work, "", "config", c[0], c[1])
	}
	Run(t, p.Work, "", "update-ref", "refs/remotes/origin/main", p.Base.String())
	Run(t, p.Work, "", "update-ref", "refs/heads/main", p.Base.String())
	Run(t, p.Work, "", "pack-refs", "--all")
	Run(t, p.Work, "", "read-tree", "HEAD") // no files are checked out, as in a mount
	return p
}

// Open opens the repository of the session, and creates it if it does not exist.
func (p *Place) Open() (*session.Repo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Repo != nil {
		return p.Repo, nil
	}
	repo, err := session.OpenRepo(p.Session, session.RepoOptions{Format: p.Format, Session: SessionName,
		Remote: "file://" + p.Origin.Path,
		Borrow: []string{p.Store + "/objects"}, Fresh: []string{p.Git + "/objects"}})
	if err == nil {
		p.Repo = repo
		p.T.Cleanup(func() { repo.Close() })
	}
	return repo, err
}

// Commit changes a file and commits it as a user does, and returns the new commit. Files that are not checked out are
// not committed as deleted.
func (p *Place) Commit(name, content string, args ...string) object.ID {
	p.T.Helper()
	file := filepath.Join(p.Work, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		p.T.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		p.T.Fatal(err)
	}
	Run(p.T, p.Work, "", "add", name)
	tree := Run(p.T, p.Work, "", "write-tree", "--missing-ok")
	_ = tree
	Run(p.T, p.Work, "", append([]string{"commit", "-q", "-m", name}, args...)...)
	return object.MustID(Run(p.T, p.Work, "", "rev-parse", "HEAD"))
}

// FromCache returns nil, because a Place has no cache of contents.
func (p *Place) FromCache(context.Context, []object.ID) error { return nil }

// Missing returns the elements of ids that the store lacks.
func (p *Place) Missing(ids []object.ID) []object.ID {
	packs, err := odb.Open(p.Store+"/objects", p.Format)
	if err != nil {
		p.T.Fatal(err)
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

// Provide fetches the objects wanted and along from the mounted remote into the store.
func (p *Place) Provide(ctx context.Context, wanted, along []object.ID) error {
	var in strings.Builder
	for _, id := range append(wanted, along...) {
		fmt.Fprintln(&in, id)
	}
	cmd := exec.CommandContext(ctx, "git", "fetch", "-q", "--no-tags", "--refmap=", "--filter=blob:none",
		"--stdin", "origin")
	cmd.Dir, cmd.Stdin, cmd.Env = p.Store, strings.NewReader(in.String()), gittest.Env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("git fetch: %w: %s", err, out)
	}
	return nil
}

// PollWatch returns a function that replaces the daemon's inotify watch. The function sends to wake when the
// modification time of dir changes, which it polls.
func PollWatch(t testing.TB) func(dir string, wake chan<- struct{}) (func(), bool, error) {
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

// InSession returns the value of a ref in the repository of the session, or "" if the ref does not exist.
func (p *Place) InSession(name string) string {
	out, err := Try(p.T, p.Session, "", "rev-parse", "-q", "--verify", name)
	if err != nil {
		return ""
	}
	return out
}

// Kept returns the earlier values of refs that the session's repository keeps.
func (p *Place) Kept() []string {
	out := Run(p.T, p.Session, "", "for-each-ref", "--format=%(objectname)", session.KeptPrefix(SessionName))
	return strings.Fields(out)
}

// Carried waits until the copier has copied the value id of the branch main to the session's repository.
func (p *Place) Carried(id object.ID) {
	p.T.Helper()
	await.Until(p.T, "the copier has copied the ref", func() bool { return p.InSession("refs/heads/main") == id.String() })
}

// Checkpoint creates a checkpoint of the working tree as a capturer does, with a checkpoint state and a commit whose
// parent is the previous checkpoint.
func (p *Place) Checkpoint(reason string) session.Checkpoint {
	p.T.Helper()
	repo, err := p.Open()
	if err != nil {
		p.T.Fatal(err)
	}
	tree := Run(p.T, p.Work, "", "write-tree", "--missing-ok")
	state := Run(p.T, p.Work, "", "commit-tree", "-m", "state", tree)
	ref := session.SegmentRef(SessionName, "main", 1)
	before, err := repo.Ref(ref)
	if err != nil {
		p.T.Fatal(err)
	}
	checkpoint := session.Checkpoint{ID: session.NewCheckpointID(time.Now()), Tree: object.MustID(tree),
		State: object.MustID(state), Session: SessionName,
		Lane: "main", Segment: 1, Reason: session.Reason(reason), Time: time.Now(), Base: p.Base, Head: p.Base}
	content := checkpoint.Encode(before)
	checkpoint.Commit = object.MustID(Run(p.T, p.Work, string(content), "hash-object", "-w", "-t", "commit", "--stdin"))
	copies := session.NewCopier(repo)
	if err := copies.Commits(p.T.Context(), []object.ID{checkpoint.Commit}); err != nil {
		p.T.Fatal(err)
	}
	if err := repo.Write(p.T.Context(), copies.Objects()); err != nil {
		p.T.Fatal(err)
	}
	if err := repo.Update(p.T.Context(),
		[]session.RefChange{{Name: ref, Old: before, New: checkpoint.Commit}}); err != nil {
		p.T.Fatal(err)
	}
	return checkpoint
}
