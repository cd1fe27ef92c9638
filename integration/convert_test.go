package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// filtered is a world whose user has configured filter drivers, git-lfs among them.
type filtered struct {
	*world
	lfs   *gittest.LFS
	trace string // of the filter process
	home  string
}

func newFiltered(t *testing.T) *filtered {
	t.Helper()
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Skip("needs git-lfs")
	}
	w := newWorld(t)
	x := &filtered{world: w, trace: filepath.Join(w.root, "trace"), home: filepath.Join(w.root, "home")}
	x.lfs = must[*gittest.LFS](w)(gittest.ServeLFS())
	t.Cleanup(func() { x.lfs.Close() })
	config := filepath.Join(w.root, "gitconfig")
	w.env = []string{"GIT_CONFIG_GLOBAL=" + config, "HOME=" + x.home}
	if err := os.Mkdir(x.home, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, entry := range [][2]string{
		{"lfs.url", x.lfs.URL()}, {"filter.lfs.process", "git-lfs filter-process"},
		{"filter.lfs.smudge", "git-lfs smudge -- %f"},
		{"filter.lfs.clean", "git-lfs clean -- %f"}, {"filter.lfs.required", "true"},
		{"filter.rot13.process", filepath.Join(base, "rot13filter") + " -delay -trace " + x.trace},
		{"filter.rot13.required", "true"},
		{"filter.upper.smudge", "tr a-z A-Z"}, {"filter.upper.clean", "tr A-Z a-z"},
		{"filter.path.smudge", `printf '%%s\n' %f; cat`}, {"filter.path.clean", "tail -n +2"},
		{"filter.header.smudge", "cat a-header -"}, {"filter.header.clean", "tail -n +2"},
		{"filter.fails.smudge", "cat >/dev/null; exit 1"}, {"filter.fails.clean", "cat"},
		{"filter.idle.required", "true"},
	} {
		x.git(w.root, "config", "--file", config, entry[0], entry[1])
	}
	return x
}

