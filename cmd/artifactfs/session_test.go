package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// keep creates an unmounted session in the state directory.
func (a *afs) keep(t *testing.T, session, dir string, changed int) (home string) {
	t.Helper()
	home = filepath.Join(a.state, "mounts", session)
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{
		"version": 1, "session": session, "remote": "https://127.0.0.1/app", "dir": dir, "ref": "refs/heads/main",
		"format": "sha1",
		"commit": strings.Repeat("1", 40), "tree": strings.Repeat("2", 40), "counted": true, "changed": changed,
		"bytes": 2048,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "session.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return home
}

func TestKeptSessionsAreShown(t *testing.T) {
	a := newAfs(t)
	a.keep(t, "fix", a.dir+"/it's", 3)
	a.keep(t, "none", "/none", 0)
	m := mountStatus("/m")
	m.Session.Name, m.Overlay.Changed = "work", 2
	serve(t, control.DaemonSocket(a.state), newFakeDaemon(m))
	want := "DIR" + strings.Repeat(" ", len(a.dir)+4) +
		"REF   STATE      FILES   FETCHED           CHANGED  SESSION  PENDING  REMOTE\n"
	if got := a.ok("list"); !strings.HasPrefix(got, want) || strings.Contains(got, "none") ||
		!strings.Contains(got,
			"  main  unmounted  -       -                 3        fix      -        https://127.0.0.1/app\n") ||
		!strings.Contains(got,
			"  main  mounted    14,103  13,899 of 13,900  2        work     -        https://127.0.0.1/app\n") {
		t.Errorf("list printed\n%s", got)
	}
	want = a.dir + `/it's
  state     unmounted
  remote    https://127.0.0.1/app
  ref       main at 111111111111
  changed   3 paths, 2.0 KiB
  session   fix
`
	if got := a.ok("status", "it's"); got != want {
		t.Errorf("status printed\n%s", got)
	}
	if got := a.ok("status", "it's", "--json"); !strings.Contains(got, `"state":"unmounted"`) ||
		!strings.Contains(got, `"overlay":{"changed":3,"bytes":2048}`) {
		t.Errorf("status --json printed %s", got)
	}
	hint := `hint: run artifactfs mount https://127.0.0.1/app '` + a.dir + `/it'\''s' --session fix to resume session fix`
	for _, verb := range []string{"unmount", "prefetch"} {
		if r := a.run(verb, "it's"); r.code != control.ExitNotMounted || !strings.Contains(r.stderr, hint) {
			t.Errorf("%s of a session that is not mounted: got %+v", verb, r)
		}
	}
}

// After a kill, the kernel accepts connections to the daemon's socket until it has closed the socket.
func TestSessionListWhileADaemonDies(t *testing.T) {
	a := newAfs(t)
	socket := control.DaemonSocket(a.state)
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	dying, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer dying.Close()
	go func() {
		for first := true; ; first = false {
			c, err := dying.Accept()
			if err != nil {
				return
			}
			if first { // the command has listed the sockets
				f := newFakeDaemon()
				f.fakeSessions = &sessionsOf{list: []control.SessionInfo{{SessionStatus: control.SessionStatus{Name: "work"}}}}
				serve(t, control.MountSocket(a.state, os.Getpid()), f)
			}
			c.Close()
		}
	}()
	if out := a.ok("session", "list"); !strings.Contains(out, "work") {
		t.Errorf("session list printed %q, want session work", out)
	}
}

// Sessions of submodules are restored one by one, and mounted by the mount around them.
func TestDiscardedSubmodulesComeBack(t *testing.T) {
	a := newAfs(t)
	m, n, until := mountStatus("/it's"), mountStatus("/n"), time.Now().Add(time.Hour)
	m.Session.Name, n.Session.Name = "work", "more"
	f := newFakeDaemon(m, n)
	f.set(func() {
		lib := control.UnmountReply{ID: "lib", Dir: "/it's/lib", Trashed: "lib-1", Until: until}
		f.kept = map[string]control.UnmountReply{
			"/it's": {ID: "work", Dir: "/it's", Trashed: "work", Until: until,
				Submodules: []control.UnmountReply{lib, {ID: "same", Dir: "/it's/same"}}},
			"/n": {ID: "more", Dir: "/n", Submodules: []control.UnmountReply{{ID: "same", Dir: "/n/same"}}},
		}
	})
	serve(t, control.DaemonSocket(a.state), f)
	r := a.run("unmount", "--session", "work", "--discard", "--yes")
	at := fmt.Sprintf(" --deleted %d", until.Add(-7*24*time.Hour).Unix())
	want := "artifactfs: artifactfs session undelete work" + at + " && artifactfs session undelete lib-1" + at +
		" && artifactfs mount " + `https://127.0.0.1/app '/it'\''s' --session work --recurse-submodules restores it until `
	if r.code != 0 || !strings.HasPrefix(r.stderr, want) || !strings.Contains(r.stderr, until.Format(time.DateTime)) {
		t.Errorf("unmount --discard of a mount with submodules: got %+v, want %q", r, want)
	}
	if r := a.run("unmount", "/n", "--discard", "--yes"); r.code != 0 || r.stderr != "" {
		t.Errorf("unmount --discard of a mount without changes: got %+v, want no command", r)
	}
}

func TestUnmountOfSessions(t *testing.T) {
	a := newAfs(t)
	fix := a.keep(t, "fix", "/gone/fix", 3)
	other := a.keep(t, "other", "/gone/other", 1)
	mounted, second := mountStatus("/m"), mountStatus("/n")
	mounted.Session.Name, second.Session.Name = "work", "more"
	f := newFakeDaemon(mounted, second)
	f.set(func() {
		f.kept = map[string]control.UnmountReply{"/m": {ID: "work", Dir: "/m", Session: "work", Kept: 1},
			"/n": {ID: "more", Dir: "/n", Session: "more"}}
	})
	serve(t, control.DaemonSocket(a.state), f)

	for args, code := range map[string]int{"--session fix": control.ExitNotMounted,
		"--session none --discard": control.ExitNotMounted, "/gone/none --discard": control.ExitNotMounted} {
		if r := a.run(append([]string{"unmount"}, strings.Fields(args)...)...); r.code != code || r.stdout != "" {
			t.Errorf("unmount %s: got %+v", args, r)
		}
	}
	r := a.run("unmount", "--session", "fix", "--discard", "--yes")
	if want := "artifactfs session undelete fix --mount /gone/fix --deleted "; r.code != 0 ||
		r.stdout != "discarded session fix\n" || !strings.Contains(r.stderr, want) {
		t.Errorf("unmount --discard: got %+v, want the command %q", r, want)
	}
	if _, err := os.Stat(fix); err == nil {
		t.Error("the directory still exists")
	}
	r = a.run("unmount", "--session", "work")
	if want :=
		"artifactfs: kept 1 changed path in session work (artifactfs mount https://127.0.0.1/app /m --session work resumes it)\n"; r.code != 0 || r.stdout != "unmounted /m\n" || r.stderr != want {
		t.Errorf("unmount --session: got %+v", r)
	}
	if r := a.run("unmount", "--all", "--json"); r.code != 0 ||
		r.stdout != `{"unmounted":[{"id":"more","dir":"/n","session":"more","pending":0,"kept":0}]}`+"\n" ||
		!strings.Contains(r.stderr, "kept git objects in session more") {
		t.Errorf("unmount --all --json: got %+v", r)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("unmount --all changed an unmounted session: %v", err)
	}
	if r := a.run("unmount", "/gone/other", "--discard"); r.code != control.ExitUsage ||
		!strings.Contains(r.stderr, "hint: add --yes to confirm") {
		t.Errorf("unmount --discard without --yes and a terminal: got %+v, want exit code %d and a hint", r,
			control.ExitUsage)
	}
	r = a.run("unmount", "/gone/other", "--discard", "--yes", "--json")
	if got := r.stdout; r.code != 0 || !strings.HasPrefix(got,
		`{"unmounted":[{"id":"other","dir":"/gone/other","session":"","pending":0,"kept":0,"trashed":"other","until":"`) ||
		!strings.HasSuffix(got, `","discarded":true}]}`+"\n") {
		t.Errorf("unmount --discard --json: got %s, want that other is in the trash", got)
	}
}

func TestRedirectsOfTheUser(t *testing.T) {
	a := newAfs(t)
	home := filepath.Join(a.dir, "config")
	a.env = []string{"XDG_CONFIG_HOME=" + home}
	f := newFakeDaemon()
	serve(t, control.DaemonSocket(a.state), f)
	name := filepath.Join(home, "artifactfs", "config.toml")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("redirect = ['node_modules']")
	a.ok("mount", "repo", "m1")
	a.ok("mount", "repo", "m2", "--redirect", "target")
	a.ok("mount", "repo", "m3", "--read-only")
	f.mu.Lock()
	var got []string
	for _, r := range f.requests {
		only := ""
		if r.RedirectsOnly {
			only = "!"
		}
		got = append(got, strings.Join(r.Redirects, ",")+only)
	}
	f.mu.Unlock()
	if strings.Join(got, " ") != "node_modules target! " {
		t.Errorf("redirects of the mount requests: got %q", got)
	}
	write("\nredirect = 3")
	if r := a.run("mount", "repo", "m4"); r.code != control.ExitUsage || !strings.Contains(r.stderr, name) ||
		!strings.Contains(r.stderr, "hint: the file may contain") {
		t.Errorf("mount with an invalid configuration file: got %+v", r)
	}
}

func TestDoctorTellsWhatIsWrong(t *testing.T) {
	a := newAfs(t)
	if r := a.run("doctor"); strings.Contains(r.stdout, a.state) {
		t.Errorf("doctor without a state directory: got %+v", r)
	}
	if _, err := os.Stat(a.state); err == nil {
		t.Error("the command created a state directory")
	}
	a.keep(t, "fix", "/gone/fix", 3)
	left := filepath.Join(a.state, "mounts", "_11223344")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	r := a.run("doctor")
	if r.code != control.ExitFailed || !strings.Contains(r.stdout,
		"ok    fix: 3 changed paths, last mounted at /gone/fix\n") ||
		!strings.Contains(r.stdout,
			"bad   "+left+": leftover of a process that was killed while it mounted\n      --fix removes the directory\n") ||
		!strings.HasPrefix(r.stderr, "artifactfs: doctor "+a.state) {
		t.Errorf("doctor: got %+v", r)
	}
	if r := a.run("doctor", "--fix"); !strings.Contains(r.stdout,
		"fixed "+left+": leftover of a process that was killed while it mounted\n") {
		t.Errorf("doctor --fix: got %+v", r)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("the directory still exists")
	}
	var answer struct {
		Findings []struct {
			Object, What string
			Wrong        bool
		}
		Wrong int
	}
	if r := a.run("doctor", "--json"); json.Unmarshal([]byte(r.stdout), &answer) != nil || len(answer.Findings) < 1 {
		t.Errorf("doctor --json: got %+v", r)
	}
}
