// Package trash deletes sessions from a session remote, and restores deleted sessions.
//
// A deleted session can be restored for the duration Keep. Until then, each of its refs exists under another name:
//
//	refs/afs/trash/SESSION/UNIXTIME/heads/main     was refs/heads/main
//
// UNIXTIME is the time of the deletion. Git keeps all objects that are reachable from refs, so no object has to be
// fetched or pushed to delete a session, to list deleted sessions, or to restore one.
//
// Delete creates all refs in the trash before it deletes the first ref of the session. Undelete creates all refs of the
// session before it deletes the first ref in the trash. If a call is interrupted, refs may exist under both names;
// repeating the call completes the operation. All refs are updated by compare-and-swap.
//
// When the trash is emptied, a tombstone stays of each session: a ref to the empty blob, from which another host with a
// copy of the session finds that it was deleted, and not lost. So the host does not create it again.
//
//	refs/afs/trash/SESSION/UNIXTIME/deleted
package trash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Keep is the time for which a deleted session can be restored. Remember is the time for which its tombstone stays.
const (
	Keep     = 7 * 24 * time.Hour
	Remember = 90 * 24 * time.Hour
)

var (
	// ErrNone means that no deleted session has the requested name.
	ErrNone = errors.New("no such deleted session")
	// ErrThere means that a deleted session cannot be restored, because the session remote has a new session of the
	// same name.
	ErrThere = errors.New("another session has this name")
)

// Deleted is a session in the trash, which can be restored.
type Deleted struct {
	Session string
	At      time.Time            // time of the deletion
	refs    map[string]object.ID // refs of the session, by the names that they had before the deletion
}

// Refs requests all refs of a session remote. It returns their object ids by name, and the ref to which HEAD points
// there, "" if HEAD points to none.
func Refs(ctx context.Context, remote *transport.Remote) (there map[string]object.ID, head string, err error) {
	refs, err := remote.Refs(ctx, nil)
	if err != nil {
		return nil, "", err
	}
	there = map[string]object.ID{}
	for _, ref := range refs.List {
		if ref.Name == "HEAD" {
			head = ref.Target
			continue
		}
		there[ref.Name] = ref.ID
	}
	return there, head, nil
}

// Of returns the refs of a session remote that belong to the session with the layout l, with their object ids. These
// are the refs whose names contain the name of the session, and the branches and tags that only this session pushes. If
// the session owns the plain names, they are also the branches, tags and notes that still have the object that it
// pushed last. Branches that others may push too, such as those of a session with as-is on a shared repository, belong
// to that repository: they may be older than the session, and work of others may be based on them. owner is the object
// to which session.OwnerRef points if this session owns the plain names. The map there contains all refs of the session
// remote.
func Of(l session.Layout, owner object.ID, there map[string]object.ID) map[string]object.ID {
	mine := map[string]object.ID{}
	for name, id := range there {
		rest, ours := strings.CutPrefix(name, session.Prefix)
		kind, rest, _ := strings.Cut(rest, "/")
		first, _, _ := strings.Cut(rest, "/")
		switch {
		// Cache entries and read profiles belong to no session, not even to one called "entries", or to one called like a
		// profile.
		case strings.HasPrefix(name, session.EntryPrefix), strings.HasPrefix(name, session.ProfilePrefix):
		case name == thin.ReadableRef(l.Session):
			if hadContainer(l.Session, there) {
				mine[name] = id
			}
		case name == session.OwnerRef:
			if id == owner {
				mine[name] = id
			}
		case ours:
			if first == l.Session && kind != "trash" {
				mine[name] = id
			}
		default:
			ref, ok := l.Here(name)
			pushed := there[session.CarriedRef(l.Session, ref)] == id || there[session.CarriedRef(l.Session, name)] == id
			if ok && (l.Own && pushed || !l.Own && l.Exclusive(name)) {
				mine[name] = id
			}
		}
	}
	return mine
}

// hadContainer reports whether the session name has a container, or had one before it was deleted. The map there
// contains all refs of the session remote.
func hadContainer(name string, there map[string]object.ID) bool {
	container := thin.Ref(name)
	if !there[container].IsZero() {
		return true
	}
	for ref := range there {
		rest, ok := strings.CutPrefix(ref, thin.TrashPrefix+name+"/")
		if _, rest, _ = strings.Cut(rest, "/"); ok && "refs/"+rest == container {
			return true
		}
	}
	return false
}

// Prefix returns the prefix of the trash refs of the session called name if it was deleted at the time at.
func Prefix(name string, at time.Time) string {
	return thin.TrashPrefix + name + "/" + strconv.FormatInt(at.Unix(), 10) + "/"
}