// git runs git as the user.
func (x *filtered) git(dir string, args ...string) string {
	x.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	cmd.Env = append(gittest.Env(), append(x.env, "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_DATE=1700000000 +0000")...)
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, 10*time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		x.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

func (x *filtered) checkout(remote string) string {
	x.Helper()
	dir := x.place("c")
	x.git(x.root, "clone", "--quiet", remote, dir)
	return dir
}

// files need each kind of conversion.
func (x *filtered) files() map[string]gittest.File {
	text := strings.Repeat("a line of text, $Id$, h\u00e9llo \u65e5\u672c\u8a9e\n", 40)
	plain := strings.Repeat("only ascii letters\n", 30)
	files := map[string]gittest.File{
		".gitattributes": {Data: []byte("*.bat text eol=crlf\n*.id ident\n*.auto text=auto eol=crlf ident\n*.u16 text working-tree-encoding=UTF-16LE-BOM eol=crlf\n" +
			"*.u16n working-tree-encoding=UTF-16 ident\n*.sj working-tree-encoding=SHIFT-JIS\n*.l1 working-tree-encoding=ISO-8859-1\n*.up filter=upper\n*.path filter=path text eol=crlf\n" +
			"*.rot filter=rot13\n*.rotid filter=rot13 ident working-tree-encoding=UTF-16BE\n*.bin filter=lfs diff=lfs merge=lfs -text\n*.none filter=unknown\n*.fails filter=fails\n*.head filter=header\n" +
			"*.jp working-tree-encoding=ISO-2022-JP\n*.bogus working-tree-encoding=bogus\n*.idle filter=idle\n")},
		"a-header": {Data: []byte("the header\n")}, "empty.u16": {}, "empty.rot": {}, "empty.up": {},
		"b.bat": {Data: []byte(plain)}, "b.id": {Data: []byte(text)}, "b.auto": {Data: []byte(text)},
		"b.u16": {Data: []byte(text)}, "b.u16n": {Data: []byte(text)},
		"b.sj": {Data: []byte("\u65e5\u672c\u8a9e\n")}, "b.l1": {Data: []byte("h\u00e9\n")},
		"b.up": {Data: []byte(plain)}, "d/it's a.path": {Data: []byte(plain)}, "b.none": {Data: []byte(text)},
		"b.fails": {Data: []byte(text)},
		"b.head":  {Data: []byte(plain)}, "b.rotid": {Data: []byte(text)},
		"link.bin":  {Data: []byte("b.bat"), Mode: "120000"},
		"large.rot": {Data: bytes.Repeat([]byte("large contents go through a file\n"), 100_000)},
		"large.bin": {Data: x.lfs.Add(bytes.Repeat([]byte("0123456789"), 400_000))},
	}
	for i := range 12 {
		content := fmt.Sprintf("content %d\n", i)
		files[fmt.Sprintf("rot/%d.rot", i)] = gittest.File{Data: []byte(content)}
		files[fmt.Sprintf("bin/%d.bin", i)] = gittest.File{Data: x.lfs.Add([]byte(content))}
	}
	return files
}

// oneWay are files that git checks out with contents that it would convert to another blob when they are added.
func (x *filtered) oneWay() map[string]gittest.File {
	return map[string]gittest.File{
		"no.sj": {Data: []byte("h\u00e9\n")}, "no.l1": {Data: []byte("\u65e5\n")}, "no.u16": {Data: []byte("\xff\n")},
		"no.bin": {Data: []byte("no pointer\n")},
		"cr.bat": {Data: []byte("a\r\nb\n")}, "no.jp": {Data: []byte("\u65e5\u672c\u8a9e")},
		"no.bogus": {Data: []byte("h\u00e9\n")}, "no.idle": {Data: []byte("h\u00e9\n")},
	}
}

func (x *filtered) clean(m mounted) {
	x.Helper()
	if out := x.git(m.Dir, "status", "--porcelain"); out != "" {
		x.Errorf("git status: %s", out)
	}
}

func TestConvertedLikeCheckout(t *testing.T) {
	t.Parallel()
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			x := newFiltered(t)
			r := x.repo("converted.git", f)
			x.commit(r, x.files())
			url := x.serve(gittest.ServerOptions{}).URL("converted.git")
			clone := x.checkout(url)
			x.lfs.Reset()
			m := x.mount(url, "--wait", "all", "--prefetch", "all")
			x.clean(m)
			if st := x.lfs.Stats(); st != (gittest.LFSStats{}) {
				t.Errorf("requests of git-lfs before the first read: got %+v, want none", st)
			}
			x.compareTrees(m.Dir, clone)
			x.clean(m)
			for path := range listTree(x.world, clone) {
				if err := os.Chtimes(m.path(path), time.Unix(1_700_000_000, 0), time.Unix(1_700_000_000, 0)); err != nil &&
					filepath.Ext(path) != ".bin" {
					t.Fatal(err)
				}
			}
			x.clean(m)
			x.sameCommit(m, clone)
			x.compareTrees(m.Dir, clone)
			x.unmount(m)
		})
	}
}

func TestOneWayLikeCheckout(t *testing.T) {
	x := newFiltered(t)
	r := x.repo("oneway.git", object.SHA1)
	x.commit(r, x.files())
	x.commit(r, x.oneWay())
	url := x.serve(gittest.ServerOptions{}).URL("oneway.git")
	m := x.mount(url, "--wait", "tree", "--prefetch", "none") // a command that needs the git directory waits for it
	x.compareTrees(m.Dir, x.checkout(url))
	x.clean(m)
}

