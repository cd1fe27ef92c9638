package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// shared is a mounted session with checkpoints, a note, and a transcript on its session remote.
type shared struct {
	w      *world
	origin served
	remote *carried
	m      mounted
	first  control.CheckpointReply // pinned as "first"
	newest control.CheckpointReply
}

func newShared(t *testing.T) *shared {
	w, r := newTravelled(t)
	s := &shared{w: w, origin: w.serve(gittest.ServerOptions{}), remote: w.sessionRemote("http", r)}
	s.m = w.bare(s.origin.URL("r.git"), append(s.remote.flags("work"), "--wait", "git", "--checkpoint", "off")...)
	w.sh(s.m.Dir,
		"git switch -qc topic && echo one >one && git add one && git commit -qm one && git notes --ref agent add -m noted && rm d0001/f0001.txt && echo untracked >d0002/new")
	s.first = s.m.checkpoint("--pin", "first", "-m", "the first")
	s.record(`{"turn":1}`)
	w.sh(s.m.Dir, "echo two >>one")
	s.newest = s.m.checkpoint()
	s.record(`{"turn":2}`)
	s.m.sync()
	s.remote.server.Log().Reset()
	return s
}

func (s *shared) record(line string) {
	s.w.Helper()
	file := filepath.Join(s.w.root, "record.jsonl")
	check2(s.w, os.WriteFile(file, []byte(line+"\n"), 0o600))
	s.w.ok("session", "record", file, "-C", s.m.Dir)
}

// A session can be inspected on a machine without any data: nothing is mounted, and only the printed data is fetched.
func TestSessionIsReadFromAfar(t *testing.T) {
	s := newShared(t)
	o := s.w.elsewhere()
	far := []string{"--session-remote", s.remote.arg}
	requests := func() int { n := len(s.remote.server.Log().Requests()); s.remote.server.Log().Reset(); return n }

	var list control.SessionsReply
	o.json(&list, append([]string{"session", "list"}, far...)...)
	if len(list.Sessions) != 1 || list.Sessions[0].Name != "work" || list.Sessions[0].Checkpoints != 2 ||
		list.Sessions[0].State != "active" || list.Sessions[0].LastCheckpoint != s.newest.ID {
		t.Errorf("session list: got %+v, want session work with 2 checkpoints, the newest %s", list, s.newest.ID)
	}
	if n := requests(); n > 4 {
		t.Errorf("session list took %d requests, want at most 4: capabilities, refs, session metadata, checkpoints", n)
	}
	var log control.SessionLogReply
	o.json(&log, append([]string{"session", "log", "work"}, far...)...)
	if len(log.Checkpoints) != 2 || log.Checkpoints[0].ID != s.newest.ID || log.Checkpoints[1].Message != "the first" ||
		log.Checkpoints[1].Pins[0] != "first" {
		t.Errorf("session log: got %+v, want checkpoints %s and %s", log.Checkpoints, s.newest.ID, s.first.ID)
	}
	if n := requests(); n > 4 {
		t.Errorf("session log took %d requests, want at most 4", n)
	}
	var show, here control.SessionShowReply
	o.json(&show, append([]string{"session", "show", "work@first"}, far...)...)
	s.w.json(&here, "session", "show", "first", "-C", s.m.Dir)
	if len(show.Changes) != 3 || show.Records != 1 || here.Records != 1 || len(show.Changes) != len(here.Changes) ||
		show.Branch != "topic" {
		t.Errorf("session show on another machine: got %+v, want as on the first machine: %+v", show, here)
	}
	if show.Link != here.Link || show.Link != s.remote.arg+"#session=work@"+s.first.ID ||
		!strings.Contains(show.ForkCommand, "session fork") || !strings.Contains(show.ResumeCommand, "session resume") {
		t.Errorf("session show prints link %q, fork with %q and resume with %q; on the first machine link %q", show.Link,
			show.ForkCommand, show.ResumeCommand, here.Link)
	}
	if sent, n := s.remote.server.Log().Blobs(); sent[object.MustID(s.w.git(s.remote.Path, "rev-parse",
		s.newest.Commit+":one"))] > 0 {
		t.Errorf("session list, log and show fetched a file's content, of %d contents", n)
	}
	patch := o.ok(append([]string{"session", "diff", "work@first", "work@"}, far...)...)
	if !strings.Contains(patch, "+two") || strings.Contains(patch, "untracked") {
		t.Errorf("session diff on another machine: got %q, want the line two added", patch)
	}
	names := o.ok("session", "diff", s.remote.arg+"#session=work@first", "--name-status")
	if names != "M\tone\n" {
		t.Errorf("session diff of a link to the newest: got %q, want file one alone", names)
	}
	stat := o.ok(append([]string{"session", "diff", "work", "--stat"}, far...)...)
	if !strings.Contains(stat, "3 paths, +3 -") {
		t.Errorf("session diff of a session on another machine: got %q, want 3 paths since it began", stat)
	}
	if kept, _ := os.ReadDir(filepath.Join(o.state, "mounts")); len(kept) > 0 {
		t.Errorf("inspecting a session of another machine left %v", kept)
	}
	left, _ := filepath.Glob(filepath.Join(o.state, "*.tmp"))
	if len(left) > 0 {
		t.Errorf("inspecting a session of another machine left %v", left)
	}
	if r := o.afs(append([]string{"session", "show", "nobody"}, far...)...); r.code != control.ExitNotMounted ||
		!strings.Contains(r.stderr, "no such session") {
		t.Errorf("session show of an unknown session: got %s, want exit code %d", r, control.ExitNotMounted)
	}
	if r := o.afs("session", "list", "--session-remote", s.remote.arg+"x"); r.code != control.ExitRemote {
		t.Errorf("session list of an unreachable remote: got %s, want exit code %d", r, control.ExitRemote)
	}
}

