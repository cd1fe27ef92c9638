// Package statedirtest creates state directories for tests.
package statedirtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// New returns the homes of a new, empty state directory, which is removed at the end of the test.
func New(t *testing.T) statedir.Homes {
	t.Helper()
	h := statedir.Homes{State: t.TempDir(), Log: zap.NewNop()}
	if err := os.Mkdir(h.Dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

// Add creates the home of a session that no process uses, with an overlay of the given number of empty files. If
// counted is true, the record holds the number of changes, as after an unmount.
func Add(t *testing.T, h statedir.Homes, name string, files int, counted bool) {
	t.Helper()
	m, err := h.Lock(t.Context(), name, "/srv/"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unlock()
	r := Record()
	r.Session, r.Dir, r.Counted, r.Changed, r.Bytes = name, "/srv/"+name, counted, int64(files), 0
	if err := r.Save(m.Dir); err != nil {
		t.Fatal(err)
	}
	layer, _, err := overlay.Open(filepath.Join(m.Dir, "overlay"), overlay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		err := layer.Update(func(tx *overlay.Tx) error {
			n, err := tx.NewNode()
			if err != nil {
				return err
			}
			tx.PutInode(overlay.Inode{Node: n, Mode: 0o100644, Nlink: 1, Parent: 1})
			tx.SetEntry(1, string(rune('a'+i)), n)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := layer.Close(); err != nil {
		t.Fatal(err)
	}
}

// Names returns the names of all homes and the paths of homes that were being removed, separated by spaces.
func Names(t *testing.T, h statedir.Homes) string {
	t.Helper()
	ids, removed, err := h.IDs()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(append(ids, removed...), " ")
}

// Record returns a record of a session in which every field but Made is set.
func Record() statedir.Record {
	return statedir.Record{
		Version: statedir.RecordVersion, Tenant: "team", Session: "app-1", Remote: "https://127.0.0.1/app", Dir: "/srv/app",
		Asked: "main", Ref: "refs/heads/main",
		Commit: strings.Repeat("1", 40), Tree: strings.Repeat("2", 40), Format: "sha1", Time: time.Unix(1700000000, 0).UTC(),
		Umask: new(uint32),
		UID:   7, GID: 8,
		Began: time.Unix(1700000001, 0).UTC(), Until: time.Unix(1700600000, 0).UTC(),
		Redirects: []statedir.Redirect{{Path: "web/dist", Backing: "0"}}, Configured: []string{"web/dist"},
		Counted: true, Changed: 3, Bytes: 4096,
		Carried: control.SessionOptions{Remote: "https://127.0.0.1/s", Policy: control.PolicyIdle, Include: []string{"a"},
			Exclude: []string{"b"}, NoDenyList: true, MaxFileSize: 9},
		Checkout: []gitdir.Setting{{Name: "core.eol", Value: "lf"}},
		Fork:     statedir.Fork{Head: &control.NewHead{Branch: "fix"}},
		Checkpoint: &statedir.Checkpoint{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Commit: strings.Repeat("3", 40),
			Tree: strings.Repeat("4", 40), State: strings.Repeat("5", 40)},
	}
}