// sameCommit edits files in both trees, commits, and compares.
func (x *filtered) sameCommit(m mounted, clone string) {
	x.Helper()
	fresh := []byte("new large content")
	for _, dir := range []string{m.Dir, clone} {
		for path, content := range map[string]string{
			"b.bat": "new\r\nlines\r\n", "b.id": "$Id: 1234 $\n", "b.u16": "\xff\xfea\x00\r\x00\n\x00", "b.up": "UPPER\n",
			"new.rot": "uryyb\n", "bin/3.bin": string(fresh), "b.sj": "\x93\xfa\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o644); err != nil {
				x.Fatal(err)
			}
		}
		x.git(dir, "add", "--all")
		x.git(dir, "commit", "--quiet", "--message", "Edit")
	}
	for _, about := range [][]string{{"rev-parse", "HEAD"}, {"ls-files", "-s"}, {"status", "--porcelain"}} {
		if got, want := x.git(m.Dir, about...), x.git(clone, about...); got != want {
			x.Errorf("git %v:\n%s\nin the clone:\n%s", about, got, want)
		}
	}
	x.git(m.Dir, "lfs", "push", "origin", "main")
	if !x.lfs.Has(fresh) {
		x.Error("git lfs push from the mount sent nothing")
	}
}

// TestFiltersAreLazy: a file is smudged when it is first read, once for all mounts if the driver is git-lfs and once
// for each mount otherwise, and in a batch with others where that is possible.
func TestFiltersAreLazy(t *testing.T) {
	x := newFiltered(t)
	r := x.repo("lazy.git", object.SHA1)
	files := map[string]gittest.File{".gitattributes": {Data: []byte("*.bin filter=lfs -text\n*.rot filter=rot13\n")}}
	const n = 40
	for i := range n {
		content := fmt.Sprintf("content %d\n", i)
		files[fmt.Sprintf("%d.bin", i)] = gittest.File{Data: x.lfs.Add([]byte(content))}
		files[fmt.Sprintf("%d.rot", i)] = gittest.File{Data: []byte(content)}
	}
	x.commit(r, files)
	url := x.serve(gittest.ServerOptions{}).URL("lazy.git")
	m := x.mount(url, "--wait", "all", "--prefetch", "all")
	x.clean(m)
	x.git(m.Dir, "log", "-p")
	if entries, err := os.ReadDir(m.Dir); err != nil || len(entries) != len(files)+1 {
		t.Errorf("read the root directory: got %d entries, %v", len(entries), err)
	}
	if st := x.lfs.Stats(); st != (gittest.LFSStats{}) || exists(x.trace) {
		t.Errorf("requests of git-lfs before the first read: got %+v, want none", st)
	}
	var wg sync.WaitGroup
	readAll := func(dir string) {
		for i := range n {
			wg.Go(func() {
				content := fmt.Sprintf("content %d\n", i)
				for path, want := range map[string]string{fmt.Sprintf("%d.bin", i): content,
					fmt.Sprintf("%d.rot", i): strings.ReplaceAll(content, "content", "pbagrag")} {
					if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(got) != want {
						t.Errorf("read %s: got %q (%v), want %q", path, got, err, want)
					}
				}
			})
		}
		wg.Wait()
	}
	for i := range 2 { // two calls are not yet a walk through the tree
		if _, err := os.Stat(m.path(fmt.Sprintf("%d.bin", 10+i))); err != nil {
			t.Error(err)
		}
	}
	if st := x.lfs.Stats(); st.Downloads != 2 {
		t.Errorf("requests of git-lfs after two files were looked up: got %+v, want 2 downloads", st)
	}
	start := time.Now()
	readAll(m.Dir)
	st := x.lfs.Stats()
	t.Logf("%d contents through git-lfs and as many through another process in %s: %+v", n, time.Since(start), st)
	if st.Downloads != n || st.Batches > n/2 {
		t.Errorf("requests of git-lfs: got %+v, want %d downloads in at most %d batches", st, n, n/2)
	}
	trace, _ := os.ReadFile(x.trace)
	if got := bytes.Count(trace, []byte("smudge ")); got < n || got > 2*n+4 { // git asks twice for a delayed file
		t.Errorf("smudged contents: got %d", got)
	}
	again := x.mount(url, "--wait", "git")
	readAll(again.Dir)
	now, _ := os.ReadFile(x.trace)
	if smudged := bytes.Count(now[len(trace):], []byte("smudge ")); x.lfs.Stats() != st || smudged < n {
		t.Errorf("second mount: got git-lfs requests %+v, want none, and %d smudged by the other driver, want at least %d",
			x.lfs.Stats(), smudged, n)
	}
	x.unmount(again)
	x.unmount(m)
}