// Ref returns the name in the trash for the ref of the session name, which is deleted at the time at.
func Ref(name, ref string, at time.Time) string {
	return Prefix(name, at) + strings.TrimPrefix(ref, "refs/")
}

// EmptyBlob returns the object to which tombstones refer.
func EmptyBlob(f object.Format) (odb.Outgoing, error) { return session.Outgoing(f, object.Blob, nil) }

// formatOf returns the object format of a session remote, of which there has refs.
func formatOf(there map[string]object.ID) (f object.Format) {
	for _, id := range there {
		f = id.Format()
	}
	return f
}

// tombstone returns the name of the deleted session whose tombstone ref is, and the time of the deletion.
func tombstone(ref string) (name string, at time.Time, ok bool) {
	rest, ok := strings.CutPrefix(ref, thin.TrashPrefix)
	name, rest, _ = strings.Cut(rest, "/")
	stamp, last, _ := strings.Cut(rest, "/")
	unix, err := strconv.ParseInt(stamp, 10, 64)
	return name, time.Unix(unix, 0), ok && err == nil && last == thin.Tombstone
}

// deleteTries is the maximum number of attempts to delete a session whose refs change at the same time.
const deleteTries = 6

// pauses are the pauses between the attempts that deleteTries limits.
var pauses = backoff.Backoff{First: 100 * time.Millisecond, Longest: 3 * time.Second}

// Delete moves the refs of the session called name to the trash. The map there contains all refs of the session remote,
// and head is the branch to which HEAD points there. The function of returns the refs in a map that belong to the
// session. Delete returns the refs of the session, and the names of those that remain: head, and the refs that the
// session remote refuses to delete. Delete does not try to delete head, because git refuses this and some forges then
// also refuse all other deletions. On a forge, head is the branch that was pushed first.
//
// A push whose client has ended may still be in progress on the server. If a ref is changed or locked, Delete lists the
// refs again and tries again. Each attempt copies all refs of the session to the trash, including those that an earlier
// attempt or an interrupted call has already removed, because Undelete restores the refs of one deletion.
func Delete(ctx context.Context, remote *transport.Remote, name string, there map[string]object.ID, head string,
	of func(there map[string]object.ID) map[string]object.ID,
	now time.Time) (mine map[string]object.ID, kept []string, err error) {
	mine = of(there)
	refs := maps.Clone(mine)
	gone, earlier := unfinishedDeletion(name, there, mine)
	maps.Copy(mine, gone)
	for try := range deleteTries {
		// Each attempt has names of its own in the trash, because a server that was killed may have left locks of the names.
		at := now.Add(time.Duration(try) * time.Second)
		kept, err = deleteOnce(ctx, remote, name, refs, gone, head, at)
		var refused *transport.Rejected
		if !errors.As(err, &refused) || refused.Kind != transport.RejectMoved && refused.Kind != transport.RejectAtomic ||
			try == deleteTries-1 {
			break
		}
		if !pauses.Wait(ctx, try+1) {
			return mine, kept, err
		}
		if there, head, err = Refs(ctx, remote); err != nil {
			break
		}
		refs = of(there)
		for ref := range mine { // of may need a ref that is deleted already
			if id := there[ref]; !id.IsZero() {
				refs[ref] = id
			}
		}
		maps.Copy(mine, refs)
		for ref := range mine {
			id, copied := there[Ref(name, ref, at)]
			if copied {
				earlier[Ref(name, ref, at)] = id
			}
			switch {
			case !there[ref].IsZero():
				delete(gone, ref)
			case copied:
				gone[ref] = id
			}
		}
	}
	if err == nil {
		// If this fails, for example because of a lock, Expire removes the copies later.
		var removals []transport.RefUpdate
		for ref, id := range earlier {
			removals = append(removals, transport.RefUpdate{Name: ref, Old: id})
		}
		_, _ = move(ctx, remote, removals, false)
	}
	return mine, kept, err
}

// begun returns what an interrupted deletion of the session called name has left: the refs that it has removed, and its
// copies in the trash. The map mine holds the refs of the session that are still there. Both results are empty if the
// last deletion of this name was of another session: one of its own refs then had another value.
func unfinishedDeletion(name string, there, mine map[string]object.ID) (gone, copies map[string]object.ID) {
	gone, copies = map[string]object.ID{}, map[string]object.ID{}
	i := slices.IndexFunc(List(there), func(d Deleted) bool { return d.Session == name })
	if i < 0 {
		return gone, copies
	}
	d := List(there)[i]
	same := false
	for ref, id := range mine {
		if strings.HasPrefix(ref, session.Prefix) && ref != session.OwnerRef {
			if d.refs[ref] != id {
				return gone, copies
			}
			same = true
		}
	}
	if !same {
		return gone, copies
	}
	for ref, id := range d.refs {
		if mine[ref].IsZero() {
			gone[ref] = id
		}
		copies[Ref(name, ref, d.At)] = id
	}
	return gone, copies
}

