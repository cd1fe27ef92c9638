package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestAStoreIsRemovedWhenNobodyHasIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stores", "s")
	one, err := holdStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	two, err := holdStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	one()
	if err := removeStore(dir); !errors.Is(err, errStoreUsed) {
		t.Errorf("in use: %v", err)
	}
	two()
	if err := removeStore(dir); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := removeStore(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("twice: %v", err)
	}
}

// Whoever holds a store finds it under its name, however often it is removed under him.
func TestAStoreThatIsHeldIsThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stores", "s")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				release, err := holdStore(dir)
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
					t.Error(err)
				}
				release()
			}
		})
	}
	for range 200 {
		if err := removeStore(dir); err != nil && !errors.Is(err, errStoreUsed) && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	all.Wait()
}

func TestNeededStores(t *testing.T) {
	h := newHomes(t)
	h.session(t, "work", 1, true)
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(h.state, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	needed := func() []string {
		t.Helper()
		all, err := neededStores(h.state)
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
	of := storeName(sampleRecord().Remote)
	if got := needed(); !slices.Equal(got, []string{of}) {
		t.Errorf("%q, want %q", got, of)
	}
	write("mounts/_12345678/git/objects/info/alternates", filepath.Join(h.state, "stores", "other-1")+"/git/objects\n/elsewhere\n")
	write("registry/0123.json", `{"version":1,"request":{"remote":"https://127.0.0.1/registered.git"}}`)
	if err := os.Mkdir(filepath.Join(h.dir(), "_left"), 0o700); err != nil { // by a killed process
		t.Fatal(err)
	}
	want := []string{of, "other-1", storeName("https://127.0.0.1/registered.git")}
	slices.Sort(want)
	if got := needed(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	mounting, err := h.take(t.Context(), "_mounting", "/srv/m")
	if err != nil {
		t.Fatal(err)
	}
	if got := needed(); got[0] != "error" {
		t.Errorf("of a mount that is being made: %q", got)
	}
	if err := mounting.remove(); err != nil {
		t.Fatal(err)
	}
	write("mounts/odd/session.json", "nonsense")
	if got := needed(); got[0] != "error" {
		t.Errorf("of a session that cannot be read: %q", got)
	}
	// Then nothing is removed.
	write("stores/unneeded/git/HEAD", "ref: refs/heads/main\n")
	freed, err := CollectCache(t.Context(), h.state, CacheGC{Quota: 1})
	if err != nil || len(freed.Removed) > 0 || len(freed.Notes) != 1 || !strings.HasPrefix(freed.Notes[0], "all stores stay") {
		t.Errorf("%+v, %v", freed, err)
	}
	os.RemoveAll(filepath.Join(h.dir(), "odd"))
	freed, err = CollectCache(t.Context(), h.state, CacheGC{Quota: 1})
	if err != nil || len(freed.Removed) != 1 || filepath.Base(freed.Removed[0].Dir) != "unneeded" {
		t.Errorf("%+v, %v", freed, err)
	}
}

func TestGitVersions(t *testing.T) {
	for text, want := range map[string][3]int{
		"2.39.5": {2, 39, 1}, "2.55.GIT": {2, 55, 1}, "2.50.1 (Apple Git-155)": {2, 50, 1}, "3.0": {3, 0, 1}, "": {}, "x.y": {}, "2": {},
	} {
		major, minor, ok := gitVersion(text)
		if got := [3]int{major, minor, 0}; ok != (want[2] == 1) || ok && (got[0] != want[0] || got[1] != want[1]) {
			t.Errorf("%q: %d.%d %v", text, major, minor, ok)
		}
	}
}

func TestFuseConf(t *testing.T) {
	for conf, want := range map[string]bool{
		"": false, "user_allow_other": true, "# user_allow_other\n": false, "mount_max = 9\n  user_allow_other # yes\n": true, "user_allow_others\n": false,
	} {
		if got := allowsOther(conf); got != want {
			t.Errorf("%q: %v", conf, got)
		}
	}
}