// TestWalkThroughFilters: when a process reads one file after the other, the next files are downloaded in the same
// batch.
func TestWalkThroughFilters(t *testing.T) {
	x := newFiltered(t)
	r := x.repo("walk.git", object.SHA1)
	files := map[string]gittest.File{".gitattributes": {Data: []byte("*.bin filter=lfs -text\n")}}
	const n = 100
	for i := range n {
		files[fmt.Sprintf("d/%03d.bin", i)] = gittest.File{Data: x.lfs.Add(fmt.Appendf(nil, "content %d\n", i))}
	}
	x.commit(r, files)
	m := x.mount(x.serve(gittest.ServerOptions{}).URL("walk.git"), "--wait", "git", "--prefetch", "none")
	start := time.Now()
	for i := range n {
		if got, err := os.ReadFile(m.path(fmt.Sprintf("d/%03d.bin", i))); err != nil ||
			string(got) != fmt.Sprintf("content %d\n", i) {
			t.Errorf("read of d/%03d.bin: got %q (%v), want its filtered content", i, got, err)
		}
	}
	st := x.lfs.Stats()
	t.Logf("%d files one after the other in %s: %+v", n, time.Since(start), st)
	if st.Downloads != n || st.Batches > n/5 {
		t.Errorf("requests of git-lfs: got %+v, want %d downloads in at most %d batches", st, n, n/5)
	}
}

// TestFiltersThatFail: a read of a file whose required filter fails is an error, and succeeds once the filter succeeds.
func TestFiltersThatFail(t *testing.T) {
	x := newFiltered(t)
	r := x.repo("fail.git", object.SHA1)
	content := []byte("large\n")
	x.commit(r, map[string]gittest.File{
		".gitattributes": {Data: []byte("*.bin filter=lfs -text\n*.idle filter=idle text=auto\n*.fails filter=fails text eol=crlf\n*.enc working-tree-encoding\n")},
		"a.bin":          {Data: x.lfs.Add(content)}, "a.idle": {Data: content}, "a.fails": {Data: content},
		"a.enc": {Data: content}, "a.txt": {Data: content},
	})
	m := x.mount(x.serve(gittest.ServerOptions{}).URL("fail.git"), "--wait", "git", "--prefetch", "none")
	x.lfs.Down(true)
	for _, name := range []string{"a.bin", "a.idle", "a.enc"} {
		if got, err := os.ReadFile(m.path(name)); !isErrno(err, unix.EIO) {
			t.Errorf("read %s, whose filter fails: got %q (%v), want EIO", name, got, err)
		}
	}
	for name, want := range map[string]string{"a.fails": "large\r\n", "a.txt": "large\n"} {
		got, err := os.ReadFile(m.path(name))
		if info, statErr := os.Stat(m.path(name)); err != nil || statErr != nil || string(got) != want ||
			info.Size() != int64(len(want)) {
			t.Errorf("read and stat %s: got %q (%v, %v), want %q and its length", name, got, err, statErr, want)
		}
	}
	x.lfs.Down(false)
	if got, err := os.ReadFile(m.path("a.bin")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("read after the server is back: got %q, %v", got, err)
	}
	log, err := os.ReadFile(x.logFile())
	if n := strings.Count(string(log), "a.fails"); err != nil || n != 1 {
		t.Errorf("log lines about contents that stay unfiltered: got %d, %v", n, err)
	}
}

