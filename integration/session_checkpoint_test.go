package integration

import (
	encoding "encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// sessionGit returns the path of the repository of a mount's session.
func (m mounted) sessionGit() string {
	return filepath.Join(m.w.state, "mounts", m.ID, "session.git")
}

// in returns the contents of a file in a checkpoint.
func (m mounted) in(tree, path string) string {
	m.w.Helper()
	cmd := exec.Command("git", "cat-file", "blob", tree+":"+path)
	cmd.Dir, cmd.Env = m.sessionGit(), gittest.Env()
	out, err := cmd.Output()
	if err != nil {
		m.w.Errorf("%s in %s: %v", path, tree, err)
	}
	return string(out)
}

// A checkpoint contains the data that programs have written to files that are still open, although it is only in the
// page cache.
func TestCheckpointsHoldWhatIsNotFlushed(t *testing.T) {
	w := newWorld(t)
	w.sized(2, 2)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work",
		"--checkpoint", "off")
	open := must[*os.File](t)(os.Create(m.path("open")))
	defer open.Close()
	must[int](t)(open.WriteString("written\n"))
	mappedFile := must[*os.File](t)(os.Create(m.path("mapped")))
	defer mappedFile.Close()
	check(t, mappedFile.Truncate(4096))
	memory := must[[]byte](t)(unix.Mmap(int(mappedFile.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	defer unix.Munmap(memory)
	copy(memory, "through memory\n")
	p := m.checkpoint()
	if got := m.in(p.Tree, "open"); got != "written\n" {
		t.Errorf("open file in the checkpoint: got %.40q", got)
	}
	if got := m.in(p.Tree, "mapped"); !strings.HasPrefix(got, "through memory\n") || len(got) != 4096 {
		t.Errorf("mapped file in the checkpoint: got %.40q", got)
	}
	copy(memory, "again\n")
	must[int](t)(open.WriteString("more\n"))
	p = m.checkpoint()
	if got := m.in(p.Tree, "open") + m.in(p.Tree, "mapped")[:6]; got != "written\nmore\nagain\n" {
		t.Errorf("files in the later checkpoint: got %q", got)
	}
	w.unmountBusy(m, open, mappedFile, memory)
}

// unmountBusy closes the files and then unmounts.
func (w *world) unmountBusy(m mounted, a, b *os.File, memory []byte) {
	w.Helper()
	unix.Munmap(memory)
	a.Close()
	b.Close()
	w.unmount(m)
}

// Every checkpoint is the state of one moment: if two files are written one after the other, the first is never the
// older one.
func TestCheckpointsAreOfOneMoment(t *testing.T) {
	w := newWorld(t)
	w.sized(2, 2)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work",
		"--checkpoint", "off")
	var stop atomic.Bool
	var writers sync.WaitGroup
	defer func() { stop.Store(true); writers.Wait() }()
	for i := range 4 {
		dir := m.path(fmt.Sprint("w", i))
		check(t, os.Mkdir(dir, 0o755))
		var files [2]*os.File
		for j := range files {
			files[j] = must[*os.File](t)(os.OpenFile(filepath.Join(dir, fmt.Sprint(j)), os.O_CREATE|os.O_RDWR|os.O_SYNC, 0o644))
			must[int](t)(files[j].WriteAt(make([]byte, 8), 0))
		}
		check(t, os.WriteFile(filepath.Join(dir, "step-0"), nil, 0o644))
		writers.Go(func() {
			defer files[0].Close()
			defer files[1].Close()
			var b [8]byte
			for n := uint64(1); !stop.Load(); n++ {
				encoding.BigEndian.PutUint64(b[:], n)
				for _, f := range files {
					if _, err := f.WriteAt(b[:], 0); err != nil {
						t.Error(err)
						return
					}
				}
				if err := os.Rename(filepath.Join(dir, fmt.Sprint("step-", n-1)),
					filepath.Join(dir, fmt.Sprint("step-", n))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var trees []string
	var longest float64
	for range 12 {
		p := m.checkpoint()
		trees, longest = append(trees, p.Tree), max(longest, p.Paused)
	}
	stop.Store(true)
	writers.Wait()
	t.Logf("the longest pause was %.1f ms", longest)
	for i, tree := range trees {
		for j := range 4 {
			dir := fmt.Sprint("w", j)
			first := encoding.BigEndian.Uint64([]byte(m.in(tree, dir+"/0")))
			second := encoding.BigEndian.Uint64([]byte(m.in(tree, dir+"/1")))
			var step uint64
			names := strings.Fields(w.git(m.sessionGit(), "ls-tree", "--name-only", tree+":"+dir))
			if len(names) != 3 {
				t.Fatalf("checkpoint %d: %q", i, names)
			}
			fmt.Sscanf(names[2], "step-%d", &step)
			if first != second && first != second+1 || step > second || step+1 < second {
				t.Errorf("checkpoint %d, writer %d: first %d, second %d, renamed %d", i, j, first, second, step)
			}
		}
	}
}

// A crash pauses the session as interrupted, and the session's history lists all its states.
func TestSessionLifecycle(t *testing.T) {
	w := newWorld(t)
	w.sized(2, 2)
	url := w.serve(gittest.ServerOptions{}).URL("sized.git")
	m := w.bare(url, "--wait", "git", "--session", "work")
	w.sh(m.Dir, "echo new >new")
	m.checkpoint("--pin", "kept")
	info := func() control.SessionInfo {
		t.Helper()
		var all control.SessionsReply
		w.json(&all, "session", "list")
		for _, s := range all.Sessions {
			if s.Name == "work" {
				return s
			}
		}
		t.Fatalf("session list has no session work: %+v", all)
		return control.SessionInfo{}
	}
	if s := info(); s.State != "active" || !s.Mounted || s.Last == nil || len(s.Last.Pins) != 1 ||
		s.Last.Pins[0] != "kept" {
		t.Errorf("session while mounted: got %+v", s)
	}
	w.killDaemon()
	if s := info(); s.State != "paused" || s.Mounted || len(s.History) == 0 ||
		s.History[len(s.History)-1].Reason != "interrupted" {
		t.Errorf("session after the kill: got %+v", s)
	}
	m, _ = w.mountAt(url, m.Dir, "--session", "work", "--wait", "git")
	states := func() string {
		var all []string
		for _, h := range info().History {
			all = append(all, h.State)
		}
		return strings.Join(all, " ")
	}
	if got := states(); !strings.Contains(got, "paused resumed") {
		t.Errorf("history of the session: got %s", got)
	}
	w.unmount(m)
	w.ok("session", "close", "work")
	if s := info(); s.State != "closed" {
		t.Errorf("session after it was closed: got %+v", s)
	}
	if r := w.afs("mount", url, m.Dir, "--session", "work"); r.code == 0 || !strings.Contains(r.stderr, "reopen") {
		t.Errorf("mount of a closed session: got %s", r)
	}
	w.ok("session", "reopen", "work")
	m, _ = w.mountAt(url, m.Dir, "--session", "work", "--wait", "git")
	w.wantFile(m.path("new"), "new\n")

	var gc control.SessionGCReply
	w.json(&gc, "session", "gc", "work", "--dry-run")
	if !gc.DryRun || len(gc.Dropped) > 0 {
		t.Errorf("gc: got %+v", gc)
	}
	for i := range 5 {
		w.sh(m.Dir, fmt.Sprintf("echo %d >new; head -c 100000 /dev/urandom >large; git add -A; git commit -qm %d", i, i))
		m.checkpoint()
	}
	w.ok("sync", m.Dir) // a commit is pushed automatically after a moment
	tips := w.git(m.sessionGit(), "rev-parse", "main")
	w.json(&gc, "session", "gc", "work", "--keep-all", "1ms", "--keep-daily", "1ms")
	left := m.checkpoints()
	if len(gc.Dropped) < 3 || len(left) != 2 || left[1].Pins == nil || w.git(m.sessionGit(), "rev-parse", "main") != tips {
		t.Errorf("gc dropped %d and kept %+v", len(gc.Dropped), left)
	}
	w.sound(m.sessionGit())
	w.sh(m.Dir, "echo after >new")
	// the checkpoint that the last commit caused may already contain the change
	if p := m.checkpoint(); p.Tree != w.look(m.Dir).Tree {
		t.Errorf("checkpoint after gc: got %+v, want one of the tree as it is", p)
	}
	w.sound(m.sessionGit())
}

// Notes are git notes, transcripts are linked to checkpoints, and neither contains a secret.
func TestNotesAndTranscripts(t *testing.T) {
	w := newWorld(t)
	w.sized(2, 2)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work")
	w.sh(m.Dir, "echo new >new && git add new && git commit -qm new")
	secrets := []string{"AKIAIOSFODNN7" + "EXAMPLE", "ghp_" + strings.Repeat("aB3d", 9),
		"xoxb-123456789012-" + strings.Repeat("aB3d", 6), "s3cr3t-in-a-url"}
	input := func(text string, args ...string) string {
		t.Helper()
		cmd := w.command(t.Context(), args...)
		cmd.Dir, cmd.Stdin = m.Dir, strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("run %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	input(`{"model":"some","token":"`+secrets[1]+`"}`, "session", "note", "--ref", "agent", "--json", "-")
	if note := w.git(m.Dir, "notes", "--ref", "agent", "show"); !strings.Contains(note, `"some"`) {
		t.Errorf("git notes show printed %q", note)
	}
	p := m.checkpoint()
	input(`{"role":"user","text":"my key is `+secrets[0]+`"}`+"\n"+`{"role":"tool","text":"curl https://u:`+secrets[3]+
		`@example.invalid/ `+secrets[2]+`"}`+"\n", "session", "record", "-")
	var show control.SessionShowReply
	w.json(&show, "session", "show", p.ID, "-C", m.Dir)
	if show.Records != 2 {
		t.Errorf("session show: got %+v", show)
	}
	m.sync()
	for _, dir := range []string{m.sessionGit(), m.gitDir()} {
		all := w.sh(dir, "git cat-file --batch --batch-all-objects 2>/dev/null || true")
		for _, s := range secrets {
			if strings.Contains(all, s) {
				t.Errorf("%s contains the secret %s", dir, s)
			}
		}
		if dir == m.sessionGit() && !strings.Contains(all, "my key is ") {
			t.Errorf("%s does not have the transcript", dir)
		}
	}
	w.until("the note is on the session remote", func() bool {
		_, err := gittest.Git(t.Context(), m.sessionGit(), "rev-parse", "--verify", "--quiet", "refs/notes/agent")
		return err == nil
	})
	w.sound(m.sessionGit())
}

// If all processes are killed in the middle of a restore, the next mount has the complete restore or none of it. If
// only the worker is killed, the command still succeeds.
func TestRestoreKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sized(20, 50)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work",
		"--checkpoint", "off")
	change :=
		`for f in d*/*; do echo "$f %s" >"$f"; done; rm -rf new.*; mkdir new.%[1]s; for i in $(seq 200); do echo $i >new.%[1]s/$i; done`
	w.sh(m.Dir, fmt.Sprintf(change, "one"))
	checkpoints := []control.CheckpointReply{m.checkpoint()}
	w.sh(m.Dir, fmt.Sprintf(change, "two"))
	checkpoints = append(checkpoints, m.checkpoint())
	at, halves := 1, 0
	for round := range 12 {
		to := checkpoints[1-at]
		all := round%2 == 0
		victim := -w.daemon()
		if !all {
			victim = w.serving()
		}
		record := filepath.Join(w.state, "mounts", m.ID, "checkout.json")
		over := make(chan result, 1)
		go func() { over <- w.afs("session", "restore", "-C", m.Dir, to.ID) }()
		w.until("the restore has started", func() bool {
			_, err := os.Lstat(record)
			return err == nil || len(over) > 0
		})
		syscall.Kill(victim, syscall.SIGKILL)
		r := <-over
		if _, err := os.Lstat(record); err == nil {
			halves++
		}
		if all {
			w.dead()
			w.ok("mount", m.Remote, m.Dir, "--session", "work", "--history", "none", "--prefetch", "none", "--wait", "git",
				"--checkpoint", "off")
		} else if r.code != 0 {
			t.Errorf("round %d: %s", round, r)
		}
		got, want, was := m.checkpoint().Tree, to.Tree, checkpoints[at].Tree
		switch {
		case got == want:
			at = 1 - at
		case got != was || !all:
			t.Fatalf("round %d: tree is %s, want %s or %s", round, got, was, want)
		}
	}
	if halves == 0 {
		t.Error("no kill hit a restore in its middle")
	}
	t.Logf("%d of 12 were in the middle", halves)
}
