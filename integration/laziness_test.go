package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// tellSizes makes a server offer object-info. Some versions of git offer it by default.
const tellSizes = "transfer.advertiseObjectInfo=true"

// meter counts the requests to a server and the blobs that it sent, step by step.
type meter struct {
	served
	repo     *gittest.Repo
	paths    map[object.ID][]string // of main's blobs
	requests int
	blobs    map[object.ID]int
	// number of blobs that may be sent twice: those that a crawler has fetched before the whole tree is requested
	resent int
}

// step is the traffic since the previous step, or since the start.
type step struct {
	requests []gittest.Request
	blobs    map[object.ID]int // how often each was sent
	paths    []string          // one for each blob sent
}

// meter serves a repository of the world and counts its requests. Like public forges, the server sends no sizes unless
// tellSizes was called. At the end of the test, at most meter.resent blobs may have been sent twice, and none more
// often.
func (w *world) meter(r *gittest.Repo, o gittest.ServerOptions) *meter {
	w.Helper()
	m := &meter{served: w.serve(o), repo: r, paths: map[object.ID][]string{}, blobs: map[object.ID]int{}}
	if !slices.Contains(o.Config, tellSizes) {
		m.Inject(gittest.Fault{Kind: gittest.NoObjectInfo, On: gittest.Capabilities})
	}
	for _, line := range strings.Split(strings.TrimSuffix(w.git(r.Path, "ls-tree", "-r", "-z", "main"), "\x00"), "\x00") {
		about, name, _ := strings.Cut(line, "\t")
		id := must[object.ID](w)(object.ParseID(strings.Fields(about)[2]))
		m.paths[id] = append(m.paths[id], name)
	}
	w.Cleanup(func() {
		sent, _ := m.Log().Blobs()
		again := 0
		for id, n := range sent {
			if n > 1 {
				again++
			}
			if n > 2 || again > m.resent {
				w.Errorf("blob %s of %q was sent %d times; %d blobs may be sent twice\n%s", id, m.paths[id], n, m.resent, m.Log())
				return
			}
		}
	})
	return m
}

func (m *meter) url() string { return m.URL(m.repo.Path) }

// step waits until no request is in flight, and returns the traffic since the previous step.
func (m *meter) step() step {
	m.w.Helper()
	all := m.quiet()
	sent, _ := m.Log().Blobs()
	s := step{requests: all[m.requests:], blobs: map[object.ID]int{}}
	for id, n := range sent {
		if n -= m.blobs[id]; n > 0 {
			s.blobs[id] = n
			if len(m.paths[id]) == 0 {
				m.w.Errorf("blob %s was sent; main does not have it", id)
				continue
			}
			s.paths = append(s.paths, m.paths[id][0])
		}
	}
	m.requests, m.blobs = len(all), sent
	return s
}

// expect compares the numbers of a step with limits, and logs the numbers, so that a run shows them.
func (m *meter) expect(what string, s step, maxRequests, maxBlobs int) {
	m.w.Helper()
	m.w.Logf("%s: %d requests, %d blobs", what, len(s.requests), len(s.blobs))
	if len(s.requests) > maxRequests || len(s.blobs) > maxBlobs {
		m.w.Errorf("%s: %d requests and %d blobs, want at most %d and %d\n%s", what, len(s.requests), len(s.blobs),
			maxRequests, maxBlobs, m.Log())
	}
}

// shell runs a command and returns its output. Exit code 1 of grep is no error.
func (w *world) shell(dir, name string, args ...string) string {
	w.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok && name == "grep" && exit.ExitCode() == 1 {
		err = nil // grep found no match
	}
	if err != nil {
		w.Fatalf("run %s %q: %v: %s", name, args, err, &stderr)
	}
	return string(out)
}

// sized makes a repository of small texts.
func (w *world) sized(dirs, filesPerDir int) *gittest.Repo {
	w.Helper()
	r := w.repo("sized.git", object.SHA1)
	must[object.ID](w)(r.Sized(dirs, filesPerDir))
	return r
}