// With a link, another machine can fork a session that is in use, or show one of its checkpoints.
func TestForkByLink(t *testing.T) {
	s := newShared(t)
	w := s.w
	link := strings.TrimSpace(w.ok("session", "link", "-C", s.m.Dir))
	if want := s.remote.arg + "#session=work@" + s.newest.ID; link != want {
		t.Fatalf("session link: got %q, want %q", link, want)
	}
	parent := w.look(s.m.Dir)
	s.origin.forget()
	o := w.elsewhere()
	dir := w.place("fork")
	var reply control.MountReply
	o.json(&reply, "session", "fork", link, dir, "--session", "copy", "--wait", "git", "--prefetch", "none",
		"--history", "none")
	if reply.Session != "copy" {
		t.Errorf("reply of session fork: got %+v", reply)
	}
	fork := mounted{reply, o}
	o.sh(dir, "ls -R >/dev/null")
	if _, n := s.origin.Log().Blobs(); n > 0 {
		t.Errorf("%d contents were fetched from the remote before the first read", n)
	}
	sent, _ := s.remote.server.Log().Blobs()
	for line := range strings.Lines(w.git(s.remote.Path, "ls-tree", "-r", s.newest.Commit)) {
		if f := strings.Fields(line); sent[object.MustID(f[2])] > 0 {
			t.Errorf("contents were fetched from the session remote before they were read: %s", line)
		}
	}
	w.same("a fork of another machine's session", parent, o.look(dir))
	if got := o.git(dir, "notes", "--ref", "agent", "show", "topic"); got != "noted" {
		t.Errorf("the note in the fork: got %q, want %q", got, "noted")
	}
	var show control.SessionShowReply
	o.sh(dir, "git switch -qc forked && echo forked >forked && git add -A && git commit -qm forked")
	p := fork.checkpoint("--sync")
	if p.Session != "copy" || !p.Synced {
		t.Errorf("checkpoint of the fork: got %+v", p)
	}
	if got := w.git(s.remote.Path, "rev-list", "--count", "refs/afs/transcript/copy"); got != "2" {
		t.Errorf("the fork's transcript on the session remote has %s commits, want 2", got)
	}
	if got := w.git(s.remote.Path, "for-each-ref", "--format=%(refname)",
		"refs/afs/j/work"); strings.Count(got, "\n") != 0 {
		t.Errorf("the parent's lanes became %q", got)
	}
	// The fork did not affect the parent, which continues in its lane.
	w.sh(s.m.Dir, "echo three >>one")
	if p := s.m.checkpoint("--sync"); p.Lane != "main" || !p.Synced {
		t.Errorf("checkpoint of the parent after the fork: got %+v", p)
	}
	var list control.SessionsReply
	o.json(&list, "session", "list")
	if len(list.Sessions) != 1 || list.Sessions[0].Parent != "work "+s.newest.ID ||
		list.Sessions[0].ParentRemote != s.remote.arg {
		t.Errorf("session list elsewhere: got %+v, want copy of work %s", list.Sessions, s.newest.ID)
	}
	o.json(&show, "session", "show", "-C", "copy")
	if show.Link != s.remote.arg+"#session=copy@"+p.ID {
		t.Errorf("the fork's link: got %q", show.Link)
	}
	// A fork by name at an older checkpoint does not have the later records.
	early := w.place("early")
	o.ok("session", "fork", "--session-remote", s.remote.arg, "work@first", early, "--session", "early", "--wait", "git")
	w.wantFile(filepath.Join(early, "one"), "one\n")
	o.sh(early, "echo x >x")
	mounted{control.MountReply{Dir: early}, o}.checkpoint("--sync")
	if got := w.git(s.remote.Path, "rev-list", "--count", "refs/afs/transcript/early"); got != "1" {
		t.Errorf("the transcript of a fork of the first checkpoint has %s commits, want 1", got)
	}
	// A mount of a link shows the checkpoint that the link names, and that mount can be forked.
	shown := w.place("shown")
	o.ok("mount", s.remote.arg+"#session=work@first", shown)
	w.wantFile(filepath.Join(shown, "one"), "one\n")
	if err := os.WriteFile(filepath.Join(shown, "x"), nil, 0o644); err == nil {
		t.Error("a write to a mount of a checkpoint succeeded")
	}
	again := w.place("again")
	o.ok("session", "fork", "-C", shown, again, "--session", "again")
	w.wantFile(filepath.Join(again, "one"), "one\n")
	check(t, os.WriteFile(filepath.Join(again, "x"), nil, 0o644))
	o.ok("unmount", shown, again, early, dir)
	o.json(&reply, "session", "resume", s.remote.arg+"#session=copy", dir)
	w.wantFile(filepath.Join(dir, "forked"), "forked\n")
	o.ok("unmount", dir)
}

