package fsmonitor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// journal is a file system monitor that returns the changed paths that the test has set.
type journal struct {
	mu    sync.Mutex
	paths []string
	asked int
}

func (j *journal) note(paths ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.paths = append(j.paths, paths...)
}

func (j *journal) since(_ context.Context, _ int32, token string) (string, []string, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked++
	from, err := strconv.Atoi(strings.TrimPrefix(token, "j:"))
	now := fmt.Sprintf("j:%d", len(j.paths))
	if err != nil || from > len(j.paths) {
		return now, nil, true, nil
	}
	paths := slices.Clone(j.paths[from:])
	slices.Sort(paths)
	return now, slices.Compact(paths), false, nil
}

// monitored is a clone with a new index, to which a journal reports changes.
type monitored struct {
	t      *testing.T
	dir    string
	server *Server
	journal
}

func (m *monitored) git(args ...string) string {
	m.t.Helper()
	out, err := gittest.Git(context.Background(), m.dir, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func version(t *testing.T) (major, minor int) {
	t.Helper()
	out, err := gittest.Git(context.Background(), "", "version")
	if _, scanned := fmt.Sscanf(out, "git version %d.%d", &major, &minor); err != nil || scanned != nil {
		t.Fatalf("git version printed %q: %v, %v", out, err, scanned)
	}
	return major, minor
}

// asksSocket reports whether the installed git connects to the socket itself.
func asksSocket(t *testing.T) bool {
	t.Helper()
	major, minor := version(t)
	return major > 2 || major == 2 && minor >= 55
}

func newMonitored(t *testing.T, socket bool, files map[string]gittest.File) *monitored {
	t.Helper()
	repo, err := gittest.New(filepath.Join(t.TempDir(), "source.git"), gittest.RepoOptions{})
	if err == nil {
		_, err = repo.Commit("main", files, "files")
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &monitored{t: t, dir: filepath.Join(dir, "work")}
	if _, err := gittest.Git(context.Background(), dir, "clone", "--quiet", repo.Path, "work"); err != nil {
		t.Fatal(err)
	}
	hook := filepath.Join(m.dir, ".git", query.InsideDir, query.HookName)
	if major, minor := version(t); major == 2 && minor < 43 {
		hook = filepath.Join(m.dir, ".git", query.InsideDir, query.CarefulName)
	}
	program, err := os.Executable()
	if err == nil {
		err = os.Mkdir(filepath.Dir(hook), 0o777)
	}
	if err == nil {
		err = os.Symlink(program, hook)
	}
	if err != nil {
		t.Fatal(err)
	}
	if socket {
		m.git("config", "core.fsmonitor", "true")
	} else {
		m.git("config", "core.fsmonitor", hook)
	}
	m.git("config", "core.fsmonitorHookVersion", "2")
	m.git("config", "core.untrackedCache", "true")
	m.server = serve(t, filepath.Join(m.dir, ".git"), m.since)
	m.writeFirstIndex()
	return m
}

// writeFirstIndex writes the index of HEAD's tree, without data about ignore files.
func (m *monitored) writeFirstIndex() {
	m.t.Helper()
	exclude, err := os.ReadFile(filepath.Join(m.dir, ".git", "info", "exclude"))
	if err != nil {
		m.t.Fatal(err)
	}
	u := &index.Untracked{Ident: index.Ident(m.dir), Flags: index.ShowNormal, PerDirectory: ".gitignore",
		InfoExclude: index.Exclude{ID: index.ExcludeID(object.SHA1, exclude)}}
	b := index.NewBuilder(index.Options{Version: 2, Token: "j:0", Untracked: u})
	old := syscall.NsecToTimespec(1_600_000_000e9) // time that is older than the index
	stat := func(path string) index.Stat {
		var st syscall.Stat_t
		name := filepath.Join(m.dir, path)
		if err := syscall.Lstat(name, &st); err != nil {
			m.t.Fatal(err)
		}
		return index.Stat{Ctime: st.Ctim.Nano(), Mtime: st.Mtim.Nano(), Ino: uint32(st.Ino), UID: st.Uid, GID: st.Gid,
			Size: uint32(st.Size)}
	}
	b.Dir("", object.MustID(m.git("rev-parse", "HEAD^{tree}")), stat(""))
	for _, line := range strings.Split(m.git("ls-tree", "-r", "-t", "HEAD"), "\n") {
		head, path, _ := strings.Cut(line, "\t")
		f := strings.Fields(head)
		mode, err := strconv.ParseUint(f[0], 8, 32)
		if err != nil {
			m.t.Fatal(err)
		}
		if f[1] == "tree" {
			b.Dir(path, object.MustID(f[2]), stat(path))
			continue
		}
		if err := syscall.UtimesNano(filepath.Join(m.dir, path), []syscall.Timespec{old, old}); err != nil {
			m.t.Fatal(err)
		}
		b.Add(index.Entry{Path: path, Mode: object.Mode(mode), ID: object.MustID(f[2]), Stat: stat(path), Valid: true})
	}
	f, err := os.Create(filepath.Join(m.dir, ".git", "index"))
	if err == nil {
		_, err = b.WriteTo(f)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		m.t.Fatal(err)
	}
}

// truth returns the output of git status with an index without cached data.
func (m *monitored) truth() string {
	m.t.Helper()
	return m.truthOf("status", "--porcelain=v2")
}

func (m *monitored) truthOf(args ...string) string {
	m.t.Helper()
	file := filepath.Join(m.t.TempDir(), "index")
	data, err := os.ReadFile(filepath.Join(m.dir, ".git", "index"))
	if err != nil {
		m.t.Fatal(err)
	}
	x, err := index.Read(object.SHA1, data)
	if err != nil {
		m.t.Fatal(err)
	}
	x.Token, x.Untracked, x.Tree = "", nil, nil
	for i := range x.Entries {
		x.Entries[i].Stat = index.Stat{}
	}
	var b bytes.Buffer
	if _, err = x.WriteTo(&b); err == nil {
		err = os.WriteFile(file, b.Bytes(), 0o644)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Setenv("ARTIFACTFS_TEST_INDEX", file)
	alias :=
		"alias.truth=!GIT_INDEX_FILE=\"$ARTIFACTFS_TEST_INDEX\" git -c core.fsmonitor=false -c core.untrackedCache=false"
	return m.git(append([]string{"-c", alias, "truth"}, args...)...)
}

// callCounts is the number of files that a git command has examined, and of directories that it has read.
type callCounts struct{ lstat, opendir int }

// status runs git status, and returns its output and its counts according to git's own trace.
func (m *monitored) status(args ...string) (string, callCounts) {
	m.t.Helper()
	trace := filepath.Join(m.t.TempDir(), "trace")
	alias := "alias.traced=!GIT_TRACE2_EVENT_NESTING=10 GIT_TRACE2_EVENT='" + trace + "' git status --porcelain=v2"
	out := m.git("-c", alias, "traced")
	text, err := os.ReadFile(trace)
	if err != nil {
		m.t.Fatal(err)
	}
	var e callCounts
	for line := range strings.Lines(string(text)) {
		var event struct{ Key, Value json.RawMessage }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			m.t.Fatal(err)
		}
		n, _ := strconv.Atoi(strings.Trim(string(event.Value), `"`))
		switch strings.Trim(string(event.Key), `"`) {
		case "preload/sum_lstat", "refresh/sum_lstat":
			e.lstat += n
		case "opendir":
			e.opendir += n
		}
	}
	return out, e
}

func (m *monitored) write(path, content string) {
	m.t.Helper()
	name := filepath.Join(m.dir, path)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
	m.note(path)
}

func forClients(t *testing.T, test func(t *testing.T, socket bool)) {
	t.Run("hook", func(t *testing.T) { test(t, false) })
	if asksSocket(t) {
		t.Run("socket", func(t *testing.T) { test(t, true) })
	}
}

func someFiles() map[string]gittest.File {
	files := map[string]gittest.File{
		".gitignore": {Data: []byte("*.o\n/build\n")}, "sub/.gitignore": {Data: []byte("*.a\n!keep.o\n")},
		"sub/deep/.gitignore": {Data: []byte("secret\n")},
	}
	for _, dir := range []string{"", "sub/", "sub/deep/", "sub/deep/er/", "other/", "other/one/", "other/two/"} {
		for _, name := range []string{"f", "g", "h"} {
			files[dir+name] = gittest.File{Data: []byte(dir + name + "\n")}
		}
	}
	return files
}

// TestGitExaminesReportedPaths checks that git examines only the paths that the monitor returns.
func TestGitExaminesReportedPaths(t *testing.T) {
	forClients(t, func(t *testing.T, socket bool) {
		m := newMonitored(t, socket, someFiles())
		if out, e := m.status(); out != "" || e != (callCounts{}) {
			t.Errorf("first git status: got %q, counts %+v", out, e)
		}
		if m.asked == 0 {
			t.Fatal("git did not query the monitor")
		}
		m.write("sub/f", "changed\n")
		// The index has no data about ignore files, so all directories are read once.
		if out, e := m.status(); out != m.truth() || e.lstat != 1 || e.opendir != 7 {
			t.Errorf("git status after a file changed: got %q, counts %+v", out, e)
		}
		for range 2 { // now git has to examine only the changed file
			if out, e := m.status(); out != m.truth() || e.lstat > 1 || e.opendir > 0 {
				t.Errorf("git status again: got %q, counts %+v", out, e)
			}
		}
		m.git("commit", "-qam", "changed")
		// git invalidates its untracked cache of the directories of added files
		if out, e := m.status(); out != "" || e.lstat > 1 || e.opendir > 2 {
			t.Errorf("git status after a commit: got %q, counts %+v", out, e)
		}
		if out, e := m.status(); out != "" || e != (callCounts{}) {
			t.Errorf("second git status after a commit: got %q, counts %+v", out, e)
		}
	})
}

// TestStatusAfterRandomChanges checks that after random changes, git status with the monitor and its caches has the
// same output as after a full scan.
func TestStatusAfterRandomChanges(t *testing.T) {
	forClients(t, func(t *testing.T, socket bool) {
		for seed := range uint64(3) {
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
				m := newMonitored(t, socket, someFiles())
				random, dirty := rand.New(rand.NewPCG(seed, 7)), 0
				dirs := []string{"", "sub/", "sub/deep/", "sub/deep/er/", "other/", "other/one/", "new/", "new/er/", "build/"}
				names := []string{"f", "g", "x.o", "keep.o", "x.a", "secret", "plain", "sub2/f"}
				for step := range 25 {
					for range 1 + random.IntN(3) {
						m.changeRandomly(random, dirs[random.IntN(len(dirs))], names[random.IntN(len(names))])
					}
					got, _ := m.status()
					if want := m.truth(); got != want {
						t.Fatalf("step %d: git status printed\n%s\nwant\n%s\njournal: %q", step, got, want, m.paths)
					} else if want != "" {
						dirty++
					}
				}
				if dirty < 10 {
					t.Errorf("git status had changes only %d times", dirty)
				}
			})
		}
	})
}

// changeRandomly makes a random change of a kind that is usual in working trees.
func (m *monitored) changeRandomly(random *rand.Rand, dir, name string) {
	m.t.Helper()
	path := dir + name
	full := filepath.Join(m.dir, path)
	switch random.IntN(9) {
	case 0, 1, 2:
		m.write(path, fmt.Sprint(random.IntN(4)))
	case 3, 4:
		if os.Remove(full) == nil {
			m.note(path)
		}
	case 5:
		m.write(dir+".gitignore", []string{"", "*.o\n", "plain\n", "!x.o\n", "sub2\n"}[random.IntN(5)])
	case 6:
		if dir != "" {
			m.removeAll(strings.TrimSuffix(dir, "/"))
		}
	case 7:
		m.git("add", "-A")
		for _, p := range strings.Split(m.git("status", "--porcelain", "--ignored", "-uall"), "\n") {
			m.note(strings.TrimSpace(p[min(3, len(p)):]))
		}
	case 8:
		m.git("commit", "-q", "--allow-empty", "-m", "step")
	}
}

// removeAll removes a directory as rm -r does, one name after the other.
func (m *monitored) removeAll(dir string) {
	m.t.Helper()
	gone := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(m.dir, dir), func(path string, e os.DirEntry, err error) error {
		if err == nil {
			relative, _ := filepath.Rel(m.dir, path)
			gone[relative] = true
		}
		return nil
	})
	if err == nil {
		err = os.RemoveAll(filepath.Join(m.dir, dir))
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.note(slices.Sorted(maps.Keys(gone))...)
}

// TestMovedDirectories checks which paths the monitor must return for a moved directory. If it returns a directory with
// a trailing slash, git examines the index entries below it, but keeps its untracked cache of this directory and those
// below. So for a moved directory, the monitor must also return a path inside each directory.
func TestMovedDirectories(t *testing.T) {
	forClients(t, func(t *testing.T, socket bool) {
		for _, inside := range []bool{false, true} {
			m := newMonitored(t, socket, someFiles())
			m.write("sub/one/untracked", "")
			m.write("sub/untracked", "")
			m.status()
			for _, names := range [][2]string{{"other", "gone"}, {"sub", "other"}} {
				if err := os.Rename(filepath.Join(m.dir, names[0]), filepath.Join(m.dir, names[1])); err != nil {
					t.Fatal(err)
				}
				m.note(names[0]+"/", names[1]+"/")
			}
			if inside {
				for _, dir := range []string{"gone", "gone/one", "gone/two", "other", "other/deep", "other/deep/er", "other/one"} {
					m.note(dir + "/f")
				}
			}
			got, _ := m.status()
			if want := m.truth(); inside && got != want {
				t.Errorf("git status printed\n%s\nwant\n%s", got, want)
			} else if !inside && got == want {
				t.Log("this git needs no path inside")
			}
		}
	})
}

// TestGitWithoutMonitor checks that git scans the working tree if the monitor does not answer, and does not start its
// own monitor.
func TestGitWithoutMonitor(t *testing.T) {
	forClients(t, func(t *testing.T, socket bool) {
		m := newMonitored(t, socket, someFiles())
		m.write("other/x.o", "ignored by a file that git has not read\n")
		m.write("other/f", "changed\n")
		m.write("sub/keep.o", "not ignored\n")
		if err := m.server.Close(); err != nil {
			t.Fatal(err)
		}
		if got, want := m.git("status", "--porcelain=v2"), m.truth(); got != want {
			t.Errorf("git status printed\n%s\nwant\n%s", got, want)
		}
		if socket {
			if out, err := gittest.Git(context.Background(), m.dir, "fsmonitor--daemon", "status"); err == nil {
				t.Errorf("git has its own monitor: %s", out)
			}
			if out, err := gittest.Git(context.Background(), m.dir, "fsmonitor--daemon", "start"); err == nil {
				t.Errorf("git started its own monitor: %s", out)
			}
		}
		m.server = serve(t, filepath.Join(m.dir, ".git"), m.since)
		m.write("sub/g", "changed\n")
		for range 3 {
			if got, want := m.git("status", "--porcelain=v2"), m.truth(); got != want {
				t.Errorf("with the next monitor, git status printed\n%s\nwant\n%s", got, want)
			}
		}
		if _, e := m.status(); e.lstat > 5 || e.opendir > 0 {
			t.Errorf("with the next monitor, git still scans everything: counts %+v", e)
		}
	})
}

// TestDiffWithCommit checks that git diff with a commit is correct with every version of git.
func TestDiffWithCommit(t *testing.T) {
	forClients(t, func(t *testing.T, socket bool) {
		files := someFiles()
		files["link"] = gittest.File{Data: []byte("f"), Mode: "120000"}
		m := newMonitored(t, socket, files)
		m.write("sub/deep/f", "changed\n")
		m.write("g", "changed\n")
		m.note("link", "h")
		if err := os.Remove(filepath.Join(m.dir, "h")); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"diff HEAD", "diff HEAD -- sub", "diff --raw HEAD",
			"diff --name-status HEAD -- other sub", "diff --cached HEAD", "diff", "diff -- sub"} {
			if got, want := m.git(strings.Fields(command)...), m.truthOf(strings.Fields(command)...); got != want {
				t.Errorf("git %s printed\n%s\nwant\n%s", command, got, want)
			}
		}
		if got, want := m.git("diff-index", "--name-status", "HEAD"), "M\tg\nD\th\nM\tsub/deep/f"; got != want {
			t.Errorf("git diff-index printed\n%s\nwant\n%s", got, want)
		}
	})
}

// TestGitCommandsMonitor checks that the commands of git fsmonitor--daemon work with this server.
func TestGitCommandsMonitor(t *testing.T) {
	if !asksSocket(t) {
		t.Skip("git has no fsmonitor--daemon on this system")
	}
	m := newMonitored(t, true, someFiles())
	if got := m.git("fsmonitor--daemon", "status"); got != "fsmonitor-daemon is watching '"+m.dir+"'" {
		t.Errorf("git fsmonitor--daemon status: got %q", got)
	}
	m.git("fsmonitor--daemon", "stop")
	if got, want := m.git("status", "--porcelain=v2"), m.truth(); got != want {
		t.Errorf("git status printed %q, want %q", got, want)
	}
	if got := m.git("fsmonitor--daemon", "status"); !strings.Contains(got, "is watching") {
		t.Errorf("git fsmonitor--daemon status after stop: got %q", got)
	}
}