func TestMountAndListingBringNoBlob(t *testing.T) {
	w := newWorld(t)
	m := w.meter(w.sized(30, 40), gittest.ServerOptions{})
	dir := w.bare(m.url()).Dir
	s := m.step()
	var commands []gittest.Command
	for _, r := range s.requests {
		commands = append(commands, r.Command)
	}
	// The second connection carries no request: it waits for the first read.
	if want := "[caps ls-refs fetch]"; fmt.Sprint(commands) != want || m.Log().Connections() > 2 {
		t.Errorf("mount asked for %v on %d connections, want %v on at most 2", commands, m.Log().Connections(), want)
	}
	m.expect("mount", s, 3, 0)
	if lines := strings.Count(w.shell(dir, "ls", "-R"), ".txt\n"); lines != 30*40 {
		t.Errorf("ls -R listed %d files", lines)
	}
	m.expect("ls -R", m.step(), 0, 0)
	w.shell(dir, "find", ".", "-type", "f", "-name", "*.none")
	m.expect("find -name", m.step(), 0, 0)
}

func TestReadBringsNeighboursOnly(t *testing.T) {
	w := newWorld(t)
	m := w.meter(w.sized(30, 40), gittest.ServerOptions{})
	dir := w.bare(m.url()).Dir
	m.step()

	const file = "d0007/f0004.txt"
	if w.shell(dir, "cat", file) != w.git(m.repo.Path, "cat-file", "blob", "main:"+file)+"\n" {
		t.Error("read returned wrong contents")
	}
	s := m.step()
	m.expect("cat", s, 1, 33)
	for _, p := range s.paths {
		if path.Dir(p) != path.Dir(file) {
			t.Errorf("reading %s fetched %s", file, p)
		}
	}
	w.shell(dir, "cat", file)
	m.expect("second cat", m.step(), 0, 0)
	w.dropCaches()
	w.shell(dir, "cat", file)
	m.expect("cat after drop_caches", m.step(), 0, 0)
}

func TestLongListing(t *testing.T) {
	w := newWorld(t)
	m := w.meter(w.sized(5, 100), gittest.ServerOptions{})
	dir := w.bare(m.url()).Dir
	m.step()
	w.shell(dir, "ls", "-l", "d0002")
	m.expect("ls -l of 100 files", m.step(), 2, 100)
	w.shell(dir, "ls", "-l", "d0002")
	m.expect("second ls -l", m.step(), 0, 0)
}

func TestSizesOfEverything(t *testing.T) {
	for _, c := range []struct {
		name           string
		config         []string
		requests, blob int
	}{
		{"contents", nil, 20, 5000},
		{"object-info", []string{tellSizes}, 20, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			m := w.meter(w.sized(100, 50), gittest.ServerOptions{Config: c.config, RTT: 20 * time.Millisecond})
			m.resent = c.blob / 10
			dir := w.bare(m.url()).Dir
			m.step()
			if n := strings.Count(w.shell(dir, "find", ".", "-type", "f", "-size", "+0", "-not", "-name", ".git"),
				"\n"); n != 5000 {
				t.Errorf("find listed %d files", n)
			}
			m.expect("find -size", m.step(), c.requests, c.blob)
			w.shell(dir, "find", ".", "-type", "f", "-size", "+0")
			m.expect("second find -size", m.step(), 0, 0)
		})
	}
}

func TestGrepOfEverything(t *testing.T) {
	w := newWorld(t)
	m := w.meter(w.sized(280, 50), gittest.ServerOptions{RTT: 50 * time.Millisecond})
	m.resent = 1500 // the request for the whole tree also fetches what was fetched before it
	mount := w.mount(m.url())
	w.shell(mount.Dir, "grep", "-r", "-c", "never to be found", ".")
	n := len(m.Log().Requests())
	mount.await("history is complete", complete)
	s := m.step()
	t.Logf("grep -r: %d requests at its end\n%s", n, m.Log())
	m.expect("mount, grep -r and history", s, 15, 14_000)
	w.shell(mount.Dir, "grep", "-r", "-c", "never to be found", ".")
	m.expect("second grep -r", m.step(), 0, 0)
}

