package writeback

import (
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// Adopt notes that a session remote has refs as they have just been brought from there into the Repo, for the Queue that
// begins later: what becomes of them here until then is not taken for somebody else's move. Of those that are asked for,
// it may have made what they are to be: they were sent, and there was no answer. Remote is its URL without secrets.
func Adopt(repo *session.Repo, remote string, refs, asked map[string]object.ID) error {
	l := newLedger(remote)
	for name, id := range refs {
		l.refs[name] = acquaint{acked: id}
	}
	for name, id := range asked {
		l.refs[name] = acquaint{acked: refs[name], sent: id, sending: true}
	}
	return l.write(repo)
}

// Within says whether what a ref names is what another names, or in its history, as far as that is on this host.
func Within(repo *session.Repo, tip, id object.ID) bool {
	in, err := contains(repo, tip, id)
	return err == nil && in
}
