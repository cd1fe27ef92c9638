package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// profiled is a repository of 60 directories with 40 files each. A build reads one file in most directories, in an
// order that is not the order of the tree.
type profiled struct {
	served
	repo  *gittest.Repo
	build []string // the files that the build reads, in order
}

func (w *world) profiled() *profiled {
	w.Helper()
	p := &profiled{served: w.serve(gittest.ServerOptions{RTT: 20 * time.Millisecond}), repo: w.sized(60, 40)}
	for i := range 50 {
		p.build = append(p.build, fmt.Sprintf("d%04d/f%04d.txt", (23*i)%60, (7*i)%40))
	}
	return p
}

func (p *profiled) url() string { return p.URL(p.repo.Path) }

// read reads files in a mount, one after the other.
func (p *profiled) read(m mounted, paths []string) {
	p.w.Helper()
	for _, path := range paths {
		must[[]byte](p.w)(os.ReadFile(m.path(path)))
	}
}

// traffic waits until no request is in flight, and returns the numbers of requests for blobs and of blobs since the
// last call of forget.
func (p *profiled) traffic() (requests, blobs int) {
	p.w.Helper()
	p.quiet()
	sent, _ := p.Log().Blobs()
	for _, r := range p.Log().Requests() {
		for _, id := range r.Wants {
			if sent[id] > 0 {
				requests++
				break
			}
		}
	}
	return requests, len(sent)
}

// cold returns the world of a machine that has only the profiles of w, and nothing of the repository.
func (w *world) cold() *world {
	w.Helper()
	other := w.elsewhere()
	found, err := filepath.Glob(filepath.Join(w.state, "stores", "*", "profiles"))
	if err != nil || len(found) != 1 {
		w.Fatalf("directories with profiles: got %q, %v, want one", found, err)
	}
	into := filepath.Join(other.state, "stores", filepath.Base(filepath.Dir(found[0])), "profiles")
	check2(w, os.MkdirAll(filepath.Dir(into), 0o700))
	check2(w, os.CopyFS(into, os.DirFS(found[0])))
	return other
}

// profile returns the output of `profile show`.
func (w *world) profile(name string) (shown struct {
	Paths []string
	Whole bool
}) {
	w.Helper()
	w.json(&shown, "profile", "show", name, "--json")
	return shown
}

// noBudget makes the prefetch end after the profile, so that only the contents of the profile are counted.
var noBudget = []string{"--history", "none", "--prefetch-budget", "1"}

func TestProfileOfABuildIsPrefetched(t *testing.T) {
	w := newWorld(t)
	p := w.profiled()
	first := w.bare(p.url(), "--profile", "build")
	p.forget()
	p.read(first, p.build)
	without, _ := p.traffic()
	if s := first.status().Blobs.Profile; s == nil || s.Name != "build" || !s.Recording ||
		s.Recorded != int64(len(p.build)) || s.Source != "" {
		t.Errorf("status while the build is recorded: got profile %+v, want build with %d recorded paths", s, len(p.build))
	}
	w.unmount(first)
	if got := w.profile("build"); !slices.Equal(got.Paths, p.build) || got.Whole {
		t.Fatalf("recorded paths: got %q, want %q", got.Paths, p.build)
	}

	o := w.cold()
	p.forget()
	second := o.mount(p.url(), append(noBudget, "--profile", "build")...)
	p.read(second, p.build)
	with, blobs := p.traffic()
	t.Logf("requests of the build: %d without a profile, %d with one, for %d blobs", without, with, blobs)
	// The first read may come before the profile was looked up, and then fetches the neighbours of its file.
	if with > 3 || blobs > len(p.build)+33 || without < 20 {
		t.Errorf("build with a profile: %d requests for %d blobs, want at most 3 for %d; without a profile: %d requests, want at least 20\n%s",
			with, blobs, len(p.build)+33, without, p.Log())
	}
	if s := second.status().Blobs.Profile; s == nil || s.Source != "store" || s.Paths != int64(len(p.build)) {
		t.Errorf("status with a profile: got %+v, want %d paths from the store", s, len(p.build))
	}
	o.unmount(second)
}