// A read-only fork shows the checkpoint and creates no session; a mount of a checkpoint can be forked.
func TestForkReadOnly(t *testing.T) {
	w, _ := newTravelled(t)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--session", "work", "--checkpoint", "off", "--wait", "git")
	w.sh(m.Dir, "echo one >one")
	first := m.checkpoint("--pin", "first")
	w.sh(m.Dir, "echo two >one")
	shown, now, fork := w.place("shown"), w.place("now"), w.place("fork")
	w.ok("session", "fork", "-C", m.Dir, "first", shown, "--read-only")
	w.wantFile(filepath.Join(shown, "one"), "one\n")
	if err := os.WriteFile(filepath.Join(shown, "one"), nil, 0o644); err == nil {
		t.Error("a write to a fork with --read-only succeeded")
	}
	w.ok("session", "fork", "-C", m.Dir, now, "--read-only")
	w.wantFile(filepath.Join(now, "one"), "two\n")
	w.ok("session", "fork", "-C", shown, fork, "--session", "copy")
	w.wantFile(filepath.Join(fork, "one"), "one\n")
	w.sh(fork, "echo three >one")
	p := mounted{control.MountReply{Dir: fork}, w}.checkpoint()
	if p.Session != "copy" {
		t.Errorf("checkpoint of a fork of a mount that shows one: got %+v", p)
	}
	var list control.SessionsReply
	w.json(&list, "session", "list")
	for _, s := range list.Sessions {
		if s.Name == "copy" && s.Parent != "work "+first.ID {
			t.Errorf("parent of the fork: got %q, want %q", s.Parent, "work "+first.ID)
		}
	}
	if len(list.Sessions) != 2 {
		t.Errorf("session list: got %+v, want work and copy, because read-only forks create no session", list.Sessions)
	}
	if r := w.afs("session", "fork", "-C", m.Dir, "first", w.place("x"), "--read-only", "--session",
		"y"); r.code != control.ExitUsage {
		t.Errorf("a read-only fork with a name: got %s, want exit code %d", r, control.ExitUsage)
	}
	w.ok("unmount", shown, now, fork)
}

