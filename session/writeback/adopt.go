package writeback

import (
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// Adopt writes a ledger for a Repo whose refs were just fetched from a session remote, before its Queue is created. The
// Queue then treats refs that the session moves meanwhile as this session's own changes. refs are the fetched values;
// asked are values that were pushed without an answer. Both use the names in the Repo. remote is the URL of the session
// remote without secrets.
func Adopt(repo *session.Repo, remote string, layout session.Layout, refs, asked map[string]object.ID) error {
	l := newLedger(remote)
	// plainUnknown stays if the session does not own the plain names: the first round decides.
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

// Within reports whether id is tip or in its history, as far as that is on this host.
func Within(repo *session.Repo, tip, id object.ID) bool {
	in, err := contains(repo, tip, id)
	return err == nil && in
}
