package replica

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/internal/harness/gittest"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// source is a repository whose packs are in an object store.
type source struct {
	*gittest.Repo
	store objects.Store
}

func newSource(t *testing.T, store objects.Store) *source {
	t.Helper()
	repo, err := gittest.New(filepath.Join(t.TempDir(), "source.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &source{repo, store}
}

// commit adds a commit to main, which git stores in a new pack.
func (s *source) commit(t *testing.T, text string) {
	t.Helper()
	if _, err := s.Commit("main", map[string]gittest.File{"file": {Data: []byte(text)}}, text); err != nil {
		t.Fatal(err)
	}
}

// snapshot stores all packs and returns the repository.
func (s *source) snapshot(t *testing.T, generation int64) (snap records.Snapshot) {
	t.Helper()
	snap.Repo = records.Repo{ID: "01REPO", Name: "r", DefaultBranch: "main", ObjectFormat: "sha1", Generation: generation}
	files, err := filepath.Glob(filepath.Join(s.Path, "objects/pack/*.pack"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		hash := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "pack-"), ".pack")
		p := records.Pack{ID: "P" + strings.ToUpper(hash[:12]), Hash: hash, Extensions: []string{".pack", ".idx"}}
		for _, x := range p.Extensions {
			if err := s.store.Put(t.Context(), p.Key(x), strings.TrimSuffix(f, ".pack")+x); err != nil {
				t.Fatal(err)
			}
		}
		snap.Packs = append(snap.Packs, p)
	}
	refs, err := gittest.Git(t.Context(), s.Path, "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(refs, "\n") {
		id, name, _ := strings.Cut(line, " ")
		snap.Refs = append(snap.Refs, records.Ref{Name: name, ID: id})
	}
	return snap
}

func TestReplicaFollowsItsRepository(t *testing.T) {
	dir := t.TempDir()
	store, err := objects.OpenDir(filepath.Join(dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(Options{Dir: filepath.Join(dir, "replicas"), Objects: store})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	src := newSource(t, store)
	e, err := s.enter("01REPO")
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(3) {
		src.commit(t, strings.Repeat("text", int(i)+1))
		snap := src.snapshot(t, i)
		if err := s.apply(t.Context(), e, snap); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"fsck", "--strict"}, {"log", "-p", "main"}} {
			want, err := gittest.Git(t.Context(), src.Path, args...)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := gittest.Git(t.Context(), e.dir, args...); err != nil || got != want {
				t.Errorf("git %q in the replica: %v, got %s, want %s", args, err, got, want)
			}
		}
	}
	before, err := os.ReadDir(packDir(e.dir))
	if err != nil {
		t.Fatal(err)
	}
	epoch := s.hold(e)
	if _, err := gittest.Git(t.Context(), src.Path, "repack", "-adq"); err != nil {
		t.Fatal(err)
	}
	snap := src.snapshot(t, 4)
	if err := s.apply(t.Context(), e, snap); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadDir(packDir(e.dir)); len(after) != len(before)+2 {
		t.Errorf("%d files of packs during the use of the old ones: got %v", len(after), after)
	}
	s.release(e, epoch)
	after, _ := os.ReadDir(packDir(e.dir))
	if len(after) != 2 || !slices.ContainsFunc(after, func(f os.DirEntry) bool { return strings.Contains(f.Name(), snap.Packs[0].Hash) }) {
		t.Errorf("files of packs after the use of the old ones: got %v", after)
	}
}
