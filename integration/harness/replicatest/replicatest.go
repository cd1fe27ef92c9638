// Package replicatest creates the repositories of a server for tests: records, stored packs and replicas, without HTTP.
package replicatest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// Bed is one node of a server: a database, an object store, and replicas.
type Bed struct {
	Dir     string
	DB      *records.DB
	Objects objects.Store
	Set     *replica.Set
}

// New returns a node with an SQLite database below dir, whose replicas have the given limits. location is the URL of
// the object store; if it is "", the object store is a directory below dir. The node is closed when the test ends.
func New(t testing.TB, dir, location string, limits replica.Options) *Bed {
	t.Helper()
	b, err := Open(t.Context(), dir, location, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.Set.Close(), b.DB.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Open returns a node like New. The caller must close the node.
func Open(ctx context.Context, dir, location string, limits replica.Options) (*Bed, error) {
	if location == "" {
		location = filepath.Join(dir, "objects")
	}
	db, err := records.Open(ctx, "sqlite:"+filepath.Join(dir, "records.db"))
	if err != nil {
		return nil, err
	}
	store, err := objects.Open(location)
	if err != nil {
		return nil, err
	}
	limits.Dir, limits.Records, limits.Objects = filepath.Join(dir, "replicas"), db, store
	set, err := replica.Open(limits)
	if err != nil {
		return nil, err
	}
	return &Bed{dir, db, store, set}, nil
}

// Repo is a repository of the server, and a local clone in which commits are made.
type Repo struct {
	*gittest.Repo
	Bed    *Bed
	ID     string
	format object.Format
	stored map[string]bool // hashes of the clone's packs that were pushed
}

// Create creates an empty repository.
func (b *Bed) Create(t testing.TB, name string, format object.Format) *Repo {
	t.Helper()
	id := records.NewID()
	err := b.DB.Repos.Create(t.Context(), records.Creation{Repo: records.Repo{
		ID: id, Namespace: "ns", Name: name, ObjectFormat: format.String(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return b.clone(t, id, format)
}

func (b *Bed) clone(t testing.TB, id string, format object.Format) *Repo {
	t.Helper()
	r, err := gittest.New(filepath.Join(t.TempDir(), id+".git"), gittest.RepoOptions{Format: format})
	if err != nil {
		t.Fatal(err)
	}
	return &Repo{r, b, id, format, map[string]bool{}}
}

// Fork creates a repository with the refs and packs of r, and returns its ID.
func (r *Repo) Fork(ctx context.Context, name string) (id string, err error) {
	id = records.NewID()
	err = r.Bed.DB.Repos.Create(ctx, records.Creation{
		Repo: records.Repo{ID: id, Namespace: "ns", Name: name, ObjectFormat: r.format.String()}, Parent: r.ID, All: true,
	})
	return id, err
}

// Push makes a commit on a branch of the clone and pushes it. It returns the commit.
func (r *Repo) Push(t testing.TB, branch string, files map[string]gittest.File) object.ID {
	t.Helper()
	old, err := gittest.Git(t.Context(), r.Path, "for-each-ref", "--format=%(objectname)", "refs/heads/"+branch)
	if err != nil {
		t.Fatal(err)
	}
	id, err := r.Commit(branch, files, "commit")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Update(t.Context(), "refs/heads/"+branch, old, id.String()); err != nil {
		t.Fatal(err)
	}
	return id
}

// Write pushes a commit that changes one file, and returns the commit.
func (r *Repo) Write(t testing.TB, branch, path, text string) object.ID {
	t.Helper()
	return r.Push(t, branch, map[string]gittest.File{path: {Data: []byte(text)}})
}

// attempts is the maximum number of times that a push is repeated because of a concurrent garbage collection.
const attempts = 10

// Update pushes the objects that the server lacks, and changes a ref from old to new. An empty ID means that the ref
// does not exist. Like the server, Update checks before the push becomes visible that the repository has all objects
// that the new value reaches. It repeats this check after a garbage collection.
func (r *Repo) Update(ctx context.Context, ref, old, new string) error {
	zeros := strings.Repeat("0", 2*r.format.Size())
	push := records.Push{RepoID: r.ID,
		Updates: []records.RefUpdate{{Name: ref, Old: cmp.Or(old, zeros), New: cmp.Or(new, zeros)}}}
	hash, err := r.unpushed()
	if err != nil {
		return err
	}
	if hash != "" {
		pack, err := r.Bed.Set.Store(ctx, r.packDir(), hash)
		if err != nil {
			return err
		}
		push.Pack = &pack
	}
	for range attempts {
		if push.Version, err = r.check(ctx, hash, new); err != nil {
			return err
		}
		var results []error
		results, err = r.Bed.DB.Repos.Push(ctx, push)
		if errors.Is(err, records.ErrCollected) {
			continue
		}
		if err = errors.Join(append(results, err)...); err == nil {
			r.stored[hash] = true
		}
		return err
	}
	return err
}

func (r *Repo) packDir() string { return filepath.Join(r.Path, "objects", "pack") }

// unpushed returns the hash of the pack that was created since the last push, or "" if there is none.
func (r *Repo) unpushed() (found string, err error) {
	files, err := os.ReadDir(r.packDir())
	for _, f := range files {
		hash, ok := strings.CutSuffix(strings.TrimPrefix(f.Name(), "pack-"), ".pack")
		if !ok || r.stored[hash] {
			continue
		}
		if found != "" {
			return "", errors.New("find new pack: more than one pack was created since the last push")
		}
		found = hash
	}
	return found, err
}

// check returns an error if the refs of the repository and the pack with the given hash lack an object that id reaches;
// receive-pack does the same check. It returns the version of the repository that was checked.
func (r *Repo) check(ctx context.Context, hash, id string) (records.Version, error) {
	on, err := r.Bed.Set.Acquire(ctx, r.ID)
	if err != nil {
		return records.Version{}, err
	}
	defer on.Release()
	if id == "" {
		return on.Repo.Version, nil
	}
	alone, err := on.Copy(ctx)
	if err != nil {
		return records.Version{}, err
	}
	defer alone.Remove()
	if hash != "" {
		for _, x := range []string{".pack", ".idx"} {
			name := "pack-" + hash + x
			if err := os.Link(filepath.Join(r.packDir(), name), filepath.Join(alone.Packs(), name)); err != nil &&
				!os.IsExist(err) {
				return records.Version{}, err
			}
		}
	}
	cmd := r.Bed.Set.Git().Command(ctx, "--git-dir="+alone.Dir, "rev-list", "--objects", "--quiet", id, "--not", "--all")
	return alone.Repo.Version, gitcmd.Run(cmd)
}

// Compare returns an error unless the replica of a repository is undamaged and has the commits, files and refs of the
// clone.
func (r *Repo) Compare(ctx context.Context, id string) error {
	on, err := r.Bed.Set.Acquire(ctx, id)
	if err != nil {
		return err
	}
	defer on.Release()
	if _, err := gittest.Git(ctx, on.Dir, "fsck", "--strict", "--no-dangling"); err != nil {
		return err
	}
	for _, args := range [][]string{{"for-each-ref"}, {"log", "-p", "--branches"}} {
		want, err := gittest.Git(ctx, r.Path, args...)
		if err != nil {
			return err
		}
		got, err := gittest.Git(ctx, on.Dir, args...)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("git %s in the replica of %s: got %s, want %s", args[0], id, got, want)
		}
	}
	return nil
}
