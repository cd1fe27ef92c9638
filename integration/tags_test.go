package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// released creates a repository of a Go program whose newest commit has a lightweight tag, an annotated tag and a
// second branch. The parent has an annotated tag, and an older commit a tag and a branch.
func (w *world) released(name string) *gittest.Repo {
	w.Helper()
	r := w.repo(name, object.SHA1)
	ids := must[[]object.ID](w)(r.History(10))
	head := w.commit(r, map[string]gittest.File{
		"go.mod":  {Data: []byte("module example.com/r\n\ngo 1.21\n")},
		"main.go": {Data: []byte("package main\n\nfunc main() {}\n")},
	})
	must[object.ID](w)(r.AnnotatedTag("v1.2.3", head, "A release"))
	must[object.ID](w)(r.AnnotatedTag("before", ids[9], "The parent"))
	must[object.ID](w)(r.AnnotatedTag("v1.0.0", ids[3], "An old release"))
	for ref, id := range map[string]object.ID{"tags/light": head, "heads/same": head, "tags/old": ids[2],
		"heads/older": ids[5]} {
		w.git(r.Path, "update-ref", "refs/"+ref, id.String())
	}
	return r
}

// early are the refs of released that a mount has before the history.
var early = []string{"refs/heads/main", "refs/remotes/origin/HEAD", "refs/remotes/origin/main",
	"refs/remotes/origin/same",
	"refs/tags/before", "refs/tags/light", "refs/tags/v1.2.3"}

// refs returns the refs of a git directory with the types of their objects, as git itself finds them without the mount.
func (w *world) refs(gitDir string) []string {
	w.Helper()
	return strings.Split(w.git(gitDir, "--git-dir", gitDir, "for-each-ref",
		"--format=%(refname) %(objectname) %(objecttype) %(*objectname)"), "\n")
}

// earlyRefs returns the early refs of a clone.
func (w *world) earlyRefs(clone string) []string {
	w.Helper()
	return slices.DeleteFunc(w.refs(filepath.Join(clone, ".git")), func(ref string) bool {
		name, _, _ := strings.Cut(ref, " ")
		return !slices.Contains(early, name)
	})
}

// version returns the version that go build writes into the program in a directory.
func (w *world) version(dir string) string {
	w.Helper()
	program := filepath.Join(w.place("bin"), "r")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=-buildvcs=true", "GOPROXY=off", "GOTOOLCHAIN=local")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Sprintf("go build: %v: %s", err, out)
	}
	_, text, _ := strings.Cut(w.shell(dir, "go", "version", "-m", program), "\tmod\t")
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line)
}

