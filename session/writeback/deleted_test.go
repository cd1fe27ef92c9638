package writeback

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// TestDeleted checks which refs of a session remote show that a missing session was deleted there, and not lost.
func TestDeleted(t *testing.T) {
	t.Parallel()
	meta, other := object.MustID(strings.Repeat("1", 40)), object.MustID(strings.Repeat("2", 40))
	synced := time.Unix(1_750_000_000, 0)
	at := func(hours int, part string) string {
		return fmt.Sprintf("%ss/%d/%s", thin.TrashPrefix, synced.Unix()+int64(hours)*3600, part)
	}
	copied := strings.TrimPrefix(session.MetaRef("s"), "refs/")
	for name, c := range map[string]struct {
		there            map[string]object.ID
		deleted, emptied bool
	}{
		"lost":                      {map[string]object.ID{thin.TrashPrefix + "s2/1750003600/deleted": other}, false, false},
		"there":                     {map[string]object.ID{session.MetaRef("s"): meta, at(2, "deleted"): other}, false, false},
		"in the trash":              {map[string]object.ID{at(2, copied): meta, at(2, "heads/main"): other}, true, false},
		"tombstone":                 {map[string]object.ID{at(2, "deleted"): other}, true, true},
		"tombstone and copies":      {map[string]object.ID{at(2, "deleted"): other, at(2, copied): meta}, true, false},
		"emptied, deleted again":    {map[string]object.ID{at(2, "deleted"): other, at(3, copied): other}, true, false},
		"tombstone of another":      {map[string]object.ID{at(-2, "deleted"): meta}, false, false},
		"earlier copy of the same":  {map[string]object.ID{at(-2, copied): meta}, true, false},
		"earlier copy of a session": {map[string]object.ID{at(-2, copied): other}, false, false},
	} {
		l := newLedger("https://host/x")
		l.meta.Session, l.synced = "s", synced
		l.refs[session.MetaRef("s")] = remoteRef{acked: meta}
		err := deleted(l, c.there)
		var gone *DeletedError
		if errors.As(err, &gone) != c.deleted || c.deleted && gone.Emptied != c.emptied {
			t.Errorf("%s: got %+v, want deleted %t, emptied %t", name, err, c.deleted, c.emptied)
		}
		if c.deleted && strings.Contains(gone.Remedy(), "undelete") == c.emptied {
			t.Errorf("%s: remedy is %q", name, gone.Remedy())
		}
	}
}
