package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

func mountStatus(dir string) control.MountStatus {
	return control.MountStatus{
		ID: "m1", Dir: dir, Remote: "https://127.0.0.1/app", Ref: "main", Commit: "0123456789abcdef0123456789abcdef01234567",
		State: control.StateMounted, ReadOnly: true, Since: time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC), PID: 42,
		GitReady: true, History: control.HistoryComplete,
		Tree:    control.TreeStatus{Files: 14103, Complete: true},
		Blobs:   control.BlobStatus{Total: 13900, Fetched: 13899, Bytes: 13002342},
		Network: control.NetworkStatus{Requests: 12, RoundTrips: 15, Blobs: 1204, Bytes: 4299161},
		Queue:   control.QueueStatus{Foreground: 1, Background: 2000},
	}
}

func TestStatusPrintsTheContract(t *testing.T) {
	a := newAfs(t)
	m := mountStatus(a.dir + "/m")
	serve(t, control.DaemonSocket(a.state), newFakeDaemon(m))
	one := `{"id":"m1","dir":"` + m.Dir +
		`","remote":"https://127.0.0.1/app","ref":"main","commit":"0123456789abcdef0123456789abcdef01234567",` +
		`"state":"mounted","read_only":true,"since":"2024-05-06T07:08:09Z","pid":42,"git_ready":true,"history":"complete",` +
		`"tree":{"files":14103,"complete":true},"blobs":{"total":13900,"fetched":13899,"bytes":13002342},` +
		`"network":{"requests":12,"round_trips":15,"blobs":1204,"bytes":4299161},"queue":{"foreground":1,"background":2000},"operations":{"total":0,"pending":0,"fetched":0},` +
		`"overlay":{"changed":0,"bytes":0},"session":{"name":"","session_remote":"","mode":"","pending":0,"last_sync":null,"checkpoints":0,"last_checkpoint_at":null,"dirty":false,"sent":0,"received":0}}`
	for _, args := range [][]string{{"status", "m", "--json"}, {"status", "m/deep/below", "--json"},
		{"status", m.Dir, "--json"}} {
		if got := a.ok(args...); got != one+"\n" {
			t.Errorf("%v printed\n got %swant %s", args, got, one)
		}
	}
	for _, command := range []string{"status", "list"} {
		if got := a.ok(command, "--json"); got != `{"mounts":[`+one+"]}\n" {
			t.Errorf("%s --json printed %s", command, got)
		}
	}
}

func TestStatusForPeople(t *testing.T) {
	m := mountStatus("/m")
	var b strings.Builder
	printStatus(&b, m, m.Since.Add(192*time.Second))
	want := `/m
  state     mounted, read-only, for 3 min 12 s (pid 42)
  remote    https://127.0.0.1/app
  ref       main at 0123456789ab
  history   complete
  tree      14,103 files
  blobs     13,899 of 13,900 fetched (99 %), 12.4 MiB
  network   12 requests in 15 round trips, 1,204 blobs, 4.1 MiB received
  queue     1 waited for, 2,000 in the background
`
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
	failed := m.Since.Add(3 * time.Minute)
	for want, r := range map[string]control.RelayStatus{
		"http://relay:9428, 41 answers": {URL: "http://relay:9428", Answers: 41},
		"http://relay:9428, 1 answer, 2 requests sent to the git server instead; failed 12 s ago: connection refused; not used at the moment": {
			URL: "http://relay:9428", Answers: 1, FallThroughs: 2, Paused: true, LastFailure: "connection refused",
			FailedAt: &failed},
	} {
		m.Network.Relay = &r
		b.Reset()
		printStatus(&b, m, m.Since.Add(192*time.Second))
		if got := b.String(); !strings.Contains(got, "  relay     "+want+"\n") {
			t.Errorf("status does not print %q:\n%s", want, got)
		}
	}
	m.Network.Relay = nil
	for head, want := range map[string]string{
		"main": "", m.Commit: "", "topic/with-a-long-name": "  head      topic/with-a-long-name\n",
		strings.Repeat("ab", 20): "  head      abababababab\n",
	} {
		m.Head = head
		b.Reset()
		printStatus(&b, m, m.Since)
		if got := b.String(); want == "" && strings.Contains(got, "head") || !strings.Contains(got, want) {
			t.Errorf("status with HEAD %s printed\n%s", head, got)
		}
	}
	m.State, m.Error, m.GitReady, m.Tree.Complete, m.Ref, m.Commit = control.StateDegraded, "connect:\nrefused",
		false, false, "", ""
	b.Reset()
	printStatus(&b, m, m.Since)
	for _, want := range []string{"state     degraded, read-only, for 0 s", "error     connect: refused\n",
		"ref       empty", "14,103 files so far", "git is not ready yet"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("status does not print %q:\n%s", want, b.String())
		}
	}
}