// deleteOnce makes one attempt to move refs, the refs of the session name, to the trash. It also copies the refs gone,
// which were removed before, to the trash. It returns the names of the refs that remain.
func deleteOnce(ctx context.Context, remote *transport.Remote, name string,
	refs, gone map[string]object.ID, head string,
	now time.Time) (kept []string, err error) {
	var copies, removals []transport.RefUpdate
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		copies = append(copies, transport.RefUpdate{Name: Ref(name, ref, now), New: refs[ref]})
		if ref == head {
			kept = append(kept, ref)
			continue
		}
		removals = append(removals, transport.RefUpdate{Name: ref, Old: refs[ref]})
	}
	again := make([]transport.RefUpdate, 0, len(gone))
	for ref, id := range gone {
		again = append(again, transport.RefUpdate{Name: Ref(name, ref, now), New: id})
	}
	// Create the copies first, so that no ref is lost if the process is killed before the removals.
	if _, err := move(ctx, remote, slices.Concat(copies, again), true); err != nil {
		return nil, fmt.Errorf("move session %s to the trash: %w", name, err)
	}
	// The function Of finds branches and tags by refs below session.Prefix. Remove these last, so that an interrupted
	// deletion can be repeated.
	slices.SortStableFunc(removals, func(a, b transport.RefUpdate) int {
		x, y := strings.HasPrefix(a.Name, session.Prefix), strings.HasPrefix(b.Name, session.Prefix)
		switch {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	})
	refusals, err := move(ctx, remote, removals, false)
	kept = append(kept, refusals...)
	if err != nil {
		err = fmt.Errorf("delete session %s: %w", name, err)
		var refused *transport.Rejected
		if errors.As(err, &refused) { // for example, because the policy of the repository protects the session
			err = errors.Join(err, undoCopies(ctx, remote, name, copies, refs))
		}
		return kept, err
	}
	return kept, nil
}

// keep removes the copies of refs that are still on the session remote, after it has refused to delete a session.
// Otherwise the session would be listed as deleted. copies are the updates that have made the copies of refs, in the
// order of their names.
func undoCopies(ctx context.Context, remote *transport.Remote, name string, copies []transport.RefUpdate,
	refs map[string]object.ID) error {
	there, _, err := Refs(ctx, remote)
	if err != nil {
		return err
	}
	var undo []transport.RefUpdate
	for i, ref := range slices.Sorted(maps.Keys(refs)) {
		if !there[ref].IsZero() {
			undo = append(undo, transport.RefUpdate{Name: copies[i].Name, Old: copies[i].New})
		}
	}
	if _, err := move(ctx, remote, undo, false); err != nil {
		return fmt.Errorf("remove session %s from the trash: %w", name, err)
	}
	return nil
}

// List returns the deleted sessions, the newest deletion first. The map there contains all refs of a session remote.
func List(there map[string]object.ID) []Deleted {
	found := map[string]*Deleted{}
	for ref, id := range there {
		rest, ok := strings.CutPrefix(ref, thin.TrashPrefix)
		name, rest, ok1 := strings.Cut(rest, "/")
		stamp, rest, ok2 := strings.Cut(rest, "/")
		at, err := strconv.ParseInt(stamp, 10, 64)
		if !ok || !ok1 || !ok2 || err != nil || rest == "" || rest == thin.Tombstone || session.ValidName(name) != nil {
			continue
		}
		key := name + "/" + stamp
		if found[key] == nil {
			found[key] = &Deleted{Session: name, At: time.Unix(at, 0), refs: map[string]object.ID{}}
		}
		found[key].refs["refs/"+rest] = id
	}
	var all []Deleted
	for _, d := range found {
		all = append(all, *d)
	}
	slices.SortFunc(all, func(a, b Deleted) int {
		if c := b.At.Compare(a.At); c != 0 {
			return c
		}
		return strings.Compare(a.Session, b.Session)
	})
	return all
}

