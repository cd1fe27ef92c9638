package workday

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// cloned returns the directory of a plain clone of a small repository.
func cloned(t *testing.T) string {
	t.Helper()
	r, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Sized(4, 5); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Commit("main", map[string]gittest.File{".gitignore": {Data: []byte("build/\n")}},
		"Ignore"); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "c")
	if _, err := gittest.Git(t.Context(), "", "clone", "-q", r.Path, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func look(t *testing.T, dir string) State {
	t.Helper()
	s, err := Look(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestWorkOnAPlainClone checks that work on a plain file system has no faults, and that the State of a copy of the tree
// is equal.
func TestWorkOnAPlainClone(t *testing.T) {
	dir, ledger := cloned(t), filepath.Join(t.TempDir(), "ledger")
	w, err := Start(Options{Dir: dir, Ledger: ledger, Seed: 3, Steps: 40})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(); err != nil {
		t.Fatal(err)
	}
	all, err := ReadLedger(ledger)
	if err != nil {
		t.Fatal(err)
	}
	trees := map[string]bool{}
	for _, e := range all {
		if e.Fault != "" {
			t.Errorf("step %s reports the fault %s", e.Step, e.Fault)
		}
		trees[e.State.Tree] = true
	}
	if len(all) != 81 || len(trees) < 14 {
		t.Errorf("got %d lines and %d trees", len(all), len(trees))
	}
	last := all[len(all)-1].State
	copied := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", dir, copied).CombinedOutput(); err != nil {
		t.Fatalf("copy the working tree: %v: %s", err, out)
	}
	if d := last.Differs(look(t, copied)); d != "" {
		t.Error(d)
	}
}

func TestLookSeesEverything(t *testing.T) {
	for script, want := range map[string]string{
		"echo x >>d0000/f0000.txt": "tree status", "chmod +x d0000/f0000.txt": "tree status",
		"rm d0000/f0000.txt":               "tree status",
		"ln -sf elsewhere d0000/f0000.txt": "tree status", "echo x >new": "tree status",
		"mkdir -p build && echo x >build/x": "", "mkdir empty": "", "touch d0000/f0000.txt": "", "git status >/dev/null": "",
		"git commit -q --allow-empty -m x": "HEAD refs", "git switch -q -c other": "branch refs",
		"git switch -q --detach": "branch",
		"git tag x":              "refs", "git notes add -m x": "refs", "echo x >new && git add new": "tree index status",
		"echo x >new && git add -N new":                                                "tree index status",
		"git update-index --assume-unchanged d0000/f0000.txt":                          "index",
		"echo x >>d0000/f0000.txt && git stash -q":                                     "refs stashes",
		"echo x >>d0000/f0000.txt && git update-index --skip-worktree d0000/f0000.txt": "tree index",
		"git switch -q -c x && echo x >d0000/f0000.txt && git commit -qam x && git switch -q main && echo y >d0000/f0000.txt && git commit -qam y && git update-index --assume-unchanged d0000/f0001.txt && git merge -q x || true": "tree HEAD refs index status operation",
		"git rebase -q -i HEAD~1": "branch operation",
	} {
		dir := cloned(t)
		before := look(t, dir)
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir, cmd.Env = dir, append(gittest.Env(), `GIT_SEQUENCE_EDITOR=sed -i "s/^pick/edit/"`)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("run %s: %v: %s", script, err, out)
		}
		var got []string
		differs := before.Differs(look(t, dir))
		for part := range strings.SplitSeq(differs, "; ") {
			if fields := strings.Fields(part); len(fields) > 0 {
				got = append(got, strings.TrimSuffix(fields[0], ":"))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("script %s: got difference %q, want %s: %s", script, got, want, differs)
		}
	}
}

// TestWorkerThatEnds checks that ended detects a worker that has ended before it was killed.
func TestWorkerThatEnds(t *testing.T) {
	for name, want := range map[string]bool{"no directory": true, "at work": false} {
		dir := cloned(t)
		if want {
			dir = filepath.Join(dir, "none")
		}
		w, err := Start(Options{Dir: dir, Ledger: filepath.Join(t.TempDir(), "ledger"), Pause: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); want && !w.ended() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		got := w.ended()
		w.Kill()
		if got != want || want != (w.stderr.String() != "") {
			t.Errorf("%s: worker has ended: got %t, want %t; its stderr is %q", name, got, want, w.stderr.String())
		}
	}
}

// TestFilesOfATreeLeaveOutEmptyDirectories checks that the tree of a checkpoint is compared without its empty
// directories, because a tree of stock git has none.
func TestFilesOfATreeLeaveOutEmptyDirectories(t *testing.T) {
	repo := filepath.Join(cloned(t), ".git")
	git := func(script string) string {
		t.Helper()
		out, err := run(t.Context(), repo, []string{"GIT_DIR=" + repo}, "sh", "-ec", script)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := git("git rev-parse HEAD^{tree}")
	tree :=
		git(`empty=$(git hash-object -t tree -w /dev/null); inner=$(printf '040000 tree %s\tdeep\n' $empty | git mktree)
{ git ls-tree HEAD; printf '040000 tree %s\tempty\n' $inner; } | git mktree`)
	if got, err := filesOf(t.Context(), repo, tree); err != nil || got != want {
		t.Errorf("files of a tree with empty directories: got %s (%v), want %s", got, err, want)
	}
}

// TestJudge checks that Judge accepts permitted differences and no others.
func TestJudge(t *testing.T) {
	zero := time.Unix(1_700_000_000, 0)
	at := func(seconds float64) time.Time { return zero.Add(time.Duration(seconds * float64(time.Second))) }
	state := func(tree string) State { return State{Tree: tree, Head: "h", Branch: "refs/heads/main"} }
	saved := func(seconds float64, tree, id string) Saved {
		return Saved{ID: id, Time: at(seconds), Tree: tree, Head: "h", Branch: "main", State: state(tree)}
	}
	day := []Entry{
		{At: at(0), Step: "begin", State: state("0")},
		{At: at(2), Step: "edit", Begins: true}, {At: at(3), Step: "edit", State: state("1")},
		{At: at(4), Step: "checkpoint", Promise: true, Since: at(3), Checkpoint: "P1", State: state("1")},
		{At: at(6), Step: "edit", Begins: true}, {At: at(7), Step: "edit", State: state("2")},
		{At: at(8), Step: "sync", Promise: true, Synced: true, Since: at(7), State: state("2")},
		{At: at(10), Step: "edit", Begins: true}, {At: at(12), Step: "edit", State: state("3")},
		{At: at(16), Step: "edit", Begins: true}, {At: at(17), Step: "edit", State: state("4")},
		{At: at(20), Step: "commit", Begins: true},
	}
	wrong := saved(8, "2", "P2")
	wrong.Head = "other"
	for _, c := range []struct {
		name   string
		saved  Saved
		local  bool
		limit  float64
		exact  bool
		faults string // one word of each expected fault
	}{
		{name: "the last state", saved: saved(18, "4", "P4"), exact: true},
		{name: "in the middle of a step", saved: saved(11, "half", "P3"), limit: 12},
		{name: "in the middle of the last step", saved: saved(20.2, "half", "P5")},
		{name: "a state between", saved: saved(8.5, "2", "P2"), limit: 12, exact: true},
		{name: "too old", saved: saved(8.5, "2", "P2"), limit: 5, exact: true, faults: "lost"},
		{name: "nothing like it", saved: saved(8.5, "x", "P2"), limit: 12, faults: "nothing"},
		{name: "a promise broken", saved: saved(4, "1", "P1"), limit: 20, exact: true, faults: "gone"},
		{name: "a checkpoint that is not what it was", saved: saved(4, "2", "P1"), limit: 20, exact: true,
			faults: "promised"},
		{name: "nothing at all", saved: Saved{State: state("0"), Tree: "0", Head: "h", Branch: "main"}, limit: 30,
			exact: true, faults: "gone"},
		{name: "nothing at all, all promises bind", local: true,
			saved: Saved{State: state("0"), Tree: "0", Head: "h", Branch: "main"}, limit: 30, exact: true, faults: "gone gone"},
		{name: "stock git finds another HEAD", saved: wrong, limit: 30, exact: true, faults: "HEAD"},
	} {
		if c.limit == 0 {
			c.limit = 8
		}
		v := Judge(day, c.saved, Limits{Killed: at(22), Interval: time.Duration(c.limit * float64(time.Second)),
			Local: c.local})
		want := strings.Fields(c.faults)
		ok := len(v.Faults) == len(want) && v.Exact == c.exact
		for i := range min(len(want), len(v.Faults)) {
			ok = ok && strings.Contains(v.Faults[i], want[i])
		}
		if !ok {
			t.Errorf("case %s: got %+v, want exact %v and %q", c.name, v, c.exact, want)
		}
	}
}

// TestFaultsAfterTheKill checks a step during which the daemon was killed. It is judged as a step in progress, although
// the worker has recorded that the tree did not exist.
func TestFaultsAfterTheKill(t *testing.T) {
	killed := time.Unix(1_700_000_000, 0)
	at := func(seconds float64) time.Time { return killed.Add(time.Duration(seconds * float64(time.Second))) }
	old := State{Tree: "old", Head: "h", Branch: "refs/heads/main"}
	ledger := alive([]Entry{
		{At: at(-9), Step: "begin", State: old},
		{At: at(-3), Step: "rename directory", Begins: true},
		{At: at(0.1), Step: "rename directory", State: old, Fault: "transport endpoint is not connected"},
	}, killed)
	v := Judge(ledger, Saved{ID: "P", Time: at(-0.3), Tree: "old", Head: "h", Branch: "main", State: old},
		Limits{Killed: killed, Interval: time.Minute})
	if v.At >= 0 || v.Exact || len(v.Faults) > 0 {
		t.Errorf("verdict on a step in progress: got %+v, want neither a fault nor a state after the step", v)
	}
}

func TestLedgerCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	if err := os.WriteFile(path, []byte(`{"step":"a"}`+"\n"+`{"step":"b`), 0o644); err != nil {
		t.Fatal(err)
	}
	all, err := ReadLedger(path)
	if err != nil || !slices.EqualFunc(all, []string{"a"}, func(e Entry, s string) bool { return e.Step == s }) {
		t.Errorf("entries of the ledger: got %+v (%v), want the step \"a\" alone", all, err)
	}
}

func TestMoment(t *testing.T) {
	if got := moment("01ARZ3NDEKTSV4RRFFQ69G5FAV"); got.UnixMilli() != 1469922850259 {
		t.Errorf("time of the identifier: got %d ms, want 1469922850259", got.UnixMilli())
	}
}

// TestOracle checks that the oracle finds, for each State, whether the tree had this State at some moment.
func TestOracle(t *testing.T) {
	dir, base := cloned(t), t.TempDir()
	kept := filepath.Join(base, "kept")
	if err := keepBeginning(t.Context(), dir, filepath.Join(dir, ".git"), kept); err != nil {
		t.Fatal(err)
	}
	ledger := []Entry{{Step: "begin", At: time.Now(), State: look(t, dir)}}
	step := func(script string) {
		e := Entry{Step: script, Script: script, Begins: true, At: time.Now(), Moment: time.Now().Unix()}
		if out, err := e.command(t.Context(), dir).CombinedOutput(); err != nil {
			t.Fatalf("run %s: %v: %s", script, err, out)
		}
		ledger = append(ledger, e, Entry{Step: script, At: time.Now(), State: look(t, dir)})
	}
	step("echo new >new && git add -A && git commit -qm new")
	between := look(t, dir)
	for i := range ledger { // times long ago, so that the checkpoint cannot have been made at them
		ledger[i].At = ledger[i].At.Add(-time.Minute)
	}
	step("echo one >one; rm d0000/f0000.txt; sed -i s/new/old/ new; git switch -q -c other; git add one")

	objects := []string{filepath.Join(dir, ".git", "objects")}
	at := func(script string) State {
		copied := filepath.Join(t.TempDir(), "copy")
		objects = append(objects, filepath.Join(copied, ".git", "objects"))
		if out, err := exec.Command("sh", "-c", "cp -a "+dir+" "+copied+" && cd "+copied+" && git reset -q --hard "+
			between.Head+" && git clean -qfd && git switch -q main && git branch -q -D other;"+script+
			"; cp .git/index .git/all; GIT_INDEX_FILE=.git/all git add -A; GIT_INDEX_FILE=.git/all git write-tree; rm .git/all").CombinedOutput(); err != nil {
			t.Fatalf("make a copy at the state between two steps: %v: %s", err, out)
		}
		return look(t, copied)
	}
	for i, c := range []struct {
		name  string
		state State
		exact int
		want  Finding
	}{
		{"between", between, 2, Between},
		{"first write", at("echo one >one"), -1, Moment},
		{"empty file", at("true >one"), -1, Moment},
		{"all but the last", at("echo one >one; rm d0000/f0000.txt; sed -i s/new/old/ new; git switch -q -c other"), -1,
			Moment},
		{"the second without the first", at("rm d0000/f0000.txt"), -1, Blend},
		{"a content that never was", at("echo two >one"), -1, Never},
		{"a file that never went", at("rm d0001/f0000.txt"), -1, Never},
		{"a branch that never was", at("git switch -q -c another"), -1, Never},
		{"what was never staged", at("echo one >one; git add one; rm d0000/f0000.txt; git rm -q --cached d0001/f0000.txt"),
			-1, Never},
	} {
		o := oracle{scratch: filepath.Join(base, "o"+string(rune('0'+i))), beginning: kept, ledger: ledger, objects: objects}
		if got, why, err := o.ask(t.Context(), Saved{Time: ledger[3].At.Add(50 * time.Millisecond), State: c.state},
			c.exact); got != c.want || err != nil {
			t.Errorf("case %s: got %s (%s), %v; want %s", c.name, got, why, err, c.want)
		}
	}
	lying := slices.Clone(ledger)
	lying[2].State.Head = "0"
	o := oracle{scratch: filepath.Join(base, "lying"), beginning: kept, ledger: lying,
		objects: []string{filepath.Join(dir, ".git", "objects")}}
	if got, why, err := o.ask(t.Context(), Saved{Time: time.Now(), State: between}, 2); got != Never || err != nil {
		t.Errorf("a wrong ledger: got %s (%s), %v", got, why, err)
	}
}

// TestLookSeesEditInSecondOfIndex edits a file without changing its size, in the second in which the index was written.
// Only the modification time of the index tells git to read the file again.
func TestLookSeesEditInSecondOfIndex(t *testing.T) {
	dir := t.TempDir()
	file, index := filepath.Join(dir, "f"), filepath.Join(dir, ".git", "index")
	second := time.Now().Add(-time.Minute).Truncate(time.Second)
	write := func(content string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	git := func(args ...string) {
		t.Helper()
		if _, err := run(t.Context(), dir, nil, append([]string{"git"}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	git("init", "-q")
	git("config", "core.trustCtime", "false") // the change time cannot be set
	write("before", second.Add(100*time.Millisecond))
	git("add", "f")
	if err := os.Chtimes(index, second, second.Add(200*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	was := look(t, dir)
	write("behind", second.Add(300*time.Millisecond))
	if err := os.Chtimes(index, second, second.Add(200*time.Millisecond)); err != nil { // git status may have written it
		t.Fatal(err)
	}
	if is := look(t, dir); is.Tree == was.Tree {
		t.Errorf("tree is still %s after an edit of f", is.Tree)
	}
}

// TestMergedNotesAreTaken checks that a plain tree takes notes that contain its own, and no others.
func TestMergedNotesAreTaken(t *testing.T) {
	p := &plain{dir: cloned(t)}
	git := func(args ...string) string {
		t.Helper()
		out, err := run(t.Context(), p.dir, nil, append([]string{"git"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	const ref = "refs/notes/commits"
	git("notes", "add", "-m", "own")
	own := git("rev-parse", ref)
	git("notes", "append", "-m", "of the session remote")
	more := look(t, p.dir)
	git("update-ref", ref, own)
	if !p.takeMergedNotes(t.Context(), more, look(t, p.dir)) || more.Differs(look(t, p.dir)) != "" {
		t.Error("notes with those of the plain tree were not taken")
	}
	git("notes", "remove")
	git("update-ref", "-d", ref)
	git("notes", "add", "-m", "others")
	others := look(t, p.dir)
	git("update-ref", ref, own)
	if p.takeMergedNotes(t.Context(), others, look(t, p.dir)) || git("rev-parse", ref) != own {
		t.Error("notes without those of the plain tree were taken")
	}
}
