package index_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// small commits a few files of all kinds.
func small(r *gittest.Repo, f object.Format) error {
	_, err := r.Commit("main", map[string]gittest.File{
		".gitignore": {Data: []byte("*.o\n")}, "a/b/c": {Data: []byte("c\n")}, "a/d": {Data: []byte("d\n")},
		"a.x": {Data: []byte("x\n")},
		"a-":  {Data: []byte("-\n")}, "link": {Data: []byte("a"), Mode: "120000"},
		"run":       {Data: []byte("#!\n"), Mode: "100755"},
		"z/y/x/w/v": {Data: []byte("v\n")}, "bb/f": {Data: []byte("f\n")}, "b/f": {Data: []byte("f\n")},
		"module": {Data: bytes.Repeat([]byte("1"), 2*f.Size()), Mode: "160000"},
	}, "small")
	return err
}

// conflict lists git commands that merge a branch that removed a file into one that changed it.
var conflict = []string{
	"config user.name n", "config user.email e", "rm -q a/d", "commit -q -m gone", "checkout -q -b other HEAD~1",
	"update-index --chmod=+x a/d", "commit -q -m changed", "reset -q --hard", "! merge -q main",
}

// states lists git commands that result in different kinds of index entries.
var states = []struct {
	name  string
	steps []string
}{
	{"clean", nil},
	{"version 4", []string{"update-index --index-version 4"}},
	{"status", []string{"status"}},
	{"threads", []string{"-c index.threads=2 update-index --force-write-index"}},
	{"skip-worktree", []string{"update-index --skip-worktree a/d", "update-index --assume-unchanged a.x"}},
	{"intent to add", []string{"add -N new"}},
	{"staged", []string{"add new", "rm -q --cached bb/f"}},
	{"monitor", []string{"update-index --fsmonitor", "status"}},
	{"no monitor", []string{"config core.fsmonitor false", "status", "update-index --force-write-index"}},
	{"untracked", []string{"update-index --untracked-cache", "status"}},
	{"conflict", conflict},
	{"resolved", append(slices.Clone(conflict), "add a/d")},
	{"sparse", []string{"config core.sparseCheckout true", "sparse-checkout set --cone --sparse-index a"}},
}

