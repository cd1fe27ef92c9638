package hoststore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fetch/hoststore"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// storeName is the name of the only store in the state directories of these tests.
const storeName = "r"

// daemon is a store with its cache, as a daemon with the state directory dir has them.
type daemon struct {
	*fetch.Store
	dir   string
	blobs *cache.Blobs
}

// open opens a store of url in the state directory dir. The store reads from the state directory host, unless host is
// "".
func open(t *testing.T, dir, url, host string) daemon {
	t.Helper()
	remote, err := transport.Open(url, transport.Options{Log: zap.NewNop(), Patience: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	memory, err := cache.NewMemory(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(memory.Close)
	blobs, err := cache.OpenBlobs(filepath.Join(dir, "blobs"), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { blobs.Close() })
	var shared *hoststore.Store
	if host != "" {
		h := hoststore.Open(host)
		t.Cleanup(func() { h.Close() })
		shared = h.Store(storeName)
	}
	s, err := fetch.Open(fetch.Config{Dir: filepath.Join(dir, "stores", storeName), Remote: remote, Blobs: blobs,
		Memory:   memory,
		Deadline: 5 * time.Second, Host: shared, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return daemon{s, dir, blobs}
}

// files are those of the newest commit: small ones, a large one, and one whose contents depend on attributes.
func files() map[string]gittest.File {
	all := map[string]gittest.File{
		".gitattributes": {Data: []byte("*.txt text eol=crlf\n")}, "a.txt": {Data: []byte("one\ntwo\n")},
		"large": {Data: bytes.Repeat([]byte("large contents "), 200_000)},
	}
	for i := range 40 {
		all[fmt.Sprintf("dir%d/sub/f%d", i%7, i)] = gittest.File{Data: fmt.Appendf(nil, "contents of %d\n", i)}
	}
	return all
}

// serve returns a server with the repository r.git, which has a history of several commits, a branch and an annotated
// tag.
func serve(t *testing.T) *gittest.Server {
	t.Helper()
	root := t.TempDir()
	repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = repo.History(6); err != nil {
		t.Fatal(err)
	}
	tip, err := repo.Commit("main", files(), "Newest")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repo.AnnotatedTag("v1", tip, "one"); err != nil {
		t.Fatal(err)
	}
	server, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server
}

// fetchAll acquires HEAD with all contents and the whole history.
func fetchAll(t *testing.T, d daemon) *fetch.Snapshot {
	t.Helper()
	snap, err := d.Acquire(t.Context(), "")
	if err == nil {
		err = snap.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	v := d.View(snap, convert.Settings{}, nil)
	defer v.Close()
	if err := v.Prefetch(t.Context(), fetch.PrefetchAll, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Deepen(t.Context(), nil, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	return snap
}

// readAll reads every file of the snapshot, with its size, and compares the contents with files.
func readAll(t *testing.T, d daemon, snap *fetch.Snapshot) {
	t.Helper()
	v := d.View(snap, convert.Settings{}, nil)
	defer v.Close()
	want, found := files(), 0
	var walk func(dir string, tree object.ID)
	walk = func(dir string, tree object.ID) {
		entries, err := v.Tree(t.Context(), tree)
		if err != nil {
			t.Errorf("list %q: %v", dir, err)
		}
		for _, e := range entries {
			path := strings.TrimPrefix(dir+"/"+e.Name, "/")
			if e.Mode == object.ModeDir {
				walk(path, e.ID)
				continue
			}
			data, mine := want[path], false
			if _, mine = want[path]; !mine {
				continue
			}
			found++
			text := data.Data
			if strings.HasSuffix(path, ".txt") {
				text = bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
			}
			b := fetch.Blob{ID: e.ID, Path: path}
			if n, err := v.Size(t.Context(), b); err != nil || n != int64(len(text)) {
				t.Errorf("size of %s: got %d, %v, want %d", path, n, err, len(text))
			}
			c, err := v.Open(t.Context(), b)
			if err != nil {
				t.Errorf("read %s: %v", path, err)
				continue
			}
			got, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
			if err != nil || !bytes.Equal(got, text) {
				t.Errorf("contents of %s: got %d bytes, %v", path, len(got), err)
			}
			c.Release()
		}
	}
	walk("", snap.Tree)
	if found != len(want) {
		t.Errorf("files read: got %d, want %d", found, len(want))
	}
}

// A guest whose host has fetched everything asks the remote for refs alone, and git finds the whole history in its
// store.
func TestGuestAsksForRefsAlone(t *testing.T) {
	server := serve(t)
	host := open(t, t.TempDir(), server.URL("r.git"), "")
	fetchAll(t, host)
	// The host's own goroutines write sizes and lists later, and this test is about the writes of the guest.
	host.Close()
	host.blobs.Close()
	before := listing(t, host.dir)
	server.Log().Reset()

	guest := open(t, t.TempDir(), server.URL("r.git"), host.dir)
	snap := fetchAll(t, guest)
	readAll(t, guest, snap)
	for _, r := range server.Log().Requests() {
		if r.Command == gittest.Fetch {
			t.Errorf("request of the guest: got %+v, want requests for capabilities and refs only", r)
		}
	}
	if st := guest.Stats(); st.Blobs != 0 || len(st.Notices) > 0 || st.History != fetch.Complete {
		t.Errorf("statistics of the guest: got %d blobs, notices %v, history %s", st.Blobs, st.Notices, st.History)
	}
	if out, err := gittest.Git(context.Background(), guest.GitDir(), "rev-list", "--objects", "--missing=allow-any",
		"--all"); err != nil || len(out) == 0 {
		t.Errorf("git rev-list in the guest: %v", err)
	}
	if out, err := gittest.Git(context.Background(), guest.GitDir(), "rev-list", "--count",
		"refs/heads/main"); err != nil || strings.TrimSpace(out) != "7" {
		t.Errorf("commits in the guest: got %q, %v, want 7", out, err)
	}
	if len(guest.Boundary()) > 0 {
		t.Errorf("boundary of the guest: got %v, want none", guest.Boundary())
	}
	// git reads packs only: Provide copies blobs from the host's cache into a pack.
	var ids []object.ID
	v := guest.View(snap, convert.Settings{}, nil)
	defer v.Close()
	v.Blobs(func(id object.ID) { ids = append(ids, id) })
	if err := guest.Provide(t.Context(), ids, nil); err != nil || len(guest.Missing(ids)) > 0 {
		t.Errorf("provide %d blobs to git: %v, still missing %d", len(ids), err, len(guest.Missing(ids)))
	}
	if n := len(server.Log().Fetches()); n > 0 {
		t.Errorf("fetches for git: got %d, want 0", n)
	}
	if after := listing(t, host.dir); after != before {
		t.Errorf("directory of the host:\n got %s\nwant %s", after, before)
	}
}

// listing describes all files below dir.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			fmt.Fprintln(&text, path, info.Size(), info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// A guest whose host lacks the newest commit, or everything, fetches what is missing from the remote.
func TestHostLacksAPart(t *testing.T) {
	server := serve(t)
	host := open(t, t.TempDir(), server.URL("r.git"), "")
	empty := open(t, t.TempDir(), server.URL("r.git"), t.TempDir())
	readAll(t, empty, fetchAll(t, empty))

	snap, err := host.Acquire(t.Context(), "")
	if err == nil {
		err = snap.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	server.Log().Reset()
	guest := open(t, t.TempDir(), server.URL("r.git"), host.dir)
	readAll(t, guest, fetchAll(t, guest))
	commits := 0
	for _, r := range server.Log().Fetches() {
		if r.Filter != "" { // requests for blobs have no filter
			commits++
		}
	}
	if commits != 1 {
		t.Errorf("requests for trees: got %d, want 1, for the history", commits)
	}
	if _, blobs := server.Log().Blobs(); blobs < len(files()) {
		t.Errorf("blobs from the remote: got %d, want at least %d", blobs, len(files()))
	}
}

// While guests read, the host evicts contents, joins packs, and removes its store: no read fails.
func TestHostChangesMeanwhile(t *testing.T) {
	server := serve(t)
	host := open(t, t.TempDir(), server.URL("r.git"), "")
	snap := fetchAll(t, host)
	stop := make(chan struct{})
	var changes sync.WaitGroup
	t.Cleanup(changes.Wait)
	changes.Go(func() {
		v := host.View(snap, convert.Settings{}, nil)
		defer v.Close()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := host.blobs.Collect(0); err != nil {
				t.Error(err)
			}
			if _, err := host.Join(t.Context(), odb.JoinOptions{Above: 2, Keep: 1, Crowd: 100,
				Reader: func(int) bool { return true }}); err != nil {
				t.Error(err)
			}
			if err := v.Prefetch(t.Context(), fetch.PrefetchAll, 0); err != nil {
				t.Error(err)
			}
			ids := []object.ID{}
			v.Blobs(func(id object.ID) { ids = append(ids, id) })
			if err := host.Provide(t.Context(), ids[i%len(ids):][:1], nil); err != nil { // adds a pack
				t.Error(err)
			}
		}
	})
	for range 6 {
		guest := open(t, t.TempDir(), server.URL("r.git"), host.dir)
		readAll(t, guest, fetchAll(t, guest))
	}
	close(stop)
	changes.Wait()

	guest := open(t, t.TempDir(), server.URL("r.git"), host.dir)
	own, err := guest.Acquire(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(host.dir, "stores")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(host.dir, "blobs")); err != nil {
		t.Fatal(err)
	}
	readAll(t, guest, own)
	if err := own.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// Damage in the files of the host is noticed, and the objects are fetched from the remote.
func TestDamageOnTheHost(t *testing.T) {
	server := serve(t)
	host := open(t, t.TempDir(), server.URL("r.git"), "")
	fetchAll(t, host)
	host.Close()
	host.blobs.Close()
	damaged := 0
	for _, pattern := range []string{"blobs/seg/*.seg", "blobs/big/*/*", "stores/*/git/objects/pack/*.pack"} {
		names, err := filepath.Glob(filepath.Join(host.dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for i := 60; i < len(text)-30; i += 37 { // the headers of the files stay as they are
				text[i] ^= 0x55
			}
			os.Chmod(name, 0o600)
			if err := os.WriteFile(name, text, 0o600); err != nil {
				t.Fatal(err)
			}
			damaged++
		}
	}
	if damaged < 3 {
		t.Fatalf("damaged files: got %d, want packs, segments and a large file", damaged)
	}
	server.Log().Reset()
	guest := open(t, t.TempDir(), server.URL("r.git"), host.dir)
	readAll(t, guest, fetchAll(t, guest))
	if _, n := server.Log().Blobs(); n < len(files()) {
		t.Errorf("blobs from the remote: got %d, want at least %d", n, len(files()))
	}
	if st := guest.Stats(); st.History != fetch.Complete {
		t.Errorf("history of the guest: got %s", st.History)
	}
	if out, err := gittest.Git(context.Background(), guest.GitDir(), "rev-list", "--count",
		"refs/heads/main"); err != nil || strings.TrimSpace(out) != "7" {
		t.Errorf("commits in the guest: got %q, %v, want 7", out, err)
	}
}

// A directory without access rights, and one that is no state directory, are reported in the notices of the status.
func TestUnreadableHostIsReported(t *testing.T) {
	server := serve(t)
	unreadable, other := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(unreadable, "blobs"), nil, 0o600); err != nil { // ENOTDIR, which root gets too
		t.Fatal(err)
	}
	for _, dir := range []string{unreadable, other} {
		guest := open(t, t.TempDir(), server.URL("r.git"), dir)
		readAll(t, guest, fetchAll(t, guest))
		if n := guest.Stats().Notices; len(n) != 1 || !strings.Contains(n[0], dir) {
			t.Errorf("notices: got %q, want one that names %s", n, dir)
		}
	}
}
