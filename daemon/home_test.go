package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/overlay"
)

func encodeRecord(t *testing.T, r record) []byte {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func newHomes(t *testing.T) homes {
	t.Helper()
	h := homes{t.TempDir(), zap.NewNop()}
	if err := os.Mkdir(h.dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

// session makes a home that nobody has, with an overlay of so many empty files. counted says whether it was unmounted in
// order.
func (h homes) session(t *testing.T, name string, files int, counted bool) {
	t.Helper()
	m, err := h.take(t.Context(), name, "/srv/"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer m.unlock()
	r := sampleRecord()
	r.Session, r.Dir, r.Counted, r.Changed, r.Bytes = name, "/srv/"+name, counted, int64(files), 0
	if err := r.save(m.dir); err != nil {
		t.Fatal(err)
	}
	layer, _, err := overlay.Open(filepath.Join(m.dir, "overlay"), overlay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		err := layer.Update(func(tx *overlay.Tx) error {
			n, err := tx.NewNode()
			if err != nil {
				return err
			}
			tx.PutInode(overlay.Inode{Node: n, Mode: 0o100644, Nlink: 1, Parent: 1})
			tx.SetEntry(1, string(rune('a'+i)), n)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := layer.Close(); err != nil {
		t.Fatal(err)
	}
}

func (h homes) names(t *testing.T) string {
	t.Helper()
	ids, removed, err := h.ids()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(append(ids, removed...), " ")
}

func TestHomeIsTakenOnce(t *testing.T) {
	h := newHomes(t)
	first, err := h.take(t.Context(), "work", "/srv/a b")
	if err != nil || !first.fresh {
		t.Fatalf("%+v, %v", first, err)
	}
	var used inUseError
	if _, err := h.take(t.Context(), "work", "/srv/other"); !errors.As(err, &used) || used.dir != "/srv/a b" || used.session != "work" {
		t.Errorf("taken twice: %v", err)
	}
	first.unlock()
	second, err := h.take(t.Context(), "work", "/srv/other")
	if err != nil || second.fresh {
		t.Fatalf("given up and not taken: %+v, %v", second, err)
	}
	if err := second.remove(); err != nil {
		t.Fatal(err)
	}
	if names := h.names(t); names != "" {
		t.Errorf("left %q", names)
	}
}

// Who only looks into a home keeps nobody from mounting, only waiting.
func TestLookingIsWaitedFor(t *testing.T) {
	h := newHomes(t)
	h.session(t, "work", 1, true)
	looking, err := h.existing("work")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*lookPause)
	defer cancel()
	if _, err := h.take(ctx, "work", "/srv/a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while somebody looks: %v", err)
	}
	taken := make(chan error, 1)
	go func() {
		m, err := h.take(context.Background(), "work", "/srv/a")
		if err == nil {
			m.unlock()
		}
		taken <- err
	}()
	looking.unlock()
	select {
	case err := <-taken:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("still waiting")
	}
}

// A list of sessions that is made while others look at one has that one, too.
func TestListWaitsForLooking(t *testing.T) {
	h := newHomes(t)
	h.session(t, "work", 1, true)
	lists := map[string]func() int{
		"Kept": func() int {
			all, err := Kept(h.state)
			if err != nil {
				t.Error(err)
			}
			return len(all)
		},
		"sessions": func() int {
			all, err := h.sessions(t.Context(), nil)
			if err != nil {
				t.Error(err)
			}
			return len(all)
		},
	}
	for name, list := range lists {
		before := list()
		looking, err := h.existing("work")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(3*lookPause, looking.unlock)
		if got := list(); got != before {
			t.Errorf("%s while somebody looks: got %d sessions, want %d", name, got, before)
		}
		m, err := h.take(t.Context(), "work", "/srv/work")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if got := list(); got != 0 || time.Since(start) >= listTime {
			t.Errorf("%s while it is mounted: got %d sessions after %v, want 0 at once", name, got, time.Since(start))
		}
		m.giveUp()
	}
}

// The lock of a mount that was killed ends later than its process seems to.
func TestDeadMountIsWaitedFor(t *testing.T) {
	h := newHomes(t)
	h.session(t, "work", 1, true)
	process := exec.Command("true")
	if err := process.Run(); err != nil {
		t.Fatal(err)
	}
	die := func() {
		m, err := h.existing("work")
		if err != nil {
			t.Fatal(err)
		}
		m.sign(fmt.Sprintf("%d /srv/work\n", process.Process.Pid))
		time.AfterFunc(3*lookPause, m.unlock)
	}
	die()
	if kept, err := Kept(h.state); err != nil || len(kept) != 1 {
		t.Errorf("sessions listed after the end of the process that had one mounted: got %+v, %v, want session work", kept, err)
	}
	die()
	m, err := h.take(t.Context(), "work", "/srv/again")
	if err != nil {
		t.Fatalf("mount after the end of the process that had the session mounted: %v", err)
	}
	m.giveUp()
}

func TestLeftoversGoAndWorkStays(t *testing.T) {
	h := newHomes(t)
	h.session(t, "kept", 2, true)
	h.session(t, "killed", 3, false)
	h.session(t, "untouched", 0, false)
	h.session(t, "odd", 1, true)
	h.session(t, "newer", 1, true)
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(h.dir(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("odd/session.json", "{")
	write("newer/session.json", `{"version":99}`)
	write("lost/overlay/contents/000000/000001", "work without a record")
	write("_1a2b3c4d/inodes", "of a read-only mount")
	write("_1a2b3c4d/overlay/log", "that has .git and nothing else")
	write("early/lock", "1 /srv/early")
	write("commits/session.json", string(encodeRecord(t, func() record { r := sampleRecord(); r.Session, r.Changed = "commits", 0; return r }())))
	write("commits/git/objects/ab/cd", "")
	write(removedPrefix+"x/lock", "")
	mounted, err := h.take(t.Context(), "mounted", "/srv/mounted")
	if err != nil {
		t.Fatal(err)
	}
	defer mounted.unlock()
	if err := h.removeLeftovers(); err != nil {
		t.Fatal(err)
	}
	if names := h.names(t); names != "commits kept killed lost mounted newer odd" {
		t.Errorf("homes %q", names)
	}
	if r, err := readRecord(filepath.Join(h.dir(), "killed")); err != nil || !r.Counted || r.Changed != 3 {
		t.Errorf("a killed session's changes are not counted: %+v, %v", r, err)
	}
	kept, err := Kept(h.state)
	if err != nil {
		t.Fatal(err)
	}
	changed := map[string]int64{}
	for _, k := range kept {
		changed[k.Session.Name] = k.Overlay.Changed
		if k.State != control.StateUnmounted || k.Overlay.Changed < 0 && k.Error == "" {
			t.Errorf("%+v", k)
		}
	}
	for name, want := range map[string]int64{"kept": 2, "killed": 3, "commits": 0, "odd": -1, "newer": -1, "lost": -1} {
		if got, ok := changed[name]; !ok || got != want {
			t.Errorf("%s: %d changes, want %d", name, got, want)
		}
	}
	if len(kept) != 6 {
		t.Errorf("%d are listed", len(kept))
	}
}

func TestDiscard(t *testing.T) {
	h := newHomes(t)
	h.session(t, "work", 1, true)
	m, err := h.take(t.Context(), "work", "/srv/work")
	if err != nil {
		t.Fatal(err)
	}
	var used inUseError
	if err := Discard(h.state, "work"); !errors.As(err, &used) {
		t.Errorf("while it is mounted: %v", err)
	}
	m.unlock()
	if err := Discard(h.state, "work"); err != nil {
		t.Error(err)
	}
	if err := Discard(h.state, "work"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("twice: %v", err)
	}
	if names := h.names(t); names != "" {
		t.Errorf("left %q", names)
	}
}

func TestExamine(t *testing.T) {
	h := newHomes(t)
	h.session(t, "sound", 2, true)
	h.session(t, "killed", 1, false)
	h.session(t, "empty", 0, false)
	h.session(t, "newer", 1, true)
	if err := os.WriteFile(filepath.Join(h.dir(), "newer", recordName), []byte(`{"version":99}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(h.dir(), "_left"), 0o700); err != nil {
		t.Fatal(err)
	}
	mounted, err := h.take(t.Context(), "mounted", "/srv/mounted")
	if err != nil {
		t.Fatal(err)
	}
	defer mounted.unlock()
	look := func(repair bool) map[string]Finding {
		t.Helper()
		findings, err := Examine(t.Context(), h.state, repair, true)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]Finding{}
		for _, f := range findings {
			all[filepath.Base(f.Object)] = f
		}
		return all
	}
	before := h.names(t)
	for _, repair := range []bool{false, true} {
		all := look(repair)
		for name, want := range map[string]struct {
			wrong, mended bool
			what          string
		}{
			"sound": {false, false, "2 changed paths"}, "killed": {false, false, "1 changed path"}, "mounted": {false, false, "not checked"},
			"newer": {true, false, "newer"}, "empty": {true, repair, "without any changes"}, "_left": {true, repair, "a killed mount left it"},
		} {
			if f := all[name]; f.Wrong != want.wrong || f.Mended != want.mended || !strings.Contains(f.What, want.what) {
				t.Errorf("repair %v: %s: %+v", repair, name, f)
			}
		}
		if names := h.names(t); !repair && names != before {
			t.Errorf("looking left %q", names)
		}
	}
	if names := h.names(t); names != "killed mounted newer sound" {
		t.Errorf("repaired, and left %q", names)
	}
}

// A damaged log is told, and mended without losing what can be read.
func TestExamineMendsAnOverlay(t *testing.T) {
	h := newHomes(t)
	h.session(t, "work", 8, true)
	log := filepath.Join(h.dir(), "work", "overlay", "log")
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	at := 4096 + (len(strings.TrimRight(string(text), "\x00"))-4096)/2 // behind the header
	for i := range 16 {
		text[at+i] ^= 0xff
	}
	if err := os.WriteFile(log, text, 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := func(repair bool) (open, mended int) {
		t.Helper()
		findings, err := Examine(t.Context(), h.state, repair, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if f.Object == "work" && f.Wrong {
				t.Logf("repair %v: %+v", repair, f)
				if f.Mended {
					mended++
				} else {
					open++
				}
			}
		}
		return open, mended
	}
	if open, _ := wrong(false); open == 0 {
		t.Error("the damage is not told")
	}
	if _, mended := wrong(true); mended == 0 {
		t.Error("nothing is mended")
	}
	if open, _ := wrong(false); open > 0 {
		t.Error("it is still wrong")
	}
}