// TestRoundTrip checks that an index of git has the same contents for git after it was read and written again.
func TestRoundTrip(t *testing.T) {
	for _, s := range states {
		t.Run(s.name, func(t *testing.T) {
			w := clone(t, object.SHA1, small)
			if err := os.WriteFile(filepath.Join(w.dir, "new"), []byte("new\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, step := range s.steps {
				if step, fails := strings.CutPrefix(step, "! "); fails {
					if _, err := gittest.Git(context.Background(), w.dir, strings.Fields(step)...); err == nil {
						t.Fatalf("git %s succeeded, want a conflict", step)
					}
					continue
				}
				w.git(strings.Fields(step)...)
			}
			ask := func() string {
				return w.git("-c", "core.fsmonitor=false", "ls-files", "-s", "-v", "--debug") + w.git("-c", "core.fsmonitor=false",
					"ls-files", "-f") +
					w.git("-c", "core.fsmonitor=false", "status", "--porcelain=v2") + w.git("fsck", "--cache")
			}
			theirs, err := os.ReadFile(w.indexFile())
			if err != nil {
				t.Fatal(err)
			}
			want := ask()
			x, err := index.Read(w.format, theirs)
			if err != nil {
				t.Fatal(err)
			}
			checkOutline(t, w.format, theirs, x)
			w.install(x)
			if got := ask(); got != want {
				t.Errorf("git lists other entries:\n%s", firstDifference(got, want))
			}
			w.install(x)
			got, err := index.Read(w.format, encode(t, x))
			if err != nil {
				t.Fatal(err)
			}
			if again := encode(t, got); !bytes.Equal(again, encode(t, x)) {
				t.Error("writing the index a second time has other bytes")
			}
			if s.name == "clean" || s.name == "status" || s.name == "version 4" {
				if !bytes.Equal(encode(t, x), theirs) {
					t.Error("the written index differs from git's")
				}
			}
		})
	}
}

func TestSplitIndexIsRefused(t *testing.T) {
	w := clone(t, object.SHA1, small)
	w.git("update-index", "--split-index")
	data, err := os.ReadFile(w.indexFile())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := index.Read(w.format, data); !errors.Is(err, index.ErrSplit) {
		t.Errorf("read of invalid data: got %v", err)
	}
}

func TestDamageIsFound(t *testing.T) {
	w := clone(t, object.SHA1, small)
	data := encode(t, w.build(index.Options{Version: 2, Token: "t", Untracked: &index.Untracked{Flags: index.ShowNormal}}))
	for i := range data {
		bad := bytes.Clone(data)
		bad[i] ^= 0x10
		if _, err := index.Read(w.format, bad); err == nil {
			t.Fatalf("changed byte %d: the damage was not detected", i)
		}
		if _, err := index.Read(w.format, data[:i]); err == nil {
			t.Fatalf("index cut at byte %d: the damage was not detected", i)
		}
	}
}

// TestApply checks that changes of entries have the same result as in git, and that the kept cached trees are correct.
func TestApply(t *testing.T) {
	w := clone(t, object.SHA1, small)
	blob := object.MustID(w.git("rev-parse", "HEAD:a/d"))
	random := rand.New(rand.NewPCG(1, 2))
	x := w.build(index.Options{Version: 2, Token: "token:1", Untracked: &index.Untracked{Flags: index.ShowNormal}})
	w.install(x)
	w.git("config", "core.fsmonitor", "false")
	w.git("update-index", "--force-write-index")
	for round := range 30 {
		changes := map[string]index.Change{}
		for range 1 + random.IntN(3) {
			var c index.Change
			if random.IntN(2) == 0 && len(x.Entries) > 4 {
				e := x.Entries[random.IntN(len(x.Entries))]
				c = index.Change{Entry: index.Entry{Path: e.Path}, Gone: random.IntN(2) == 0}
			} else {
				dir := []string{"", "a/", "a/b/", "q/", "q/r/", "bb/", "z/y/"}[random.IntN(7)]
				c = index.Change{Entry: index.Entry{Path: dir + "n" + string(rune('a'+random.IntN(6)))}}
			}
			if !c.Gone {
				c.Entry.Mode, c.Entry.ID = object.ModeExec, blob
			}
			changes[c.Entry.Path] = c
		}
		var list []index.Change
		for path, c := range changes {
			list = append(list, c)
			if c.Gone {
				w.git("update-index", "--force-remove", path)
			} else {
				w.git("update-index", "--add", "--cacheinfo", "100755,"+blob.String()+","+path)
			}
		}
		x.Apply(list)
		want := w.git("ls-files", "-s")
		wantTree := w.git("write-tree")
		theirs, err := os.ReadFile(w.indexFile())
		if err != nil {
			t.Fatal(err)
		}
		w.install(x)
		if got := w.git("ls-files", "-s"); got != want {
			t.Fatalf("round %d: entries differ: %s", round, firstDifference(got, want))
		}
		if got := w.git("write-tree"); got != wantTree {
			t.Fatalf("round %d: tree %s, want %s", round, got, wantTree)
		}
		if round%5 == 4 { // write the cached trees, as a commit does
			ids := map[string]object.ID{"": object.MustID(wantTree)}
			for _, line := range strings.Split(w.git("ls-tree", "-r", "-d", wantTree), "\n") {
				head, path, _ := strings.Cut(line, "\t")
				if f := strings.Fields(head); len(f) == 3 && f[1] == "tree" {
					ids[path] = object.MustID(f[2])
				}
			}
			x.SetTrees(func(dir string) (object.ID, bool) { id, ok := ids[dir]; return id, ok })
			w.install(x)
			if got := w.git("write-tree"); got != wantTree {
				t.Fatalf("round %d: tree %s, want %s", round, got, wantTree)
			}
			w.git("fsck", "--cache", "--no-dangling")
			if got := w.git("-c", "core.fsmonitor=false", "diff-index", "--cached", wantTree); got != "" {
				t.Fatalf("round %d: the index differs from its tree: %s", round, got)
			}
		}
		if err := os.WriteFile(w.indexFile(), theirs, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.IsSortedFunc(x.Entries, func(a, b index.Entry) int { return strings.Compare(a.Path, b.Path) }) {
		t.Error("unordered entries were accepted")
	}
}

func FuzzRead(f *testing.F) {
	// Indexes that were written by git are in testdata.
	id := object.MustID(strings.Repeat("1", 40))
	for _, version := range []uint32{2, 4} {
		b := index.NewBuilder(index.Options{Version: version, Token: "t",
			Untracked: &index.Untracked{Ident: "i", PerDirectory: ".gitignore"}})
		b.Dir("", id, index.Stat{Mtime: 1})
		b.Add(index.Entry{Path: "a", Mode: object.ModeFile, ID: id, Valid: true})
		b.Dir("d", id, index.Stat{})
		b.Add(index.Entry{Path: "d/.gitignore", Mode: object.ModeFile, ID: id, SkipWorktree: true})
		b.Add(index.Entry{Path: "d/module", Mode: object.ModeGitlink, ID: id})
		var out bytes.Buffer
		if _, err := b.WriteTo(&out); err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 20 { // a checksum of zeros is not verified, so that the rest is parsed
			data = append(bytes.Clone(data[:len(data)-20]), make([]byte, 20)...)
		}
		x, err := index.Read(object.SHA1, data)
		if err != nil {
			if o, err := index.ReadOutline(object.SHA1, data); err == nil && o.Len() > 0 {
				_, _ = o.Entry(o.Len() - 1)
			}
			return
		}
		checkOutline(t, object.SHA1, data, x)
		var b bytes.Buffer
		if _, err := x.WriteTo(&b); err != nil {
			return // a zero id, which git never writes
		}
		again, err := index.Read(object.SHA1, b.Bytes())
		if err != nil {
			t.Fatalf("an index that was read and written cannot be read: %v", err)
		}
		if len(again.Entries) != len(x.Entries) || again.Token != x.Token {
			t.Fatal("the index changed when it was written and read")
		}
	})
}