func TestPreparingMountTellsWhatIsKnown(t *testing.T) {
	a := newAfs(t)
	serve(t, control.DaemonSocket(a.state),
		newFakeDaemon(control.MountStatus{ID: "m2", Dir: "/p", State: control.StatePreparing, PID: 7}))
	if got := a.ok("status"); got != "/p\n  state     preparing (pid 7)\n" {
		t.Errorf("status printed\n%s", got)
	}
	if got := a.ok("list"); !strings.HasSuffix(got, "/p   -    preparing  0      0 of 0   0        -        -        \n") {
		t.Errorf("list printed\n%q", got)
	}
}

func TestNothingIsMounted(t *testing.T) {
	a := newAfs(t)
	for args, want := range map[string]string{
		"status": "nothing is mounted\n", "status --json": `{"mounts":[]}` + "\n", "list": "",
		"list --json":  `{"mounts":[]}` + "\n",
		"session list": "", "session list --json": `{"sessions":[]}` + "\n",
		"unmount --all": "", "unmount --all --json": `{"unmounted":[]}` + "\n",
	} {
		if got := a.ok(strings.Fields(args)...); got != want {
			t.Errorf("%s printed %q", args, got)
		}
	}
	for _, args := range []string{"status d", "unmount d", "prefetch d"} {
		verb := strings.Fields(args)[0]
		want := "artifactfs: " + verb +
			" d: no artifactfs mount at this directory\nhint: run artifactfs list to see the mounted directories\n"
		if r := a.run(strings.Fields(args)...); r.code != control.ExitNotMounted || r.stdout != "" || r.stderr != want {
			t.Errorf("%s of a directory that is not mounted: got %+v", args, r)
		}
	}
	if r, want := a.run("status", "d", "--json"),
		`{"error":{"code":"not-mounted","message":"status d: no artifactfs mount at this directory","hint":"run artifactfs list to see the mounted directories","retryable":false}}`+"\n"; r.code != control.ExitNotMounted || r.stdout != want {
		t.Errorf("status d --json: got exit %d and %q, want %d and %q", r.code, r.stdout, control.ExitNotMounted, want)
	}
	if r := a.run("session", "log", "none"); r.code != control.ExitNotMounted ||
		r.stderr != "artifactfs: log session none: no such session\nhint: run artifactfs session list to see the sessions\n" {
		t.Errorf("session log of an unknown session: got %+v", r)
	}
	if _, err := os.Stat(a.state); err == nil {
		t.Error("the command created a state directory")
	}
	r := a.run("status", "--socket", a.dir+"/none.sock")
	if r.code != control.ExitFailed || !strings.Contains(r.stderr, "none.sock: no daemon is running") {
		t.Errorf("status with a socket without a server: got %+v", r)
	}
}