// Undelete restores the session name, of which when states the deletion. restored is the number of refs that it has
// created. taken lists refs that were created again after the deletion, with other objects: Undelete does not change
// these, and keeps those of the deleted session in the trash. Approvals are not restored: servers accept their records
// only from the users who made them, and older records could lack a denial. Undelete returns ErrNone if there is no
// such deleted session, and ErrThere if a new session has the name.
func Undelete(ctx context.Context, remote *transport.Remote, name string,
	there map[string]object.ID, when Deletion) (restored int, taken []string, err error) {
	d, ok := when.find(name, List(there))
	if !ok {
		return 0, nil, fmt.Errorf("restore session %s: %w", name, ErrNone)
	}
	meta := session.MetaRef(name)
	// A new session with the same name may exist. The refs of the two sessions must not be mixed.
	if now := there[meta]; !now.IsZero() && now != d.refs[meta] {
		return 0, nil, fmt.Errorf("restore session %s: %w", name, ErrThere)
	}
	from := Prefix(name, d.At)
	var back, removals []transport.RefUpdate
	for _, ref := range slices.Sorted(maps.Keys(d.refs)) {
		id := d.refs[ref]
		switch now := there[ref]; {
		case ref == approval.Ref(name):
		case now.IsZero():
			back = append(back, transport.RefUpdate{Name: ref, New: id})
		case now != id:
			taken = append(taken, ref)
			continue
		}
		removals = append(removals, transport.RefUpdate{Name: from + strings.TrimPrefix(ref, "refs/"), Old: id})
	}
	if _, err := move(ctx, remote, back, true); err != nil {
		return 0, nil, fmt.Errorf("restore session %s: %w", name, err)
	}
	if _, err := move(ctx, remote, removals, false); err != nil {
		return len(back), taken, fmt.Errorf("remove session %s from the trash: %w", name, err)
	}
	return len(back), taken, nil
}

// Expire removes the sessions from the trash that were deleted longer ago than Keep, and leaves tombstones of them. It
// also removes tombstones that are older than Remember, or older than another deletion of the same name.
func Expire(ctx context.Context, remote *transport.Remote, there map[string]object.ID, now time.Time) error {
	var updates []transport.RefUpdate
	last := map[string]time.Time{} // time of the last deletion, by session
	var objects []odb.Outgoing
	for _, d := range List(there) { // the newest deletion first
		newest := last[d.Session].IsZero()
		if newest {
			last[d.Session] = d.At
		}
		if now.Sub(d.At) <= Keep {
			continue
		}
		from := Prefix(d.Session, d.At)
		for _, ref := range slices.Sorted(maps.Keys(d.refs)) {
			updates = append(updates, transport.RefUpdate{Name: from + strings.TrimPrefix(ref, "refs/"), Old: d.refs[ref]})
		}
		stays := there[from+thin.Tombstone]
		// A later deletion, or a new session of this name, shows what the tombstone would.
		if !newest || !stays.IsZero() || now.Sub(d.At) > Remember || !there[session.MetaRef(d.Session)].IsZero() {
			continue
		}
		empty, err := EmptyBlob(formatOf(d.refs))
		if err != nil {
			return err
		}
		objects = []odb.Outgoing{empty}
		updates = append(updates, transport.RefUpdate{Name: from + thin.Tombstone, New: empty.ID})
	}
	for ref, id := range there {
		name, at, ok := tombstone(ref)
		if ok && (now.Sub(at) > Remember || at.Before(last[name])) {
			updates = append(updates, transport.RefUpdate{Name: ref, Old: id})
		}
	}
	if _, err := send(ctx, remote, updates, objects, false); err != nil {
		return fmt.Errorf("empty the trash: %w", err)
	}
	return nil
}

// move updates refs of a session remote, which has all objects. The other parameters and the results are those of send.
func move(ctx context.Context, remote *transport.Remote, updates []transport.RefUpdate,
	all bool) (kept []string, err error) {
	return send(ctx, remote, updates, nil, all)
}

// send updates refs of a session remote, which may lack objects. If all is set and the server supports atomic pushes,
// either all updates are made or none. kept lists the refs that the server refuses to delete; any other refused update
// is returned as an error.
func send(ctx context.Context, remote *transport.Remote, updates []transport.RefUpdate, objects []odb.Outgoing,
	all bool) (kept []string, err error) {
	if len(updates) == 0 {
		return nil, nil
	}
	push, err := remote.OpenPush(ctx, []string{session.Prefix})
	if err != nil {
		return nil, err
	}
	defer push.Close()
	req := transport.PushRequest{Updates: updates, Atomic: all && push.Atomic}
	if len(objects) > 0 {
		req.Pack = func(ctx context.Context, w io.Writer) error { return odb.WritePack(ctx, w, push.Format, objects) }
	}
	results, err := push.Send(ctx, req)
	if err != nil {
		return nil, err
	}
	for i, result := range results {
		var refused *transport.Rejected
		switch {
		case result == nil:
		case errors.As(result, &refused) && refused.Kind == transport.RejectDeletion:
			kept = append(kept, updates[i].Name)
		case errors.As(result, &refused) && refused.Kind == transport.RejectAtomic:
			// the result of another update has the cause
			err = cmp.Or(err, result)
		default:
			return kept, result
		}
	}
	return kept, err
}
