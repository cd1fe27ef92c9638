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
