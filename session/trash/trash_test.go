package trash_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/trash"
)

var deletion = time.Unix(1_750_000_000, 0)

// place is a session remote in a directory.
type place struct {
	t      *testing.T
	dir    string
	remote *transport.Remote
	ids    []object.ID // chain of commits; each is the parent of the next one
}

// newPlace returns an empty session remote for a test that runs in parallel with others.
func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	return makePlace(t)
}

func makePlace(t *testing.T) *place {
	t.Helper()
	repo, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, dir: repo.Path}
	for _, text := range []string{"zero", "one", "two"} {
		id, err := repo.Commit("scratch", map[string]gittest.File{"f": {Data: []byte(text)}}, text)
		if err != nil {
			t.Fatal(err)
		}
		p.ids = append(p.ids, id)
	}
	gittest.Must(t, p.dir, "update-ref", "-d", "refs/heads/scratch")
	if p.remote, err = transport.Open(p.dir, transport.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.remote.Close() })
	return p
}

// set creates or changes refs. The numbers are indexes of p.ids.
func (p *place) set(refs map[string]int) {
	p.t.Helper()
	for name, i := range refs {
		file := filepath.Join(p.dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(p.ids[i].String()+"\n"), 0o644))
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// names returns the names of the refs in the trash without the prefix if deleted is set, otherwise those of all other
// refs.
func (p *place) names(deleted bool) []string {
	p.t.Helper()
	var names []string
	for name := range p.there() {
		rest, ok := strings.CutPrefix(name, thin.TrashPrefix)
		if ok == deleted {
			names = append(names, rest)
		}
	}
	slices.Sort(names)
	return names
}

func (p *place) there() map[string]object.ID {
	p.t.Helper()
	there, _, err := trash.Refs(p.t.Context(), p.remote)
	if err != nil {
		p.t.Fatal(err)
	}
	return there
}

// delete deletes the session s. The map there contains the refs of the session remote.
func (p *place) delete(there map[string]object.ID,
	now time.Time) (mine map[string]object.ID, kept []string, err error) {
	p.t.Helper()
	_, head, err := trash.Refs(p.t.Context(), p.remote)
	if err != nil {
		p.t.Fatal(err)
	}
	of := func(there map[string]object.ID) map[string]object.ID {
		return trash.Of(session.Layout{Session: "s"}, object.ID{}, there)
	}
	return trash.Delete(p.t.Context(), p.remote, "s", there, head, of, now)
}

func (p *place) mustDelete(now time.Time) (kept []string) {
	p.t.Helper()
	_, kept, err := p.delete(p.there(), now)
	if err != nil {
		p.t.Fatal(err)
	}
	return kept
}

func (p *place) want(what string, deleted bool, want ...string) {
	p.t.Helper()
	slices.Sort(want)
	if got := p.names(deleted); !slices.Equal(got, want) {
		p.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// The refs of the session s, and refs of other sessions with similar names.
var (
	ofSession = map[string]int{
		session.MetaRef("s"): 0, session.SegmentRef("s", "main", 1): 1, session.PinPrefix("s") + "before": 1,
		session.CarriedRef("s", "refs/heads/main"): 2, "refs/heads/afs/s/main": 2, session.TagsPrefix("s") + "v1": 1,
	}
	ofOthers = map[string]int{
		session.MetaRef("s2"): 0, "refs/heads/afs/s2/main": 2, "refs/heads/main": 0, "refs/heads/s": 1, "refs/tags/v1": 1,
		session.EntryPrefix + "s": 1, session.ProfilePrefix + "s": 1, thin.TrashPrefix + "s2/1/afs/meta/s2": 0,
	}
)

func TestDeletedSessionComesBack(t *testing.T) {
	p := newPlace(t)
	p.set(ofSession)
	p.set(ofOthers)
	p.set(map[string]int{approval.Ref("s"): 2})
	before := p.there()
	mine, kept, err := p.delete(before, deletion)
	if err != nil || len(kept) != 0 || len(mine) != len(ofSession)+1 {
		t.Fatalf("delete: got %d refs, kept %q, %v, want %d refs and none kept", len(mine), kept, err, len(ofSession)+1)
	}
	after := p.there()
	for name, id := range before {
		_, own := ofSession[name]
		if own = own || name == approval.Ref("s"); own {
			id = object.ID{}
		}
		if after[name] != id {
			t.Errorf("%s after the deletion: got %s, want %s", name, after[name], id)
		}
		if copied := after[trash.Ref("s", name, deletion)]; own && copied != before[name] {
			t.Errorf("copy of %s: got %s, want %s", name, copied, before[name])
		}
	}
	list := trash.List(after)
	if len(list) != 2 || list[0].Session != "s" || !list[0].At.Equal(deletion) || list[1].Session != "s2" {
		t.Errorf("deleted sessions: got %+v, want s and the older s2", list)
	}
	restored, taken, err := trash.Undelete(t.Context(), p.remote, "s", after, trash.Deletion{})
	if err != nil || len(taken) != 0 || restored != len(ofSession) {
		t.Fatalf("undelete: got %d refs, %q, %v, want %d refs", restored, taken, err, len(ofSession))
	}
	want := maps.Clone(before)
	delete(want, approval.Ref("s")) // approvals are not restored
	if got := p.there(); !maps.Equal(got, want) {
		t.Errorf("refs after undelete: got %v, want %v", got, want)
	}
}

// TestOfBranches checks that the owner of the plain names owns the branches that still have the commits that it has
// pushed, and that other sessions own only branches whose names contain the name of the session.
func TestOfBranches(t *testing.T) {
	t.Parallel()
	id := func(b byte) object.ID { return object.MustID(strings.Repeat(string(b), 40)) }
	owner := id('f')
	there := map[string]object.ID{
		"refs/heads/main": id('1'), "refs/heads/topic": id('2'), "refs/tags/v1": id('3'), "refs/heads/afs/s/main": id('4'),
		session.OwnerRef: owner, session.CarriedRef("s", "refs/heads/main"): id('1'),
		session.CarriedRef("s", "refs/heads/topic"): id('9'),
		thin.ReadableRef("s"):                       id('5'), thin.Ref("x"): id('6'), thin.ReadableRef("x"): id('7'),
		thin.TrashPrefix + "y/1/afs/thin/y": id('6'), thin.ReadableRef("y"): id('7'),
		session.EntryPrefix + "key": id('8'), "refs/heads/all/main": id('1'), "refs/heads/all/topic": id('2'),
	}
	carried := []string{session.CarriedRef("s", "refs/heads/main"), session.CarriedRef("s", "refs/heads/topic")}
	for what, test := range map[string]struct {
		layout session.Layout
		owner  object.ID
		want   []string
	}{
		"owner": {session.Layout{Session: "s", Own: true}, owner,
			append(carried, session.OwnerRef, "refs/heads/main")},
		"guest":              {session.Layout{Session: "s"}, id('e'), append(carried, "refs/heads/afs/s/main")},
		"guest with as-is":   {session.Layout{Session: "s", Branches: session.BranchesAsIs}, id('e'), carried},
		"guest with pattern": {session.Layout{Session: "s", Branches: "all/{branch}"}, id('e'), carried},
		"thin":               {session.Layout{Session: "x"}, id('e'), []string{thin.Ref("x"), thin.ReadableRef("x")}},
		"thin, half deleted": {session.Layout{Session: "y"}, id('e'), []string{thin.ReadableRef("y")}},
		"called entries":     {session.Layout{Session: "entries"}, id('e'), nil},
	} {
		got := slices.Sorted(maps.Keys(trash.Of(test.layout, test.owner, there)))
		slices.Sort(test.want)
		if !slices.Equal(got, test.want) {
			t.Errorf("refs of a session, %s: got %q, want %q", what, got, test.want)
		}
	}
}

// TestDeleteKeepsBranchOfHead checks that the branch of HEAD is kept, because most servers refuse to delete it, but is
// also copied to the trash, so that Undelete is complete.
func TestDeleteKeepsBranchOfHead(t *testing.T) {
	p := newPlace(t)
	p.set(ofSession)
	gittest.Must(t, p.dir, "symbolic-ref", "HEAD", "refs/heads/afs/s/main")
	gittest.Must(t, p.dir, "config", "receive.denyDeleteCurrent", "ignore") // some servers even delete this branch
	if kept := p.mustDelete(deletion); !slices.Equal(kept, []string{"refs/heads/afs/s/main"}) {
		t.Errorf("kept refs: got %q, want the branch of HEAD", kept)
	}
	p.want("refs after the deletion", false, "refs/heads/afs/s/main")
	if got := len(p.names(true)); got != len(ofSession) {
		t.Errorf("refs in the trash: got %d, want %d", got, len(ofSession))
	}
	p.set(map[string]int{"refs/heads/afs/s/main": 0})
	_, taken, err := trash.Undelete(t.Context(), p.remote, "s", p.there(), trash.Deletion{})
	if err != nil || !slices.Equal(taken, []string{"refs/heads/afs/s/main"}) {
		t.Errorf("undelete after the branch has moved: got %q, %v, want the branch", taken, err)
	}
	p.want("values that were not restored", true,
		strings.TrimPrefix(trash.Ref("s", "refs/heads/afs/s/main", deletion), thin.TrashPrefix))
	if got := p.there()["refs/heads/afs/s/main"]; got != p.ids[0] {
		t.Errorf("branch that has moved: got %s, want its new value %s", got, p.ids[0])
	}
}

// TestDeletionIsRefused checks that branches remain if the session remote deletes no branches, and that a session
// remains and is not listed as deleted if the policy protects it.
func TestDeletionIsRefused(t *testing.T) {
	p := newPlace(t)
	p.set(ofSession)
	before := p.names(false)
	gittest.Must(t, p.dir, "config", "receive.denyDeletes", "true")
	if kept := p.mustDelete(deletion); !slices.Equal(kept, []string{"refs/heads/afs/s/main"}) {
		t.Errorf("kept refs: got %q, want the branch", kept)
	}
	p.want("refs that stay where branches cannot be deleted", false, "refs/heads/afs/s/main")
	q := makePlace(t)
	q.set(ofSession)
	hook := "#!/bin/sh\ncase $1 in refs/afs/trash/*) exit 0;; *) echo protected >&2; exit 1;; esac\n"
	if err := os.MkdirAll(filepath.Join(q.dir, "hooks"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(q.dir, "hooks", "update"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	var refused *transport.Rejected
	if _, _, err := q.delete(q.there(), deletion); !errors.As(err, &refused) || refused.Kind != transport.RejectHook {
		t.Errorf("delete of a protected session: got %v, want the refusal of the hook", err)
	}
	q.want("refs of the protected session", false, before...)
	q.want("trash after the refusal", true)
}

// TestDeleteWhileRefMoves checks Delete if a push of the session that is still in progress changes a ref after the refs
// were listed.
func TestDeleteWhileRefMoves(t *testing.T) {
	p := newPlace(t)
	p.set(ofSession)
	there := p.there()
	late := session.SegmentRef("s", "main", 2)
	p.set(map[string]int{session.SegmentRef("s", "main", 1): 2, late: 2})
	if _, kept, err := p.delete(there, deletion); err != nil || len(kept) != 0 {
		t.Fatalf("delete: kept %q, %v", kept, err)
	}
	p.want("refs after the deletion", false)
	if list := trash.List(p.there()); len(list) != 1 {
		t.Errorf("deleted sessions: got %+v, want one", list)
	}
	if _, _, err := trash.Undelete(t.Context(), p.remote, "s", p.there(), trash.Deletion{}); err != nil {
		t.Fatal(err)
	}
	p.want("trash after undelete", true)
	got := p.there()
	if got[session.SegmentRef("s", "main", 1)] != p.ids[2] || got[late] != p.ids[2] ||
		got[session.MetaRef("s")] != p.ids[0] {
		t.Errorf("refs after undelete: got %v, want the values that were pushed last", got)
	}
}

// TestDeleteIsRepeated checks that a deletion that was interrupted while it removed refs is completed by the next one,
// and that Undelete then restores the whole session.
func TestDeleteIsRepeated(t *testing.T) {
	p := newPlace(t)
	p.set(ofSession)
	before := p.there()
	p.mustDelete(deletion)
	own := session.SegmentRef("s", "main", 1) // the interrupted deletion has removed all other refs
	p.set(map[string]int{own: ofSession[own]})
	for _, at := range []time.Time{deletion, deletion.Add(time.Minute)} {
		p.mustDelete(at)
		if list := trash.List(p.there()); len(list) != 1 {
			t.Errorf("deleted sessions: got %+v, want one", list)
		}
		p.set(map[string]int{own: ofSession[own]})
	}
	gittest.Must(t, p.dir, "update-ref", "-d", own)
	if _, _, err := trash.Undelete(t.Context(), p.remote, "s", p.there(), trash.Deletion{}); err != nil {
		t.Fatal(err)
	}
	if got := p.there(); !maps.Equal(got, before) {
		t.Errorf("refs after undelete: got %v, want %v", got, before)
	}
}

func TestUndeleteTakesNewest(t *testing.T) {
	p := newPlace(t)
	if _, _, err := trash.Undelete(t.Context(), p.remote, "s", p.there(), trash.Deletion{}); !errors.Is(err, trash.ErrNone) {
		t.Errorf("undelete of a session that was not deleted: got %v, want ErrNone", err)
	}
	for i := range 2 {
		p.set(map[string]int{session.MetaRef("s"): i})
		p.mustDelete(deletion.Add(time.Duration(i) * time.Hour))
	}
	p.set(map[string]int{session.MetaRef("s"): 2})
	before := p.there()
	if _, _, err := trash.Undelete(t.Context(), p.remote, "s", before, trash.Deletion{}); !errors.Is(err, trash.ErrThere) {
		t.Errorf("undelete beside a new session of the same name: got %v, want ErrThere", err)
	}
	if got := p.there(); !maps.Equal(got, before) {
		t.Errorf("refs after the refusal: got %v, want %v", got, before)
	}
	gittest.Must(t, p.dir, "update-ref", "-d", session.MetaRef("s"))
	if _, _, err := trash.Undelete(t.Context(), p.remote, "s", p.there(), trash.Deletion{}); err != nil {
		t.Fatal(err)
	}
	if got := p.there()[session.MetaRef("s")]; got != p.ids[1] {
		t.Errorf("restored metadata: got %s, want those of the last deletion, %s", got, p.ids[1])
	}
}

// TestUndeleteIsRepeated checks that an Undelete that was interrupted after it has created refs is completed by the
// next one.
func TestUndeleteIsRepeated(t *testing.T) {
	p := newPlace(t)
	p.set(ofSession)
	before := p.there()
	p.mustDelete(deletion)
	p.set(map[string]int{session.MetaRef("s"): ofSession[session.MetaRef("s")]})
	if _, taken, err := trash.Undelete(t.Context(), p.remote, "s", p.there(), trash.Deletion{}); err != nil || len(taken) != 0 {
		t.Errorf("undelete: got %q, %v", taken, err)
	}
	if got := p.there(); !maps.Equal(got, before) {
		t.Errorf("refs after undelete: got %v, want %v", got, before)
	}
}

func TestListSkipsForeignRefs(t *testing.T) {
	t.Parallel()
	id := object.MustID(strings.Repeat("1", 40))
	there := map[string]object.ID{}
	for _, name := range []string{"a/100/afs/meta/a", "b/200/heads/x", "b/200/afs/meta/b", "c/200/heads/x",
		"d/then/heads/x", "e/100", "_f/100/heads/x"} {
		there[thin.TrashPrefix+name] = id
	}
	there["refs/heads/a/100/x"] = id
	var got []string
	for _, d := range trash.List(there) {
		got = append(got, d.Session+" "+d.At.UTC().Format(time.TimeOnly))
	}
	if want := []string{"b 00:03:20", "c 00:03:20", "a 00:01:40"}; !slices.Equal(got, want) {
		t.Errorf("deleted sessions: got %q, want %q", got, want)
	}
}

func TestExpire(t *testing.T) {
	p := newPlace(t)
	p.set(map[string]int{
		trash.Ref("old", session.MetaRef("old"), deletion):                  0,
		trash.Ref("new", session.MetaRef("new"), deletion.Add(time.Second)): 1,
		trash.Ref("old", session.MetaRef("old"), deletion.Add(time.Hour)):   1,
		session.MetaRef("old"): 0, thin.TrashPrefix + "old/then/heads/main": 0,
	})
	want := slices.DeleteFunc(p.names(true), func(name string) bool { return name == "old/1750000000/afs/meta/old" })
	if err := trash.Expire(t.Context(), p.remote, p.there(), deletion.Add(trash.Keep+time.Second)); err != nil {
		t.Fatal(err)
	}
	p.want("trash after the time for which sessions are kept", true, want...)
	p.want("other refs", false, session.MetaRef("old"))
}

// TestTombstone checks that emptying the trash leaves one tombstone of a session, which is no deleted session, and that
// tombstones end.
func TestTombstone(t *testing.T) {
	p := newPlace(t)
	later := deletion.Add(time.Hour)
	p.set(ofSession)
	p.mustDelete(deletion)
	p.set(ofSession)
	p.mustDelete(later)
	now := later.Add(trash.Keep + time.Second)
	stone := trash.Prefix("s", later) + thin.Tombstone
	for range 2 { // the second call changes nothing
		if err := trash.Expire(t.Context(), p.remote, p.there(), now); err != nil {
			t.Fatal(err)
		}
		p.want("trash after it was emptied", true, strings.TrimPrefix(stone, thin.TrashPrefix))
	}
	if got := gittest.Must(t, p.dir, "cat-file", "blob", stone); got != "" {
		t.Errorf("contents of the tombstone: got %q, want none", got)
	}
	if list := trash.List(p.there()); len(list) != 0 {
		t.Errorf("deleted sessions: got %+v, want none", list)
	}
	if _, _, err := trash.Undelete(t.Context(), p.remote, "s", p.there(), trash.Deletion{}); !errors.Is(err, trash.ErrNone) {
		t.Errorf("undelete a session of which only a tombstone exists: got %v, want ErrNone", err)
	}
	p.set(ofSession)
	p.mustDelete(now)
	if err := trash.Expire(t.Context(), p.remote, p.there(), now); err != nil {
		t.Fatal(err)
	}
	if got := p.there()[stone]; !got.IsZero() {
		t.Error("the tombstone of an earlier deletion stays beside a later one")
	}
	for _, at := range []time.Time{now.Add(trash.Keep + time.Second), now.Add(trash.Remember + time.Second)} {
		if err := trash.Expire(t.Context(), p.remote, p.there(), at); err != nil {
			t.Fatal(err)
		}
	}
	p.want("trash after the tombstone has ended", true)
}
