package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
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

// switchRepo serves a repository of n files and a few more. Its branch far differs from main in most files, in all
// kinds of changes.
func (w *world) switchRepo(n int) (s served, url string) {
	w.Helper()
	r := w.repo("r.git", object.SHA1)
	files := map[string]gittest.File{"README": {Data: []byte("read me\n")}, ".gitignore": {Data: []byte("*.o\n")},
		"link": {Data: []byte("README"), Mode: "120000"}, "turns": {Data: []byte("file")}}
	for i := range n {
		files[fmt.Sprintf("d%02d/s%d/f%04d", i%40, i%3, i)] =
			gittest.File{Data: fmt.Appendf(nil, "content %d\n%s", i, strings.Repeat("x", i))}
	}
	w.commit(r, files)
	work := w.clone(r.Path)
	sh := func(script string) {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir, cmd.Env = work, append(os.Environ(), w.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			w.Fatalf("run %s: %v\n%s", script, err, out)
		}
	}
	sh(`git checkout -q -b far
for f in d0*/s*/f* d1*/s*/f* d2*/s*/f*; do echo far >>$f; done
rm -r d30 d31; mkdir -p new/deep; for i in $(seq 200); do echo new $i >new/deep/n$i; done
chmod +x d32/s0/*; rm link; ln -s d33 link; rm turns; mkdir turns; echo dir >turns/into
echo far >README
git add -A; git update-index --add --cacheinfo 160000,$(git rev-parse main),sub; git commit -q -m far; git tag v1
git checkout -q main; git checkout -q -b near; echo near >README; git add -A; git commit -q -m near
git checkout -q main; git checkout -q -b rules; echo '*.tmp' >.gitignore; git add -A; git commit -q -m rules
git push -q origin far near rules v1`)
	s = w.serve(gittest.ServerOptions{})
	return s, s.URL("r.git")
}

