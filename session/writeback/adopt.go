package writeback

import (
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// Adopt writes the ledger for a Repo whose refs were fetched from a session remote. It is called before the Queue of the Repo is
// created, so that the Queue treats refs that the session moves after the fetch as changes of this session. refs are the fetched
// values of the refs, and asked are values in pushes that were not answered; both are by the names in the Repo. remote is the URL of
// the session remote without secrets.
func Adopt(repo *session.Repo, remote string, layout session.Layout, refs, asked map[string]object.ID) error {
	l := newLedger(remote)
	// If the session does not own the names without a prefix, l.plain stays plainUnknown, and the first round decides.
	if layout.Own {
		l.plain = plainOwn
	}
	for name, id := range refs {
		l.refs[layout.There(name)] = acquaint{acked: id}
	}
	for name, id := range asked {
		l.refs[layout.There(name)] = acquaint{acked: refs[name], sent: []object.ID{id}}
	}
	return l.write(repo)
}

// Within reports whether the commit id is tip or an ancestor of tip, as far as the history of tip is on this host.
func Within(repo *session.Repo, tip, id object.ID) bool {
	in, err := contains(repo, tip, id)
	return err == nil && in
}