// A profile contains paths, so it is of use at a later commit, in which files have changed and directories were
// renamed.
func TestProfileIsUsedAtALaterCommit(t *testing.T) {
	w := newWorld(t)
	p := w.profiled()
	first := w.bare(p.url(), "--read-only")
	p.read(first, p.build)
	w.unmount(first)
	tree := w.clone(p.url())
	for i, path := range p.build {
		if i%2 == 0 {
			check2(w, os.WriteFile(filepath.Join(tree, path), fmt.Appendf(nil, "changed %d\n", i), 0o644))
		}
	}
	w.git(tree, "mv", filepath.Dir(p.build[1]), "renamed")
	w.git(tree, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qam", "Change")
	w.git(tree, "push", "-q", p.repo.Path, "HEAD:main")

	o := w.cold()
	p.forget()
	second := o.mount(p.url(), append(noBudget, "--read-only")...)
	rest := slices.DeleteFunc(slices.Clone(p.build),
		func(path string) bool { return filepath.Dir(path) == filepath.Dir(p.build[1]) })
	p.read(second, rest)
	if requests, blobs := p.traffic(); requests > 3 || blobs > len(rest)+33 {
		t.Errorf("build of a later commit: %d requests for %d blobs, want at most 3 for %d\n%s", requests, blobs,
			len(rest)+33, p.Log())
	}
	o.unmount(second)
}

func TestSearchIsRecordedWithoutPaths(t *testing.T) {
	w := newWorld(t)
	p := w.profiled()
	first := w.bare(p.url())
	w.shell(first.Dir, "grep", "-rq", "no such text", ".")
	w.unmount(first)
	if got := w.profile("auto"); !got.Whole || len(got.Paths) > 0 {
		t.Fatalf("profile of a search: whole %v and %d paths, want true and none", got.Whole, len(got.Paths))
	}
	o := w.cold()
	p.forget()
	second := o.mount(p.url(), "--history", "none", "--wait", "all")
	if requests, blobs := p.traffic(); requests > 4 || blobs < 2400 {
		t.Errorf("prefetch of the whole tree: %d requests for %d blobs, want at most 4 for at least 2400\n%s", requests,
			blobs, p.Log())
	}
	o.unmount(second)
}

func TestPrefetchNoneAndProfileNone(t *testing.T) {
	w := newWorld(t)
	p := w.profiled()
	for range 2 {
		m := w.bare(p.url(), "--profile", "none")
		p.read(m, p.build[:5])
		if s := m.status().Blobs.Profile; s != nil {
			t.Errorf("mount with --profile none: status has profile %+v, want none", s)
		}
		w.unmount(m)
	}
	if r := w.afs("profile", "show", "auto"); r.code != control.ExitFailed {
		t.Errorf("profile after mounts with --profile none: %s, want exit code 1", r)
	}
	m := w.bare(p.url()) // this mount records its profile
	p.read(m, p.build)
	w.unmount(m)

	o := w.cold()
	p.forget()
	m = o.bare(p.url(), "--wait", "git")
	if requests, blobs := p.traffic(); requests > 0 || blobs > 0 {
		t.Errorf("mount with --prefetch none: %d requests for %d blobs, want none\n%s", requests, blobs, p.Log())
	}
	p.read(m, p.build[:3])
	if s := m.status().Blobs.Profile; s == nil || s.Source != "" || s.Recorded != 3 {
		t.Errorf("status with --prefetch none: got %+v, want 3 recorded paths and no profile in use", s)
	}
	o.unmount(m)
}

// saved returns the paths in the file with the recording of a mount.
func (m mounted) saved(name string) (paths []string) {
	m.w.Helper()
	p, err := readprofile.ReadFile(filepath.Join(m.w.state, "mounts", m.ID, "reads-"+name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.w.Fatal(err)
	}
	for _, path := range p.Paths {
		paths = append(paths, path.Name)
	}
	return paths
}

func TestRecordingContinuesAfterATakeover(t *testing.T) {
	w := newWorld(t)
	p := w.profiled()
	for _, args := range [][]string{nil, {"--read-only"}} {
		m := w.bare(p.url(), append(args, "--profile", "build")...)
		p.read(m, p.build[:20])
		w.until("the recording is saved", func() bool { return len(m.saved("build")) == 20 })
		check2(t, syscall.Kill(w.serving(), syscall.SIGKILL))
		p.read(m, p.build[20:])
		w.unmount(m)
		if got := w.profile("build").Paths; !slices.Equal(got, p.build) {
			t.Errorf("paths recorded across a takeover: got %d, want the %d of the build, in order:\n%q", len(got),
				len(p.build), got)
		}
		w.ok("profile", "delete", "build")
	}
}

// A recording whose mount has died with all processes is merged by the next mount of the session.
func TestRecordingOfADeadMountIsKept(t *testing.T) {
	w := newWorld(t)
	p := w.profiled()
	args := []string{"--session", "work", "--profile", "build"}
	m := w.bare(p.url(), args...)
	p.read(m, p.build[:20])
	check2(t, os.WriteFile(m.path("new"), nil, 0o644)) // a session without changes is created again
	w.until("the recording is saved", func() bool { return len(m.saved("build")) == 20 })
	w.killDaemon()
	w.ok(append([]string{"mount", p.url(), m.Dir, "--history", "none", "--prefetch", "none"}, args...)...)
	if got := w.profile("build").Paths; !slices.Equal(got, p.build[:20]) {
		t.Errorf("paths recorded before the death: got %q, want the 20 that were read", got)
	}
	w.unmount(m)
}

// Two mounts of a remote that end at the same time both add their recordings.
func TestMountsRecordTogether(t *testing.T) {
	w := newWorld(t)
	p := w.profiled()
	one, two := w.bare(p.url(), "--read-only"), w.bare(p.url(), "--read-only")
	p.read(one, p.build[:10])
	p.read(two, p.build[10:20])
	var both sync.WaitGroup
	for _, m := range []mounted{one, two} {
		both.Go(func() { w.unmount(m) })
	}
	both.Wait()
	got := w.profile("auto").Paths
	slices.Sort(got)
	want := slices.Sorted(slices.Values(p.build[:20]))
	if !slices.Equal(got, want) {
		t.Errorf("paths of two mounts: got %q, want %q", got, want)
	}
}

func TestProfileIsShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.profiled()
	c := w.sessionRemote("http", nil)
	flags := func(session string) []string {
		return append(c.flags(session), "--profile", "build", "--share-profile")
	}
	m := w.bare(p.url(), flags("one")...)
	p.read(m, p.build)
	w.unmount(m)

	o := w.elsewhere()
	p.forget()
	m = o.mount(p.url(), append(noBudget, flags("two")...)...)
	s := m.await("the profile of the session remote is in use",
		func(s control.MountStatus) bool { return s.Blobs.Profile.Source != "" })
	if s.Blobs.Profile.Source != "session-remote" || s.Blobs.Profile.Paths != int64(len(p.build)) ||
		!s.Blobs.Profile.Shared {
		t.Errorf("profile on another machine: got %+v, want %d paths from the session remote", s.Blobs.Profile, len(p.build))
	}
	p.read(m, p.build)
	if requests, blobs := p.traffic(); requests > 4 || blobs > len(p.build)+33 {
		t.Errorf("build with a shared profile: %d requests for %d blobs, want at most 4 for %d\n%s", requests, blobs,
			len(p.build)+33, p.Log())
	}
	o.unmount(m)
	if got := o.profile("build").Paths; len(got) != len(p.build) {
		t.Errorf("profile in the store of the other machine: %d paths, want %d", len(got), len(p.build))
	}
	// A mount that does not share the profile sends no request for it.
	c.server.Log().Reset()
	m = w.elsewhere().bare(p.url(), append(c.flags("three"), "--profile", "build")...)
	p.read(m, p.build[:1])
	if log := c.server.Log().String(); strings.Contains(log, "refs/afs/profile") {
		t.Errorf("mount without --share-profile has requested the profile:\n%s", log)
	}
	m.w.unmount(m)
}

// Users of the session remote may have stored anything as a profile. It is ignored if it is not valid.
func TestHostileProfileIsIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.profiled()
	c := w.sessionRemote("path", nil)
	whole := readprofile.Profile{}.Merge(readprofile.Recording{Paths: p.build, Ended: time.Now()}).Encode()
	huge := readprofile.Recording{}
	for i := range readprofile.MaxPaths {
		huge.Paths = append(huge.Paths, fmt.Sprintf("d0001/f%d/../no/such/file", i), fmt.Sprintf("d0001/missing%d", i))
	}
	for name, content := range map[string][]byte{
		"garbage":   []byte("no profile"),
		"cut":       whole[:len(whole)-1],
		"traversal": readprofile.Profile{Paths: []readprofile.Path{{Name: "../../etc/passwd"}, {Name: p.build[0]}}}.Encode(),
		"git":       readprofile.Profile{Paths: []readprofile.Path{{Name: ".git/config"}, {Name: p.build[0]}}}.Encode(),
		"long":      make([]byte, readprofile.MaxSize+100),
		"vanished":  readprofile.Profile{}.Merge(huge).Encode(), // valid, but the tree has none of its paths
	} {
		tree := w.place("hostile")
		w.git(w.root, "init", "-q", tree)
		check2(w, os.WriteFile(filepath.Join(tree, "profile"), content, 0o644))
		w.git(tree, "add", ".")
		w.git(tree, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "Profile")
		w.git(tree, "push", "-qf", c.arg, "HEAD:refs/afs/profile/"+name)
		m := w.mount(p.url(), append(append(noBudget, c.flags(name)...), "--wait", "all", "--profile", name,
			"--share-profile")...)
		p.read(m, p.build[:2])
		if s := m.status().Blobs.Profile; s.Source != "" && name != "vanished" {
			t.Errorf("%s: profile %+v is in use, want none", name, s)
		}
		w.unmount(m)
		if got := w.profile(name).Paths; !slices.Equal(got[:2], p.build[:2]) {
			t.Errorf("%s: recorded profile begins with %q, want %q", name, got[:2], p.build[:2])
		}
	}
}