// switchTo runs artifactfs switch and returns the numbers of requests and contents.
func (m mounted) switchTo(s served, args ...string) (reply control.SwitchReply, requests, blobs int) {
	m.w.Helper()
	s.forget()
	out := m.w.ok(append([]string{"switch", "-C", m.Dir, "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &reply); err != nil {
		m.w.Fatalf("switch printed %q: %v", out, err)
	}
	requests, blobs = s.cost()
	return reply, requests, blobs
}

// cost returns the numbers of requests and contents since forget.
func (s served) cost() (requests, blobs int) {
	s.w.Helper()
	for _, r := range s.quiet() {
		requests++
		blobs += r.Blobs
	}
	return requests, blobs
}

func TestSwitchFar(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, url := w.switchRepo(1500)
	// without checkpoints, which read ignore files and would be counted
	m := w.mount(url, "--history", "full", "--prefetch", "none", "--checkpoint", "off")
	dir := m.Dir
	main, far := w.clone(url), w.clone(url, "-b", "far")
	// Fill the kernel's caches: contents, existing names, missing names, listings.
	w.wantFile(m.path("README"), "read me\n")
	w.wantFile(m.path("d00/s0/f0000"), "content 0\n")
	for _, gone := range []string{"new", "turns/into"} {
		if _, err := os.Lstat(m.path(gone)); err == nil {
			t.Errorf("path %s exists", gone)
		}
	}
	for _, d := range []string{".", "d00/s0", "d30", "d32/s0"} {
		must[[]os.DirEntry](w)(os.ReadDir(m.path(d)))
	}
	if out := w.git(dir, "status", "--porcelain"); out != "" {
		t.Fatalf("git status before the switch: %s", out)
	}
	kept := w.faces(m.path("d35"))

	reply, requests, blobs := m.switchTo(s, "far")
	if requests > 2 || blobs != 0 {
		t.Errorf("switch sent %d requests and fetched %d blobs", requests, blobs)
	}
	if reply.Branch != "far" || !reply.Created || reply.Upstream != "origin/far" || reply.Paths < 1000 ||
		len(reply.Kept) > 0 {
		t.Errorf("reply of switch: got %+v", reply)
	}
	s.forget()
	for _, args := range [][]string{{"status", "--porcelain"}, {"diff", "--name-only"},
		{"diff", "--cached", "--name-only"}} {
		if out := w.git(dir, args...); out != "" {
			t.Errorf("git %q printed %s", args, out)
		}
	}
	if requests, blobs := s.cost(); requests != 0 || blobs != 0 {
		t.Errorf("git status and diff sent %d requests and fetched %d blobs", requests, blobs)
	}
	w.wantFile(m.path("README"), "far\n")
	w.wantFile(m.path("d00/s0/f0000"), "content 0\nfar\n")
	w.wantFile(m.path("new/deep/n7"), "new 7\n")
	w.wantFile(m.path("turns/into"), "dir\n")
	if _, err := os.Lstat(m.path("d30")); err == nil {
		t.Error("d30 exists after the switch")
	}
	w.compareTrees(dir, far)
	w.sameFaces("untouched", w.faces(m.path("d35")), kept)
	for _, args := range [][]string{{"rev-parse", "HEAD", "far@{upstream}"}, {"symbolic-ref", "HEAD"}, {"ls-files", "-s"},
		{"write-tree"}, {"status", "--branch"}} {
		if got, want := w.git(dir, args...), w.git(far, args...); got != want {
			t.Errorf("git %q printed %q, want %q", args, got, want)
		}
	}
	if out := w.git(dir, "reflog", "-1", "--format=%gs"); out != "checkout: moving from main to far" {
		t.Errorf("reflog: got %q", out)
	}
	faces := w.faces(dir)
	m.again(false)
	w.sameFaces("mounted again", w.faces(dir), faces)
	m.again(true)
	w.sameFaces("mounted again after a kill", w.faces(dir), faces)
	w.compareTrees(dir, far)
	if out := w.git(dir, "status", "--porcelain"); out != "" {
		t.Errorf("git status after the next mount: %s", out)
	}

	if _, _, blobs := m.switchTo(s, "-"); blobs != 0 {
		t.Errorf("switching back fetched %d blobs", blobs)
	}
	if n := m.status().Overlay.Changed; n != 0 {
		t.Errorf("changed paths after switching back: got %d, want 0", n)
	}
	if out := w.git(dir, "status", "--porcelain"); out != "" {
		t.Errorf("git status after switching back: %s", out)
	}
	w.compareTrees(dir, main)
	w.sameFaces("untouched", w.faces(m.path("d35")), kept)

	// A branch with other ignore rules needs no rescan, because they apply to untracked files only, and there are none.
	m.switchTo(s, "rules")
	s.forget()
	if out := w.git(dir, "status", "--porcelain"); out != "" {
		t.Errorf("git status with other ignore rules: %s", out)
	}
	if _, blobs := s.cost(); blobs != 0 {
		t.Errorf("git status with other ignore rules fetched %d blobs", blobs)
	}
}

// switchCases are the commands that run before a switch, in a mount and in a clone, and the arguments of the switch.
var switchCases = []struct{ name, before, args string }{
	{"nothing", ``, "far"},
	{"unknown", ``, "nowhere"},
	{"tag without --detach", ``, "v1"},
	{"tag", ``, "--detach v1"},
	{"to where it is", ``, "main"},
	{"new branch", `echo mine >>d35/s0/f0035`, "-c mine"},
	{"new branch elsewhere", ``, "-c mine origin/far"},
	{"new branch that exists", ``, "-c main"},
	{"back", `git checkout -q -b side`, "-"},
	{"dirty in the way", `echo mine >>README`, "far"},
	{"dirty elsewhere", `echo mine >>d35/s0/f0075`, "far"},
	{"dirty and removed there", `echo mine >>d30/s0/f0030`, "far"},
	{"dirty as the target has it", `echo far >README`, "far"},
	{"staged as the target has it", `echo far >README; git add README`, "far"},
	{"staged as the target has it, then dirty", `echo far >README; git add README; echo more >>README`, "far"},
	{"staged in the way", `echo mine >>README; git add README`, "far"},
	{"staged elsewhere", `echo mine >>d35/s0/f0075; git add d35; echo new >x; git add x`, "far"},
	{"removal staged", `git rm -q README`, "far"},
	{"removal staged of what is removed", `git rm -q -r d30/s0`, "far"},
	{"removed, not staged", `rm README; rm -r d31`, "far"},
	{"touched", `touch README d00/s0/f0000`, "far"},
	{"rewritten as it was", `cat README >../t; rm README; cp ../t README; rm ../t`, "far"},
	{"mode changed in the way", `chmod +x README`, "far"},
	{"mode changed elsewhere", `chmod +x d35/s0/f0075`, "far"},
	{"untracked in the way", `mkdir -p new/deep; echo mine >new/deep/n7`, "far"},
	{"untracked beside", `mkdir -p new/deep; echo mine >new/deep/mine; echo mine >d30/mine; echo mine >mine`, "far"},
	{"untracked file where a directory comes", `echo mine >new`, "far"},
	{"ignored in the way", `mkdir -p new/deep; echo 'n*' >>.git/info/exclude; echo mine >new/deep/n7`, "far"},
	{"ignored file where a directory comes", `echo 'new' >>.git/info/exclude; echo mine >new`, "far"},
	{"ignored beside", `echo x >d30/x.o; echo x >d00/y.o`, "far"},
	{"ignored no more", `echo x >d30/x.o; echo x >y.o; mkdir z; echo z >z/z.o`, "rules"},
	{"untracked directory where a file comes", `git switch -q far; echo mine >turns/mine`, "main"},
	{"empty directory where a file comes", `git switch -q far; mkdir -p turns/a/b`, "main"},
	{"file became directory", `rm README; mkdir README; echo x >README/x`, "far"},
	{"directory became file", `rm -r d30; echo x >d30`, "far"},
	{"moved", `git mv d00 moved`, "far"},
	{"moved without git", `mv d00 moved`, "far"},
	{"symlink changed", `rm link; ln -s elsewhere link`, "far"},
	{"merging", `git merge -q --no-commit --no-ff origin/near`, "far"},
	{"conflict",
		`echo mine >README; git commit -q -a -m mine; git merge origin/near; git reset -q --merge; git cherry-pick origin/near; git cherry-pick --quit`, "far"},
	{"commits of one's own",
		`echo mine >README; git commit -q -a -m mine; git switch -q -c other; echo more >d36/s0/more; git add -A; git commit -q -m more`, "main"},
	{"intent to add", `echo x >x; git add -N x`, "far"},
	{"away from a submodule", `git switch -q far`, "main"},
	{"stashed", `echo mine >>README; git stash -q`, "far"},
	{"detached", `git checkout -q --detach`, "far"},
}

// artifactfs switch behaves like git switch in a clone: both succeed or both fail, and the files and refs are the same
// afterwards.
func TestSwitchAsGit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, url := w.switchRepo(240)
	template := w.clone(url)
	for i, c := range switchCases {
		t.Run(c.name, func(t *testing.T) {
			whole := w.TB
			w.TB = t
			defer func() { w.TB = whole }()
			clone := filepath.Join(w.root, fmt.Sprintf("clone-%d", i), "top")
			w.check(os.Mkdir(filepath.Dir(clone), 0o755))
			w.check(copyTree(template, clone))
			w.git(clone, "update-index", "-q", "--refresh")
			top := filepath.Join(w.root, fmt.Sprintf("mount-%d", i), "top")
			w.check(os.Mkdir(filepath.Dir(top), 0o755))
			m, _ := w.mountAt(url, top, "--history", "full", "--prefetch", "none")
			defer w.unmount(m)
			sh := func(dir, script string) {
				t.Helper()
				cmd := exec.Command("sh", "-c", "cd "+dir+" && "+script)
				cmd.Env = append(os.Environ(), "GIT_AUTHOR_DATE=1750000000 +0000", "GIT_COMMITTER_DATE=1750000000 +0000")
				if out, err := cmd.CombinedOutput(); err != nil && !strings.Contains(string(out), "onflict") {
					t.Fatalf("run %s: %v\n%s", script, err, out)
				}
			}
			if c.before != "" {
				sh(clone, c.before)
				sh(top, strings.ReplaceAll(c.before, ".git/", m.gitDir()+"/"))
			}
			git := exec.Command("git", append([]string{"-C", clone, "switch"}, strings.Fields(c.args)...)...)
			out, err := git.CombinedOutput()
			r := w.afs(append([]string{"switch", "-C", top}, strings.Fields(c.args)...)...)
			if (err == nil) != (r.code == 0) {
				t.Errorf("%s\ngit switch: %v\n%s", r, err, out)
			}
			for _, args := range [][]string{
				{"status", "--porcelain=v2", "--branch", "--ignored"}, {"ls-files", "-s", "-t"},
				{"rev-parse", "--symbolic-full-name", "HEAD"}, {"for-each-ref"},
				{"reflog", "--format=%H %gs"}, {"stash", "list"}, {"config", "--get-regexp", `branch\.`}, {"diff"},
				{"diff", "--cached"},
			} {
				got, _ := exec.Command("git", append([]string{"-C", top}, args...)...).CombinedOutput()
				want, _ := exec.Command("git", append([]string{"-C", clone}, args...)...).CombinedOutput()
				if !bytes.Equal(got, want) {
					t.Errorf("git %q:\n%.2000s\nwant:\n%.2000s", args, got, want)
				}
			}
			w.compareTrees(top, clone)
		})
	}
}

// If the daemon is killed during a switch, the next mount shows the switch complete or not begun, and git status is
// correct.
func TestSwitchKilled(t *testing.T) {
	w := newWorld(t)
	_, url := w.switchRepo(600)
	m := w.mount(url, "--history", "full", "--prefetch", "none")
	clones := map[string]string{"main": w.clone(url), "far": w.clone(url, "-b", "far")}
	done := map[string]int{}
	to := "far"
	for round := range 8 {
		pid := w.daemon()
		var took time.Duration
		if round%4 == 3 {
			took = time.Hour // not killed
		} else {
			took = time.Duration(rand.IntN(120)) * time.Millisecond
		}
		over := make(chan result)
		go func() { over <- w.afs("switch", "-C", m.Dir, to) }()
		select {
		case r := <-over:
			if r.code != 0 {
				t.Fatal(r)
			}
		case <-time.After(took):
			syscall.Kill(-pid, syscall.SIGKILL)
			<-over
		}
		if took < time.Hour {
			syscall.Kill(-pid, syscall.SIGKILL)
			w.dead()
			w.ok("mount", m.Remote, m.Dir, "--history", "none", "--prefetch", "none")
		}
		branch := w.git(m.Dir, "symbolic-ref", "--short", "HEAD")
		if out := w.git(m.Dir, "status", "--porcelain"); out != "" {
			t.Errorf("round %d, on %s, switch to %s: git status printed %s", round, branch, to, out)
		}
		if out := w.git(m.Dir, "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "status",
			"--porcelain"); out != "" {
			t.Errorf("round %d, on %s, to %s, git status with a full scan: %s", round, branch, to, out)
		}
		w.compareTrees(m.Dir, clones[branch])
		if t.Failed() {
			return
		}
		done[branch]++
		to = map[string]string{"main": "far", "far": "main"}[branch]
	}
	t.Logf("ended on %v", done)
}

// If only the worker is killed, and the git processes that it started live on, the switch is made once.
func TestSwitchTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, url := w.switchRepo(600)
	m := w.mount(url, "--history", "full", "--prefetch", "none")
	clones := map[string]string{"main": w.clone(url), "far": w.clone(url, "-b", "far")}
	for round := range 8 {
		to := []string{"far", "main"}[round%2]
		old := w.serving()
		strike := time.AfterFunc(rand.N(100*time.Millisecond), func() { syscall.Kill(old, syscall.SIGKILL) })
		w.ok("switch", "-C", m.Dir, to)
		strike.Stop()
		if got := w.git(m.Dir, "symbolic-ref", "--short", "HEAD"); got != to {
			t.Errorf("round %d, switch to %s: HEAD is on %s", round, to, got)
		}
		if out := w.git(m.Dir, "status", "--porcelain"); out != "" {
			t.Errorf("round %d, switch to %s: git status printed %s", round, to, out)
		}
		if out := w.git(m.Dir, "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "status",
			"--porcelain"); out != "" {
			t.Errorf("round %d, to %s, git status with a full scan: %s", round, to, out)
		}
		w.compareTrees(m.Dir, clones[to])
		if t.Failed() {
			return
		}
	}
}

