package writeback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// maxNames is the maximum number of the user's refs that are requested by name. If there are more, they are requested
// by prefix.
const maxNames = 500

// errNoMeta means that the Repo lacks the session's metadata ref although it was pushed before, so the Repo is damaged.
var errNoMeta = errors.New("refs of the session are missing on this host")

// collect returns the object ids of the refs to push, by their names on the session remote. If a power failure has left
// refs without a value, it first repairs them from the ledger, because otherwise a comparison would treat them as
// removed.
func collect(ctx context.Context, l *ledger, repo *session.Repo) (map[string]object.ID, error) {
	local, err := localRefs(l, repo)
	if errors.Is(err, session.ErrBroken) {
		if _, err = repo.MendRefs(ctx, l.known); err == nil {
			local, err = localRefs(l, repo)
		}
	}
	return local, err
}

// localRefs returns the object ids of the refs to push, by their names on the session remote. If refs are broken, it
// leaves them out and returns an error that wraps session.ErrBroken, so that the caller does not treat them as removed.
func localRefs(l *ledger, repo *session.Repo) (map[string]object.ID, error) {
	refs, broken, err := repo.AllRefs("refs/")
	if err != nil {
		return nil, err
	}
	if len(broken) > 0 {
		err = fmt.Errorf("read refs %s of the session: %w", strings.Join(broken, ", "), session.ErrBroken)
	}
	return sentOf(refs, l.layout()), err
}

// sentOf returns the object ids of those of the refs that this session pushes, by their names on the session remote.
// The parameter refs contains all refs of the Repo.
func sentOf(refs []packedrefs.Ref, layout session.Layout) map[string]object.ID {
	sent := map[string]object.ID{}
	for _, r := range refs {
		if there := layout.There(r.Name); session.IsUsers(r.Name) || isSent(there, layout) {
			sent[there] = r.ID
		}
	}
	return sent
}

// isSent reports whether the session pushes a ref. The parameter there is the name of the ref on the session remote.
func isSent(there string, layout session.Layout) bool {
	name := layout.Session
	_, users := layout.Here(there)
	return users || isFirst(there, name) || isLane(there, name) ||
		strings.HasPrefix(there, session.PinPrefix(name)) || strings.HasPrefix(there, session.KeptPrefix(name))
}

// isFirst reports whether a ref of the session name can be pushed before the base commits, because no base commit is
// reachable from it.
func isFirst(ref, name string) bool {
	return ref == session.MetaRef(name) || ref == session.TranscriptRef(name) || ref == session.FactsRef(name) ||
		ref == session.AnnotationsRef(name)
}

// isLane reports whether ref is the ref of a segment of the session name.
func isLane(ref, name string) bool { return strings.HasPrefix(ref, session.LanePrefix(name)) }

// isBranch reports whether ref is a branch.
func isBranch(ref string) bool { return strings.HasPrefix(ref, "refs/heads/") }

// isNotes reports whether ref is a notes ref.
func isNotes(ref string) bool { return strings.HasPrefix(ref, notesPrefix) }

// notesPrefix is the prefix of all notes refs.
const notesPrefix = "refs/notes/"

// requested returns the names and prefixes of the refs that a round requests from the session remote; nil stands for
// all refs. local contains the refs of the Repo, and blocked the refs that could not be created. isOrigin states that
// the session remote is the mounted remote.
func requested(l *ledger, local map[string]object.ID, blocked map[string]bool, isOrigin bool) []string {
	name, layout := l.meta.Session, l.layout()
	// To decide whether the session may use branch and tag names without a prefix (session.OwnerRef), the queue has to
	// know all refs of the session remote.
	if l.plain == plainUnknown && !isOrigin {
		return nil
	}
	names := []string{
		session.MetaRef(name), session.LanePrefix(name), session.PinPrefix(name), session.KeptPrefix(name),
		session.TranscriptRef(name), session.FactsRef(name), session.AnnotationsRef(name), session.CarriedPrefix(name),
		session.DivergedPrefix, basePrefix(name), thin.TrashPrefix + name + "/",
	}
	users := map[string]bool{}
	for ref := range local {
		_, users[ref] = layout.Here(ref)
	}
	for ref := range l.refs {
		_, users[ref] = layout.Here(ref)
	}
	maps.DeleteFunc(users, func(_ string, is bool) bool { return !is })
	for ref := range blocked {
		names = append(names, above(ref)...)
	}
	// A request with many names would be too long, so request all refs below certain prefixes instead.
	if len(users) > maxNames {
		return append(names, layout.Prefixes()...)
	}
	return slices.AppendSeq(names, maps.Keys(users))
}