// TestOneLostObject: a git-lfs object that the server has lost is an error for its own file only.
func TestOneLostObject(t *testing.T) {
	x := newFiltered(t)
	r := x.repo("lost.git", object.SHA1)
	files := map[string]gittest.File{
		".gitattributes": {Data: []byte("*.bin filter=lfs -text\n")},
		"lost.bin": {Data: fmt.Appendf(nil, "version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 10\n",
			1)},
	}
	const n = 20
	for i := range n {
		files[fmt.Sprintf("%d.bin", i)] = gittest.File{Data: x.lfs.Add(fmt.Appendf(nil, "content %d\n", i))}
	}
	x.commit(r, files)
	m := x.mount(x.serve(gittest.ServerOptions{}).URL("lost.git"), "--wait", "git", "--prefetch", "none")
	var wg sync.WaitGroup
	wg.Go(func() {
		if got, err := os.ReadFile(m.path("lost.bin")); !isErrno(err, unix.EIO) {
			t.Errorf("read the file whose object is lost: got %q, %v, want EIO", got, err)
		}
	})
	for i := range n {
		wg.Go(func() {
			if got, err := os.ReadFile(m.path(fmt.Sprintf("%d.bin", i))); err != nil ||
				string(got) != fmt.Sprintf("content %d\n", i) {
				t.Errorf("read %d.bin: got %q (%v), want its filtered content", i, got, err)
			}
		})
	}
	wg.Wait()
	t.Logf("%+v", x.lfs.Stats())
}

func isErrno(err error, want syscall.Errno) bool {
	pathErr, ok := err.(*os.PathError)
	return ok && pathErr.Err == want
}

// TestFiltersReadTheirMount: many filter processes at a time read a file of the mount that waits for these filters.
func TestFiltersReadTheirMount(t *testing.T) {
	x := newFiltered(t)
	r := x.repo("reads.git", object.SHA1)
	files := map[string]gittest.File{".gitattributes": {Data: []byte("*.head filter=header\n")},
		"a-header": {Data: bytes.Repeat([]byte("the header\n"), 50_000)}}
	const n = 150
	for i := range n {
		files[fmt.Sprintf("%d.head", i)] = gittest.File{Data: fmt.Appendf(nil, "%d\n", i)}
	}
	x.commit(r, files)
	m := x.mount(x.serve(gittest.ServerOptions{}).URL("reads.git"), "--wait", "tree", "--prefetch", "none")
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			want := fmt.Appendf(bytes.Clone(files["a-header"].Data), "%d\n", i)
			if got, err := os.ReadFile(m.path(fmt.Sprintf("%d.head", i))); err != nil || !bytes.Equal(got, want) {
				t.Errorf("read file %d: got %d bytes, %v", i, len(got), err)
			}
		})
	}
	wg.Wait()
}

// TestHungFilterDoesNotHoldTheMount: while a filter hangs, its reader can be interrupted, other readers are served, and
// unmount succeeds.
func TestHungFilterDoesNotHoldTheMount(t *testing.T) {
	x := newFiltered(t)
	x.git(x.root, "config", "--file", filepath.Join(x.root, "gitconfig"), "filter.hangs.smudge",
		"echo $$ >>"+x.root+"/pids; sleep 1000")
	r := x.repo("hang.git", object.SHA1)
	x.commit(r, map[string]gittest.File{
		".gitattributes": {Data: []byte("*.hang filter=hangs\n")}, "a.hang": {Data: []byte("x\n")},
		"a.txt": {Data: []byte("x\n")},
	})
	m := x.mount(x.serve(gittest.ServerOptions{}).URL("hang.git"), "--wait", "git")
	cmd := exec.Command("cat", m.path("a.hang"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pids := filepath.Join(x.root, "pids")
	x.until("the filter runs", func() bool { return exists(pids) })
	if got, err := os.ReadFile(m.path("a.txt")); err != nil || string(got) != "x\n" {
		t.Errorf("read a.txt: got %q (%v), want \"x\\n\"", got, err)
	}
	if r := x.afs("unmount", m.Dir); r.code == 0 {
		t.Error("unmount succeeded although a process reads")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	x.unmount(m)
	x.until("the filter has ended", func() bool {
		text, err := os.ReadFile(pids)
		for pid := range strings.FieldsSeq(string(text)) {
			if exists("/proc/" + pid) {
				return false
			}
		}
		return err == nil
	})
}
