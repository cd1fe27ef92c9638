package writeback

import (
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// Adopt records that a session remote has refs as they have just been brought from there into the Repo, for the Queue that
// begins later: what becomes of them here until then is not taken for somebody else's move. Those in asked were sent, and
// were not answered. Both are by their names in the Repo. Remote is the URL of the session remote without secrets.
func Adopt(repo *session.Repo, remote string, layout session.Layout, refs, asked map[string]object.ID) error {
	l := newLedger(remote)
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

// Within says whether what a ref names is what another names, or in its history, as far as that is on this host.
func Within(repo *session.Repo, tip, id object.ID) bool {
	in, err := contains(repo, tip, id)
	return err == nil && in
}