func TestListShowsEveryDaemon(t *testing.T) {
	a := newAfs(t)
	serve(t, control.DaemonSocket(a.state), newFakeDaemon(mountStatus("/b"), mountStatus("/a/long/name")))
	serve(t, control.MountSocket(a.state, 7), newFakeDaemon(mountStatus("/c")))
	want := `DIR           REF   STATE    FILES   FETCHED           CHANGED  SESSION  PENDING  REMOTE
/a/long/name  main  mounted  14,103  13,899 of 13,900  0        -        -        https://127.0.0.1/app
/b            main  mounted  14,103  13,899 of 13,900  0        -        -        https://127.0.0.1/app
/c            main  mounted  14,103  13,899 of 13,900  0        -        -        https://127.0.0.1/app
`
	if got := a.ok("list"); got != want {
		t.Errorf("got\n%s", got)
	}
	if got := a.ok("list", "--socket", control.MountSocket(a.state, 7)); strings.Contains(got, "/b") ||
		!strings.Contains(got, "/c ") {
		t.Errorf("list of one socket printed\n%s", got)
	}
	for args, want := range map[string]string{
		"__complete unmount ":        "/a/long/name\thttps://127.0.0.1/app\n/b\thttps://127.0.0.1/app\n/c\thttps://127.0.0.1/app\n:4\n",
		"__complete status /b ":      ":4\n",
		"__complete mount --wait ":   "tree\ngit\nall\n:4\n",
		"__complete mount x --histo": "--history\twhen to fetch the older commits: after mount has\n:4\n",
	} {
		r := a.run(strings.Split(args, " ")...)
		if r.code != 0 || r.stdout != want {
			t.Errorf("%s printed %q and on stderr %s", args, r.stdout, r.stderr)
		}
	}
}

func TestUnmount(t *testing.T) {
	a := newAfs(t)
	f := newFakeDaemon(mountStatus("/a"), mountStatus("/b"), mountStatus("/busy"))
	f.set(func() {
		f.busy = "/busy"
	})
	ended := serve(t, control.DaemonSocket(a.state), f)
	other := newFakeDaemon(mountStatus("/c"))
	serve(t, control.MountSocket(a.state, 7), other)

	r := a.run("unmount", "/none", "/a", "/busy", "/b/below")
	want :=
		"artifactfs: unmount /b/below: no artifactfs mount at this directory\nhint: the directory is inside the mount at /b\n" +
			"artifactfs: unmount /busy: busy\nhint: fuser\n" +
			"artifactfs: unmount /none: no artifactfs mount at this directory\nhint: run artifactfs list to see the mounted directories\n"
	if r.code != control.ExitNotMounted || r.stdout != "unmounted /a\n" || r.stderr != want {
		t.Errorf("unmount of several directories: got %+v", r)
	}
	if r := a.run("unmount", "--all"); r.code != control.ExitFailed || r.stdout != "unmounted /b\nunmounted /c\n" {
		t.Errorf("unmount --all: got %+v", r)
	}
	select {
	case <-ended:
		t.Error("the daemon was stopped although a mount is busy")
	default:
	}
	f.mu.Lock()
	f.busy = ""
	f.mu.Unlock()
	if got := a.ok("unmount", "--all",
		"--json"); got != `{"unmounted":[{"id":"m1","dir":"/busy","session":"","pending":0,"kept":0}]}`+"\n" {
		t.Errorf("unmount --all --json printed %s", got)
	}
	await(t, ended)
}