func TestProfileCommands(t *testing.T) {
	w := newWorld(t)
	p := w.profiled()
	var list struct {
		Profiles []struct {
			Name, Remote string
			Paths        int
		}
	}
	w.json(&list, "profile", "list", "--json")
	if len(list.Profiles) > 0 {
		t.Errorf("profiles of an empty state directory: got %+v, want none", list.Profiles)
	}
	m := w.bare(p.url(), "--profile", "build")
	p.read(m, p.build[:2])
	w.unmount(m)
	w.json(&list, "profile", "list", p.url(), "--json")
	if len(list.Profiles) != 1 || list.Profiles[0].Name != "build" || list.Profiles[0].Remote != p.url() ||
		list.Profiles[0].Paths != 2 {
		t.Errorf("profiles after a mount: got %+v, want build with 2 paths", list.Profiles)
	}
	if got, want := w.ok("profile", "show", "build"), strings.Join(p.build[:2], "\n")+"\n"; got != want {
		t.Errorf("profile show: got %q, want %q", got, want)
	}
	if got := w.ok("profile", "list"); !strings.Contains(got, "build") {
		t.Errorf("profile list: got %q, want the profile build", got)
	}
	w.ok("profile", "delete", "build", p.url())
	for _, args := range [][]string{{"profile", "delete", "build"}, {"profile", "show", "build"}} {
		if r := w.afs(args...); r.code != control.ExitFailed || !strings.Contains(r.stderr, "hint:") {
			t.Errorf("deleted profile: %s, want exit code 1 and a hint", r)
		}
	}
	for _, args := range [][]string{{"profile", "show", "../x"}, {"mount", p.url(), w.place("m"), "--profile", "a/b"},
		{"mount", p.url(), w.place("m"), "--profile", "none", "--share-profile"}} {
		if r := w.afs(args...); r.code != control.ExitUsage {
			t.Errorf("invalid name: %s, want exit code 2", r)
		}
	}
}