// Writes of other processes during a switch are kept, and git status lists the changed files.
func TestSwitchUnderWriters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, url := w.switchRepo(600)
	m := w.mount(url, "--history", "full", "--prefetch", "none")
	stop := make(chan struct{})
	ended := make(chan []string)
	go func() { // writes untracked files in all directories, repeatedly
		var made []string
		for i := 0; ; i++ {
			select {
			case <-stop:
				ended <- made
				return
			default:
			}
			name := fmt.Sprintf("d%02d/own%d", i%30, i)
			if os.WriteFile(m.path(name), []byte(name), 0o644) == nil {
				made = append(made, name)
			}
		}
	}()
	for range 6 {
		for _, to := range []string{"far", "main"} {
			w.ok("switch", "-C", m.Dir, to)
		}
	}
	close(stop)
	made := <-ended
	var status []string
	for line := range strings.Lines(w.git(m.Dir, "status", "--porcelain", "--untracked-files=all")) {
		name, untracked := strings.CutPrefix(strings.TrimSpace(line), "?? ")
		if !untracked {
			t.Errorf("git status has the unexpected line %s", line)
		}
		status = append(status, name)
	}
	for _, name := range made {
		w.wantFile(m.path(name), name)
	}
	slices.Sort(made)
	slices.Sort(status)
	if !slices.Equal(made, slices.Compact(status)) {
		t.Errorf("git status lists %d untracked files, %d were created", len(status), len(made))
	}
}
