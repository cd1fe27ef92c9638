package catalog

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// mounted contains the mounts of a daemon by session.
type mounted map[string]*Mounted

func (m mounted) Mounted(_ context.Context, of string) (*Mounted, error) { return m[of], nil }

func (m mounted) Writable() []*Mounted { return nil }

// world is a state directory with sessions that are not mounted. Their repository has a base commit with the files in
// base.
type world struct {
	*Catalog
	t      *testing.T
	origin *gittest.Repo
	base   object.ID
	mounts mounted
}

var base = map[string]string{"a": "one\ntwo\nthree\nfour\nfive\nsix\nseven\n", "b": "b\n", "c": "c\n"}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	h := statedirtest.New(t)
	origin, err := gittest.New(filepath.Join(t.TempDir(), "origin.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, origin: origin, mounts: mounted{}}
	w.Catalog = &Catalog{State: h.State, Log: zap.NewNop(), Homes: h,
		Remotes: remotes.New(h.State, "", zap.NewNop(), nil, nil),
		Mounts:  w.mounts, Writer: func() (session.Writer, error) { return session.Here(h.State, os.Getpid()) }}
	files := map[string]gittest.File{}
	for name, text := range base {
		files[name] = gittest.File{Data: []byte(text)}
	}
	if w.base, err = origin.Commit("main", files, "base"); err != nil {
		t.Fatal(err)
	}
	// The store of the repository has all objects.
	store := filepath.Join(h.State, "stores", statedir.StoreName(origin.Path), "git")
	if err := errors.Join(os.MkdirAll(filepath.Dir(store), 0o700), os.Symlink(origin.Path, store)); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// code checks that err has the error code want.
func (w *world) code(what string, err error, want control.ErrorCode) {
	w.t.Helper()
	var e *control.Error
	if !errors.As(err, &e) || e.Kind != want {
		w.t.Errorf("%s: got %v, want an error with the code %s", what, err, want)
	}
}

// made is a session that a test has created, with its checkpoints.
type made struct {
	*world
	name   string
	home   string
	record statedir.Record
	repo   *session.Repo // open until close
	last   session.Checkpoint
}

// session creates the home directory of a session with one checkpoint for each element of all. A file with empty
// contents is removed.
func (w *world) session(name, remote string, all ...map[string]string) *made {
	w.t.Helper()
	home, err := w.Homes.Lock(w.t.Context(), name, "/srv/"+name)
	w.must(err)
	defer home.Unlock()
	s := &made{world: w, name: name, home: home.Dir, record: statedirtest.Record()}
	s.record.Session, s.record.Dir, s.record.Remote, s.record.Checkpoint = name, "/srv/"+name, w.origin.Path, nil
	s.record.Commit, s.record.Tree = w.base.String(), gittest.Must(w.t, w.origin.Path, "rev-parse", "main^{tree}")
	s.record.Carried = control.SessionOptions{Remote: remote}
	w.must(s.record.Save(s.home))
	s.repo, err = w.Homes.OpenSessionRepo(s.home, s.record, true)
	w.must(err)
	defer s.repo.Close()
	m := session.Meta{Session: name, Remote: w.origin.Path, Ref: "refs/heads/main", Base: w.base.String()}
	_, err = session.CreateMeta(w.t.Context(), s.repo, m, "ann@"+name)
	w.must(err)
	files := maps.Clone(base)
	for i, changed := range all {
		maps.Copy(files, changed)
		maps.DeleteFunc(files, func(_, text string) bool { return text == "" })
		s.checkpoint(files, int64(len(changed)), time.Unix(1_750_000_000+60*int64(i), 0))
	}
	return s
}

func (s *made) checkpoint(files map[string]string, changed int64, at time.Time) {
	s.t.Helper()
	var objects []odb.Outgoing
	add := func(typ object.Type, text string) object.ID {
		o, err := session.Outgoing(object.SHA1, typ, []byte(text))
		s.must(err)
		objects = append(objects, o)
		return o.ID
	}
	var entries []object.TreeEntry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		entries = append(entries, object.TreeEntry{Name: name, Mode: object.ModeFile, ID: add(object.Blob, files[name])})
	}
	tree := add(object.Tree, string(session.EncodeTree(entries)))
	of := session.State{Branch: "refs/heads/main", Head: s.base, Index: session.Index{Tree: tree}}
	state, more, err := session.EncodeState(object.SHA1, of, nil, at)
	s.must(err)
	p := session.Checkpoint{ID: session.NewCheckpointID(at), Tree: tree, State: state, Session: s.name,
		Lane: "main", Segment: 1,
		Head: s.base, Branch: "refs/heads/main", Reason: session.Manual, Time: at.UTC(), Prev: s.last.ID, Changed: changed}
	p.Commit = add(object.Commit, string(p.Encode(s.last.Commit)))
	s.must(s.repo.Write(s.t.Context(), append(objects, more...)))
	change := session.RefChange{Name: session.SegmentRef(s.name, "main", 1), Old: s.last.Commit, New: p.Commit}
	s.must(s.repo.Update(s.t.Context(), []session.RefChange{change}))
	s.last = p
}

// change calls a function that changes the metadata of the session.
func (s *made) change(change func(m *session.Meta)) {
	s.t.Helper()
	repo, err := s.Homes.OpenSessionRepo(s.home, s.record, true)
	s.must(err)
	defer repo.Close()
	_, err = session.ChangeMeta(s.t.Context(), repo, s.name, func(m *session.Meta, _ time.Time) error {
		change(m)
		return nil
	})
	s.must(err)
}

// push pushes all refs of the session to its session remote.
func (s *made) push() {
	s.t.Helper()
	gittest.Must(s.t, filepath.Join(s.home, statedir.SessionRepoName), "push", "-q", s.record.Carried.Remote,
		"refs/afs/*:refs/afs/*")
}

// far creates a session remote with the history of the repository, and returns its path.
func (w *world) far() string {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "far.git")
	gittest.Must(w.t, "/", "clone", "-q", "--bare", w.origin.Path, dir)
	return dir
}

// named returns changes as lines such as "M a", sorted by path.
func named(changes []control.PathChange) (lines []string) {
	for _, c := range changes {
		lines = append(lines, c.Status+" "+c.Path)
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	return lines
}

// beside returns another, empty state directory for the same repository.
func (w *world) beside() *world {
	w.t.Helper()
	h := statedirtest.New(w.t)
	return &world{t: w.t, origin: w.origin, base: w.base, mounts: mounted{},
		Catalog: &Catalog{State: h.State, Log: w.Log, Homes: h,
			Remotes: remotes.New(h.State, "", w.Log, nil, nil), Mounts: mounted{},
			Writer: func() (session.Writer, error) { return session.Here(h.State, os.Getpid()) }}}
}