// An invalid URL fragment is refused; a path with a # in its name is used as a path.
func TestFragmentsAreRefused(t *testing.T) {
	w, r := newTravelled(t)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	for _, fragment := range []string{"#main", "#", "#ref=main", "#session=", "#session=../x"} {
		res := w.afs("mount", url+fragment, w.place("m"))
		if res.code != control.ExitUsage || strings.Count(strings.TrimSpace(res.stderr), "\n") != 1 &&
			!strings.Contains(fragment, "=.") && fragment != "#session=" {
			t.Errorf("mount URL%s: got %s, want a refusal with a hint and exit code %d", fragment, res, control.ExitUsage)
		}
	}
	odd := filepath.Join(w.root, "odd#main")
	check(t, os.Symlink(r.Path, odd))
	m := w.mount(odd)
	w.unmount(m)
}

// An idle mount whose session was taken over reports that in its status.
func TestTakeOverIsNoticed(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	o := s.w.elsewhere()
	taken := o.bare(s.origin.URL("r.git"), append(s.remote.flags("work"), "--take-over", "--wait", "git")...)
	host, _ := os.Hostname()
	st := s.m.await("the mount that was taken from says so",
		func(st control.MountStatus) bool { return st.Session.TakenOverBy != "" })
	if st.Session.TakenOverBy != host || st.Session.Lane == "main" || len(st.Notes) == 0 ||
		!strings.Contains(strings.Join(st.Notes, "\n"), "took over session work") {
		t.Errorf("status: got taken by %q, lane %q, notes %q", st.Session.TakenOverBy, st.Session.Lane, st.Notes)
	}
	if list := s.w.ok("session", "list"); !strings.Contains(list, "taken over by "+host) {
		t.Errorf("session list: got %q, want a line that the session was taken over", list)
	}
	if log, _ := os.ReadFile(s.w.logFile()); !strings.Contains(string(log), "taken over: ") {
		t.Error("the log has no message that the session was taken over")
	}
	s.w.sh(s.m.Dir, "echo three >>one")
	if p := s.m.checkpoint("--sync"); p.Lane == "main" {
		t.Errorf("a checkpoint after the take-over went to lane %s", p.Lane)
	}
	o.unmount(taken)
}

