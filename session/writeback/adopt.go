package writeback

import (
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// Adopt writes the ledger, the file that records the values of the refs on the session remote, for a Repo whose refs were fetched
// from that remote. It is called before the Queue of the Repo is created, so that the Queue treats refs that the session moves after
// the fetch as changes of this session. The map refs holds the fetched values, and the map asked holds the values of pushes that
// the server has not answered; the keys of both maps are the names of the refs in the Repo. The parameter remote is the URL of
// the session remote without secrets.
func Adopt(repo *session.Repo, remote string, layout session.Layout, refs, asked map[string]object.ID) error {
	l := newLedger(remote)
	// If the session does not own the branch and tag names without a prefix, l.plain stays plainUnknown, and the first round
	// decides whether the session may use these names.
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
