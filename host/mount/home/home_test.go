package home

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/statedir"
)

const remote = "https://127.0.0.1/a"

// request returns a mount request of a user.
func request(uid uint32) *control.MountRequest {
	r := &control.MountRequest{}
	r.UID = uid
	return r
}

// begun returns the locked home of a new mount with the session "s", whose record is stored, in the state directory
// state.
func begun(t *testing.T, state string) *Home {
	t.Helper()
	log := zap.NewNop()
	h := New(Owner{
		Homes: statedir.Homes{State: state, Log: log}, ID: "s", Session: "s", Dir: "/srv/a", Since: time.Now(), Log: log,
	})
	if h.Locked() {
		t.Fatal("a new home is locked")
	}
	if err := os.MkdirAll(h.of.Homes.Dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := h.Enter(t.Context(), request(7), remote); err != nil {
		t.Fatal(err)
	}
	id := strings.Repeat("1", 40)
	h.Record.Commit, h.Record.Tree, h.Record.Format, h.Record.Ref = id, id, "sha1", "refs/heads/main"
	if _, err := h.Occupy(nil); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHomeWithChangesIsResumed(t *testing.T) {
	state := t.TempDir()
	h := begun(t, state)
	left := statedir.Unsaved{Paths: 3, Bytes: 5}
	if o := h.Close(End{Opened: true, Served: true, Left: left}); o.Err != nil || o.Unsaved != left || o.Trashed != "" {
		t.Fatalf("end: %+v", o)
	}
	h = New(h.of)
	other := *h
	if err := other.Enter(t.Context(), &control.MountRequest{}, remote+"b"); !errors.Is(err, fault.ErrOtherRemote) {
		t.Errorf("with another remote: %v", err)
	}
	other.Drop()
	r := request(8)
	if err := h.Enter(t.Context(), r, remote); err != nil {
		t.Fatal(err)
	}
	defer h.Drop()
	if !h.Resumed || !h.OtherOwner || r.UID != 7 || h.Record.Changed != 3 {
		t.Errorf("resumed %v, other owner %v, user %d, record %+v", h.Resumed, h.OtherOwner, r.UID, h.Record)
	}
}

func TestHomeWithoutChangesIsRemoved(t *testing.T) {
	changed := statedir.Unsaved{Paths: 1}
	for name, e := range map[string]End{
		"unchanged":        {Opened: true, Served: true},
		"never served":     {Opened: true, Left: changed},
		"never opened":     {},
		"deleted for good": {Opened: true, Served: true, Left: changed, Discard: true, Remove: true},
	} {
		h := begun(t, t.TempDir())
		if o := h.Close(e); o != (Outcome{}) {
			t.Errorf("%s: end: %+v", name, o)
		}
		if _, err := os.Lstat(h.Dir); !os.IsNotExist(err) {
			t.Errorf("%s: the home is still there: %v", name, err)
		}
	}
}

func TestDiscardedHomeIsMovedToTheTrash(t *testing.T) {
	h := begun(t, t.TempDir())
	o := h.Close(End{Opened: true, Served: true, Left: statedir.Unsaved{Paths: 1}, Discard: true})
	if o.Err != nil || o.Trashed != "s" || o.Until.Before(time.Now()) {
		t.Errorf("end: %+v", o)
	}
	if all, err := h.of.Homes.Trash(); err != nil || len(all) != 1 {
		t.Errorf("the trash has %d sessions: %v", len(all), err)
	}
}

func TestHomeIsKeptAfterAFailure(t *testing.T) {
	h := begun(t, t.TempDir())
	changes := errors.New("disk full")
	o := h.Close(End{Opened: true, Served: true, Err: changes, Discard: true})
	if !errors.Is(o.Err, changes) || o.Trashed != "" {
		t.Errorf("end: %+v", o)
	}
	if _, err := os.Lstat(h.Dir); err != nil {
		t.Errorf("the home with changes that were not stored is gone: %v", err)
	}
}

// A session that has only carried files may have their last copies, whatever other sessions have.
func TestCarriedFilesAreKept(t *testing.T) {
	carried := statedir.Unsaved{Carried: true}
	for _, test := range []struct {
		what           string
		e              End
		trashed, there bool
	}{
		{"unmounted", End{}, true, false},
		{"discarded", End{Discard: true}, true, false},
		{"daemon stops", End{Returns: true}, false, true},
		{"discarded while the daemon stops", End{Returns: true, Discard: true}, true, false},
		{"deleted for good", End{Discard: true, Remove: true}, false, false},
	} {
		h := begun(t, t.TempDir())
		test.e.Opened, test.e.Served, test.e.Left = true, true, carried
		o := h.Close(test.e)
		if o.Err != nil || (o.Trashed != "") != test.trashed || test.trashed && (o.Unsaved.Any() || o.Until.IsZero()) {
			t.Errorf("%s: end: %+v", test.what, o)
		}
		all, err := h.of.Homes.Trash()
		if err != nil || len(all) != map[bool]int{true: 1}[test.trashed] {
			t.Errorf("%s: the trash has %d sessions: %v", test.what, len(all), err)
		}
		// The record has no counts, because they would not show that there are carried files.
		if r, err := statedir.ReadRecord(h.Dir); (err == nil) != test.there || r.Counted {
			t.Errorf("%s: record %+v, %v", test.what, r, err)
		}
	}
	h := begun(t, t.TempDir())
	o := h.Close(End{Opened: true, Served: true, Left: statedir.Unsaved{Carried: true, Paths: 1}})
	if r, err := statedir.ReadRecord(h.Dir); err != nil || !r.Counted || o.Trashed != "" {
		t.Errorf("carried files and a change: end: %+v, record %+v, %v", o, r, err)
	}
}
