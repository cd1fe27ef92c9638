package integration

import (
	"fmt"
	"os"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// builder creates a repository of some thousand files with a few manifests and settings files far apart, and returns
// the paths of these.
func (w *world) builder() (r *gittest.Repo, first []string) {
	w.Helper()
	r = w.repo("build.git", object.SHA1)
	files := map[string]gittest.File{"zz/last.png": {Data: []byte("\x89PNG\r\n\x1a\n")}}
	put := func(name string) { files[name] = gittest.File{Data: []byte("content of " + name + "\n")} }
	first = []string{"go.mod", "package.json", ".editorconfig", "AGENTS.md", ".github/workflows/ci.yml", "Makefile",
		"m40/pkg/Cargo.toml", "m79/pyproject.toml"}
	for _, name := range first {
		put(name)
	}
	for d := range 80 {
		for f := range 50 {
			put(fmt.Sprintf("m%02d/pkg/src%02d.go", d, f))
		}
		put(fmt.Sprintf("m%02d/testdata/case.json", d))
		put(fmt.Sprintf("m%02d/doc/guide.md", d))
	}
	w.commit(r, files)
	return r, first
}

func TestManifestsComeFirst(t *testing.T) {
	w := newWorld(t)
	r, first := w.builder()
	m := w.meter(r, gittest.ServerOptions{RTT: 20 * time.Millisecond})
	w.mount(m.url(), "--history", "none", "--wait", "all")
	var order []string
	var request []int // the request that fetched the blob
	for i, f := range m.step().requests {
		for _, id := range f.Wants {
			if len(m.paths[id]) > 0 {
				order, request = append(order, m.paths[id][0]), append(request, i)
			}
		}
	}
	if len(order) < 4000 {
		t.Fatalf("only %d blobs were fetched\n%s", len(order), m.Log())
	}
	head := slices.Clone(order[:len(first)])
	slices.Sort(head)
	slices.Sort(first)
	if !slices.Equal(head, first) {
		t.Errorf("first blobs: got %q\nwant %q", head, first)
	}
	kinds := map[string][2]int{} // first and last request that fetched a kind
	for i, name := range order {
		kind := path.Ext(name)
		if kind == ".md" && path.Base(path.Dir(name)) != "doc" || slices.Contains(first, name) {
			continue
		}
		at, ok := kinds[kind]
		if !ok {
			at[0] = request[i]
		}
		at[1] = request[i]
		kinds[kind] = at
	}
	// Two requests are in flight at once, and the log may list the earlier one second.
	if kinds[".go"][0] > kinds[".json"][0]+1 || kinds[".json"][0] > kinds[".md"][1]+1 {
		t.Errorf("requests in which each kind of file was fetched: %v", kinds)
	}
	if slices.Contains(order, "zz/last.png") {
		t.Error("--prefetch auto fetched a picture")
	}
}

// While background responses are stuck and thousands of blobs are queued, the blob of a read is fetched before all of
// them.
func TestReadOvertakesThousands(t *testing.T) {
	w := newWorld(t)
	r, _ := w.builder()
	m := w.meter(r, gittest.ServerOptions{})
	stuck := m.Inject(gittest.Fault{Kind: gittest.Stall,
		Match: func(r gittest.Request) bool { return len(r.Wants) > 100 }})
	defer stuck.Remove()
	mount := w.mount(m.url(), "--history", "none", "--prefetch", "all")
	w.until("two background requests are stuck", func() bool { return stuck.Hits() == 2 })
	queued := mount.await("thousands are queued",
		func(s control.MountStatus) bool { return s.Queue.Background >= 1000 }).Queue.Background
	if got := must[[]byte](t)(os.ReadFile(mount.path("zz/last.png"))); len(got) != 8 {
		t.Errorf("read the waited-for file: got %q", got)
	}
	here := mount.status().Blobs.Fetched
	t.Logf("read past %d queued blobs; %d are here", queued, here)
	if here > 100 {
		t.Errorf("%d blobs were fetched before the one that the read waits for", here)
	}
	stuck.Remove()
	mount.await("all is here", func(s control.MountStatus) bool { return s.Blobs.Fetched == s.Blobs.Total })
}