func TestPrefetch(t *testing.T) {
	a := newAfs(t)
	f := newFakeDaemon(mountStatus(a.dir + "/m"))
	var asked []control.PrefetchRequest
	f.set(func() {
		f.prefetch = func(ctx context.Context, r control.PrefetchRequest,
			progress func(control.Progress)) (control.PrefetchReply, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			asked = append(asked, r)
			return control.PrefetchReply{Matched: 1200, Fetched: 34, Bytes: 5 << 20}, nil
		}
	})
	serve(t, control.DaemonSocket(a.state), f)
	if got := a.ok("prefetch", "m"); !strings.HasPrefix(got, "34 of 1,200 blobs fetched, 5.0 MiB (") {
		t.Errorf("prefetch printed %q", got)
	}
	if got := a.ok("prefetch", "m/src", "--json", "--wait"); got != `{"matched":1200,"fetched":34,"bytes":5242880}`+"\n" {
		t.Errorf("prefetch printed %q", got)
	}
	a.ok("prefetch", "m/src", "*.go", "../doc/")
	a.ok("prefetch", "m", "a", ".")
	for _, spec := range []string{"../../x", "/etc"} {
		if r := a.run("prefetch", "m/src", spec); r.code != control.ExitUsage {
			t.Errorf("prefetch of %s: got %+v, want a usage error", spec, r)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var paths []string
	for _, r := range asked {
		if r.Dir != a.dir+"/m" {
			t.Errorf("directory of the prefetch request: got %s", r.Dir)
		}
		paths = append(paths, strings.Join(r.Paths, " "))
	}
	if want := []string{"", "src", "src/*.go doc", ""}; !slices.Equal(paths, want) || !asked[1].Wait || asked[0].Wait {
		t.Errorf("paths of the prefetch request: got %q", paths)
	}
}

func TestDeadMountIsNamed(t *testing.T) {
	table := mountinfo.Parse([]byte(`22 28 0:21 / /proc rw,nosuid shared:5 - proc proc rw
96 28 0:50 / /srv/a\040b rw,nosuid,nodev shared:7 - fuse.artifactfs https://127.0.0.1/app rw,user_id=0
97 28 0:51 / /srv/other rw - fuse.sshfs host: rw
98 28
`))
	for dir, want := range map[string]bool{"/srv/a b": true, "/srv/other": false, "/srv": false, "/proc": false,
		`/srv/a\040b`: false} {
		if got := cli.HasMount(table, dir); got != want {
			t.Errorf("HasMount(%s) = %v", dir, got)
		}
	}
}

func TestDaemonThatDoesNotAnswerHidesNoOther(t *testing.T) {
	a := newAfs(t)
	serve(t, control.DaemonSocket(a.state), newFakeDaemon(mountStatus("/a")))
	f := newFakeDaemon()
	serve(t, control.MountSocket(a.state, 9), f)
	f.mu.Lock() // the daemon's Status hangs
	defer f.mu.Unlock()
	r := a.run("list")
	if r.code != control.ExitFailed || !strings.Contains(r.stdout, "/a ") ||
		!strings.Contains(r.stderr, "mount-9.sock: timed out\n") {
		t.Errorf("got %+v", r)
	}
}

// A failed mount is listed once, with its kept changes, although daemon and state directory both report it.
func TestFailuresAreToldOnce(t *testing.T) {
	status := func(dir, session string, state control.State, why string) control.MountStatus {
		return control.MountStatus{Dir: dir, State: state, Error: why, Session: control.SessionStatus{Name: session}}
	}
	failed, kept, mounted := control.StateFailed, control.StateUnmounted, control.StateMounted
	for name, c := range map[string]struct {
		served, kept, failed []control.MountStatus
		want                 string
	}{
		"no daemon": {nil, nil, []control.MountStatus{status("/a", "s", failed, "why")}, "/a s failed why"},
		"work is kept": {nil, []control.MountStatus{status("/a", "s", kept, "")},
			[]control.MountStatus{status("/a", "s", failed, "why")}, "/a s failed why"},
		"of another session": {nil, []control.MountStatus{status("/a", "t", kept, "")},
			[]control.MountStatus{status("/a", "s", failed, "why")}, "/a t unmounted ,/a s failed why"},
		"the daemon tells": {[]control.MountStatus{status("/a", "s", failed, "why")},
			[]control.MountStatus{status("/a", "s", kept, "")},
			[]control.MountStatus{status("/a", "s", failed, "why")}, "/a s failed why"},
		"mounted again": {[]control.MountStatus{status("/a", "s", mounted, "")}, nil,
			[]control.MountStatus{status("/a", "s", failed, "why")}, "/a s mounted "},
	} {
		var s cli.Survey
		for _, m := range c.served {
			s.Mounts = append(s.Mounts, cli.Served{MountStatus: m, Client: new(control.Client)})
		}
		s.Add(c.kept, c.failed)
		var got []string
		for _, m := range s.Mounts {
			got = append(got, strings.Join([]string{m.Dir, m.Session.Name, string(m.State), m.Error}, " "))
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("case %s: got %q, want %q", name, got, c.want)
		}
	}
}