// Changes of another session can be restored by path or merged by git, and the printed command undoes both.
func TestAdoptAndMerge(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	w := s.w
	o := w.elsewhere()
	theirs := mounted{control.MountReply{Dir: w.place("theirs")}, o}
	o.ok("session", "fork", "--session-remote", s.remote.arg, "work@", theirs.Dir, "--session", "theirs", "--wait", "git",
		"--prefetch", "none", "--history", "none")
	o.sh(theirs.Dir,
		"git switch -qc theirs && echo theirs >>one && echo theirs >d0004/f0004.txt && echo theirs >d0005/f0005.txt && rm d0005/f0004.txt && echo new >d0005/new")
	theirs.checkpoint("--sync")
	w.sh(s.m.Dir, "echo ours >>one && echo ours >d0004/f0003.txt && mkdir empty")
	before := w.look(s.m.Dir)

	out := w.ok("session", "restore", s.remote.arg+"#session=theirs", "d0005/new", "-C", s.m.Dir)
	w.wantFile(s.m.path("d0005/new"), "new\n")
	if !strings.Contains(out, "1 path restored") || exists(s.m.path("d0005/f0004.txt")) == false {
		t.Errorf("session restore of a path of another session: got %q", out)
	}
	check(t, os.Remove(s.m.path("d0005/new")))
	w.same("before the merge", before, w.look(s.m.Dir))

	s.origin.forget()
	var reply control.MergeReply
	res := w.afs("session", "merge", "theirs", "--session-remote", s.remote.arg, "-C", s.m.Dir, "--json")
	if err := json.Unmarshal([]byte(res.stdout), &reply); err != nil || res.code != control.ExitFailed {
		t.Fatalf("session merge with a conflict: got %s, want exit code %d", res, control.ExitFailed)
	}
	if sent, _ := s.origin.Log().Blobs(); len(sent) > 0 {
		t.Errorf("the merge fetched contents of the remote: got %v, want none, because the session owns the only file that both sides changed", sent)
	}
	if len(reply.Conflicts) != 1 || reply.Conflicts[0] != "one" || len(reply.Changes) != 5 || reply.Before == nil {
		t.Errorf("session merge: got %+v, want a conflict in one and 5 paths", reply)
	}
	text := string(must[[]byte](t)(os.ReadFile(s.m.path("one"))))
	if !strings.Contains(text, "<<<<<<< HEAD\nours\n=======\ntheirs\n>>>>>>> theirs@") {
		t.Errorf("the file in conflict: got %q, want git's markers", text)
	}
	if got := w.git(s.m.Dir, "status", "--porcelain", "one", "d0005",
		"d0004/f0004.txt"); got != "M  d0004/f0004.txt\nD  d0005/f0004.txt\nM  d0005/f0005.txt\nA  d0005/new\nUU one" {
		t.Errorf("git status after the merge: got\n%s", got)
	}
	if n := strings.Count(w.git(s.m.Dir, "ls-files", "-u"), "\n") + 1; n != 3 {
		t.Errorf("the index has %d stages of the conflict, want 3", n)
	}
	w.wantFile(s.m.path("d0004/f0004.txt"), "theirs\n")
	w.wantFile(s.m.path("d0004/f0003.txt"), "ours\n")
	if !exists(s.m.path("empty")) {
		t.Error("the merge removed an empty directory")
	}
	w.ok("session", "restore", "-C", s.m.Dir, reply.Before.ID, "--staged")
	w.same("the merge undone", before, w.look(s.m.Dir))
	// A merge on the same host, without a conflict.
	fork := w.place("fork")
	w.ok("session", "fork", "-C", s.m.Dir, "first", fork, "--session", "fork", "--wait", "git")
	w.sh(fork, "echo fork >d0005/fork")
	mounted{control.MountReply{Dir: fork}, w}.checkpoint()
	w.ok("session", "merge", "fork", "-C", s.m.Dir)
	w.wantFile(s.m.path("d0005/fork"), "fork\n")
	w.wantFile(s.m.path("one"), "one\ntwo\nours\n")
	if out := w.ok("session", "merge", "fork", "-C", s.m.Dir); !strings.Contains(out, "nothing to merge") {
		t.Errorf("a second merge: got %q", out)
	}
	// The attributes and merge drivers of the mount apply. The driver edits its file in the mount when it runs first.
	driver, ran := filepath.Join(w.root, "driver"), filepath.Join(w.root, "ran")
	check(t, os.WriteFile(driver, []byte("#!/bin/sh\n[ -e "+ran+" ] || { touch "+ran+"; echo edited >"+s.m.path("driven")+
		"; echo beside >"+s.m.path("beside")+"; }\ncat \"$2\" >>\"$1\"\n"), 0o755))
	w.git(s.m.Dir, "config", "merge.own.driver", driver+" %A %B")
	w.sh(s.m.Dir, `printf 'log merge=union\ndriven merge=own\n' >.gitattributes; echo ours >log; echo ours >driven`)
	w.sh(fork, "echo fork >log; echo fork >driven")
	mounted{control.MountReply{Dir: fork}, w}.checkpoint()
	check(t, json.Unmarshal([]byte(w.ok("session", "merge", "fork", "-C", s.m.Dir, "--json")), &reply))
	w.wantFile(s.m.path("log"), "ours\nfork\n")
	w.wantFile(s.m.path("driven"), "edited\nfork\n")
	w.ok("session", "restore", "-C", s.m.Dir, reply.Before.ID, "--staged")
	w.wantFile(s.m.path("driven"), "edited\n")
	w.wantFile(s.m.path("beside"), "beside\n")
	s.m.checkpoint("--sync")
	w.sound(s.remote.Path)
	w.ok("unmount", fork)
}