// Git knows the tags of the mounted commit before the history is there, and the list of refs is requested once.
func TestTagsBeforeHistory(t *testing.T) {
	w := newWorld(t)
	r := w.released("r.git")
	clone := w.clone("file://" + r.Path)
	built := w.version(clone)
	if !strings.Contains(built, "v1.2.3") {
		t.Fatalf("version in a program built in a clone: %q", built)
	}
	s := w.serve(gittest.ServerOptions{})
	old := must[map[string]object.ID](t)(r.Refs())["refs/tags/old"]
	held := s.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch,
		Match: func(q gittest.Request) bool { return slices.Contains(q.Wants, old) }})
	m := w.mount(s.URL("r.git"), "--wait", "git", "--prefetch", "none")
	want := w.earlyRefs(clone)
	if got := w.refs(m.gitDir()); !slices.Equal(got, want) || len(got) != len(early) {
		t.Errorf("refs before the history: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	decorated := []string{"log", "-1", "--format=%D"}
	if got, want := w.git(m.Dir, decorated...), w.git(clone, decorated...); got != want {
		t.Errorf("names of HEAD: got %q, want %q", got, want)
	}
	if out := w.git(m.gitDir(), "--git-dir", m.gitDir(), "fsck", "--no-progress"); out != "" {
		t.Errorf("git fsck: %s", out)
	}
	// These commands wait for the history. go build asks git for the names of HEAD before that.
	got := make(chan string)
	for _, run := range []func() string{
		func() string { return w.version(m.Dir) },
		func() string { return w.shell(m.Dir, "git", "describe") },
		func() string { return w.shell(m.Dir, "git", "for-each-ref") },
	} {
		go func() { got <- run() }()
	}
	w.until("the history is requested", func() bool { return held.Hits() > 0 })
	time.Sleep(time.Second)
	held.Remove()
	results := []string{<-got, <-got, <-got}
	for _, want := range []string{built, "v1.2.3\n", w.git(clone, "for-each-ref") + "\n"} {
		if !slices.Contains(results, want) {
			t.Errorf("results %q lack %q", results, want)
		}
	}
	m.await("history is complete", complete)
	lists := slices.DeleteFunc(s.Log().Requests(),
		func(q gittest.Request) bool { return !slices.Contains(q.Prefixes, "refs/tags/") })
	if len(lists) != 1 {
		t.Errorf("listings of tags: got %d, want one\n%s", len(lists), s.Log())
	}
}

// A mount without history has the tags of its commits, from every kind of remote. They are no changes of the user, also
// for a successor of the daemon and for the next mount.
func TestTagsWithoutHistory(t *testing.T) {
	for name, remote := range map[string]func(w *world, r *gittest.Repo) string{
		"http":        func(w *world, r *gittest.Repo) string { return w.serve(gittest.ServerOptions{}).URL("r.git") },
		"path":        func(_ *world, r *gittest.Repo) string { return r.Path },
		"no filter":   func(w *world, _ *gittest.Repo) string { return w.faulty(gittest.Fault{Kind: gittest.NoFilter}) },
		"no v2":       func(w *world, _ *gittest.Repo) string { return w.faulty(gittest.Fault{Kind: gittest.NoV2}) },
		"plain files": func(w *world, _ *gittest.Repo) string { return w.faulty(gittest.Fault{Kind: gittest.Dumb}) },
		"bundle": func(w *world, r *gittest.Repo) string {
			bundle := w.place("all.bundle")
			w.git(r.Path, "bundle", "create", "--quiet", bundle, "--all")
			return "file://" + bundle
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.released("r.git")
			w.git(r.Path, "update-server-info")
			m := w.bare(remote(w, r), "--wait", "git")
			want := w.earlyRefs(w.clone("file://" + r.Path))
			check := func(what string) {
				t.Helper()
				got := slices.DeleteFunc(w.refs(m.gitDir()), func(ref string) bool {
					return !strings.HasPrefix(ref, "refs/tags/") && !slices.Contains(early, strings.Fields(ref)[0])
				})
				for _, ref := range want {
					switch {
					case strings.HasPrefix(ref, "refs/tags/before") &&
						(name == "no filter" || name == "no v2" || name == "plain files"):
						// the parent was not requested
						continue
					case strings.HasPrefix(ref, "refs/heads/") && name == "bundle": // its HEAD names no branch
						continue
					}
					if !slices.Contains(got, ref) {
						t.Errorf("%s: refs\n%s\nlack %s", what, strings.Join(got, "\n"), ref)
					}
				}
				if out := w.git(m.gitDir(), "--git-dir", m.gitDir(), "fsck", "--no-progress"); out != "" {
					t.Errorf("%s: git fsck: %s", what, out)
				}
			}
			check("mount")
			killed := w.serving()
			syscall.Kill(killed, syscall.SIGKILL)
			w.until("a successor serves",
				func() bool { return w.shell(m.Dir, "git", "status", "--short") == "" && w.serving() != killed })
			check("takeover")
			var reply control.UnmountReply
			w.json(&reply, "unmount", m.Dir)
			if reply.Kept != 0 || reply.Session != "" {
				t.Errorf("unmount keeps %d changes in session %q, want none", reply.Kept, reply.Session)
			}
		})
	}
}

// faulty returns the URL of the repository r.git on a server with a fault.
func (w *world) faulty(f gittest.Fault) string {
	w.Helper()
	s := w.serve(gittest.ServerOptions{})
	s.Inject(f)
	return s.URL("r.git")
}