// A search program is recognized by its arguments: the first read of grep -r in a directory requests this directory in
// bulk, and no other.
func TestSearchIsServedInBulk(t *testing.T) {
	w := newWorld(t)
	m := w.meter(w.sized(100, 30), gittest.ServerOptions{RTT: 20 * time.Millisecond})
	m.resent = 100
	dir := w.bare(m.url()).Dir
	m.step()
	w.shell(filepath.Join(dir, "d0007"), "grep", "-r", "-c", "never to be found", ".")
	m.expect("grep -r in a directory", m.step(), 4, 130)
	w.shell(dir, "grep", "-r", "-c", "never to be found", ".")
	m.expect("grep -r of everything", m.step(), 3, 3100)
}

// A program that reads everything is recognized in whatever order its threads read, and one request fetches the rest.
func TestCrawlersAreServedInBulk(t *testing.T) {
	for _, c := range []struct {
		name    string
		threads int
		order   func(files []string) // reorders the files of one directory, or of the tree
	}{
		{"forward", 1, func([]string) {}},
		{"backward", 1, slices.Reverse[[]string]},
		{"two threads, backward", 2, slices.Reverse[[]string]},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			m := w.meter(w.sized(100, 30), gittest.ServerOptions{RTT: 20 * time.Millisecond})
			m.resent = 600
			dir := w.bare(m.url()).Dir
			m.step()
			var files []string
			for _, paths := range m.paths {
				files = append(files, paths[0])
			}
			slices.Sort(files)
			c.order(files)
			var readers sync.WaitGroup
			for part := range slices.Chunk(files, len(files)/c.threads) {
				readers.Go(func() {
					for _, f := range part {
						if _, err := os.ReadFile(filepath.Join(dir, f)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			readers.Wait()
			s := m.step()
			m.expect("read everything", s, 12, 3000)
			if n := slices.IndexFunc(s.requests,
				func(r gittest.Request) bool { return len(r.Wants) == 1 && r.Blobs == 3000 }); n < 0 {
				t.Errorf("no request fetched the whole tree\n%s", m.Log())
			}
		})
	}
}

// A build that reads all sources of a tenth of the directories, in an order of its own, does not fetch the other
// directories.
func TestBuildOfATenthIsNoCrawl(t *testing.T) {
	w := newWorld(t)
	m := w.meter(w.sized(150, 40), gittest.ServerOptions{})
	dir := w.bare(m.url()).Dir
	m.step()
	for _, d := range rand.New(rand.NewPCG(5, 6)).Perm(150)[:15] {
		for f := range 40 {
			if f%4 == 3 {
				continue // a test
			}
			if _, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("d%04d/f%04d.txt", d, f))); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The second wait in a directory fetches up to 128 neighbours.
	s := m.step()
	m.expect("read three quarters of 15 of 150 directories", s, 2*15, 15*(33+129))
	for _, r := range s.requests {
		if r.Blobs > 129 {
			t.Errorf("one request fetched %d blobs\n%s", r.Blobs, m.Log())
		}
	}
}

// A process that reads one file in each of many directories is not taken for a walk through the whole tree.
func TestSingleReadsStaySmall(t *testing.T) {
	const dirs, reads = 150, 100
	for _, c := range []struct {
		name    string
		files   int // of each directory
		first   int // number of the file read; those after it in the directory are its neighbours
		shuffle bool
	}{
		{"shuffled", 60, 10, true},
		{"by name", 60, 10, false},
		// A readahead window covers the rest of the directory, so that no file between two reads is left out.
		{"by name in small directories", 20, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			m := w.meter(w.sized(dirs, c.files), gittest.ServerOptions{})
			dir := w.bare(m.url()).Dir
			m.step()
			numbers := make([]int, dirs)
			for i := range numbers {
				numbers[i] = i
			}
			if c.shuffle {
				numbers = rand.New(rand.NewPCG(3, 4)).Perm(dirs)
			}
			for _, d := range numbers[:reads] {
				if _, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("d%04d/f%04d.txt", d, c.first))); err != nil {
					t.Fatal(err)
				}
			}
			s := m.step()
			m.expect("100 single reads", s, reads, reads*min(33, c.files))
			for _, r := range s.requests {
				if r.Blobs > 33 {
					t.Errorf("one request fetched %d blobs", r.Blobs)
				}
			}
		})
	}
}
