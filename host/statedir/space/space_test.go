package space

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

func TestNeededStores(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(h.State, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	needed := func() []string {
		t.Helper()
		all, err := statedir.NeededStores(h.State)
		if err != nil {
			return []string{"error"}
		}
		var names []string
		for name := range all {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	of := statedir.StoreName(statedirtest.Record().Remote)
	if got := needed(); !slices.Equal(got, []string{of}) {
		t.Errorf("needed stores: got %q, want %q", got, of)
	}
	write("mounts/_12345678/git/objects/info/alternates",
		filepath.Join(h.State, "stores", "other-1")+"/git/objects\n/elsewhere\n")
	write("registry/0123.json", `{"version":1,"request":{"remote":"https://127.0.0.1/registered.git"}}`)
	if err := os.Mkdir(filepath.Join(h.Dir(), "_left"), 0o700); err != nil { // as a killed process may leave it
		t.Fatal(err)
	}
	want := []string{of, "other-1", statedir.StoreName("https://127.0.0.1/registered.git")}
	slices.Sort(want)
	if got := needed(); !slices.Equal(got, want) {
		t.Errorf("needed stores: got %q, want %q", got, want)
	}
	mounting, err := h.Lock(t.Context(), "_mounting", "/srv/m")
	if err != nil {
		t.Fatal(err)
	}
	if got := needed(); got[0] != "error" {
		t.Errorf("needed stores while a mount is being made: got %q", got)
	}
	if err := mounting.Remove(); err != nil {
		t.Fatal(err)
	}
	write("mounts/odd/session.json", "nonsense")
	if got := needed(); got[0] != "error" {
		t.Errorf("needed stores with an unreadable session: got %q", got)
	}
	// If a session cannot be read, no store is removed.
	write("stores/unneeded/git/HEAD", "ref: refs/heads/main\n")
	freed, err := Collect(t.Context(), h.State, Goal{Quota: 1})
	if err != nil || len(freed.Removed) > 0 || len(freed.Notes) != 1 ||
		!strings.HasPrefix(freed.Notes[0], "kept all stores") {
		t.Errorf("collect beside an unreadable directory: got %+v, %v, want nothing removed and one note", freed, err)
	}
	os.RemoveAll(filepath.Join(h.Dir(), "odd"))
	freed, err = Collect(t.Context(), h.State, Goal{Quota: 1})
	if err != nil || len(freed.Removed) != 1 || filepath.Base(freed.Removed[0].Dir) != "unneeded" {
		t.Errorf("collect: got %+v, %v, want only the unneeded store removed", freed, err)
	}
}

// A session in the trash keeps its store, without which its files could not be restored.
func TestStoreOfADeletedSession(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	if _, err := h.Discard("work", true); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(h.State, "stores", statedir.StoreName(statedirtest.Record().Remote))
	if err := os.MkdirAll(filepath.Join(store, "git"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(store, "git", "HEAD"), []byte("ref: refs/heads/main\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	collect := func() {
		t.Helper()
		if freed, err := Collect(t.Context(), h.State, Goal{Quota: 1}); err != nil || len(freed.Notes) > 0 {
			t.Fatalf("collect: got %+v, %v", freed, err)
		}
	}
	collect()
	if _, err := os.Stat(store); err != nil {
		t.Errorf("store of a deleted session after collect: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(h.State, "trash")); err != nil {
		t.Fatal(err)
	}
	collect()
	if _, err := os.Stat(store); err == nil {
		t.Error("collect has kept a store that nothing needs")
	}
}

// Shares are measured with their users, and those without a user are removed.
func TestShares(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	var ids []string
	for range 2 {
		id, release, err := h.NewShare(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
		if err := os.WriteFile(filepath.Join(statedir.SharesDir(h.State), id, "file"), []byte("123"), 0o600); err != nil {
			t.Fatal(err)
		}
		release()
	}
	path := filepath.Join(h.Dir(), "work", "overlay", "shares")
	if err := os.WriteFile(path, []byte("share "+ids[0]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := Examine(t.Context(), h.State)
	if err != nil || len(report.Shares) != 2 || report.Shares[0].Bytes != 3 ||
		!slices.Equal(report.Shares[0].Users, []string{"work"}) || len(report.Shares[1].Users) != 0 {
		t.Errorf("shares: got %+v, %v", report.Shares, err)
	}
	for _, dry := range []bool{true, false} {
		freed, err := Collect(t.Context(), h.State, Goal{Quota: 1 << 30, DryRun: dry})
		if err != nil || len(freed.Shares) != 1 || freed.Shares[0].ID != ids[1] || freed.Shares[0].Bytes != 3 ||
			len(freed.Notes) > 0 {
			t.Errorf("collect, dry run %v: got %+v, %v", dry, freed, err)
		}
		if _, err := os.Stat(filepath.Join(statedir.SharesDir(h.State), ids[1])); (err == nil) != dry {
			t.Errorf("collect, dry run %v: unused share: %v", dry, err)
		}
	}
	if err := os.WriteFile(path, []byte("damaged\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if freed, err := Collect(t.Context(), h.State, Goal{Quota: 1 << 30}); err != nil || len(freed.Shares) > 0 ||
		len(freed.Notes) != 1 {
		t.Errorf("collect with a damaged list: got %+v, %v", freed, err)
	}
	if _, err := os.Stat(filepath.Join(statedir.SharesDir(h.State), ids[0])); err != nil {
		t.Errorf("share in use: %v", err)
	}
}

// A session that is not mounted loses the shared contents that it has replaced, unless another session uses them.
func TestUnusedSharedFiles(t *testing.T) {
	h := statedirtest.New(t)
	for _, id := range []string{"work", "fork"} {
		statedirtest.Add(t, h, id, 1, true)
	}
	id, release, err := h.NewShare(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(h.Dir(), "work", "overlay")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	o := overlay.Options{Shares: statedir.SharesDir(h.State)}
	l, _, err := overlay.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 10_000)
	write := func(n overlay.Node) {
		f := l.File(n)
		defer f.Done()
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(text, 0); err != nil {
			t.Fatal(err)
		}
	}
	var nodes []overlay.Node
	for _, name := range []string{"a", "b"} {
		err := l.Update(func(tx *overlay.Tx) error {
			n, err := tx.NewNode()
			nodes = append(nodes, n)
			tx.PutInode(overlay.Inode{Node: n, Mode: 0o100644, Nlink: 1, Parent: 1})
			tx.SetEntry(1, name, n)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		l.Remember(nodes[len(nodes)-1])
		write(nodes[len(nodes)-1])
	}
	s, err := overlay.BeginSeal(l, id)
	if err != nil {
		t.Fatal(err)
	}
	s.Freeze(func(overlay.Reader) bool { return true })
	if err := s.Publish(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	release()
	write(nodes[0])
	collect := func(what string, dry bool, files int64) {
		t.Helper()
		freed, err := Collect(t.Context(), h.State, Goal{Quota: 1 << 30, DryRun: dry})
		if err != nil || freed.SharedFiles != files || (freed.SharedBytes >= 10_000) != (files > 0) || len(freed.Notes) > 0 {
			t.Errorf("%s: got %+v, %v, want %d files", what, freed, err, files)
		}
	}
	collect("overlay in use", false, 0)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(h.Dir(), "fork", "overlay", "shares")
	if err := os.WriteFile(list, []byte("share "+id+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	collect("another user", false, 0)
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	hold, err := h.HoldShare(id)
	if err != nil {
		t.Fatal(err)
	}
	collect("fork under way", false, 0)
	hold()
	home, err := h.LockExisting("work")
	if err != nil {
		t.Fatal(err)
	}
	collect("home in use", false, 0)
	home.Unlock()
	collect("dry run", true, 1)
	collect("one user", false, 1)
	collect("again", false, 0)
	if l, _, err = overlay.Open(dir, o); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		f := l.File(n)
		got := make([]byte, len(text)+1)
		if k, err := f.ReadAt(got, 0); err != nil || k != len(text) {
			t.Errorf("contents of file %d: got %d bytes, %v", n, k, err)
		}
		f.Done()
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
