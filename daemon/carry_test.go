package daemon

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

func TestPointsAreDueWhenWritesSettle(t *testing.T) {
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	idle, interval := &carry{kind: control.PolicyIdle}, &carry{kind: control.PolicyInterval, every: time.Minute}
	for name, c := range map[string]struct {
		carry             *carry
		first, last, made time.Time
		want              time.Time
	}{
		"one write":             {idle, at(0), at(0), time.Time{}, at(2)},
		"writes that settle":    {idle, at(0), at(3), time.Time{}, at(5)},
		"writes without a rest": {idle, at(0), at(9.5), time.Time{}, at(10)},
		"soon after a point":    {idle, at(0), at(0), at(-1), at(9)},
		"long after a point":    {idle, at(0), at(0), at(-60), at(2)},
		"interval":              {interval, at(0), at(50), at(-10), at(60)},
	} {
		if got := c.carry.due(c.first, c.last, c.made); !got.Equal(c.want) {
			t.Errorf("%s: %v after the first change, want %v", name, got.Sub(start), c.want.Sub(start))
		}
	}
}

func TestWhatWasAskedGoesBeforeWhatTheSessionWasCarriedWith(t *testing.T) {
	d := &Daemon{}
	m := d.newMount(control.MountRequest{SessionOptions: control.SessionOptions{
		Remote: "https://u:sesame@127.0.0.1/s", Exclude: []string{"x"}, TakeOver: true,
	}}, "s", "/m", time.Now())
	m.session = "s"
	m.record.Carried = control.SessionOptions{Remote: control.RemoteNone, Policy: "interval=1m", Include: []string{"i"}, Exclude: []string{"e"}, MaxFileSize: 7}
	if err := m.carry.settle(); err != nil {
		t.Fatal(err)
	}
	want := control.SessionOptions{Remote: "https://u:sesame@127.0.0.1/s", Policy: "interval=1m", Include: []string{"i"}, Exclude: []string{"x"}, TakeOver: true, MaxFileSize: 7}
	if got := m.carry.optionsNow(); !reflect.DeepEqual(got, want) {
		t.Errorf("in force: %+v", got)
	}
	want.Remote, want.TakeOver = "https://127.0.0.1/s", false
	if got := m.record.Carried; !reflect.DeepEqual(got, want) {
		t.Errorf("on record: %+v", got)
	}
}

// until waits for something that goes on behind a mount.
func (k *testKeeper) until(what string, is func() bool) {
	k.t.Helper()
	for end := time.Now().Add(takeoverTime); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			k.t.Fatalf("it does not come to that: %s", what)
		}
	}
}

func TestWorkIsCarriedIntoTheEmbeddedRepository(t *testing.T) {
	k := newKeep(t)
	remote := k.dir("remote")
	sample(t, remote)
	k.start()
	k.await()
	dir := k.dir("mnt")
	before := k.mount(k.request(remote, dir))
	repo := filepath.Join(k.state, "mounts", before.Session, sessionRepoName)
	if st := k.status(dir).Session; st.Mode != "embedded" || st.Remote != repo || st.Dirty || st.Points != 0 || st.State != "active" {
		t.Errorf("at first: %+v", st)
	}
	if _, err := os.Lstat(repo); err == nil {
		t.Error("a mount in which nobody did anything has a repository")
	}
	k.sh(dir, "echo new > new; echo more >> README.md; git add new; git commit -qm one; echo later > later")
	head := strings.TrimSpace(k.sh(dir, "git rev-parse HEAD"))
	k.until("the commit is in the repository", func() bool {
		out, _ := os.ReadFile(filepath.Join(repo, "refs/heads/main"))
		return strings.TrimSpace(string(out)) == head
	})
	clone := k.dir("clone")
	k.sh("/", "git clone -q "+repo+" "+clone)
	if got := k.sh(clone, "git rev-parse HEAD; git fsck --no-dangling; cat new"); got != head+"\nnew\n" {
		t.Errorf("the clone: %q", got)
	}
	k.until("a point was made", func() bool { st := k.status(dir).Session; return st.Points > 0 && !st.Dirty })
	log, err := k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: dir})
	if err != nil || len(log.Points) == 0 || log.Points[0].Reason != "idle" || log.Points[0].Head != head || log.Points[0].Branch != "main" || !log.Points[0].Synced {
		t.Fatalf("%v, %+v", err, log)
	}
	if got := k.sh(repo, "git show "+log.Points[0].Commit+":later"); got != "later\n" {
		t.Errorf("the point has %q", got)
	}
	k.sh(dir, "echo last > last")
	k.again() // whoever serves dies
	k.sh(dir, "echo after > after")
	reply := k.unmount(dir)
	if reply.Session != before.Session || reply.Pending != 0 {
		t.Errorf("unmount: %+v", reply)
	}
	if log, err = k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: before.Session, Limit: 1}); err != nil || len(log.Points) != 1 || log.Points[0].Reason != "unmount" {
		t.Fatalf("after the unmount: %v, %+v", err, log)
	}
	if got := k.sh(repo, "git show "+log.Points[0].Commit+":last; git show "+log.Points[0].Commit+":after; git fsck --no-dangling"); got != "last\nafter\n" {
		t.Errorf("the last point has %q", got)
	}
	all, err := k.client.Sessions(t.Context())
	if err != nil || len(all.Sessions) != 1 || all.Sessions[0].Mounted || all.Sessions[0].State != "paused" || all.Sessions[0].Points < 2 || len(all.Sessions[0].History) < 3 {
		t.Errorf("%v, %+v", err, all)
	}
	if kept, err := Kept(k.state); err != nil || len(kept) != 1 || kept[0].Session.LastID != log.Points[0].ID {
		t.Errorf("kept: %v, %+v", err, kept)
	}
	again := k.mount(k.request(remote, dir))
	if !again.Resumed || k.sh(dir, "cat last after") != "last\nafter\n" {
		t.Errorf("mounted again: %+v", again)
	}
	if st := k.status(dir).Session; st.State != "active" || st.Dirty {
		t.Errorf("mounted again: %+v", st)
	}
	if _, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir, Discard: true}); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(k.state, "mounts")); len(left) != 0 {
		t.Errorf("discarded, and %v is left", left)
	}
}
